#include "ctl/mkfs_device.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

namespace etcfs::ctl {
namespace {

struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  int fd;
};
struct FreeProbe {
  void operator()(blkid_struct_probe* probe) const { ::blkid_free_probe(probe); }
};
using Probe = std::unique_ptr<blkid_struct_probe, FreeProbe>;

Reason fail(std::string& why, const std::string& path, std::string_view what) {
  const int error = errno;
  why = fmt::format("{}: {}: {}", path, what, std::strerror(error));
  return error == ENOENT ? Reason::kNotFound : Reason::kIo;
}

Result<struct stat> stat_device(const std::string& path, std::string& why) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return fail(why, path, "cannot open the device");
  if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode)) {
    why = fmt::format(
        "{}: not a block device (a regular file is taken too, as an image for one node)", path);
    return Reason::kInvalid;
  }
  return st;
}

std::string number_of(dev_t device) { return fmt::format("{}:{}", major(device), minor(device)); }

// The device itself, its partitions, and whatever holds any of them (device mapper, RAID).
void add_stacked(const std::filesystem::path& dir, std::set<std::string>& numbers) {
  std::error_code ignored;
  std::ifstream in(dir / "dev");
  std::string number;
  if (!std::getline(in, number) || !numbers.insert(number).second) return;
  for (const auto& item : std::filesystem::directory_iterator(dir, ignored))
    if (std::filesystem::exists(item.path() / "partition", ignored))
      add_stacked(item.path(), numbers);
  for (const auto& item : std::filesystem::directory_iterator(dir / "holders", ignored))
    add_stacked(item.path(), numbers);
}

Result<Probe> open_probe(int fd, const std::string& path, std::string& why) {
  Probe probe(::blkid_new_probe());
  if (!probe || ::blkid_probe_set_device(probe.get(), fd, 0, 0) != 0)
    return fail(why, path, "cannot be probed");
  ::blkid_probe_enable_superblocks(probe.get(), 1);
  ::blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE |
                                                       BLKID_SUBLKS_MAGIC | BLKID_SUBLKS_BADCSUM);
  ::blkid_probe_enable_partitions(probe.get(), 1);
  ::blkid_probe_set_partitions_flags(probe.get(), BLKID_PARTS_MAGIC | BLKID_PARTS_FORCE_GPT);
  return probe;
}

}  // namespace

Result<std::uint64_t> device_bytes(const std::string& path, std::string& why) {
  ETCFS_TRY(const struct stat st, stat_device(path, why));
  if (S_ISREG(st.st_mode)) return static_cast<std::uint64_t>(st.st_size);
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t bytes = 0;
  if (file.fd < 0) return fail(why, path, "cannot open the device");
  if (::ioctl(file.fd, BLKGETSIZE64, &bytes) != 0) return fail(why, path, "cannot tell its size");
  return bytes;
}

Result<std::string> find_mount(const std::string& path, std::string& why) {
  ETCFS_TRY(const struct stat st, stat_device(path, why));
  if (!S_ISBLK(st.st_mode)) return std::string();
  std::set<std::string> numbers;
  add_stacked("/sys/dev/block/" + number_of(st.st_rdev), numbers);
  numbers.insert(number_of(st.st_rdev));
  std::ifstream mounts("/proc/self/mountinfo");
  if (!mounts) return fail(why, "/proc/self/mountinfo", "cannot tell what is mounted");
  for (std::string line; std::getline(mounts, line);) {
    // id parent major:minor root mountpoint options [fields] - type source options. The number of
    // some filesystems is not their device's, so the source counts as well.
    std::istringstream words(line);
    std::string id, parent, number, root, point, word, source;
    words >> id >> parent >> number >> root >> point;
    while (words >> word && word != "-") {
    }
    words >> word >> source;
    struct stat other {};
    const bool same = source.starts_with('/') && ::stat(source.c_str(), &other) == 0 &&
                      S_ISBLK(other.st_mode) && numbers.contains(number_of(other.st_rdev));
    if (numbers.contains(number) || same) return point;
  }
  std::ifstream swaps("/proc/swaps");
  for (std::string line; std::getline(swaps, line);) {
    struct stat other {};
    const std::string source = line.substr(0, line.find_first_of(" \t"));
    if (source.starts_with('/') && ::stat(source.c_str(), &other) == 0 && S_ISBLK(other.st_mode) &&
        numbers.contains(number_of(other.st_rdev)))
      return std::string("swap");
  }
  return std::string();
}

Result<Signature> find_signature(const std::string& path, std::string& why) {
  ETCFS_CHECK(stat_device(path, why));
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return fail(why, path, "cannot open the device");
  Signature out;
  out.block0.assign(4096, '\0');
  const ssize_t n = ::pread(file.fd, out.block0.data(), out.block0.size(), 0);
  if (n < 0) return fail(why, path, "cannot be read");
  if (n < static_cast<ssize_t>(out.block0.size()))
    return out;  // smaller than a block: refused later
  if (out.block0.starts_with("EtcFS device")) {
    out.etcfs = true;
    out.what = "EtcFS filesystem";
    return out;
  }
  ETCFS_TRY(const Probe probe, open_probe(file.fd, path, why));
  const int found = ::blkid_do_safeprobe(probe.get());
  if (found == 1) return out;
  if (found == -2) {
    out.what = "several signatures at once";
    return out;
  }
  if (found != 0) {
    errno = EIO;
    return fail(why, path, "cannot be probed for what is on it");
  }
  const char* value = nullptr;
  if (::blkid_probe_lookup_value(probe.get(), "TYPE", &value, nullptr) == 0)
    out.what = fmt::format("{} filesystem or volume", value);
  else if (::blkid_probe_lookup_value(probe.get(), "PTTYPE", &value, nullptr) == 0)
    out.what = fmt::format("{} partition table", value);
  else
    out.what = "a signature of unknown kind";
  return out;
}

Result<void> wipe_signatures(const std::string& path, std::string& why) {
  File file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.fd < 0) return fail(why, path, "cannot be opened for writing");
  ETCFS_TRY(const Probe probe, open_probe(file.fd, path, why));
  for (int i = 0; i < 1000 && ::blkid_do_probe(probe.get()) == 0; ++i)
    if (::blkid_do_wipe(probe.get(), 0) != 0) return fail(why, path, "a signature cannot be wiped");
  if (::fsync(file.fd) != 0) return fail(why, path, "cannot be written");
  return {};
}

}  // namespace etcfs::ctl

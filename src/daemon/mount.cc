#include "daemon/mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "fuse/thread_pool.h"

namespace etcfs::daemon {
namespace {

constexpr const char* kType = "fuse.etcfs";

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string unescape(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string describe_mount_error(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "mounting is not permitted; run it as root";
    case ENODEV:
      return "this kernel has no FUSE; try modprobe fuse";
    default:
      return std::string("mount failed: ") + std::strerror(error);
  }
}

// On a thread of its own.
bool take_away(const std::string& mountpoint, const std::string& device, bool force) {
  if (mounted_device(mountpoint) != device) return true;
  if (!force) {
    if (::umount2(mountpoint.c_str(), UMOUNT_NOFOLLOW) == 0) return true;
    if (errno != EBUSY) {
      ETCFS_LOG_WARN("umount failed, trying lazily", log::field("mountpoint", mountpoint),
                     log::field("error", std::strerror(errno)));
    }
  }
  const int root = force ? -1 : ::open(mountpoint.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (::umount2(mountpoint.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
    ETCFS_LOG_WARN("lazy umount failed", log::field("mountpoint", mountpoint),
                   log::field("error", std::strerror(errno)));
  }
  if (root >= 0) {
    ::syncfs(root);
    ::close(root);
  }
  return false;
}

}  // namespace

Resolved resolve_mountpoint(const std::string& path) {
  char absolute[PATH_MAX];
  if (!::realpath(path.c_str(), absolute)) {
    if (errno == ENOTCONN)
      return {{}, "mount point " + path + ": a dead mount is there; umount it first (umount -l)"};
    return {{}, "mount point " + path + ": " + std::strerror(errno)};
  }
  struct stat st {};
  if (::stat(absolute, &st) != 0) return {{}, "mount point " + path + ": " + std::strerror(errno)};
  if (!S_ISDIR(st.st_mode)) return {{}, "mount point " + path + " is not a directory"};
  return {absolute, {}};
}

Mounted mount_fuse(const std::string& mountpoint, const std::string& source, unsigned long flags) {
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
      return {-1, "no /dev/fuse; try modprobe fuse"};
    return {-1, std::string("cannot open /dev/fuse: ") + std::strerror(errno)};
  }
  const std::string data = "fd=" + std::to_string(fd) +
                           ",rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other";
  if (::mount(source.c_str(), mountpoint.c_str(), kType, flags, data.c_str()) != 0) {
    std::string why = describe_mount_error(errno);
    ::close(fd);
    return {-1, std::move(why)};
  }
  return {fd, {}};
}

std::string mounted_device(const std::string& mountpoint) {
  std::ifstream table("/proc/self/mountinfo");
  std::string found, line;
  while (std::getline(table, line)) {  // the topmost of several comes last
    std::istringstream words(line);
    std::string id, parent, device, root, point, word;
    words >> id >> parent >> device >> root >> point;
    if (unescape(point) != mountpoint) continue;
    while (words >> word && word != "-") {
    }
    words >> word;
    found = word == kType ? device : std::string{};
  }
  return found;
}

void set_read_ahead(const std::string& device, unsigned kib) {
  if (device.empty()) return;
  std::ofstream file("/sys/class/bdi/" + device + "/read_ahead_kb");
  file << kib << std::flush;
  if (!file) ETCFS_LOG_INFO("read-ahead stays at the kernel's 128 KiB", log::field("bdi", device));
}

bool unmount(rt::Runtime& runtime, const std::string& mountpoint, const std::string& device,
             bool force) {
  auto done = std::make_shared<rt::Future<bool>>();
  fuse::ThreadPool thread("unmount", 1);
  thread.submit([&runtime, mountpoint, device, force, done] {
    const bool clean = take_away(mountpoint, device, force);
    runtime.post([done, clean] { done->set(clean); });
  });
  return done->get();
}

}  // namespace etcfs::daemon

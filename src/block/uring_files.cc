#include "block/uring_files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>

#include "base/units.h"

namespace etcfs::block {

Reason reason_of(int err) {
  switch (err) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return Reason::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return Reason::kAccess;
    case EBUSY:
    case ETXTBSY:
      return Reason::kBusy;
    case EINVAL:
    case EOPNOTSUPP:
    case ENOSYS:
      return Reason::kNotSupported;
    case ENOMEM:
      return Reason::kNoMemory;
    default:
      return Reason::kIo;
  }
}

Result<std::uint64_t> load_size(int fd, bool block_device) {
  if (block_device) {
    std::uint64_t bytes = 0;
    if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0) return reason_of(errno);
    return bytes & ~(kBlockBytes - 1);
  }
  struct stat st {};
  if (::fstat(fd, &st) != 0) return reason_of(errno);
  return static_cast<std::uint64_t>(st.st_size) & ~(kBlockBytes - 1);
}

namespace {

// What cannot be found out counts as volatile: a flush too many is only slow.
bool load_volatile_cache(dev_t rdev) {
  const std::string base =
      "/sys/dev/block/" + std::to_string(major(rdev)) + ":" + std::to_string(minor(rdev));
  for (const char* queue : {"/queue/write_cache", "/../queue/write_cache"}) {  // disk, partition
    std::ifstream in(base + queue);
    std::string line;
    if (in && std::getline(in, line)) return line != "write through";
  }
  return true;
}

}  // namespace

Result<DeviceFile> open_device_file(const std::string& path, bool allow_file, bool read_only,
                                    bool exclusive) {
  const int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_DIRECT;
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return reason_of(errno);
  const bool block_device = S_ISBLK(st.st_mode);
  if (!block_device && !(S_ISREG(st.st_mode) && allow_file)) return Reason::kInvalid;
  Fd fd(::open(path.c_str(), flags | (exclusive && block_device ? O_EXCL : 0)));
  if (fd.get() < 0) return reason_of(errno);
  struct stat opened {};
  if (::fstat(fd.get(), &opened) != 0) return reason_of(errno);
  if (opened.st_dev != st.st_dev || opened.st_ino != st.st_ino) return Reason::kBusy;
  if (block_device) {
    int sector = 0;
    if (::ioctl(fd.get(), BLKSSZGET, &sector) != 0) return reason_of(errno);
    if (sector <= 0 || kBlockBytes % static_cast<unsigned>(sector) != 0)
      return Reason::kNotSupported;
  }
  DeviceFile file;
  file.block_device = block_device;
  file.dev = opened.st_dev;
  file.ino = opened.st_ino;
  if (block_device) file.volatile_cache = load_volatile_cache(opened.st_rdev);
  ETCFS_TRY(file.size_bytes, load_size(fd.get(), block_device));
  if (file.size_bytes == 0) return Reason::kInvalid;
  file.fd = std::move(fd);
  return file;
}

}  // namespace etcfs::block

// Opening what UringDevice works on, and what the kernel knows about it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace etcfs::block {

Reason reason_of(int err);  // of an errno

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct DeviceFile {
  Fd fd;  // O_DIRECT
  bool block_device = false;
  bool volatile_cache = true;      // written data needs a flush to be stable
  std::uint64_t dev = 0, ino = 0;  // of the device node or file itself
  std::uint64_t size_bytes = 0;    // in whole blocks
};

// See UringDevice::open() for the reasons of failure.
Result<DeviceFile> open_device_file(const std::string& path, bool allow_file, bool read_only,
                                    bool exclusive);
Result<std::uint64_t> load_size(int fd, bool block_device);

}  // namespace etcfs::block

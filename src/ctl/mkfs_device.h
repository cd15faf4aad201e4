// The device as mkfs sees it before it belongs to anybody: size, who uses it, what is on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace etcfs::ctl {

// Size of a block device or regular file. On an error `why` is the plain line to print.
Result<std::uint64_t> device_bytes(const std::string& path, std::string& why);

// Where the device, or one of its partitions or what is stacked on it, is mounted; or swap.
// Empty: nowhere. An error when it cannot be told.
Result<std::string> find_mount(const std::string& path, std::string& why);

// What libblkid finds on the device ("ext4 filesystem", "gpt partition table"), or an EtcFS
// identity; empty: nothing. An error when the device cannot be read.
struct Signature {
  std::string what;
  bool etcfs = false;
  std::string block0;  // the first 4096 bytes
};
Result<Signature> find_signature(const std::string& path, std::string& why);

// Removes every signature that libblkid finds.
Result<void> wipe_signatures(const std::string& path, std::string& why);

}  // namespace etcfs::ctl

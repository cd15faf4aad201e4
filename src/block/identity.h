// The identity of a device (design section 6): mkfs writes a random token into block 0 and its hash
// into `super`; a mount compares, so that a wrong, renumbered, private or too small device is
// refused before anything is written to it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "block/device.h"
#include "meta/schema/records.h"

namespace etcfs::block {

std::string sha256(std::string_view bytes);  // 32 raw bytes

// Writes a fresh token, makes it stable, reads it back. Returns its hash. Blocks.
Result<std::string> write_identity(Device& device);

// kWrongDevice: no token, another one, or fewer blocks than `super` says. Blocks.
Result<void> verify_device(Device& device, const meta::Super& super);

}  // namespace etcfs::block

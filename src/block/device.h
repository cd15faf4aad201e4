// Device: the seam to the shared block device. Real: block/uring_device (the only user of
// liburing); simulated: sim/fakes/sim_device. Both pass tests/contract/device_contract.
//
// All offsets, lengths and buffer addresses are multiples of kBlockBytes. Methods block the calling
// fiber; many may be under way at once, and they complete in any order.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace etcfs::block {

// Memory aligned to kBlockBytes, its size a multiple of it. Contents are undefined after
// allocate().
class Buffer {
 public:
  Buffer() = default;
  static Buffer allocate(std::size_t bytes);  // from size-class free lists; never fails
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_, size_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // One request of any length (split inside as the device needs). Short transfers are errors: kIo.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) = 0;
  // Gather write of adjacent pieces to [offset, offset + total).
  virtual Result<void> write(std::uint64_t offset,
                             std::span<const std::span<const std::byte>> pieces) = 0;
  // Everything written before the call started is on stable storage when it returns.
  // Returns at once where the device has no volatile cache.
  virtual Result<void> flush() = 0;
  virtual Result<void> discard(std::uint64_t offset, std::uint64_t length) = 0;  // kNotSupported
  virtual std::uint64_t size_bytes() const = 0;  // as of the last poll_size()
  virtual Result<std::uint64_t> poll_size() = 0;
  virtual std::size_t requests_in_flight() const = 0;
};

}  // namespace etcfs::block

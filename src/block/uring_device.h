// UringDevice: a block device, or a regular file that only this node uses, through io_uring with
// O_DIRECT. Everything happens on the runtime's thread: requests are queued by the calling fiber,
// submitted at once when the device is idle and otherwise together once per turn of the loop, and
// completed from an eventfd that the runtime polls.
//
// flush() is what makes written data stable: nothing where the device has no volatile cache, else
// one fdatasync that concurrent callers share if it started after they called.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "block/device.h"

namespace etcfs::block {

class UringDevice final : public Device {
 public:
  struct Options {
    bool allow_file = false;  // a regular file is accepted: not shared with any other host
    bool read_only = false;
    bool exclusive = false;  // O_EXCL: a block device that is mounted or claimed is refused (kBusy)
  };
  // Belongs to Runtime::current(), which must not be simulated; destroyed on its thread, when no
  // request is under way. kNotFound, kAccess, kBusy; kInvalid: neither a block device nor an
  // allowed file, or empty; kNotSupported: no O_DIRECT in 4 KiB, or no io_uring. Does not block.
  static Result<std::unique_ptr<UringDevice>> open(const std::string& path, Options options);
  ~UringDevice() override;

  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override;
  Result<void> write(std::uint64_t offset,
                     std::span<const std::span<const std::byte>> pieces) override;
  Result<void> flush() override;
  Result<void> discard(std::uint64_t offset, std::uint64_t length) override;
  std::uint64_t size_bytes() const override;
  Result<std::uint64_t> poll_size() override;
  std::size_t requests_in_flight() const override;

  bool is_block_device() const;
  bool has_volatile_cache() const;
  // The device node (or file) itself: st_dev and st_ino.
  std::uint64_t node_dev() const;
  std::uint64_t node_ino() const;

  // Takes the lock of this node name on the device node; true: it is ours until this object is gone
  // and the last request in flight has ended. So whoever gets it knows that every process of that
  // name that used this device node has ended, and its writes with it (design section 9). false:
  // somebody has it.
  //
  // It is an open-file-description lock of one byte, exclusive, at offset 2^62 + (first 61 bits of
  // SHA-256 of the name): far beyond anything that is read or written. It belongs to the open file,
  // and so to every request on it, and is seen by all processes that open the same node on the same
  // host.
  Result<bool> try_lock_node(std::string_view node);

  struct Impl;

 private:
  explicit UringDevice(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::block

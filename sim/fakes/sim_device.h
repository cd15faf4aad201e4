// The simulated shared device: SimDisk is the medium that all nodes share, SimDevice a node's path
// to it.
//
// The medium has a volatile cache: what was written is seen by every read at once, but reaches
// stable storage only by a flush. At a power cut each 512-byte sector of what was not flushed shows
// any of the versions it had since the last flush, so unflushed writes may be lost, torn or out of
// order. A request is carried out by a fiber of the disk's own group, so it goes on when the node
// that sent it has been killed meanwhile: its writes arrive late (a zombie's), or not at all, or in
// part. Everything random comes from Runtime::random(), so a run is named by its seed. Works in a
// runtime that is not simulated as well.
//
// Kill a node's fibers first, then destroy its SimDevice, then the SimDisk (not from its own
// fibers).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block/device.h"
#include "rt/rt.h"

namespace etcfs::sim {

struct SimDiskOptions {
  bool volatile_cache = true;
};

class SimDisk {
 public:
  using Block = std::array<std::byte, kBlockBytes>;
  // Called when blocks of a write reach the medium: the oracle of "only inside own arenas" (I5).
  using WriteObserver =
      std::function<void(const std::string& node, std::uint64_t block, std::uint64_t blocks)>;

  SimDisk(rt::Runtime& runtime, std::uint64_t size_bytes, SimDiskOptions options = {});
  ~SimDisk();  // requests under way vanish
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  std::uint64_t size_bytes() const { return size_bytes_; }
  void grow(std::uint64_t size_bytes);
  bool volatile_cache() const { return options_.volatile_cache; }
  void power_cut();  // requests under way vanish; see above for what is left
  void on_write(WriteObserver observer) { observer_ = std::move(observer); }

  // For oracles and tests: what a read would see now; what a power cut could not take.
  Block peek(std::uint64_t block) const;
  Block peek_stable(std::uint64_t block) const;
  std::size_t unflushed_blocks() const { return cache_.size(); }
  std::size_t resident_blocks() const { return stable_.size(); }
  rt::Group& group() { return group_; }

 private:
  friend class SimDevice;
  struct Version {
    std::uint64_t seq = 0;
    Block bytes;
  };
  void write_block(std::uint64_t block, const std::byte* bytes);
  void flush_up_to(std::uint64_t seq);
  void observe(const std::string& node, std::uint64_t block, std::uint64_t blocks);

  rt::Runtime& runtime_;
  std::uint64_t size_bytes_;
  SimDiskOptions options_;
  std::map<std::uint64_t, Block> stable_;                // absent: zeros
  std::map<std::uint64_t, std::vector<Version>> cache_;  // unflushed versions, oldest first
  std::uint64_t seq_ = 0;                                // of the last block written
  std::uint64_t power_cycles_ = 0;                       // requests of an earlier one vanish
  WriteObserver observer_;
  rt::Group group_;
};

struct SimDeviceOptions {
  Nanos latency_min = 20us, latency_max = 400us;
  // How often, per 10,000 requests, each of these fails with kIo; a failed write may be done in
  // part.
  unsigned read_errors = 0, write_errors = 0, flush_errors = 0;
  // What becomes of a write under way when its node dies: per 10,000, the odds that it is still
  // carried out, by up to late_max later. The others are carried out in part or not at all.
  unsigned late_writes = 5'000;
  Nanos late_max = 8s;
};

class SimDevice final : public block::Device {
 public:
  SimDevice(SimDisk& disk, std::string node, SimDeviceOptions options = {});
  ~SimDevice() override;

  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override;
  Result<void> write(std::uint64_t offset,
                     std::span<const std::span<const std::byte>> pieces) override;
  Result<void> flush() override;
  Result<void> discard(std::uint64_t offset, std::uint64_t length) override;  // kNotSupported
  std::uint64_t size_bytes() const override { return size_bytes_; }
  Result<std::uint64_t> poll_size() override;
  std::size_t requests_in_flight() const override { return in_flight_; }

  void set_options(const SimDeviceOptions& options) { options_ = options; }
  // The next n requests of the kind fail with kIo, whatever the odds are.
  void fail_reads(unsigned n) { fail_reads_ = n; }
  void fail_writes(unsigned n) { fail_writes_ = n; }
  void fail_flushes(unsigned n) { fail_flushes_ = n; }
  // Nothing of this node reaches the device any more, late writes included (a fence agent has cut
  // it off); its requests fail.
  void cut_off();
  // Requests of this device, dead senders' included, that may still be carried out.
  std::size_t unfinished() const;

 private:
  struct Request;
  struct Shared;
  Result<void> run(std::shared_ptr<Request> request);
  bool draw(unsigned odds, unsigned& planned);

  SimDisk& disk_;
  const std::string node_;
  SimDeviceOptions options_;
  std::uint64_t size_bytes_;
  std::size_t in_flight_ = 0;
  unsigned fail_reads_ = 0, fail_writes_ = 0, fail_flushes_ = 0;
  std::shared_ptr<Shared> shared_;  // with requests, which may outlive us
};

}  // namespace etcfs::sim

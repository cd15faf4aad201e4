// Space: the blocks of the device, by arenas (design sections 2 and 6; I5, I8). A node allocates
// only in arenas it owns. Published = some committed or appended step refers to the block;
// allocated = published, or about to be. The map in etcd shows published blocks, never merely
// allocated ones.
//
// Reservation comes before allocation: write() reserves, write-back allocates out of the
// reservation, so ENOSPC is always reported by write(), never later.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "block/device.h"
#include "meta/commit_stream.h"
#include "meta/guard.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::block {

using meta::DeviceRange;

struct SpaceTotals {
  std::uint64_t total_blocks = 0;
  std::uint64_t free_blocks = 0;  // all arenas, less this node's reservations
};

class Space {
 public:
  Space(meta::Kv& kv, const meta::Keys& keys, const meta::Guard& guard, meta::CommitStream& stream,
        meta::Super super);
  ~Space();

  // Reads the arenas' records; takes over arenas whose owner is (this node, an older epoch in
  // `proven_dead`): epochs whose device writes are proven to have ended. Blocks.
  Result<void> start(std::span<const Epoch> proven_dead);
  // Clean leave: every reservation, allocation, read and write is gone; the arenas are given back
  // by one step each. The caller waits for the stream afterwards. No other call but totals() may
  // follow. Blocks, shortly, while a claim is under way.
  void give_back();

  // Takes n blocks out of what may be promised; claims free arenas when short (blocks), waits for
  // own frees that are on their way; kNoSpace only when the whole device is full for this node.
  Result<void> reserve(std::uint64_t blocks);
  void unreserve(std::uint64_t blocks);

  // Turns reserved blocks into allocated ones: as few pieces as possible, first one at `near` (the
  // block after the previous extent, or 0 = anywhere) if it is free. Never blocks, never fails for
  // reserved blocks (asserted).
  std::vector<DeviceRange> allocate(std::uint64_t blocks, std::uint64_t near);
  // Allocated blocks that were never published and whose device writes have ended.
  void abandon(std::span<const DeviceRange> ranges);

  // Adds to `step` the changed map chunks (and arena summary) that publish allocated blocks.
  // publish() and release() put whole maps into the step: it must be appended before the next
  // blocking call, and in the order in which steps were filled (asserted as far as it can be seen).
  void publish(meta::Step& step, std::span<const DeviceRange> ranges);
  // Adds to `step` what frees published blocks: map chunks where the arena is ours, a freed/ key
  // otherwise. The allocator gets own blocks back once that step has committed and every read that
  // had begun by then has ended (see ReadGuard). Wraps step.on_commit.
  void release(meta::Step& step, std::span<const DeviceRange> ranges);
  // What one map chunk costs in a step is counted by the caller through this: how many keys
  // publish/release of these ranges would touch.
  std::size_t keys_touched(std::span<const DeviceRange> ranges) const;

  bool owns(DeviceRange range) const;  // wholly within arenas of ours: the check before each write

  // Held by every device request that reads or overwrites published blocks, from before it looks up
  // the extents until it has ended: blocks released in the meantime are not allocated again before
  // (I8).
  class ReadGuard {
   public:
    explicit ReadGuard(Space& space);
    ~ReadGuard();
    ReadGuard(const ReadGuard&) = delete;

   private:
    Space& space_;
    std::uint64_t ticket_;
  };

  Result<SpaceTotals> totals();  // blocks rarely: summaries are re-read at most once a second
  std::uint64_t reserved_blocks() const;
  std::uint64_t allocated_unpublished_blocks() const;
  std::size_t owned_arenas() const;

  struct Impl;

 private:
  friend class GuardedDevice;
  std::unique_ptr<Impl> impl_;
};

// Device with the guard "only inside own arenas" right above it (I5): a write outside is an
// assertion. An overwrite of published blocks holds a ReadGuard from before it asks owns() until it
// has ended. write() is refused with kFenced once the stream knows that this node was fenced.
class GuardedDevice {
 public:
  GuardedDevice(Device& device, Space& space) : device_(device), space_(space) {}
  Result<void> read(std::uint64_t block, std::span<std::byte> into);
  Result<void> write(std::uint64_t block, std::span<const std::span<const std::byte>> pieces);
  Result<void> flush() { return device_.flush(); }

 private:
  Device& device_;
  Space& space_;
};

}  // namespace etcfs::block

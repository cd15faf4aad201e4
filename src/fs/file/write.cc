// Writing: bytes go into dirty segments. All that may block (room, the old content of blocks that
// are written in part, a reservation) comes first; then the bytes are taken without a blocking
// call, so a write-back sees a write whole or not at all, and so does a reader.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fs/file/file_io_impl.h"

namespace etcfs::fs {
namespace {

// Gives back what a write has reserved and not used.
class HeldReservation {
 public:
  HeldReservation(block::Space& space, std::uint64_t& held) : space_(space), held_(held) {}
  ~HeldReservation() {
    if (held_ > 0) space_.unreserve(held_);
  }
  HeldReservation(const HeldReservation&) = delete;

 private:
  block::Space& space_;
  std::uint64_t& held_;
};

}  // namespace

bool FileIo::Impl::WritePlan::has_edge(std::uint64_t block) const {
  return std::any_of(edges.begin(), edges.end(), [&](const Edge& e) { return e.block == block; });
}

Result<std::uint64_t> FileIo::Impl::write(const InodeRef& inode, std::uint64_t offset,
                                          std::span<const std::byte> bytes, bool append) {
  if (bytes.empty()) return append ? inode->size : offset;
  ETCFS_CHECK(wait_for_dirty_room(inode, bytes.size()));
  ETCFS_CHECK(load_extents(inode));
  DataUse data(inode);
  std::lock_guard lock(data->lock);
  if (append) offset = inode->size;
  if (offset >= kMaxFileBytes || bytes.size() > kMaxFileBytes - offset) return Reason::kFileTooBig;
  if (blocks_of(offset + bytes.size()) > kFarBlock && far_extents(*inode) >= kMostFarExtents)
    return Reason::kFileTooBig;
  WritePlan plan;
  plan.at = offset;
  plan.end = offset + bytes.size();
  plan.first = plan.at >> kBlockShift;
  plan.last = blocks_of(plan.end);
  HeldReservation held(d.space, plan.held);
  ETCFS_CHECK(prepare_write(inode, plan));

  take_gap(*inode, plan);
  take_bytes(*inode, plan, bytes);
  inode->size = std::max(inode->size, plan.end);
  touch_times(*inode);
  list(inode);
  if (data->dirty_blocks * kBlockBytes >= kStreamBytes && !data->streaming &&
      !data->write_turn.locked()) {
    data->streaming = true;
    streams.push_back(inode);
    wake.notify_one();
  }
  return offset;
}

// Of the file's last chunk, dirty ones included.
std::size_t FileIo::Impl::far_extents(const InodeState& inode) const {
  const Extents& extents = published(inode);
  const auto far = std::partition_point(extents.begin(), extents.end(), [](const meta::Extent& e) {
    return e.file_block < kFarBlock;
  });
  auto count = static_cast<std::size_t>(extents.end() - far);
  const auto add = [&](const SegmentMap& map) {
    count += static_cast<std::size_t>(std::distance(map.lower_bound(kFarBlock), map.end()));
  };
  add(inode.data->dirty);
  for (const auto& set : inode.data->sets) add(set->segments);
  return count;
}

// On return everything is at hand that take_gap() and take_bytes() need. Blocks; the caller holds
// the file's lock, so what is dirty can only become less meanwhile (by write-back).
Result<void> FileIo::Impl::prepare_write(const InodeRef& inode, WritePlan& plan) {
  while (true) {
    plan.gap_block = gap_block(*inode, plan.end);
    if (plan.gap_block && *plan.gap_block >= plan.first && *plan.gap_block < plan.last)
      plan.gap_block.reset();  // written anyway
    if (const auto block = missing_edge(*inode, plan)) {
      Edge edge{*block, block::Buffer::allocate(kBlockBytes)};
      ETCFS_CHECK(read_published(*inode, *block, *block + 1, edge.content.data()));
      plan.edges.push_back(std::move(edge));
      continue;
    }
    std::uint64_t need = to_reserve(*inode, plan.first, plan.last);
    if (plan.gap_block) need += to_reserve(*inode, *plan.gap_block, *plan.gap_block + 1);
    if (need <= plan.held) return {};
    const std::uint64_t more = need - plan.held;
    if (auto r = reserve(inode, more); !r) {
      if (r.error() != Reason::kNoSpace || plan.held == 0) return r;
      // Two that hold half each would refuse each other: once more from nothing.
      d.space.unreserve(std::exchange(plan.held, 0));
      rt::yield();
      continue;
    }
    plan.held += more;
  }
}

// A block that will be written in part and whose old bytes are only on the device.
std::optional<std::uint64_t> FileIo::Impl::missing_edge(InodeState& inode, const WritePlan& plan) {
  const auto missing = [&](std::uint64_t block) {
    if (block << kBlockShift >= inode.size || plan.has_edge(block)) return false;
    const FileData& data = *inode.data;
    if (data.memory_at(block, block + 1).data) return false;
    if (data.tail && data.tail_block == block) return false;
    return published_at(inode, block, block + 1).kind == MapRun::Kind::kData;
  };
  const std::uint64_t last = plan.last - 1;
  const bool head = plan.at & (kBlockBytes - 1);
  const bool tail = (plan.end & (kBlockBytes - 1)) && plan.end < inode.size;
  if ((head || (tail && last == plan.first)) && missing(plan.first)) return plan.first;
  if (tail && last != plan.first && missing(last)) return last;
  if (plan.gap_block && missing(*plan.gap_block)) return *plan.gap_block;
  return std::nullopt;
}

// Growing to new_size: the block with the present end, if it holds bytes that are not known to be
// followed by zeros.
std::optional<std::uint64_t> FileIo::Impl::gap_block(const InodeState& inode,
                                                     std::uint64_t new_size) const {
  if (new_size <= inode.size || (inode.size & (kBlockBytes - 1)) == 0) return std::nullopt;
  const std::uint64_t block = inode.size >> kBlockShift;
  FileData& data = *inode.data;
  if (find_segment(data.dirty, block)) return std::nullopt;
  if (data.memory_at(block, block + 1).data) return block;
  if (published_at(inode, block, block + 1).kind == MapRun::Kind::kData) return block;
  return std::nullopt;
}

MapRun FileIo::Impl::in_place_at(const InodeState& inode, std::uint64_t block,
                                 std::uint64_t end) const {
  if (d.overwrite != meta::Overwrite::kInPlace) return {MapRun::Kind::kHole, end - block, 0};
  const bool moving = inode.data && inode.data->moving(block, end);
  MapRun run = published_at(inode, block, end);
  if (moving || run.kind != MapRun::Kind::kData) return {MapRun::Kind::kHole, run.blocks, 0};
  // Arenas are made of whole map chunks: within one the owner is the same.
  const std::uint64_t chunk_end = (run.device_block | (meta::kArenaChunkBlocks - 1)) + 1;
  run.blocks = std::min(run.blocks, chunk_end - run.device_block);
  if (!d.space.owns({run.device_block, run.blocks})) run.kind = MapRun::Kind::kHole;
  return run;
}

std::uint64_t FileIo::Impl::to_reserve(const InodeState& inode, std::uint64_t first,
                                       std::uint64_t end) const {
  std::uint64_t n = 0;
  for (std::uint64_t b = first; b < end;) {
    if (const Segment* s = find_segment(inode.data->dirty, b)) {
      b = s->end();
      continue;
    }
    const MapRun run = in_place_at(inode, b, next_segment(inode.data->dirty, b, end));
    if (run.kind == MapRun::Kind::kHole) n += run.blocks;
    b += run.blocks;
  }
  return n;
}

// Space::reserve(); where it says that the device is full, what our own write-back and deletions are
// about to free is waited for first.
Result<void> FileIo::Impl::reserve(const InodeRef& inode, std::uint64_t blocks) {
  constexpr unsigned kMostTries = 64;
  auto r = d.space.reserve(blocks);
  for (unsigned tries = 0; !r && r.error() == Reason::kNoSpace && tries < kMostTries; ++tries) {
    const std::uint64_t before = next_round;
    const bool under_way = !rounds.empty();
    // The caller holds the file's lock and a pin, and no turn: rounds never wait for it.
    if (auto own = flush_once(inode, false); !own && own.error() != Reason::kRetry) return own;
    std::vector<Part> parts = pick(true, nullptr);
    const bool took = !parts.empty();
    if (took) run_background(std::move(parts));
    round_ended.wait([&] { return rounds.empty() || *rounds.begin() >= before; });
    ETCFS_CHECK(d.stream.sync());
    r = d.space.reserve(blocks);
    if (!took && !under_way) break;
  }
  return r;
}

// The segment into which `block` goes, which is not dirty yet, made or extended by up to `blocks`.
Segment& FileIo::Impl::segment_for(InodeState& inode, std::uint64_t block, std::uint64_t blocks,
                                   bool reserved, WritePlan& plan) {
  FileData& data = *inode.data;
  auto next = data.dirty.upper_bound(block);
  Segment* segment = nullptr;
  std::uint32_t capacity = 0;
  if (next != data.dirty.begin()) {
    Segment& before = std::prev(next)->second;
    if (before.end() == block) {
      // Sequential writers get ever larger segments, so that few of them hold a large file.
      capacity = std::min(kSegmentBlocks, 2 * before.capacity());
      if (before.reserved == reserved && before.blocks < before.capacity()) segment = &before;
    }
  }
  if (!segment) {
    capacity = std::max<std::uint32_t>(
        capacity, static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks, kSegmentBlocks)));
    segment = &data.dirty[block];
    segment->first = block;
    segment->reserved = reserved;
    segment->buffer = block::Buffer::allocate(std::size_t{capacity} << kBlockShift);
  }
  const auto n = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(blocks, segment->capacity() - segment->blocks));
  std::uint32_t fresh = 0;
  for (std::uint64_t b = block; b < block + n;) {
    const auto memory = data.memory_at(b, block + n, false);
    std::uint64_t run = memory.blocks;
    if (!memory.data) {
      const MapRun map = published_at(inode, b, b + run);
      run = map.blocks;
      if (map.kind == MapRun::Kind::kHole) fresh += static_cast<std::uint32_t>(run);
    }
    b += run;
  }
  segment->blocks += n;
  segment->fresh += fresh;
  data.fresh_blocks += fresh;
  if (reserved) {
    ETCFS_ASSERT(plan.held >= n);
    plan.held -= n;
  }
  add_dirty(data, n);
  return *segment;
}

// The block as it was before this write, zeros behind the end of the file.
void FileIo::Impl::fill_old(InodeState& inode, const WritePlan& plan, std::uint64_t block,
                            std::byte* into) {
  FileData& data = *inode.data;
  const std::uint64_t at = block << kBlockShift;
  const std::byte* old = nullptr;
  if (at < inode.size) {
    old = data.memory_at(block, block + 1, false).data;
    if (!old)
      for (const Edge& e : plan.edges)
        if (e.block == block) old = e.content.data();
    if (!old && data.tail && data.tail_block == block) old = data.tail.data();
  }
  std::size_t keep = 0;
  if (old) {
    keep = static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, inode.size - at));
    std::memcpy(into, old, keep);
  }
  std::memset(into + keep, 0, kBlockBytes - keep);
}

void FileIo::Impl::take_bytes(InodeState& inode, WritePlan& plan,
                              std::span<const std::byte> bytes) {
  FileData& data = *inode.data;
  const bool head = plan.at & (kBlockBytes - 1), tail = plan.end & (kBlockBytes - 1);
  for (std::uint64_t b = plan.first; b < plan.last;) {
    Segment* segment = find_segment(data.dirty, b);
    std::uint64_t end;
    if (segment) {
      end = std::min(segment->end(), plan.last);
    } else {
      const MapRun run = in_place_at(inode, b, next_segment(data.dirty, b, plan.last));
      segment = &segment_for(inode, b, run.blocks, run.kind == MapRun::Kind::kHole, plan);
      end = std::min(segment->end(), b + run.blocks);
      if (b == plan.first && head) fill_old(inode, plan, b, segment->at(b));
      if (end == plan.last && tail && !(b == plan.first && head && end == b + 1))
        fill_old(inode, plan, end - 1, segment->at(end - 1));
    }
    const std::uint64_t from = std::max(plan.at, b << kBlockShift);
    const std::uint64_t to = std::min(plan.end, end << kBlockShift);
    std::memcpy(segment->at(b) + (from - (b << kBlockShift)), bytes.data() + (from - plan.at),
                to - from);
    b = end;
  }
  if (data.tail && data.tail_block >= plan.first && data.tail_block < plan.last) data.tail = {};
}

void FileIo::Impl::take_gap(InodeState& inode, WritePlan& plan) {
  if (!plan.gap_block) return;
  const std::uint64_t block = *plan.gap_block;
  FileData& data = *inode.data;
  const MapRun run = in_place_at(inode, block, block + 1);
  Segment& segment = segment_for(inode, block, 1, run.kind == MapRun::Kind::kHole, plan);
  fill_old(inode, plan, block, segment.at(block));
  if (data.tail && data.tail_block == block) data.tail = {};
}

}  // namespace etcfs::fs

// Truncate. Shrinking drops what is in memory and remembers the lowest new end (FileData::cut); the
// extents behind it are void at once and leave etcd with the next publication. Growing makes the
// rest of the last block zeros.
#include <algorithm>
#include <cstring>

#include "fs/file/file_io_impl.h"

namespace etcfs::fs {

Result<void> FileIo::Impl::truncate(const InodeRef& inode, std::uint64_t new_size) {
  if (new_size > kMaxFileBytes) return Reason::kFileTooBig;
  ETCFS_CHECK(load_extents(inode));
  DataUse data(inode);
  std::lock_guard lock(data->lock);
  if (new_size > inode->size) ETCFS_CHECK(grow(inode, new_size));
  if (new_size < inode->size) shrink(*inode, new_size);
  inode->size = new_size;
  touch_times(*inode);
  list(inode);
  return {};
}

Result<void> FileIo::Impl::grow(const InodeRef& inode, std::uint64_t new_size) {
  struct Held {
    block::Space& space;
    WritePlan plan;
    ~Held() {
      if (plan.held > 0) space.unreserve(plan.held);
    }
  } held{d.space, {}};
  WritePlan& plan = held.plan;
  while (true) {
    plan.gap_block = gap_block(*inode, new_size);
    if (!plan.gap_block) return {};
    const std::uint64_t block = *plan.gap_block;
    const FileData& data = *inode->data;
    if (!plan.has_edge(block) && !data.memory_at(block, block + 1).data &&
        !(data.tail && data.tail_block == block)) {
      Edge edge{block, block::Buffer::allocate(kBlockBytes)};
      ETCFS_CHECK(read_published(*inode, block, block + 1, edge.content.data()));
      plan.edges.push_back(std::move(edge));
      continue;
    }
    if (to_reserve(*inode, block, block + 1) <= plan.held) break;
    ETCFS_CHECK(reserve(inode, 1));
    plan.held += 1;
  }
  take_gap(*inode, plan);
  return {};
}

void FileIo::Impl::shrink(InodeState& inode, std::uint64_t new_size) {
  FileData& data = *inode.data;
  const std::uint64_t end = blocks_of(new_size);
  cut_segments(data, data.dirty, end, true);
  for (auto& set : data.sets) {
    cut_segments(data, set->segments, end, false);
    set->size = std::min(set->size, new_size);
  }
  if (data.tail && data.tail_block >= end) data.tail = {};
  if (const std::size_t in_block = new_size & (kBlockBytes - 1))
    if (Segment* s = find_segment(data.dirty, end - 1))
      std::memset(s->at(end - 1) + in_block, 0, kBlockBytes - in_block);
  if (inode.rec.size > new_size || data.cut != kNoCut) {
    data.cut = std::min(data.cut, new_size);
    data.cut_round = data.rounds;  // also when it was cut there before: what came after is cut now
  }
}

// Drops the blocks from `block` on. In a write set they only become invisible: they are being
// written, and the end of that write-back gives their places back.
void FileIo::Impl::cut_segments(FileData& data, SegmentMap& map, std::uint64_t block,
                                bool in_dirty) {
  auto it = map.upper_bound(block);
  if (it != map.begin() && std::prev(it)->second.end() > block) --it;
  while (it != map.end()) {
    Segment& s = it->second;
    const auto keep = static_cast<std::uint32_t>(
        block > s.first ? std::min<std::uint64_t>(block - s.first, s.blocks) : 0);
    const std::uint32_t gone = s.blocks - keep;
    const std::uint32_t fresh = std::min(s.fresh, keep);
    data.fresh_blocks -= s.fresh - fresh;
    s.fresh = fresh;
    s.blocks = keep;
    sub_dirty(data, gone, in_dirty);
    if (in_dirty && s.reserved && gone > 0) d.space.unreserve(gone);
    it = in_dirty && keep == 0 ? map.erase(it) : std::next(it);
  }
}

}  // namespace etcfs::fs

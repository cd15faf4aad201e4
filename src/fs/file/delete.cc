// Deleting a file's data, and questions about its map: seek and st_blocks.
#include <algorithm>

#include "fs/file/publisher.h"

namespace etcfs::fs {

// Operations of the step that deletes the file, and the file blocks from which on (at most) the rest
// of it fits half a transaction, which is what a caller's step has room for.
FileIo::Impl::DeletionCost FileIo::Impl::deletion_cost(const InodeState& inode) const {
  const std::size_t most = (d.stream.limits().txn_ops - 4) / 2;
  DeletionCost cost;
  std::optional<std::uint64_t> last_map;
  std::optional<std::uint32_t> last_chunk;
  for (const meta::Extent& e : published(inode)) {
    const std::uint64_t first_map = e.device_block >> meta::kArenaChunkShift;
    const std::uint64_t end_map = (e.device_block + e.blocks - 1) >> meta::kArenaChunkShift;
    cost.ops += 2 * (end_map - first_map + (last_map == first_map ? 0 : 1));
    if (inode.rec.external_extents && last_chunk != meta::extent_chunk(e.file_block)) ++cost.ops;
    if (cost.ops > most) break;
    last_map = end_map;
    last_chunk = meta::extent_chunk(e.file_block);
    cost.fits_up_to = e.file_end();
  }
  cost.one_step = cost.ops <= most;
  return cost;
}

bool FileIo::Impl::deletion_may_block(const InodeState& inode) const {
  if (!inode.extents_loaded) return true;
  const FileData* data = inode.data.get();
  if (data && (data->write_turn.locked() || data->publish_turn.locked() || data->lock.in_use()))
    return true;
  return !deletion_cost(inode).one_step;
}

Result<void> FileIo::Impl::add_deletion(const InodeRef& inode, meta::Step& step) {
  ETCFS_CHECK(load_extents(inode));
  DataUse data(inode);
  std::unique_lock write_turn(data->write_turn);
  std::unique_lock publish_turn(data->publish_turn);
  // Nothing below blocks.
  discard(*inode);
  meta::Inode& rec = inode->rec;

  if (const DeletionCost cost = deletion_cost(*inode); !cost.one_step) {
    // The end of it goes first, in steps that leave a shorter file.
    Publisher publisher(*this, *inode);
    publisher.cut(std::min(rec.size, cost.fits_up_to << kBlockShift));
    publisher.finish(rec.size, false);
  }
  std::vector<block::DeviceRange> ranges;
  std::set<std::uint32_t> chunks;
  for (const meta::Extent& e : published(*inode)) {
    ranges.push_back({e.device_block, e.blocks});
    if (rec.external_extents) chunks.insert(meta::extent_chunk(e.file_block));
  }
  step.erase(d.keys.inode(inode->ino));
  for (std::uint32_t c : chunks) step.erase(d.keys.extents(inode->ino, c));
  if (!ranges.empty()) d.space.release(step, ranges);
  rec.extents.clear();
  data->external.clear();
  data->external_mapped.reset();
  data->error.reset();
  rec.external_extents = false;
  rec.size = inode->size = 0;
  inode->attrs_dirty = false;
  return {};
}

Result<std::uint64_t> FileIo::Impl::seek(const InodeRef& inode, std::uint64_t offset,
                                         SeekWhat what) {
  ETCFS_CHECK(load_extents(inode));
  if (offset >= inode->size) return Reason::kNoSuchOffset;
  const std::uint64_t end = blocks_of(inode->size);
  for (std::uint64_t b = offset >> kBlockShift; b < end;) {
    const auto memory =
        inode->data ? inode->data->memory_at(b, end) : FileData::MemoryRun{nullptr, end - b};
    bool data = memory.data != nullptr;
    std::uint64_t blocks = memory.blocks;
    if (!data) {
      const MapRun run = published_at(*inode, b, b + blocks);
      data = run.kind == MapRun::Kind::kData;
      blocks = run.blocks;
    }
    if (data == (what == SeekWhat::kData)) return std::max(offset, b << kBlockShift);
    b += blocks;
  }
  if (what == SeekWhat::kData) return Reason::kNoSuchOffset;
  return inode->size;
}

std::uint64_t FileIo::Impl::blocks512(const InodeState& inode) const {
  constexpr std::uint64_t kPerBlock = kBlockBytes / 512;
  if (!inode.extents_loaded) return blocks_of(inode.size) * kPerBlock;  // a guess, without a read
  const std::uint64_t cut = void_block(inode);
  std::uint64_t mapped;
  if (!inode.rec.external_extents) {
    mapped = mapped_blocks(inode.rec.extents, cut);
  } else if (!inode.data) {
    return blocks_of(inode.size) * kPerBlock;
  } else if (cut != UINT64_MAX) {
    mapped = mapped_blocks(inode.data->external, cut);
  } else {
    if (!inode.data->external_mapped)
      inode.data->external_mapped = mapped_blocks(inode.data->external, cut);
    mapped = *inode.data->external_mapped;
  }
  return (mapped + (inode.data ? inode.data->fresh_blocks : 0)) * kPerBlock;
}

}  // namespace etcfs::fs

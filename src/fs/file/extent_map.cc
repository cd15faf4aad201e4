#include "fs/file/extent_map.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"

namespace etcfs::fs {
namespace {

void advance_front(meta::Extent& e, std::uint64_t blocks) {
  e.file_block += blocks;
  e.device_block += blocks;
  e.blocks -= blocks;
}

// Appends to a vector, merging what touches both in the file and on the device.
class Appender {
 public:
  explicit Appender(Extents& out) : out_(out) {}
  void push(const meta::Extent& e, bool touched) {
    if (!out_.empty() && (touched || last_touched_)) {
      meta::Extent& last = out_.back();
      if (last.file_end() == e.file_block && last.device_block + last.blocks == e.device_block &&
          last.flags == e.flags && last.birth == e.birth) {
        last.blocks += e.blocks;
        last_touched_ = true;
        return;
      }
    }
    out_.push_back(e);
    last_touched_ = touched;
  }

 private:
  Extents& out_;
  bool last_touched_ = false;
};

}  // namespace

Extents::const_iterator find_extent(const Extents& extents, std::uint64_t block) {
  return std::upper_bound(extents.begin(), extents.end(), block,
                          [](std::uint64_t b, const meta::Extent& e) { return b < e.file_end(); });
}

MapRun map_at(const Extents& extents, std::uint64_t block, std::uint64_t end) {
  ETCFS_ASSERT(block < end);
  auto it = find_extent(extents, block);
  if (it == extents.end()) return {MapRun::Kind::kHole, end - block, 0};
  if (it->file_block > block)
    return {MapRun::Kind::kHole, std::min(end, it->file_block) - block, 0};
  return {it->unwritten() ? MapRun::Kind::kUnwritten : MapRun::Kind::kData,
          std::min(end, it->file_end()) - block, it->device_block + (block - it->file_block)};
}

Extents apply_changes(const Extents& extents, std::span<const MapChange> changes) {
  Extents out;
  out.reserve(extents.size() + 2 * changes.size());
  Appender append(out);
  std::size_t next = 0;
  std::uint64_t covered = 0;  // up to here the last change rules
  const auto emit = [&](const MapChange& c) {
    ETCFS_ASSERT(c.file_block >= covered && c.blocks > 0);
    if (!c.hole) append.push({c.file_block, c.device_block, c.blocks, 0, 0}, true);
    covered = c.end();
  };
  for (meta::Extent e : extents) {
    bool touched = false;
    while (e.blocks > 0) {
      while (next < changes.size() && changes[next].file_block <= e.file_block)
        emit(changes[next++]);
      if (covered > e.file_block) {
        advance_front(e, std::min(e.blocks, covered - e.file_block));
        touched = true;
        continue;
      }
      if (next < changes.size() && changes[next].file_block < e.file_end()) {
        meta::Extent head = e;
        head.blocks = changes[next].file_block - e.file_block;
        append.push(head, true);
        advance_front(e, head.blocks);
        touched = true;
        continue;
      }
      append.push(e, touched);
      break;
    }
  }
  while (next < changes.size()) emit(changes[next++]);
  return out;
}

void cut_extents(Extents& extents, std::uint64_t block) {
  while (!extents.empty() && extents.back().file_block >= block) extents.pop_back();
  if (!extents.empty() && extents.back().file_end() > block)
    extents.back().blocks = block - extents.back().file_block;
}

std::uint64_t mapped_blocks(const Extents& extents, std::uint64_t end) {
  std::uint64_t n = 0;
  for (const meta::Extent& e : extents) {
    if (e.file_block >= end) break;
    n += std::min(e.file_end(), end) - e.file_block;
  }
  return n;
}

bool valid_extents(const Extents& extents) {
  constexpr std::uint64_t kMostBlocks = (kMaxFileBytes >> kBlockShift) + 1;
  std::uint64_t end = 0;
  for (const meta::Extent& e : extents) {
    if (e.blocks == 0 || e.file_block < end || e.file_block > kMostBlocks ||
        e.blocks > kMostBlocks - e.file_block || e.device_block > UINT64_MAX / 2)
      return false;
    end = e.file_end();
  }
  return true;
}

void add_touched_chunks(const Extents& extents, std::uint64_t block, std::uint64_t blocks,
                        std::set<std::uint32_t>& chunks) {
  chunks.insert(meta::extent_chunk(block));
  chunks.insert(meta::extent_chunk(block + blocks));
  // From the extent that ends at or behind the first block to the one that begins at the end.
  for (auto it = find_extent(extents, block > 0 ? block - 1 : 0);
       it != extents.end() && it->file_block <= block + blocks; ++it)
    chunks.insert(meta::extent_chunk(it->file_block));
}

std::span<const meta::Extent> extents_of_chunk(const Extents& extents, std::uint32_t chunk) {
  auto first = std::lower_bound(
      extents.begin(), extents.end(), chunk,
      [](const meta::Extent& e, std::uint32_t c) { return meta::extent_chunk(e.file_block) < c; });
  auto last = std::upper_bound(
      first, extents.end(), chunk,
      [](std::uint32_t c, const meta::Extent& e) { return c < meta::extent_chunk(e.file_block); });
  return {first, last};
}

}  // namespace etcfs::fs

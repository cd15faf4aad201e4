#include "fs/file/file_data.h"

#include <algorithm>

namespace etcfs::fs {

Segment* find_segment(SegmentMap& map, std::uint64_t block) {
  auto it = map.upper_bound(block);
  if (it == map.begin()) return nullptr;
  Segment& s = std::prev(it)->second;
  return block < s.end() ? &s : nullptr;
}

std::uint64_t next_segment(const SegmentMap& map, std::uint64_t block, std::uint64_t end) {
  auto it = map.upper_bound(block);
  return it == map.end() ? end : std::min(end, it->first);
}

FileData::MemoryRun FileData::memory_at(std::uint64_t block, std::uint64_t end,
                                        bool with_dirty) const {
  std::uint64_t bound = end;
  // Looks into one layer; what it does not have bounds the run of the layers below.
  const auto look = [&](const SegmentMap& map) -> const std::byte* {
    if (map.empty()) return nullptr;
    auto it = map.upper_bound(block);
    if (it != map.begin()) {
      const Segment& s = std::prev(it)->second;
      if (block < s.end()) {
        bound = std::min(bound, s.end());
        return s.at(block);
      }
    }
    if (it != map.end()) bound = std::min(bound, it->first);
    return nullptr;
  };
  const std::byte* data = with_dirty ? look(dirty) : nullptr;
  for (auto it = sets.rbegin(); !data && it != sets.rend(); ++it) data = look((*it)->segments);
  return {data, bound - block};
}

bool FileData::moving(std::uint64_t block, std::uint64_t& end) const {
  bool moves = false;
  for (const auto& set : sets) {
    auto it = set->segments.upper_bound(block);
    if (it != set->segments.end()) end = std::min(end, it->first);
    if (it == set->segments.begin()) continue;
    const Segment& s = std::prev(it)->second;
    if (block >= s.end()) continue;
    end = std::min(end, s.end());
    moves = moves || s.moves;
  }
  return moves;
}

MapRun published_at(const InodeState& inode, std::uint64_t block, std::uint64_t end) {
  const std::uint64_t cut = void_block(inode);
  if (block >= cut) return {MapRun::Kind::kHole, end - block, 0};
  return map_at(published(inode), block, std::min(end, cut));
}

}  // namespace etcfs::fs

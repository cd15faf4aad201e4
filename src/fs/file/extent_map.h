// Extents of a file as a sorted vector without overlaps: look up, change, and the chunks of x/ that
// they belong to. Pure functions, no I/O.
//
// An extent belongs to the chunk in which it begins and may reach beyond its end, so that switching
// a file from inline to external extents writes at most as many chunks as there are extents.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "meta/schema/records.h"

namespace etcfs::fs {

using Extents = std::vector<meta::Extent>;

// One stretch of the file that is mapped in one way.
struct MapRun {
  enum class Kind { kHole, kData, kUnwritten } kind = Kind::kHole;
  std::uint64_t blocks = 0;
  std::uint64_t device_block = 0;  // not for kHole
};

// [file_block, file_block + blocks) gets this place, or becomes a hole.
struct MapChange {
  std::uint64_t file_block = 0, blocks = 0, device_block = 0;
  bool hole = false;
  std::uint64_t end() const { return file_block + blocks; }
};

// The first extent that ends behind `block`.
Extents::const_iterator find_extent(const Extents& extents, std::uint64_t block);
// How `block` is mapped, and for how many blocks from there, at most up to `end` (> block).
MapRun map_at(const Extents& extents, std::uint64_t block, std::uint64_t end);
// Applies changes that are sorted and do not overlap; neighbours that a change has touched are
// merged.
Extents apply_changes(const Extents& extents, std::span<const MapChange> changes);
// Drops everything from `block` on.
void cut_extents(Extents& extents, std::uint64_t block);
// Blocks that have a place, below file block `end`.
std::uint64_t mapped_blocks(const Extents& extents, std::uint64_t end);
// Sorted, not empty, not overlapping, within what a file can have?
bool valid_extents(const Extents& extents);
// The chunks whose records a change of [block, block + blocks) can alter, neighbours included.
void add_touched_chunks(const Extents& extents, std::uint64_t block, std::uint64_t blocks,
                        std::set<std::uint32_t>& chunks);
// The extents that begin in the chunk.
std::span<const meta::Extent> extents_of_chunk(const Extents& extents, std::uint32_t chunk);

}  // namespace etcfs::fs

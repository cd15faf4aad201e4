// Space: every block of the device is either free in its arena's map, or shown as published there
// and named by exactly one extent or one freed key. Block 0 holds the identity of the device:
// nothing names it, the map never shows it as published, and it counts as neither free nor used.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>

#include "check/check.h"

namespace etcfs::check {
namespace {

using meta::kArenaChunkBlocks;
constexpr std::uint64_t kIdentityBlocks = 1;

struct Reference {  // of device blocks, by an extent (ino) or a freed key (freed)
  std::uint64_t block = 0, end = 0;
  Ino ino;
  std::uint64_t file_block = 0;
  const Freed* freed = nullptr;
};

class SpaceCheck {
 public:
  SpaceCheck(const Image& image, Findings& out)
      : image_(image),
        keys_(image.keys),
        super_(*image.super),
        arenas_((super_.device_blocks - 1) / super_.arena_blocks + 1),
        out_(out) {}

  void check() {
    gather();
    check_shared();
    check_maps();
    check_arenas();
  }

 private:
  void report(Code code, std::string key, std::string message) {
    out_.push_back({code, std::move(key), std::move(message)});
  }
  std::string key_of(const Reference& r) const {
    if (r.freed != nullptr) return keys_.freed(r.freed->key.arena, r.freed->key.unique);
    auto it = image_.inodes.find(r.ino);
    const bool inlined = it != image_.inodes.end() && !it->second.external_extents;
    return inlined ? keys_.inode(r.ino) : keys_.extents(r.ino, meta::extent_chunk(r.file_block));
  }

  void gather() {
    for (const auto& [ino, inode] : image_.inodes)
      for (const meta::Extent& e : inode.extents) add_extent(ino, e);
    for (const auto& [ino, chunks] : image_.external)
      for (const auto& [chunk, extents] : chunks)
        for (const meta::Extent& e : extents) add_extent(ino, e);
    for (const Freed& freed : image_.freed)
      for (const meta::DeviceRange& range : freed.ranges) add_freed(freed, range);
    std::stable_sort(references_.begin(), references_.end(),
                     [](const Reference& a, const Reference& b) { return a.block < b.block; });
  }
  void add_extent(Ino ino, const meta::Extent& e) {
    add({e.device_block, e.device_block + e.blocks, ino, e.file_block, nullptr});
  }
  void add_freed(const Freed& freed, const meta::DeviceRange& range) {
    const std::uint64_t first = std::uint64_t{freed.key.arena.v} * super_.arena_blocks;
    if (range.block < first || range.end() > first + super_.arena_blocks)
      report(Code::kFreedPlace, keys_.freed(freed.key.arena, freed.key.unique),
             fmt::format("blocks {} to {}, the arena has {} to {}", range.block, range.end(), first,
                         first + super_.arena_blocks));
    add({range.block, range.end(), Ino{}, 0, &freed});
  }
  void add(Reference r) {
    if (r.end > super_.device_blocks) {
      report(
          Code::kExtentPastDevice, key_of(r),
          fmt::format("blocks {} to {}, the device has {}", r.block, r.end, super_.device_blocks));
      r.end = super_.device_blocks;
    }
    if (r.block < kIdentityBlocks) {
      report(Code::kExtentIdentity, key_of(r), fmt::format("blocks {} to {}", r.block, r.end));
      r.block = kIdentityBlocks;
    }
    if (r.block < r.end) references_.push_back(r);
  }

  void check_shared() {
    const Reference* last = nullptr;  // the one that reaches furthest
    for (const Reference& r : references_) {
      if (last != nullptr && r.block < last->end)
        report(Code::kBlocksShared, key_of(r),
               fmt::format("blocks {} to {} belong also to {}", r.block, std::min(r.end, last->end),
                           printable(key_of(*last))));
      if (last == nullptr || r.end > last->end) last = &r;
    }
  }

  // Every chunk of the map that exists or should, in order, against what the references say. Chunks
  // are counted through the whole device; most of a large one has neither.
  void check_maps() {
    std::vector<std::uint64_t> stored;
    const std::uint64_t per_arena = super_.arena_blocks / kArenaChunkBlocks;
    for (const auto& [n, chunks] : image_.maps)
      for (const auto& [chunk, bits] : chunks)
        if (n.v < arenas_ && chunk < per_arena) stored.push_back(n.v * per_arena + chunk);
    std::size_t next = 0, next_stored = 0;
    for (std::uint64_t at = 0;; ++at) {
      // References are sorted by their first block; one may have begun in an earlier chunk.
      while (next < references_.size() && references_[next].end <= at * kArenaChunkBlocks) ++next;
      while (next_stored < stored.size() && stored[next_stored] < at) ++next_stored;
      if (next == references_.size() && next_stored == stored.size()) break;
      const std::uint64_t used = next < references_.size()
                                     ? std::max(at, references_[next].block / kArenaChunkBlocks)
                                     : UINT64_MAX;
      at = std::min(used, next_stored < stored.size() ? stored[next_stored] : UINT64_MAX);
      const ArenaNo n{static_cast<std::uint32_t>(at / per_arena)};
      const auto chunk = static_cast<std::uint32_t>(at % per_arena);
      const std::string* bits = nullptr;
      if (next_stored < stored.size() && stored[next_stored] == at)
        bits = &image_.maps.at(n).at(chunk);
      else if (image_.broken.contains(keys_.amap(n, chunk)))
        continue;
      compare(n, chunk, at * kArenaChunkBlocks, bits, next);
    }
    check_places();
  }

  void compare(ArenaNo n, std::uint32_t chunk, std::uint64_t first, const std::string* bits,
               std::size_t from) {
    std::string expected(kArenaChunkBlocks / 8, '\0');
    for (std::size_t i = from; i < references_.size(); ++i) {
      const Reference& r = references_[i];
      if (r.block >= first + kArenaChunkBlocks) break;
      const std::uint64_t end = std::min(r.end, first + kArenaChunkBlocks);
      for (std::uint64_t b = std::max(r.block, first); b < end; ++b)
        expected[(b - first) / 8] |= static_cast<char>(1u << (b - first) % 8);
    }
    const std::string none(bits == nullptr ? expected.size() : 0, '\0');
    const std::string& actual = bits == nullptr ? none : *bits;
    if (actual == expected) return;
    auto bit = [](const std::string& map, std::uint64_t i) {
      return (static_cast<unsigned char>(map[i / 8]) >> (i % 8) & 1) != 0;
    };
    for (std::uint64_t i = 0; i < kArenaChunkBlocks;) {
      const bool want = bit(expected, i), have = bit(actual, i);
      std::uint64_t end = i + 1;
      while (end < kArenaChunkBlocks && bit(expected, end) == want && bit(actual, end) == have)
        ++end;
      if (want != have)
        report(want ? Code::kMapMissing : Code::kMapLeak, keys_.amap(n, chunk),
               fmt::format("blocks {} to {} are {}", first + i, first + end,
                           want ? "in use but free in the map" : "used in the map but by nothing"));
      i = end;
    }
  }

  void check_places() {
    for (const auto& [n, chunks] : image_.maps)
      for (const auto& [chunk, bits] : chunks)
        if (n.v >= arenas_ || std::uint64_t{chunk} * kArenaChunkBlocks >= super_.arena_blocks)
          report(Code::kMapPlace, keys_.amap(n, chunk),
                 fmt::format("the device has {} arenas of {} chunks", arenas_,
                             super_.arena_blocks / kArenaChunkBlocks));
    for (const auto& [n, arena] : image_.arenas)
      if (n.v >= arenas_)
        report(Code::kMapPlace, keys_.arena(n), fmt::format("the device has {} arenas", arenas_));
  }

  std::uint64_t published(ArenaNo n) const {
    std::uint64_t count = 0;
    auto it = image_.maps.find(n);
    if (it == image_.maps.end()) return 0;
    for (const auto& [chunk, bits] : it->second)
      for (char c : bits)
        count += static_cast<std::uint64_t>(std::popcount(static_cast<unsigned char>(c)));
    return count;
  }
  bool map_broken(ArenaNo n) const {
    const std::string prefix = keys_.arena_map(n);
    auto it = image_.broken.lower_bound(prefix);
    return it != image_.broken.end() && it->starts_with(prefix);
  }

  // The summary of every arena; one that is absent says that all is free.
  void check_arenas() {
    std::set<ArenaNo> known;
    for (const auto& [n, arena] : image_.arenas) known.insert(n);
    for (const auto& [n, chunks] : image_.maps) known.insert(n);
    for (ArenaNo n : known)
      if (n.v < arenas_) check_arena(n);
  }
  void check_arena(ArenaNo n) {
    const std::string key = keys_.arena(n);
    if (map_broken(n) || image_.broken.contains(key)) return;
    const auto it = image_.arenas.find(n);
    const std::uint64_t first = n.v * super_.arena_blocks;
    const std::uint64_t capacity = std::min(super_.arena_blocks, super_.device_blocks - first) -
                                   (n.v == 0 ? kIdentityBlocks : 0);
    const std::uint64_t used = published(n);
    const std::uint64_t stated = it == image_.arenas.end() ? capacity : it->second.free_blocks;
    if (used > capacity || stated != capacity - used)
      report(Code::kArenaFree, key,
             fmt::format("{} free blocks{}, the map shows {} of {} as used", stated,
                         it == image_.arenas.end() ? " (no record)" : "", used, capacity));
  }

  const Image& image_;
  const meta::Keys& keys_;
  const meta::Super& super_;
  const std::uint64_t arenas_;
  Findings& out_;
  std::vector<Reference> references_;
};

}  // namespace

void check_space(const Image& image, Findings& out) {
  if (image.super && image.super->format_version == 1) SpaceCheck(image, out).check();
}

}  // namespace etcfs::check

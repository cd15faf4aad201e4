// Arena: geometry of arenas and the free map of one that this node owns, in memory. Pure: no I/O.
//
// Each block has two bits. `used`: not to be given out (published, allocated, or freed but not yet
// safe to reuse); `published`: what amap/<n>/<chunk> shows once the last appended step has
// committed. The free blocks are those with neither. Block 0 of the device holds its identity and,
// like blocks beyond the end of the device in a last, partial arena, is `used` for ever and never
// `published`.
//
// A record arena/<n> that is absent means: nobody's, and all of it free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "meta/schema/records.h"

namespace etcfs::block {

using meta::DeviceRange;

inline constexpr std::uint64_t kIdentityBlocks = 1;  // at the start of the device, never allocated

// The blocks of arena n that exist, and how many of them can hold file data.
DeviceRange arena_span(const meta::Super& super, ArenaNo n);
std::uint64_t arena_capacity(const meta::Super& super, ArenaNo n);
std::uint32_t arena_chunks(const meta::Super& super, ArenaNo n);  // amap chunks

class ArenaMap {
 public:
  // span: the blocks of the arena; its first block is a multiple of kArenaChunkBlocks.
  explicit ArenaMap(DeviceRange span);

  // --- loading: amap chunk `chunk` from etcd. kCorrupt: wrong length, or a bit for a block that
  // cannot be published. Chunks that are not loaded are all free.
  Result<void> load_chunk(std::uint32_t chunk, std::string_view bits);

  // --- numbers
  DeviceRange span() const { return span_; }
  std::uint32_t chunk_count() const { return static_cast<std::uint32_t>(chunk_free_.size()); }
  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t free_blocks() const { return free_; }  // to be given out now
  std::uint64_t published_blocks() const { return published_count_; }
  std::uint64_t summary_free() const { return capacity_ - published_count_; }  // Arena::free_blocks
  bool wholly_free() const { return free_ == capacity_; }

  // --- giving out: marks blocks used
  bool is_free(std::uint64_t block) const { return !bit(used_, block - span_.block); }
  // The free run that begins at `block` (which is free), at most `most` blocks.
  DeviceRange take_at(std::uint64_t block, std::uint64_t most);
  // One run of exactly `blocks` if there is one, the next behind the last one given out; else
  // empty.
  DeviceRange take_run(std::uint64_t blocks);
  // The longest run there is, at most `most` blocks. free_blocks() > 0.
  DeviceRange take_longest(std::uint64_t most);
  // No free run is longer than this.
  std::uint64_t run_bound() const { return run_bound_; }
  // Used, unpublished blocks become free.
  void give_back(DeviceRange range);

  // --- the published map. publish: used, unpublished blocks. unpublish: how many of the blocks
  // were published; they stay used.
  void publish(DeviceRange range);
  std::uint64_t unpublish(DeviceRange range);
  bool all_published(DeviceRange range) const;
  std::uint32_t chunk_of(std::uint64_t block) const {
    return static_cast<std::uint32_t>((block - span_.block) >> meta::kArenaChunkShift);
  }
  std::string chunk_bits(std::uint32_t chunk) const;  // of the published map, as amap has them
  bool chunk_empty(std::uint32_t chunk) const;        // nothing published

 private:
  struct Run {
    std::uint64_t at = 0, length = 0;  // relative to the arena
  };
  using Words = std::vector<std::uint64_t>;
  static bool bit(const Words& words, std::uint64_t i) { return words[i >> 6] >> (i & 63) & 1; }
  Run find_run(std::uint64_t from, std::uint64_t want) const;
  void mark_used(std::uint64_t at, std::uint64_t length);
  DeviceRange take(std::uint64_t at, std::uint64_t length);
  void move_cursor(std::uint64_t at) { cursor_ = at < span_.blocks ? at : 0; }

  DeviceRange span_;
  std::uint64_t capacity_ = 0, free_ = 0, published_count_ = 0;
  std::uint64_t cursor_ = 0;  // where the next search begins
  std::uint64_t run_bound_ = 0;
  Words used_, published_;
  std::vector<std::uint16_t> chunk_free_;  // per chunk: free blocks
};

}  // namespace etcfs::block

// How runs are found: word by word, with the count of free blocks per chunk to jump over chunks
// that are full or empty. A search that fails learns the longest run; that stays an upper bound
// (run_bound_) until something is given back, so a fragmented arena is not searched again and again
// in vain.
#include "block/arena.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"

namespace etcfs::block {
namespace {

using meta::kArenaChunkBlocks;
using meta::kArenaChunkShift;
constexpr std::uint64_t kWordBits = 64;
constexpr std::uint64_t kChunkWords = kArenaChunkBlocks / kWordBits;

// Calls fn(word index, mask) for each word that [at, at + length) touches.
template <class Fn>
void each_word(std::uint64_t at, std::uint64_t length, Fn fn) {
  while (length > 0) {
    const std::uint64_t shift = at % kWordBits;
    const std::uint64_t n = std::min(length, kWordBits - shift);
    const std::uint64_t mask = (n == kWordBits ? ~0ull : (1ull << n) - 1) << shift;
    fn(at / kWordBits, mask);
    at += n;
    length -= n;
  }
}

std::uint64_t count(std::uint64_t word) { return static_cast<std::uint64_t>(std::popcount(word)); }

}  // namespace

DeviceRange arena_span(const meta::Super& super, ArenaNo n) {
  const std::uint64_t first = super.arena_blocks * n.v;
  ETCFS_ASSERT(first < super.device_blocks);
  return {first, std::min(super.arena_blocks, super.device_blocks - first)};
}

std::uint64_t arena_capacity(const meta::Super& super, ArenaNo n) {
  return arena_span(super, n).blocks - (n.v == 0 ? kIdentityBlocks : 0);
}

std::uint32_t arena_chunks(const meta::Super& super, ArenaNo n) {
  return static_cast<std::uint32_t>((arena_span(super, n).blocks + kArenaChunkBlocks - 1) >>
                                    kArenaChunkShift);
}

ArenaMap::ArenaMap(DeviceRange span) : span_(span) {
  ETCFS_ASSERT(span.blocks > 0 && span.block % kArenaChunkBlocks == 0);
  const std::uint64_t chunks = (span.blocks + kArenaChunkBlocks - 1) >> kArenaChunkShift;
  used_.assign(chunks * kChunkWords, 0);
  published_.assign(chunks * kChunkWords, 0);
  chunk_free_.assign(chunks, static_cast<std::uint16_t>(kArenaChunkBlocks));
  free_ = chunks * kArenaChunkBlocks;
  mark_used(span.blocks, free_ - span.blocks);
  if (span.block == 0) mark_used(0, std::min(kIdentityBlocks, span.blocks));
  capacity_ = run_bound_ = free_;
}

Result<void> ArenaMap::load_chunk(std::uint32_t chunk, std::string_view bits) {
  if (chunk >= chunk_free_.size() || bits.size() != kArenaChunkBlocks / 8) return Reason::kCorrupt;
  std::uint64_t words[kChunkWords];
  for (std::uint64_t w = 0; w < kChunkWords; ++w) {
    words[w] = 0;
    for (unsigned b = 0; b < 8; ++b)
      words[w] |= std::uint64_t{static_cast<unsigned char>(bits[w * 8 + b])} << (8 * b);
    if (words[w] & used_[chunk * kChunkWords + w]) return Reason::kCorrupt;
  }
  for (std::uint64_t w = 0; w < kChunkWords; ++w) {
    const std::uint64_t n = count(words[w]);
    used_[chunk * kChunkWords + w] |= words[w];
    published_[chunk * kChunkWords + w] |= words[w];
    free_ -= n;
    published_count_ += n;
    chunk_free_[chunk] = static_cast<std::uint16_t>(chunk_free_[chunk] - n);
  }
  run_bound_ = std::min(run_bound_, free_);
  return {};
}

// The first free run of at least `want` blocks at or behind `from`; else the longest one there.
ArenaMap::Run ArenaMap::find_run(std::uint64_t from, std::uint64_t want) const {
  Run best, run;
  const auto end_run = [&] {
    if (run.length > best.length) best = run;
    run.length = 0;
  };
  const std::uint64_t words = used_.size();
  std::uint64_t w = from / kWordBits;
  std::uint64_t skip = from % kWordBits;  // blocks of the first word that do not count
  while (w < words) {
    if (w % kChunkWords == 0 && skip == 0) {
      const std::uint64_t n = chunk_free_[w / kChunkWords];
      if (n == 0 || n == kArenaChunkBlocks) {
        if (n == 0) end_run();
        if (n != 0 && run.length == 0) run.at = w * kWordBits;
        run.length += n;
        if (run.length >= want) return run;
        w += kChunkWords;
        continue;
      }
    }
    std::uint64_t taken = used_[w] | (skip ? (1ull << skip) - 1 : 0);
    skip = 0;
    if (taken == ~0ull) {
      end_run();
      ++w;
      continue;
    }
    for (std::uint64_t at = 0; at < kWordBits;) {
      const std::uint64_t rest = taken >> at;
      const std::uint64_t zeros =
          rest ? static_cast<std::uint64_t>(std::countr_zero(rest)) : kWordBits - at;
      if (zeros > 0) {
        if (run.length == 0) run.at = w * kWordBits + at;
        run.length += zeros;
        if (run.length >= want) return run;
        at += zeros;
      }
      if (at >= kWordBits) break;
      end_run();
      at += static_cast<std::uint64_t>(std::countr_one(taken >> at));
    }
    ++w;
  }
  end_run();
  return best;
}

void ArenaMap::mark_used(std::uint64_t at, std::uint64_t length) {
  each_word(at, length, [&](std::uint64_t w, std::uint64_t mask) {
    ETCFS_ASSERT((used_[w] & mask) == 0);  // no block is given out twice
    used_[w] |= mask;
    auto& n = chunk_free_[w / kChunkWords];
    n = static_cast<std::uint16_t>(n - count(mask));
  });
  free_ -= length;
}

DeviceRange ArenaMap::take(std::uint64_t at, std::uint64_t length) {
  mark_used(at, length);
  run_bound_ = std::min(run_bound_, free_);
  return {span_.block + at, length};
}

DeviceRange ArenaMap::take_at(std::uint64_t block, std::uint64_t most) {
  const std::uint64_t at = block - span_.block;
  ETCFS_ASSERT(most > 0 && is_free(block));
  std::uint64_t length = 0;
  while (length < most) {
    const std::uint64_t i = at + length;
    if (i >= span_.blocks) break;
    const std::uint64_t left = kWordBits - i % kWordBits;
    const std::uint64_t rest = used_[i / kWordBits] >> (i % kWordBits);
    const std::uint64_t zeros =
        rest ? std::min(left, static_cast<std::uint64_t>(std::countr_zero(rest))) : left;
    length += zeros;
    if (zeros < left) break;
  }
  length = std::min(length, most);
  // The cursor moves only when it stood here: an append to an old file is no reason to go there.
  if (cursor_ >= at && cursor_ < at + length) move_cursor(at + length);
  return take(at, length);
}

DeviceRange ArenaMap::take_run(std::uint64_t blocks) {
  ETCFS_ASSERT(blocks > 0);
  if (blocks > run_bound_ || blocks > free_) return {};
  Run run = find_run(cursor_, blocks);
  if (run.length < blocks && cursor_ != 0) run = find_run(0, blocks);
  if (run.length < blocks) {
    run_bound_ = run.length;
    return {};
  }
  move_cursor(run.at + blocks);
  return take(run.at, blocks);
}

DeviceRange ArenaMap::take_longest(std::uint64_t most) {
  ETCFS_ASSERT(free_ > 0 && most > 0);
  const Run run = find_run(0, most);
  ETCFS_ASSERT(run.length > 0);
  if (run.length < most) run_bound_ = run.length;
  move_cursor(run.at + std::min(run.length, most));
  return take(run.at, std::min(run.length, most));
}

void ArenaMap::give_back(DeviceRange range) {
  ETCFS_ASSERT(range.block >= span_.block && range.end() <= span_.end());
  each_word(range.block - span_.block, range.blocks, [&](std::uint64_t w, std::uint64_t mask) {
    ETCFS_ASSERT((used_[w] & mask) == mask && (published_[w] & mask) == 0);
    used_[w] &= ~mask;
    auto& n = chunk_free_[w / kChunkWords];
    n = static_cast<std::uint16_t>(n + count(mask));
  });
  ETCFS_ASSERT(span_.block != 0 || range.block >= kIdentityBlocks);
  free_ += range.blocks;
  run_bound_ = free_;
}

void ArenaMap::publish(DeviceRange range) {
  ETCFS_ASSERT(range.block >= span_.block && range.end() <= span_.end());
  each_word(range.block - span_.block, range.blocks, [&](std::uint64_t w, std::uint64_t mask) {
    ETCFS_ASSERT((used_[w] & mask) == mask && (published_[w] & mask) == 0);
    published_[w] |= mask;
  });
  published_count_ += range.blocks;
}

std::uint64_t ArenaMap::unpublish(DeviceRange range) {
  ETCFS_ASSERT(range.block >= span_.block && range.end() <= span_.end());
  std::uint64_t n = 0;
  each_word(range.block - span_.block, range.blocks, [&](std::uint64_t w, std::uint64_t mask) {
    n += count(published_[w] & mask);
    published_[w] &= ~mask;
  });
  published_count_ -= n;
  return n;
}

bool ArenaMap::all_published(DeviceRange range) const {
  if (range.block < span_.block || range.end() > span_.end()) return false;
  bool all = true;
  each_word(range.block - span_.block, range.blocks, [&](std::uint64_t w, std::uint64_t mask) {
    all = all && (published_[w] & mask) == mask;
  });
  return all;
}

std::string ArenaMap::chunk_bits(std::uint32_t chunk) const {
  std::string bits(kArenaChunkBlocks / 8, '\0');
  const std::uint64_t* words = published_.data() + chunk * kChunkWords;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(bits.data(), words, bits.size());
  } else {
    for (std::uint64_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<char>(words[i / 8] >> (8 * (i % 8)) & 0xff);
  }
  return bits;
}

bool ArenaMap::chunk_empty(std::uint32_t chunk) const {
  const auto first = published_.begin() + static_cast<std::ptrdiff_t>(chunk * kChunkWords);
  return std::all_of(first, first + kChunkWords, [](std::uint64_t w) { return w == 0; });
}

}  // namespace etcfs::block

#include "block/arena.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "rt/random.h"
#include "rt/rt.h"

namespace etcfs::block {
namespace {

constexpr std::uint64_t kChunk = meta::kArenaChunkBlocks;

meta::Super super_of(std::uint64_t arena_blocks, std::uint64_t device_blocks) {
  meta::Super s;
  s.arena_blocks = arena_blocks;
  s.device_blocks = device_blocks;
  return s;
}

TEST(Arena, GeometryCountsThePartialArenaAndNotBlockZero) {
  const meta::Super s = super_of(2 * kChunk, 5 * kChunk + 100);
  EXPECT_EQ(arena_span(s, ArenaNo{0}), (DeviceRange{0, 2 * kChunk}));
  EXPECT_EQ(arena_capacity(s, ArenaNo{0}), 2 * kChunk - 1);
  EXPECT_EQ(arena_capacity(s, ArenaNo{1}), 2 * kChunk);
  EXPECT_EQ(arena_span(s, ArenaNo{2}), (DeviceRange{4 * kChunk, kChunk + 100}));
  EXPECT_EQ(arena_chunks(s, ArenaNo{2}), 2u);
}

TEST(ArenaMap, BlockZeroIsNeverGivenOut) {
  ArenaMap map({0, kChunk});
  EXPECT_EQ(map.capacity(), kChunk - 1);
  EXPECT_EQ(map.take_run(kChunk), DeviceRange{});
  EXPECT_EQ(map.take_run(kChunk - 1), (DeviceRange{1, kChunk - 1}));
  EXPECT_EQ(map.free_blocks(), 0u);
}

TEST(ArenaMap, NothingBeyondTheEndIsGivenOut) {
  ArenaMap map({4 * kChunk, kChunk + 70});
  EXPECT_EQ(map.take_longest(10 * kChunk), (DeviceRange{4 * kChunk, kChunk + 70}));
  EXPECT_EQ(map.free_blocks(), 0u);
}

TEST(ArenaMap, WholeArenaIsOneRun) {
  ArenaMap map({64 * kChunk, 64 * kChunk});
  EXPECT_EQ(map.take_run(64 * kChunk), (DeviceRange{64 * kChunk, 64 * kChunk}));
}

TEST(ArenaMap, TakesOnBehindTheLastRun) {
  ArenaMap map({kChunk, kChunk});
  EXPECT_EQ(map.take_run(3), (DeviceRange{kChunk, 3}));
  EXPECT_EQ(map.take_run(5), (DeviceRange{kChunk + 3, 5}));
  map.give_back({kChunk, 3});
  EXPECT_EQ(map.take_run(2), (DeviceRange{kChunk + 8, 2}));  // not back into the hole
  EXPECT_EQ(map.take_run(kChunk - 10), (DeviceRange{kChunk + 10, kChunk - 10}));
  EXPECT_EQ(map.take_run(4), DeviceRange{});
  EXPECT_EQ(map.run_bound(), 3u);
  EXPECT_EQ(map.take_run(3), (DeviceRange{kChunk, 3}));
}

TEST(ArenaMap, TakeAtStopsAtTheNextUsedBlock) {
  ArenaMap map({kChunk, kChunk});
  EXPECT_EQ(map.take_at(kChunk + 200, 10), (DeviceRange{kChunk + 200, 10}));
  EXPECT_EQ(map.take_at(kChunk + 60, 1000), (DeviceRange{kChunk + 60, 140}));
  EXPECT_EQ(map.take_at(2 * kChunk - 5, 1000), (DeviceRange{2 * kChunk - 5, 5}));
}

TEST(ArenaMap, LoadedChunksAreTheOnesSaved) {
  ArenaMap map({0, 2 * kChunk});
  const DeviceRange a = map.take_at(1, 3), b = map.take_at(kChunk - 1, 2);
  map.publish(a);
  map.publish(b);
  EXPECT_FALSE(map.chunk_empty(0));
  const std::string bits = map.chunk_bits(0);
  EXPECT_EQ(bits.size(), 512u);
  EXPECT_EQ(bits[0], 0x0e);
  EXPECT_EQ(static_cast<unsigned char>(bits[511]), 0x80);
  ArenaMap again({0, 2 * kChunk});
  ASSERT_TRUE(again.load_chunk(0, bits));
  ASSERT_TRUE(again.load_chunk(1, map.chunk_bits(1)));
  EXPECT_EQ(again.summary_free(), 2 * kChunk - 1 - 5);
  EXPECT_EQ(again.free_blocks(), again.summary_free());
  EXPECT_TRUE(again.all_published(a));
  EXPECT_TRUE(again.all_published(b));
  EXPECT_FALSE(again.is_free(2));
  EXPECT_TRUE(again.is_free(4));
}

TEST(ArenaMap, ABitForABlockThatCannotBePublishedIsCorrupt) {
  ArenaMap first({0, kChunk});
  std::string bits(512, '\0');
  bits[0] = 1;  // the identity
  EXPECT_EQ(first.load_chunk(0, bits).error(), Reason::kCorrupt);
  ArenaMap partial({kChunk, 100});
  bits[0] = 0;
  bits[13] = 1;  // block 104
  EXPECT_EQ(partial.load_chunk(0, bits).error(), Reason::kCorrupt);
  EXPECT_EQ(partial.load_chunk(1, std::string(512, '\0')).error(), Reason::kCorrupt);
  EXPECT_EQ(partial.load_chunk(0, "short").error(), Reason::kCorrupt);
}

// Against a plain array: nothing is given out twice, counts are right, a run is found if there is
// one.
TEST(ArenaMap, RandomUseAgreesWithAnArray) {
  const std::uint64_t seed = rt::Runtime().random();
  std::printf("seed %lu\n", seed);
  rt::Random random(seed);
  for (int round = 0; round < 6; ++round) {
    const std::uint64_t first = round % 2 ? 0 : kChunk * random.below(5);
    const std::uint64_t blocks = 1 + random.below(3 * kChunk);
    ArenaMap map({first, blocks});
    std::vector<char> used(blocks, 0);
    if (first == 0) used[0] = 1;
    std::vector<DeviceRange> held;
    const auto longest = [&] {
      std::uint64_t best = 0, run = 0;
      for (char u : used) best = std::max(best, run = u ? 0 : run + 1);
      return best;
    };
    const auto got = [&](DeviceRange r) {
      ASSERT_GE(r.block, first);
      ASSERT_LE(r.end(), first + blocks);
      for (std::uint64_t b = r.block; b < r.end(); ++b) {
        ASSERT_EQ(used[b - first], 0) << "block " << b << " given out twice";
        used[b - first] = 1;
      }
      held.push_back(r);
    };
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t want = 1 + random.below(random.below(4) ? 20 : blocks);
      switch (random.below(5)) {
        case 0: {
          const std::uint64_t best = longest();
          const DeviceRange r = map.take_run(want);
          if (best < want) {
            ASSERT_EQ(r.blocks, 0u);
            ASSERT_LE(best, map.run_bound());
          } else {
            ASSERT_EQ(r.blocks, want);
            got(r);
          }
          break;
        }
        case 1: {
          const std::uint64_t best = longest();
          if (best == 0) break;
          const DeviceRange r = map.take_longest(want);
          ASSERT_EQ(r.blocks, std::min(want, best));
          got(r);
          break;
        }
        case 2: {
          const std::uint64_t at = random.below(blocks);
          ASSERT_EQ(map.is_free(first + at), used[at] == 0);
          if (used[at]) break;
          std::uint64_t run = 0;
          while (at + run < blocks && run < want && !used[at + run]) ++run;
          const DeviceRange r = map.take_at(first + at, want);
          ASSERT_EQ(r, (DeviceRange{first + at, run}));
          got(r);
          break;
        }
        default: {
          if (held.empty()) break;
          std::swap(held[random.below(held.size())], held.back());
          DeviceRange r = held.back();
          held.pop_back();
          if (r.blocks > 1 && random.below(2)) {  // a part of it
            held.push_back({r.block, 1});
            r = {r.block + 1, r.blocks - 1};
          }
          map.give_back(r);
          for (std::uint64_t b = r.block; b < r.end(); ++b) used[b - first] = 0;
          break;
        }
      }
      std::uint64_t free = 0;
      for (char u : used) free += u == 0;
      ASSERT_EQ(map.free_blocks(), free);
    }
  }
}

}  // namespace
}  // namespace etcfs::block

#include "fs/file/extent_map.h"

#include <gtest/gtest.h>

#include <random>

namespace etcfs::fs {
namespace {

meta::Extent extent(std::uint64_t file, std::uint64_t device, std::uint64_t blocks) {
  return {file, device, blocks, 0, 0};
}

TEST(ExtentMap, LooksUpRunsAndHoles) {
  const Extents m{extent(2, 100, 3), extent(7, 50, 1)};
  EXPECT_EQ(map_at(m, 0, 10).kind, MapRun::Kind::kHole);
  EXPECT_EQ(map_at(m, 0, 10).blocks, 2u);
  EXPECT_EQ(map_at(m, 3, 10).device_block, 101u);
  EXPECT_EQ(map_at(m, 3, 10).blocks, 2u);
  EXPECT_EQ(map_at(m, 3, 4).blocks, 1u);
  EXPECT_EQ(map_at(m, 5, 10).blocks, 2u);
  EXPECT_EQ(map_at(m, 8, 10).blocks, 2u);
  EXPECT_EQ(map_at(m, 8, 10).kind, MapRun::Kind::kHole);
}

TEST(ExtentMap, MergesWhatIsAdjacentInFileAndOnDevice) {
  const Extents m{extent(0, 100, 2), extent(4, 104, 2)};
  const MapChange fill{2, 2, 102, false};
  EXPECT_EQ(apply_changes(m, {&fill, 1}), (Extents{extent(0, 100, 6)}));
  const MapChange apart{2, 2, 200, false};
  EXPECT_EQ(apply_changes(m, {&apart, 1}),
            (Extents{extent(0, 100, 2), extent(2, 200, 2), extent(4, 104, 2)}));
}

TEST(ExtentMap, CutsWithinAnExtent) {
  Extents m{extent(0, 100, 4), extent(6, 50, 4)};
  cut_extents(m, 8);
  EXPECT_EQ(m, (Extents{extent(0, 100, 4), extent(6, 50, 2)}));
  cut_extents(m, 5);
  EXPECT_EQ(m, (Extents{extent(0, 100, 4)}));
  cut_extents(m, 0);
  EXPECT_TRUE(m.empty());
}

TEST(ExtentMap, TouchedChunksNameEveryChangedRecord) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::uint64_t span = 6ull << meta::kExtentChunkShift;
    Extents m;
    for (int round = 0; round < 20; ++round) {
      std::vector<MapChange> changes;
      for (std::uint64_t b = random() % span; b < span && changes.size() < 5;) {
        const std::uint64_t n = 1 + random() % (random() % 3 ? 50 : 40'000);
        // Often right behind what precedes it on the device, so that things merge.
        std::uint64_t place = random() % 3 ? b + 1'000'000 : random() % 1'000'000;
        changes.push_back({b, n, place, random() % 4 == 0});
        b += n + (random() % 2 ? 0 : random() % 30'000);
      }
      std::set<std::uint32_t> touched;
      for (const MapChange& c : changes) add_touched_chunks(m, c.file_block, c.blocks, touched);
      const Extents after = apply_changes(m, changes);
      ASSERT_TRUE(valid_extents(after));
      for (std::uint32_t c = 0; c < 16; ++c) {
        if (touched.contains(c)) continue;
        const auto x = extents_of_chunk(m, c), y = extents_of_chunk(after, c);
        ASSERT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end())) << "chunk " << c;
      }
      for (int probe = 0; probe < 200; ++probe) {
        std::uint64_t b = random() % (span + 100'000);
        if (probe % 2 && !changes.empty()) {
          const MapChange& c = changes[random() % changes.size()];
          b = random() % 2 ? c.file_block : c.end();
          b -= b > 0 && random() % 2;
        }
        const MapChange* by = nullptr;
        for (const MapChange& c : changes)
          if (c.file_block <= b && b < c.end()) by = &c;
        const MapRun got = map_at(after, b, b + 1);
        if (by && by->hole) {
          ASSERT_EQ(got.kind, MapRun::Kind::kHole);
        } else if (by) {
          ASSERT_EQ(got.device_block, by->device_block + (b - by->file_block));
        } else {
          const MapRun old = map_at(m, b, b + 1);
          ASSERT_EQ(got.kind, old.kind);
          ASSERT_EQ(got.device_block, old.device_block);
        }
      }
      m = after;
    }
  }
}

}  // namespace
}  // namespace etcfs::fs

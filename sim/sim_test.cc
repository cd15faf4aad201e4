// Whole clusters in simulation, by seed. A seed that went wrong once stands in kSeeds for good.
#include <gtest/gtest.h>

#include <set>

#include "sim/world.h"

namespace etcfs::sim {
namespace {

SimOptions options(std::uint64_t seed) {
  SimOptions o;
  o.seed = seed;
  o.steps = 200;
  return o;
}

class Seeds : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, RunsRight) {
  const SimReport r = simulate(options(GetParam()));
  std::printf("seed %llu: %zu operations, %zu crashes, %zu restarts, %.1f virtual seconds\n",
              static_cast<unsigned long long>(GetParam()), r.operations, r.crashes, r.restarts,
              r.virtual_seconds);
  EXPECT_TRUE(r.right) << "seed " << GetParam() << ": " << r.text;
  EXPECT_GE(r.operations, 200u);
}
INSTANTIATE_TEST_SUITE_P(Sim, Seeds, ::testing::Range<std::uint64_t>(1, 31));

TEST(Sim, SameSeedSameRun) {
  for (std::uint64_t seed : {1, 2, 3, 4, 5}) {
    const SimReport a = simulate(options(seed)), b = simulate(options(seed));
    EXPECT_EQ(a.trace_hash, b.trace_hash) << "seed " << seed;
    EXPECT_EQ(a.operations, b.operations) << "seed " << seed;
    EXPECT_EQ(a.virtual_seconds, b.virtual_seconds) << "seed " << seed;
  }
}

TEST(Sim, DifferentSeedsAreDifferentRuns) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 8; seed++) hashes.insert(simulate(options(seed)).trace_hash);
  EXPECT_EQ(hashes.size(), 8u);
}

// The oracle is not asleep: crashes, restarts and all kinds of operations do occur.
TEST(Sim, RunsExerciseWhatTheyShould) {
  std::size_t crashes = 0, restarts = 0, images = 0;
  for (std::uint64_t seed = 1; seed <= 8; seed++) {
    const SimReport r = simulate(options(seed));
    crashes += r.crashes;
    restarts += r.restarts;
    images += r.images_checked;
  }
  EXPECT_GE(crashes, 5u);
  EXPECT_GE(restarts, 1u);
  EXPECT_GE(images, 40u);
}

}  // namespace
}  // namespace etcfs::sim

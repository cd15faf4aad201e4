// What only the simulated device can do: lose, tear and delay what a real one may.
#include "sim/fakes/sim_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace etcfs::sim {
namespace {

using block::Buffer;

struct Bed {
  explicit Bed(std::uint64_t seed, SimDiskOptions options = {})
      : runtime(simulated(seed)), disk(runtime, 4 * kMiB, options) {}
  static rt::Options simulated(std::uint64_t seed) {
    rt::Options o;
    o.simulated = true;
    o.seed = seed;
    return o;
  }
  void run(const std::function<void()>& body) {
    rt::Group group(runtime, "test");
    bool ended = false;
    group.spawn([&] {
      body();
      ended = true;
      runtime.stop();
    });
    runtime.run();
    ASSERT_TRUE(ended);
  }
  // First byte of each 512-byte sector of the block.
  std::string sectors(std::uint64_t block, bool stable = false) const {
    const SimDisk::Block b = stable ? disk.peek_stable(block) : disk.peek(block);
    std::string out;
    for (std::size_t at = 0; at < kBlockBytes; at += 512) {
      for (std::size_t i = 1; i < 512; ++i) EXPECT_EQ(b[at + i], b[at]);
      out += b[at] == std::byte{0} ? '0' : static_cast<char>(b[at]);
    }
    return out;
  }
  rt::Runtime runtime;
  SimDisk disk;
};

Result<void> put(SimDevice& device, std::uint64_t block, char c, std::uint64_t blocks = 1) {
  Buffer b = Buffer::allocate(blocks * kBlockBytes);
  std::memset(b.data(), c, b.size());
  const std::span<const std::byte> piece = b.span();
  return device.write(block * kBlockBytes, {&piece, 1});
}

TEST(SimDevice, FlushedWritesSurviveAPowerCut) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Bed bed(seed);
    bed.run([&] {
      SimDevice a(bed.disk, "a");
      ASSERT_TRUE(put(a, 1, 'x'));
      EXPECT_EQ(bed.sectors(1), "xxxxxxxx");
      EXPECT_EQ(bed.sectors(1, true), "00000000");
      ASSERT_TRUE(a.flush());
      EXPECT_EQ(bed.disk.unflushed_blocks(), 0u);
      bed.disk.power_cut();
      EXPECT_EQ(bed.sectors(1), "xxxxxxxx");
    });
  }
}

TEST(SimDevice, UnflushedWritesMayBeLostOrTorn) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Bed bed(seed);
    bed.run([&] {
      SimDevice a(bed.disk, "a");
      ASSERT_TRUE(put(a, 1, 'x'));
      ASSERT_TRUE(put(a, 1, 'y'));
      bed.disk.power_cut();
      seen.insert(bed.sectors(1));
    });
  }
  EXPECT_TRUE(seen.contains("00000000"));
  EXPECT_TRUE(seen.contains("xxxxxxxx"));  // an older version than the last
  EXPECT_TRUE(seen.contains("yyyyyyyy"));
  EXPECT_GT(seen.size(), 4u);  // torn
}

TEST(SimDevice, AFlushCoversOnlyWhatWasWrittenBeforeIt) {
  bool ever_lost = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Bed bed(seed);
    bed.run([&] {
      SimDevice a(bed.disk, "a");
      ASSERT_TRUE(put(a, 1, 'x'));
      rt::Group group(bed.runtime, "flush");
      group.spawn([&] { EXPECT_TRUE(a.flush()); });
      group.spawn([&] { EXPECT_TRUE(put(a, 2, 'y')); });
      group.wait();
      EXPECT_EQ(bed.sectors(1, true), "xxxxxxxx");
      ever_lost = ever_lost || bed.sectors(2, true) == "00000000";
    });
  }
  EXPECT_TRUE(ever_lost);
}

TEST(SimDevice, WithoutACacheEveryWriteIsStable) {
  Bed bed(1, {.volatile_cache = false});
  bed.run([&] {
    SimDevice a(bed.disk, "a");
    ASSERT_TRUE(put(a, 1, 'x'));
    EXPECT_EQ(bed.sectors(1, true), "xxxxxxxx");
    ASSERT_TRUE(a.flush());
  });
}

TEST(SimDevice, WritesOfADeadNodeMayArriveLateInPartOrNever) {
  std::set<std::string> at_once, later;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    Bed bed(seed);
    bed.run([&] {
      SimDevice a(bed.disk, "a");
      rt::Group node(bed.runtime, "a");
      node.spawn([&] { (void)put(a, 0, 'x', 2); });
      rt::sleep_for(5us);
      EXPECT_EQ(a.requests_in_flight(), 1u);
      node.kill();
      EXPECT_EQ(a.requests_in_flight(), 0u);
      EXPECT_EQ(a.unfinished(), 1u);
      rt::sleep_for(1ms);
      at_once.insert(bed.sectors(0).substr(0, 1) + bed.sectors(1).substr(0, 1));
      rt::sleep_for(10s);
      EXPECT_EQ(a.unfinished(), 0u);
      later.insert(bed.sectors(0).substr(0, 1) + bed.sectors(1).substr(0, 1));
    });
  }
  EXPECT_TRUE(at_once.contains("00"));
  EXPECT_EQ(later, (std::set<std::string>{"00", "x0", "xx"}));
}

TEST(SimDevice, ACutOffNodeReachesNothing) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Bed bed(seed);
    bed.run([&] {
      SimDevice a(bed.disk, "a");
      rt::Group node(bed.runtime, "a");
      node.spawn([&] { (void)put(a, 0, 'x', 2); });
      rt::sleep_for(5us);
      node.kill();
      a.cut_off();
      rt::sleep_for(10s);
      EXPECT_EQ(bed.sectors(0) + bed.sectors(1), "0000000000000000");
      EXPECT_EQ(put(a, 0, 'y').error(), Reason::kIo);
    });
  }
}

TEST(SimDevice, ErrorsComeWhenAskedFor) {
  Bed bed(3);
  bed.run([&] {
    SimDevice a(bed.disk, "a"), b(bed.disk, "b");
    Buffer block = Buffer::allocate(kBlockBytes);
    a.fail_reads(1);
    a.fail_writes(2);
    a.fail_flushes(1);
    EXPECT_TRUE(put(b, 1, 'x'));  // another node's path
    EXPECT_EQ(a.read(4096, block.span()).error(), Reason::kIo);
    EXPECT_TRUE(a.read(4096, block.span()));
    EXPECT_EQ(static_cast<char>(block.data()[0]), 'x');
    EXPECT_EQ(put(a, 2, 'y').error(), Reason::kIo);
    EXPECT_EQ(put(a, 2, 'y').error(), Reason::kIo);
    EXPECT_TRUE(put(a, 2, 'z'));
    EXPECT_EQ(a.flush().error(), Reason::kIo);
    EXPECT_EQ(bed.sectors(2, true), "00000000");
    EXPECT_TRUE(a.flush());
    EXPECT_EQ(bed.sectors(2, true), "zzzzzzzz");
  });
}

TEST(SimDevice, TheSameSeedIsTheSameRun) {
  const auto run = [](std::uint64_t seed) {
    std::vector<std::string> log;
    Bed bed(seed);
    bed.disk.on_write([&](const std::string& node, std::uint64_t block, std::uint64_t blocks) {
      log.push_back(node + " " + std::to_string(block) + "+" + std::to_string(blocks) + " at " +
                    std::to_string(rt::now().time_since_epoch().count()));
    });
    bed.run([&] {
      SimDevice a(bed.disk, "a"), b(bed.disk, "b");
      rt::Group group(bed.runtime, "writers");
      for (std::uint64_t i = 0; i < 20; ++i) {
        group.spawn([&, i] { EXPECT_TRUE(put(i % 2 ? a : b, i * 4, 'x', 1 + i % 4)); });
      }
      group.wait();
    });
    return log;
  };
  EXPECT_GT(run(1).size(), 20u);
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace etcfs::sim

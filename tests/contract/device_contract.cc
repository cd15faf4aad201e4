// The Device seam: one suite for the simulated device, a regular file and a loop device, both of
// the latter through io_uring. The loop device is skipped only where none can be set up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "block/identity.h"
#include "rt/random.h"
#include "tests/contract/device_bed.h"

namespace etcfs::testing {
namespace {

using block::Buffer;
using block::Device;

constexpr std::uint64_t kSize = 64 * kMiB;

std::uint64_t g_seed = 0;

// Bytes that depend on where they stand and on who wrote them.
void fill(std::span<std::byte> bytes, std::uint64_t offset, std::uint64_t tag) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = (offset + i) * 0x9e3779b97f4a7c15ull ^ tag;
    std::memcpy(&bytes[i], &word, 8);
  }
}

Result<void> write_one(Device& device, std::uint64_t offset, std::span<const std::byte> bytes) {
  return device.write(offset, {&bytes, 1});
}

void expect_bytes(Device& device, std::uint64_t offset, std::span<const std::byte> expected) {
  Buffer got = Buffer::allocate(expected.size());
  ASSERT_TRUE(device.read(offset, got.span()));
  ASSERT_EQ(std::memcmp(got.data(), expected.data(), expected.size()), 0) << "at " << offset;
}

class DeviceContract : public ::testing::TestWithParam<DeviceSide> {
 protected:
  void SetUp() override {
    bed_ = std::make_unique<DeviceBed>(GetParam(), kSize, 7);
    if (!bed_->problem().empty()) GTEST_SKIP() << bed_->problem();
  }
  void run(const std::function<void(Device&)>& body) { bed_->run(body); }
  std::unique_ptr<DeviceBed> bed_;
};

TEST_P(DeviceContract, KnowsItsSize) {
  run([&](Device& d) {
    EXPECT_EQ(d.size_bytes(), kSize);
    EXPECT_EQ(*d.poll_size(), kSize);
    EXPECT_EQ(d.requests_in_flight(), 0u);
  });
}

TEST_P(DeviceContract, WhatWasNeverWrittenReadsAsZeros) {
  run([&](Device& d) {
    Buffer zeros = Buffer::allocate(256 * kKiB);
    std::memset(zeros.data(), 0, zeros.size());
    expect_bytes(d, 8 * kMiB, zeros.span());
  });
}

TEST_P(DeviceContract, ReadsBackWhatWasWritten) {
  run([&](Device& d) {
    std::uint64_t offset = 4096;
    for (const std::size_t size :
         {4096ul, 8192ul, 65536ul, 1048576ul, 1048576ul + 4096, 5 * 1048576ul}) {
      Buffer b = Buffer::allocate(size);
      fill(b.span(), offset, size);
      ASSERT_TRUE(write_one(d, offset, b.span()));
      expect_bytes(d, offset, b.span());
      offset += size + 4096;
    }
    ASSERT_TRUE(d.flush());
  });
}

TEST_P(DeviceContract, GathersPiecesInOrder) {
  run([&](Device& d) {
    std::vector<Buffer> pieces;
    std::vector<std::span<const std::byte>> spans;
    Buffer whole = Buffer::allocate(3 * kMiB);
    fill(whole.span(), 0, 5);
    std::size_t at = 0;
    rt::Random random(11);
    while (at < whole.size()) {  // of many sizes, across the places where requests are cut
      const std::size_t n =
          std::min<std::size_t>(whole.size() - at, 4096 * (1 + random.below(300)));
      pieces.push_back(Buffer::allocate(n));
      std::memcpy(pieces.back().data(), whole.data() + at, n);
      spans.push_back(pieces.back().span());
      if (random.below(4) == 0) spans.emplace_back();  // empty ones do no harm
      at += n;
    }
    ASSERT_TRUE(d.write(12 * kMiB, spans));
    expect_bytes(d, 12 * kMiB, whole.span());
  });
}

TEST_P(DeviceContract, ManySmallPiecesAreOneWrite) {
  run([&](Device& d) {
    Buffer whole = Buffer::allocate(2000 * 4096);
    fill(whole.span(), 0, 6);
    std::vector<std::span<const std::byte>> spans;
    for (std::size_t i = 0; i < 2000; ++i) spans.push_back(whole.span().subspan(i * 4096, 4096));
    ASSERT_TRUE(d.write(0, spans));
    expect_bytes(d, 0, whole.span());
  });
}

TEST_P(DeviceContract, NeighboursStayAsTheyWere) {
  run([&](Device& d) {
    Buffer three = Buffer::allocate(3 * 4096);
    fill(three.span(), 0, 1);
    ASSERT_TRUE(write_one(d, kMiB, three.span()));
    fill(three.span().subspan(4096, 4096), 0, 2);
    ASSERT_TRUE(write_one(d, kMiB + 4096, three.span().subspan(4096, 4096)));
    expect_bytes(d, kMiB, three.span());
  });
}

TEST_P(DeviceContract, OutsideIsInvalid) {
  run([&](Device& d) {
    Buffer two = Buffer::allocate(8192);
    std::memset(two.data(), 7, two.size());
    EXPECT_EQ(d.read(kSize, two.span()).error(), Reason::kInvalid);
    EXPECT_EQ(d.read(kSize - 4096, two.span()).error(), Reason::kInvalid);
    EXPECT_EQ(d.read(std::uint64_t{0} - 4096, two.span()).error(), Reason::kInvalid);
    EXPECT_EQ(write_one(d, kSize - 4096, two.span()).error(), Reason::kInvalid);
    EXPECT_EQ(d.size_bytes(), kSize);
    EXPECT_EQ(*d.poll_size(), kSize);                     // and it did not grow by it
    ASSERT_TRUE(write_one(d, kSize - 8192, two.span()));  // up to the very end
    expect_bytes(d, kSize - 8192, two.span());
  });
}

TEST_P(DeviceContract, ManyRequestsAtOnce) {
  run([&](Device& d) {
    constexpr std::uint64_t kFibers = 500, kBytes = 64 * kKiB;  // more than the queue holds
    rt::Group group(rt::Runtime::current(), "requests");
    std::uint64_t ended = 0;
    std::size_t most = 0;
    for (std::uint64_t i = 0; i < kFibers; ++i)
      group.spawn([&, i] {
        Buffer b = Buffer::allocate(kBytes);
        fill(b.span(), i * kBytes, i);
        EXPECT_TRUE(write_one(d, i * kBytes, b.span()));
        most = std::max(most, d.requests_in_flight());
        Buffer got = Buffer::allocate(kBytes);
        EXPECT_TRUE(d.read(i * kBytes, got.span()));
        EXPECT_EQ(std::memcmp(got.data(), b.data(), kBytes), 0) << i;
        ++ended;
      });
    group.wait();
    EXPECT_EQ(ended, kFibers);
    EXPECT_GT(most, 10u);
    EXPECT_EQ(d.requests_in_flight(), 0u);
  });
}

TEST_P(DeviceContract, LargeRequestsFromManyFibers) {
  run([&](Device& d) {
    rt::Group group(rt::Runtime::current(), "requests");
    for (std::uint64_t i = 0; i < 5; ++i)
      group.spawn([&, i] {
        Buffer b = Buffer::allocate(12 * kMiB);
        fill(b.span(), i, i);
        EXPECT_TRUE(write_one(d, i * 12 * kMiB, b.span()));
        Buffer got = Buffer::allocate(12 * kMiB);
        EXPECT_TRUE(d.read(i * 12 * kMiB, got.span()));
        EXPECT_EQ(std::memcmp(got.data(), b.data(), b.size()), 0) << i;
      });
    group.wait();
  });
}

TEST_P(DeviceContract, FlushesAmongWrites) {
  run([&](Device& d) {
    rt::Group group(rt::Runtime::current(), "requests");
    int flushed = 0;
    for (std::uint64_t i = 0; i < 40; ++i)
      group.spawn([&, i] {
        Buffer b = Buffer::allocate(4096);
        fill(b.span(), i, 3);
        EXPECT_TRUE(write_one(d, i * 4096, b.span()));
        EXPECT_TRUE(d.flush());
        ++flushed;
      });
    group.wait();
    EXPECT_EQ(flushed, 40);
  });
}

TEST_P(DeviceContract, DiscardIsDoneOrNotSupported) {
  run([&](Device& d) {
    Buffer three = Buffer::allocate(3 * 65536);
    fill(three.span(), 0, 9);
    ASSERT_TRUE(write_one(d, 0, three.span()));
    const auto result = d.discard(65536, 65536);
    if (!result) {
      EXPECT_EQ(result.error(), Reason::kNotSupported);
    }
    expect_bytes(d, 0, three.span().first(65536));  // what was not named stays
    expect_bytes(d, 2 * 65536, three.span().subspan(2 * 65536, 65536));
    EXPECT_EQ(d.discard(kSize, 4096).error() == Reason::kInvalid ||
                  d.discard(kSize, 4096).error() == Reason::kNotSupported,
              true);
  });
}

TEST_P(DeviceContract, GrowthIsSeenWhenAskedFor) {
  run([&](Device& d) {
    bed_->grow(kSize + 8 * kMiB);
    EXPECT_EQ(d.size_bytes(), kSize);
    Buffer b = Buffer::allocate(4096);
    fill(b.span(), 0, 12);
    EXPECT_EQ(write_one(d, kSize, b.span()).error(), Reason::kInvalid);
    EXPECT_EQ(*d.poll_size(), kSize + 8 * kMiB);
    EXPECT_EQ(d.size_bytes(), kSize + 8 * kMiB);
    ASSERT_TRUE(write_one(d, kSize + 4 * kMiB, b.span()));
    expect_bytes(d, kSize + 4 * kMiB, b.span());
  });
}

TEST_P(DeviceContract, IdentityIsRecognised) {
  run([&](Device& d) {
    meta::Super super;
    super.arena_blocks = 4096;
    super.device_blocks = kSize / kBlockBytes;
    super.identity_hash = std::string(32, 'x');
    EXPECT_EQ(block::verify_device(d, super).error(), Reason::kWrongDevice);  // never written
    super.identity_hash = *block::write_identity(d);
    EXPECT_TRUE(block::verify_device(d, super));
    const std::string first = super.identity_hash;
    super.identity_hash = *block::write_identity(d);
    EXPECT_NE(super.identity_hash, first);
    EXPECT_TRUE(block::verify_device(d, super));
    super.device_blocks += 1;
    EXPECT_EQ(block::verify_device(d, super).error(), Reason::kWrongDevice);  // too small
  });
}

// Several fibers, each with a part of the device of its own, against arrays in memory.
TEST_P(DeviceContract, RandomRequestsAgreeWithMemory) {
  const std::uint64_t seed = g_seed;
  std::printf("seed %lu\n", seed);
  run([&](Device& d) {
    constexpr std::uint64_t kParts = 6, kPartBlocks = 600;
    rt::Group group(rt::Runtime::current(), "parts");
    for (std::uint64_t part = 0; part < kParts; ++part)
      group.spawn([&, part] {
        rt::Random random(seed + part);
        Buffer model = Buffer::allocate(kPartBlocks * kBlockBytes);
        std::memset(model.data(), 0, model.size());
        const std::uint64_t base = part * model.size();
        for (int i = 0; i < 120; ++i) {
          const std::uint64_t first = random.below(kPartBlocks);
          const std::uint64_t blocks = 1 + random.below(std::min<std::uint64_t>(
                                               kPartBlocks - first, random.below(3) ? 8 : 400));
          const std::uint64_t at = first * kBlockBytes, n = blocks * kBlockBytes;
          if (random.below(2)) {
            fill(model.span().subspan(at, n), at, random.next());
            ASSERT_TRUE(write_one(d, base + at, model.span().subspan(at, n)));
            if (random.below(8) != 0) continue;
            ASSERT_TRUE(d.flush());
          } else {
            expect_bytes(d, base + at, model.span().subspan(at, n));
          }
        }
        expect_bytes(d, base, model.span());
      });
    group.wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Sides, DeviceContract,
                         ::testing::Values(DeviceSide::kSimulated, DeviceSide::kFile,
                                           DeviceSide::kLoop),
                         [](const auto& info) { return side_name(info.param); });

}  // namespace
}  // namespace etcfs::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  etcfs::testing::g_seed = etcfs::rt::Runtime().random();
  return RUN_ALL_TESTS();
}

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "block/device.h"
#include "rt/random.h"
#include "rt/rt.h"

namespace etcfs::block {
namespace {

TEST(Buffer, IsAlignedAndRoundedUp) {
  for (std::size_t bytes :
       {1ul, 4096ul, 4097ul, 16384ul, 65536ul, 65537ul, 300000ul, 1048576ul, 5000000ul}) {
    Buffer b = Buffer::allocate(bytes);
    ASSERT_TRUE(b);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % kBlockBytes, 0u);
    EXPECT_EQ(b.size(), (bytes + 4095) / 4096 * 4096);
    std::memset(b.data(), 0xab, b.size());
  }
}

TEST(Buffer, MoveLeavesTheSourceEmpty) {
  Buffer a = Buffer::allocate(4096);
  std::byte* at = a.data();
  Buffer b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(b.data(), at);
  a = std::move(b);
  EXPECT_EQ(a.data(), at);
  EXPECT_FALSE(b);
}

// Live buffers never overlap, whatever the order of allocation and release.
TEST(Buffer, RandomUseNeverOverlaps) {
  const std::uint64_t seed = rt::Runtime().random();
  std::printf("seed %lu\n", seed);
  rt::Random random(seed);
  const auto rng = [&] { return random.next() >> 1; };
  struct Held {
    Buffer b;
    unsigned char fill;
  };
  std::vector<Held> held;
  for (int i = 0; i < 20000; ++i) {
    if (held.size() < 50 || (held.size() < 1500 && rng() % 2)) {
      const std::size_t sizes[] = {4096, 4096, 4096, 8192, 16384, 40000, 65536, 200000, 1048576};
      std::size_t bytes = sizes[rng() % (held.size() > 200 ? 5 : 9)];
      Held h{Buffer::allocate(bytes), static_cast<unsigned char>(rng())};
      std::memset(h.b.data(), h.fill, h.b.size());
      held.push_back(std::move(h));
    } else {
      const std::size_t at = rng() % held.size();
      Held& h = held[at];
      for (std::size_t k = 0; k < h.b.size(); k += 512)
        ASSERT_EQ(static_cast<unsigned char>(h.b.data()[k]), h.fill);
      ASSERT_EQ(static_cast<unsigned char>(h.b.data()[h.b.size() - 1]), h.fill);
      std::swap(held[at], held.back());
      held.pop_back();
    }
  }
}

TEST(Buffer, ManySmallOnesCostLittleMoreThanTheirSize) {
#ifdef ETCFS_ASAN
  GTEST_SKIP() << "plain malloc under AddressSanitizer";
#endif
  auto resident = [] {
    long size = 0, pages = 0;
    FILE* f = std::fopen("/proc/self/statm", "r");
    if (f && std::fscanf(f, "%ld %ld", &size, &pages) != 2) pages = 0;
    if (f) std::fclose(f);
    return pages * 4096l;
  };
  constexpr std::size_t kCount = 16'384;
  std::vector<Buffer> held;
  held.reserve(kCount);
  const long before = resident();
  for (std::size_t i = 0; i < kCount; ++i) {
    held.push_back(Buffer::allocate(4096));
    std::memset(held.back().data(), 1, 4096);
  }
  EXPECT_LT(resident() - before, static_cast<long>(kCount) * 4096 + 8 * 1024 * 1024);
  held.clear();
  EXPECT_LT(resident() - before, 40 * 1024 * 1024);  // but for a reserve, it goes back
}

}  // namespace
}  // namespace etcfs::block

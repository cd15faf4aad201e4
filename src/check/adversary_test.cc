// What could be missed: every key lost, every bit flipped, records exchanged. Nothing of it may end
// the checker; what it must find is found; and what it cannot find is named here.
#include <gtest/gtest.h>

#include <set>

#include "check/check.h"
#include "check/test_image.h"

namespace etcfs::check {
namespace {

std::string kind_of(const TestImage& t, const std::string& key) {
  const std::string rest = key.substr(t.keys.prefix().size());
  return rest.substr(0, rest.find('/'));
}

TEST(Adversary, EveryLostKeyIsFoundUnlessItMayBeAbsent) {
  // Locks, wants, holds and beats come and go; a step number and an intent may never have been.
  const std::set<std::string> may{"lock", "want", "hold", "plock", "beat", "live", "seq", "fence"};
  const TestImage good;
  for (const auto& [key, value] : good.kvs) {
    TestImage t;
    t.kvs.erase(key);
    const bool found = !t.findings().empty();
    // Of arenas, one that is wholly free needs no record.
    const bool absent_is_legal = may.contains(kind_of(t, key)) || key == t.keys.arena(ArenaNo{2});
    EXPECT_EQ(found, !absent_is_legal) << printable(key);
  }
}

TEST(Adversary, EveryFlippedBitIsSurvived) {
  const TestImage good;
  std::map<std::string, std::pair<int, int>> flips;  // kind -> found, not found
  TestImage t;
  for (const auto& [key, value] : good.kvs) {
    const std::string kind = kind_of(t, key);
    const std::size_t stride = kind == "amap" ? 11 : 1;  // those are long
    for (std::size_t bit = 0; bit < value.size() * 8; bit += stride) {
      t.kvs[key][bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << bit % 8));
      auto& [found, missed] = flips[kind];
      ++(t.findings().empty() ? missed : found);
      t.kvs[key] = value;
    }
  }
  // Space accounts for every bit twice.
  EXPECT_EQ(flips["amap"].second, 0);
  EXPECT_EQ(flips["freed"].second, 0);
  EXPECT_GT(flips["amap"].first, 3 * 4096 / 11);
  // An entry: only the cookie may change into another that is free; they are 16 to 21 of 22 here.
  EXPECT_LE(flips["d"].second, 9 * 2);
  for (const auto& [kind, count] : flips)
    RecordProperty(kind, std::to_string(count.first) + " found, " + std::to_string(count.second));
}

TEST(Adversary, EveryExchangeOfTwoRecordsOfAKindIsSurvived) {
  const TestImage good;
  for (const auto& [a, value_a] : good.kvs)
    for (const auto& [b, value_b] : good.kvs) {
      if (a >= b || kind_of(good, a) != kind_of(good, b) || value_a == value_b) continue;
      TestImage t;
      t.kvs[a] = value_b;
      t.kvs[b] = value_a;
      const bool found = !t.findings().empty();
      const std::string kind = kind_of(good, a);
      // Both maps, both arenas' summaries, both counts of links are seen.
      if (kind == "amap" || kind == "arena" || kind == "x") {
        EXPECT_TRUE(found) << printable(a) << " " << printable(b);
      }
    }
}

TEST(Adversary, EveryKeyWithAnotherValueOfTheImageIsSurvived) {
  const TestImage good;
  TestImage t;
  for (const auto& [key, mine] : good.kvs) {
    for (const auto& [other, value] : good.kvs) {
      t.kvs[key] = value;
      (void)t.findings();
      t.kvs[key] = value.substr(0, value.size() / 2);
      (void)t.findings();
    }
    t.kvs[key] = mine;
  }
}

TEST(Adversary, NumbersAtTheirLimitsAreSurvived) {
  TestImage t;
  const meta::Keys& k = t.keys;
  meta::Super super = *meta::decode_super(t.kvs[k.super()]);
  super.device_blocks = std::uint64_t{1} << 44;
  super.arena_blocks = std::uint64_t{1} << 43;
  t.kvs[k.super()] = encode(super);
  t.kvs[k.family_counter()] = meta::encode_family_counter(Family{std::uint64_t{1} << 40});
  t.kvs[k.inode(Ino{~0ull})] = encode(TestImage::inode(S_IFREG, ~0u));
  t.kvs[k.orphan(Ino{0})] = "";
  t.kvs[k.amap(ArenaNo{~0u}, ~0u)] = t.kvs[k.amap(ArenaNo{0}, 0)];
  t.kvs[k.freed(ArenaNo{~0u}, "x")] =
      meta::encode_freed({{std::uint64_t{1} << 52, std::uint64_t{1} << 52}});
  meta::Inode file = TestImage::inode(S_IFREG, 1);
  file.size = kMaxFileBytes;
  file.extents = {
      {std::uint64_t{1} << 51, std::uint64_t{1} << 52, std::uint64_t{1} << 52, 0, ~0ull}};
  t.put(t.h, file);
  EXPECT_FALSE(t.findings().empty());
}

}  // namespace
}  // namespace etcfs::check

#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "base/ids.h"
#include "base/units.h"

namespace etcfs {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Reason::kInvalid;
  return n / 2;
}
Result<int> quarter(int n) {
  ETCFS_TRY(int h, half(n));
  ETCFS_TRY(int q, half(h));
  return q;
}
Result<void> check_half(int n) {
  ETCFS_CHECK(half(n));
  return {};
}

TEST(Result, HoldsAValueOrAReason) {
  Result<std::string> value(std::string("x"));
  EXPECT_TRUE(value);
  EXPECT_EQ(*value, "x");
  EXPECT_EQ(value->size(), 1u);
  Result<std::string> error(Reason::kNotFound);
  EXPECT_FALSE(error);
  EXPECT_EQ(error.error(), Reason::kNotFound);
  EXPECT_EQ(error.value_or("other"), "other");
  EXPECT_EQ(value.value_or("other"), "x");
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> r(std::make_unique<int>(7));
  std::unique_ptr<int> taken = *std::move(r);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, TryLeavesWithTheFirstError) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).error(), Reason::kInvalid);
  EXPECT_EQ(quarter(3).error(), Reason::kInvalid);
  EXPECT_TRUE(check_half(2));
  EXPECT_EQ(check_half(1).error(), Reason::kInvalid);
}

TEST(ResultDeathTest, ReadingAnErrorAsAValueIsAnAssertion) {
  Result<int> error(Reason::kIo);
  EXPECT_DEATH((void)*error, "assertion failed");
  Result<int> value(1);
  EXPECT_DEATH((void)value.error(), "assertion failed");
  Result<void> done;
  EXPECT_DEATH((void)done.error(), "assertion failed");
}

TEST(Reason, RowsHaveNameErrnoAndText) {
  EXPECT_EQ(reason_name(Reason::kNotFound), "kNotFound");
  EXPECT_EQ(reason_errno(Reason::kNotFound), ENOENT);
  EXPECT_EQ(reason_errno(Reason::kNoSpace), ENOSPC);
  EXPECT_EQ(reason_errno(Reason::kLoop), EINVAL);
  EXPECT_EQ(reason_errno(Reason::kStale), ESTALE);
  EXPECT_EQ(reason_text(Reason::kNotEmpty), "directory not empty");
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Reason::kRetry); i++) {
    const auto reason = static_cast<Reason>(i);
    EXPECT_TRUE(names.insert(reason_name(reason)).second);
    EXPECT_GT(reason_errno(reason), 0);
    EXPECT_FALSE(reason_text(reason).empty());
  }
}

TEST(Ino, PacksFamilyAndIndex) {
  const Ino ino(Family{0xab'cdef'0123}, 0x456789);
  EXPECT_EQ(ino.v, 0xabcdef0123456789u);
  EXPECT_EQ(ino.family(), Family{0xabcdef0123});
  EXPECT_EQ(ino.index(), 0x456789u);
  EXPECT_FALSE(ino.is_directory());
  EXPECT_TRUE(kRootIno.is_directory());
  EXPECT_EQ(kRootIno.v, 1u << 24);
}

TEST(Units, BlocksAreRoundedUpWithoutOverflow) {
  EXPECT_EQ(blocks_of(0), 0u);
  EXPECT_EQ(blocks_of(1), 1u);
  EXPECT_EQ(blocks_of(4096), 1u);
  EXPECT_EQ(blocks_of(4097), 2u);
  EXPECT_EQ(blocks_of(UINT64_MAX), 1ull << 52);
}

}  // namespace
}  // namespace etcfs

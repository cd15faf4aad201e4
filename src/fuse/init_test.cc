#include "fuse/init.h"

#include <gtest/gtest.h>

namespace etcfs::fuse {
namespace {

fuse_init_in kernel_offering(std::uint64_t flags, unsigned minor = 45) {
  fuse_init_in in{};
  in.major = 7;
  in.minor = minor;
  in.flags = static_cast<std::uint32_t>(flags | FUSE_INIT_EXT);
  in.flags2 = static_cast<std::uint32_t>(flags >> 32);
  return in;
}

std::uint64_t flags_of(const fuse_init_out& out) {
  return out.flags | static_cast<std::uint64_t>(out.flags2) << 32;
}

TEST(Init, TakesWhatIsOfferedAndWanted) {
  fuse_init_out out{};
  complete_init(kernel_offering(~0ull), {}, out);
  const std::uint64_t flags = flags_of(out);
  for (std::uint64_t wanted :
       {std::uint64_t{FUSE_HANDLE_KILLPRIV_V2}, std::uint64_t{FUSE_PARALLEL_DIROPS},
        std::uint64_t{FUSE_ATOMIC_O_TRUNC}, std::uint64_t{FUSE_POSIX_LOCKS},
        std::uint64_t{FUSE_FLOCK_LOCKS}, std::uint64_t{FUSE_CACHE_SYMLINKS},
        std::uint64_t{FUSE_HAS_EXPIRE_ONLY}, std::uint64_t{FUSE_DO_READDIRPLUS}})
    EXPECT_NE(flags & wanted, 0u) << std::hex << wanted;
  for (std::uint64_t unwanted :
       {std::uint64_t{FUSE_WRITEBACK_CACHE}, std::uint64_t{FUSE_AUTO_INVAL_DATA},
        std::uint64_t{FUSE_EXPLICIT_INVAL_DATA}, std::uint64_t{FUSE_POSIX_ACL},
        std::uint64_t{FUSE_DONT_MASK}, std::uint64_t{FUSE_NO_OPEN_SUPPORT},
        std::uint64_t{FUSE_HANDLE_KILLPRIV}, std::uint64_t{FUSE_READDIRPLUS_AUTO}})
    EXPECT_EQ(flags & unwanted, 0u) << std::hex << unwanted;
  EXPECT_EQ(out.max_pages, 256u);
  EXPECT_EQ(out.max_background, 64u);
  EXPECT_EQ(out.congestion_threshold, 48u);
}

TEST(Init, NeverAnswersWhatTheKernelDoesNotKnow) {
  fuse_init_out out{};
  const std::uint64_t offered = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC;
  complete_init(kernel_offering(offered), {}, out);
  EXPECT_EQ(flags_of(out), offered | FUSE_INIT_EXT);
  EXPECT_EQ(out.max_pages, 0u);
}

TEST(Init, TakesAwayWhatLibfuseSetsByItself) {
  fuse_init_out out{};
  out.flags = FUSE_AUTO_INVAL_DATA | FUSE_WRITEBACK_CACHE | FUSE_READDIRPLUS_AUTO;
  complete_init(kernel_offering(~0ull), {.readdirplus = ReaddirPlus::kNever}, out);
  EXPECT_EQ(flags_of(out) & (FUSE_AUTO_INVAL_DATA | FUSE_WRITEBACK_CACHE | FUSE_READDIRPLUS_AUTO |
                             FUSE_DO_READDIRPLUS),
            0u);
}

TEST(Init, FeaturesOfOldKernels) {
  EXPECT_TRUE(features_of(kernel_offering(~0ull)).expire_entries);
  EXPECT_FALSE(features_of(kernel_offering(~0ull, 37)).expire_entries);
  EXPECT_FALSE(features_of(kernel_offering(0)).killpriv_v2);
  fuse_init_in old = kernel_offering(~0ull);
  old.flags &= ~static_cast<std::uint32_t>(FUSE_INIT_EXT);
  EXPECT_EQ(init_flags(old) >> 32, 0u);  // flags2 is not there then
}

}  // namespace
}  // namespace etcfs::fuse

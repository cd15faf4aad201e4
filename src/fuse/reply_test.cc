#include "fuse/reply.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace etcfs::fuse {
namespace {

using fs::LockRequest;

TEST(Reply, TheRootIsNodeOneAndEveryOtherNodeItsInode) {
  EXPECT_EQ(to_node(kRootIno), 1u);
  EXPECT_EQ(to_ino(1), kRootIno);
  EXPECT_EQ(to_node(Ino(Family{2}, 7)), 2u << 24 | 7);
  EXPECT_EQ(to_ino(2u << 24 | 7), Ino(Family{2}, 7));
}

TEST(Reply, ErrnoComesFromTheListOfReasons) {
  EXPECT_EQ(errno_of(Reason::kNotFound), ENOENT);
  EXPECT_EQ(errno_of(Reason::kFenced), EIO);
  EXPECT_EQ(errno_of(Reason::kStale), ESTALE);
}

TEST(Reply, ValidityIsNeverNegativeAndNeverOverflows) {
  EXPECT_EQ(validity_of(Nanos{-1}).sec, 0u);
  EXPECT_EQ(validity_of(Nanos{-1}).nsec, 0u);
  EXPECT_EQ(validity_of(1500ms).sec, 1u);
  EXPECT_EQ(validity_of(1500ms).nsec, 500'000'000u);
  EXPECT_EQ(validity_of(Nanos::max()).sec, 3650u * 86400);
}

fs::Attr sample_attr() {
  fs::Attr a;
  a.ino = Ino(Family{3}, 9);
  a.mode = S_IFREG | 0640;
  a.uid = 5;
  a.gid = 6;
  a.nlink = 2;
  a.size = 1ull << 40;
  a.blocks512 = 16;
  a.rdev = 0x801;
  a.atime = {-5, 7};
  a.mtime = {2, 8};
  a.ctime = {3, 9};
  return a;
}

TEST(Reply, AttributesKeepEveryField) {
  const fuse_attr out = to_attr(sample_attr());
  EXPECT_EQ(out.ino, 3u << 24 | 9);
  EXPECT_EQ(out.mode, static_cast<std::uint32_t>(S_IFREG | 0640));
  EXPECT_EQ(out.uid, 5u);
  EXPECT_EQ(out.gid, 6u);
  EXPECT_EQ(out.nlink, 2u);
  EXPECT_EQ(out.size, 1ull << 40);
  EXPECT_EQ(out.blocks, 16u);
  EXPECT_EQ(out.rdev, 0x801u);
  EXPECT_EQ(static_cast<std::int64_t>(out.atime), -5);
  EXPECT_EQ(out.atimensec, 7u);
  EXPECT_EQ(out.mtime, 2u);
  EXPECT_EQ(out.mtimensec, 8u);
  EXPECT_EQ(out.ctime, 3u);
  EXPECT_EQ(out.ctimensec, 9u);
  EXPECT_EQ(out.blksize, 4096u);
}

TEST(Reply, NegativeEntryHasATimeAndNoNode) {
  fs::Entry entry;
  entry.entry_timeout = 1s;
  entry.attr_timeout = 5s;
  const fuse_entry_out out = to_entry_out(entry);
  EXPECT_EQ(out.nodeid, 0u);
  EXPECT_EQ(out.entry_valid, 1u);
  EXPECT_EQ(out.attr_valid, 0u);
}

TEST(Reply, RootEntryIsNodeOneButShowsItsInode) {
  fs::Entry entry{kRootIno, sample_attr(), 2s, 1s};
  entry.attr.ino = kRootIno;
  const fuse_entry_out out = to_entry_out(entry);
  EXPECT_EQ(out.nodeid, 1u);
  EXPECT_EQ(out.attr.ino, kRootIno.v);
  EXPECT_EQ(out.attr_valid, 2u);
  EXPECT_EQ(out.entry_valid, 1u);
}

TEST(Reply, OpenFlags) {
  EXPECT_EQ(to_open_out({7, true, false, false}).open_flags, unsigned{FOPEN_KEEP_CACHE});
  EXPECT_EQ(to_open_out({7, false, false, true}).open_flags, unsigned{FOPEN_CACHE_DIR});
  EXPECT_EQ(to_open_out({7, false, true, false}).open_flags,
            unsigned{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
  EXPECT_EQ(to_open_out({7, false, false, false}).fh, 7u);
}

TEST(Reply, SetAttrTakesWhatIsMarkedValidOnly) {
  fuse_setattr_in in{};
  in.valid = FATTR_SIZE | FATTR_ATIME | FATTR_MTIME | FATTR_MTIME_NOW;
  in.size = 12;
  in.atime = static_cast<std::uint64_t>(-3);
  in.atimensec = 4;
  in.mode = 0777;
  const fs::SetAttr set = to_set_attr(in);
  EXPECT_EQ(set.size, 12u);
  EXPECT_FALSE(set.mode || set.uid || set.gid || set.ctime);
  ASSERT_TRUE(set.atime && set.mtime);
  EXPECT_FALSE(set.atime->now);
  EXPECT_EQ(set.atime->time, (WallTime{-3, 4}));
  EXPECT_TRUE(set.mtime->now);
  EXPECT_FALSE(set.kill_suidgid);
}

TEST(Reply, TruncationMayClearSetuidAndChownDoesNotSaySo) {
  fuse_setattr_in in{};
  in.valid = FATTR_UID;
  EXPECT_FALSE(to_set_attr(in).kill_suidgid);
  in.valid = FATTR_SIZE | 1u << 11;  // FATTR_KILL_SUIDGID
  EXPECT_TRUE(to_set_attr(in).kill_suidgid);
}

TEST(Reply, WriteFlags) {
  fuse_write_in in{};
  in.flags = O_APPEND | O_DSYNC;
  EXPECT_TRUE(to_write_flags(in).append);
  EXPECT_TRUE(to_write_flags(in).dsync);
  EXPECT_FALSE(to_write_flags(in).sync);
  in.flags = O_SYNC;
  EXPECT_TRUE(to_write_flags(in).sync);
  in.write_flags = FUSE_WRITE_KILL_SUIDGID;
  EXPECT_TRUE(to_write_flags(in).kill_suidgid);
  in.flags = O_APPEND;
  in.write_flags = FUSE_WRITE_CACHE;
  EXPECT_TRUE(to_write_flags(in).writeback);
  EXPECT_FALSE(to_write_flags(in).append);
}

TEST(Reply, LocksToTheEndOfTheFile) {
  fuse_lk_in in{};
  in.owner = 77;
  in.lk = {10, static_cast<std::uint64_t>(INT64_MAX), F_WRLCK, 5};
  const LockRequest lock = to_lock_request(in);
  EXPECT_EQ(lock.kind, LockRequest::Kind::kPosix);
  EXPECT_EQ(lock.type, LockRequest::Type::kWrite);
  EXPECT_EQ(lock.start, 10u);
  EXPECT_EQ(lock.end, UINT64_MAX);
  EXPECT_EQ(lock.owner, 77u);
  EXPECT_EQ(lock.pid, 5);
  const fuse_lk_out out = to_lk_out(lock);
  EXPECT_EQ(out.lk.start, 10u);
  EXPECT_EQ(out.lk.end, static_cast<std::uint64_t>(INT64_MAX));
  EXPECT_EQ(out.lk.type, static_cast<std::uint32_t>(F_WRLCK));
  EXPECT_EQ(out.lk.pid, 5u);
}

TEST(Reply, FlockCoversEverything) {
  fuse_lk_in in{};
  in.lk_flags = FUSE_LK_FLOCK;
  in.lk = {3, 4, F_UNLCK, 0};
  const LockRequest lock = to_lock_request(in);
  EXPECT_EQ(lock.kind, LockRequest::Kind::kFlock);
  EXPECT_EQ(lock.start, 0u);
  EXPECT_EQ(lock.end, UINT64_MAX);
}

TEST(DirPacker, PacksPlainEntriesUntilThereIsNoRoom) {
  std::vector<std::byte> buffer(70, std::byte{0xee});
  DirPacker packer(buffer.data(), buffer.size(), /*plus=*/false);
  const fs::DirItem first{"ab", Ino(Family{4}, 1), fs::FileType::kRegular, 11, nullptr};
  ASSERT_TRUE(packer.add(first));
  EXPECT_EQ(packer.bytes(), 32u);  // 24 + 2, padded to 8
  const fs::DirItem second{"12345678", Ino(Family{4}, 2), fs::FileType::kDirectory, 12, nullptr};
  ASSERT_TRUE(packer.add(second));
  EXPECT_EQ(packer.bytes(), 64u);
  EXPECT_FALSE(packer.add(first));
  EXPECT_EQ(packer.bytes(), 64u);

  const auto* dirent = reinterpret_cast<const fuse_dirent*>(buffer.data());
  EXPECT_EQ(dirent->ino, 4u << 24 | 1);
  EXPECT_EQ(dirent->off, 11u);
  EXPECT_EQ(dirent->namelen, 2u);
  EXPECT_EQ(dirent->type, 8u);
  EXPECT_EQ(std::string(dirent->name, 2), "ab");
  for (int i = 26; i < 32; i++) EXPECT_EQ(buffer[i], std::byte{0});
  const auto* next = reinterpret_cast<const fuse_dirent*>(buffer.data() + 32);
  EXPECT_EQ(std::string(next->name, next->namelen), "12345678");
  EXPECT_EQ(next->type, 4u);
}

TEST(DirPacker, PlusCarriesEntriesButNeverOfDots) {
  std::vector<std::byte> buffer(1024);
  DirPacker packer(buffer.data(), buffer.size(), /*plus=*/true);
  const fs::Entry entry{Ino(Family{3}, 9), sample_attr(), 2s, 1s};
  ASSERT_TRUE(packer.add({".", kRootIno, fs::FileType::kDirectory, 1, &entry}));
  ASSERT_TRUE(packer.add({"x", Ino(Family{3}, 9), fs::FileType::kRegular, 2, &entry}));
  ASSERT_TRUE(packer.add({"y", Ino(Family{3}, 8), fs::FileType::kRegular, 3, nullptr}));
  const std::size_t each = sizeof(fuse_entry_out) + 32;
  ASSERT_EQ(packer.bytes(), 3 * each);
  auto at = [&](std::size_t i) {
    return reinterpret_cast<const fuse_direntplus*>(buffer.data() + i * each);
  };
  EXPECT_EQ(at(0)->entry_out.nodeid, 0u);
  EXPECT_EQ(at(0)->dirent.ino, kRootIno.v);
  EXPECT_EQ(at(1)->entry_out.nodeid, 3u << 24 | 9);
  EXPECT_EQ(at(1)->entry_out.attr.size, 1ull << 40);
  EXPECT_EQ(at(2)->entry_out.nodeid, 0u);  // by name only: the kernel will look it up
  EXPECT_EQ(at(2)->dirent.ino, 3u << 24 | 8);
}

}  // namespace
}  // namespace etcfs::fuse

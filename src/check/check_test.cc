// Each invariant: the good image passes, one corruption gives exactly its finding (where a
// corruption cannot help breaking two invariants, both).
#include "check/check.h"

#include <gtest/gtest.h>

#include "check/test_image.h"

namespace etcfs::check {
namespace {

using List = std::vector<std::string>;
std::string with(std::string_view code, const std::string& key) {
  return std::string(code) + " " + printable(key);
}

struct Check : ::testing::Test {
  TestImage t;
  const meta::Keys& k = t.keys;
  void expect(const List& list) { EXPECT_EQ(t.findings(), list); }
};

TEST_F(Check, AGoodImageIsClean) { expect({}); }

// ---- records and keys

TEST_F(Check, EveryRecordThatDoesNotDecodeIsReported) {
  for (const auto& [key, value] : TestImage().kvs) {
    if (key == k.fence("c")) continue;  // its value is not interpreted yet
    TestImage broken;
    broken.kvs[key] = "\xff\xff\xff";
    List list = broken.findings();
    ASSERT_FALSE(list.empty()) << key;
    EXPECT_EQ(list[0], with("record-corrupt", key));
  }
}
TEST_F(Check, AnInodeThatDoesNotDecodeIsOneFinding) {
  t.kvs[k.inode(t.fifo)] = "";
  expect({with("record-corrupt", k.inode(t.fifo))});
}
TEST_F(Check, ADirectoryThatDoesNotDecodeIsOneFinding) {
  t.kvs[k.inode(t.e)] = "";
  expect({with("record-corrupt", k.inode(t.e))});
}
TEST_F(Check, AnEpochThatDoesNotDecodeIsOneFinding) {
  t.kvs[k.epoch("b")] = "\xff";
  expect({with("record-corrupt", k.epoch("b"))});
}
TEST_F(Check, UnknownKeys) {
  for (std::string key : {k.prefix() + "i/1", k.prefix() + "new/thing", k.super() + "x",
                          k.entries(t.root) + "a/b", k.prefix() + "counter/other"}) {
    TestImage u;
    u.kvs[key] = "";
    EXPECT_EQ(u.findings(), List{with("key-unknown", key)});
  }
}
TEST_F(Check, AnOrphanKeyHasNoValue) {
  t.kvs[k.orphan(t.orphan)] = "x";
  expect({with("record-corrupt", k.orphan(t.orphan))});
}
TEST_F(Check, SuperMissing) {
  t.kvs.erase(k.super());
  expect({with("super-missing", k.super())});
}
TEST_F(Check, SuperUnsupported) {
  auto s = *meta::decode_super(t.kvs[k.super()]);
  s.incompatible_features = 4;
  t.kvs[k.super()] = encode(s);
  expect({with("super-unsupported", k.super())});
  s.incompatible_features = 0;
  s.format_version = 2;
  t.kvs[k.super()] = encode(s);
  expect({with("super-unsupported", k.super())});
}
TEST_F(Check, DeviceTooSmall) {
  Image image = t.image();
  image.device_blocks = TestImage::kDeviceBlocks - 1;
  Findings found = check_all(image);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_string(found[0]),
            "device-too-small /etcfs/t/super: super says 16484 blocks, the device has 16483");
  image.device_blocks = TestImage::kDeviceBlocks + 1;  // grown, not yet noticed
  EXPECT_TRUE(check_all(image).empty());
  image.device_blocks.reset();  // not looked at
  EXPECT_TRUE(check_all(image).empty());
}
TEST_F(Check, CounterMissing) {
  t.kvs.erase(k.family_counter());
  expect({with("counter-missing", k.family_counter())});
}
TEST_F(Check, FamilyBeyondCounter) {
  t.kvs[k.family_counter()] = meta::encode_family_counter(Family{3});
  expect({with("family-beyond-counter", k.inode(t.d)),    // it gives birth in family 9
          with("family-beyond-counter", k.inode(t.e)),    // family 3
          with("family-beyond-counter", k.inode(t.h))});  // family 9
}
TEST_F(Check, LockOnAFamilyBeyondCounter) {
  t.put_lock(Family{10}, "a", Epoch{2}, meta::LockMode::kShared, {});
  expect({with("family-beyond-counter", k.lock(Family{10}, "a", Epoch{2}))});
}
TEST_F(Check, LocksOfRemovedFamiliesAndOfTheRenameFamilyAreFine) {
  t.put_lock(Family{8}, "a", Epoch{2}, meta::LockMode::kExclusive, {});
  t.put_lock(kRenameFamily, "a", Epoch{2}, meta::LockMode::kExclusive, {});
  expect({});
}

// ---- the tree

TEST_F(Check, RootMissing) {
  TestImage u;
  meta::Keys keys = u.keys;
  std::string super = u.kvs[keys.super()];
  u.kvs.clear();
  u.kvs[keys.super()] = super;
  u.kvs[keys.family_counter()] = meta::encode_family_counter(Family{2});
  EXPECT_EQ(u.findings(), List{with("root-missing", keys.inode(kRootIno))});
}
TEST_F(Check, RootIsNoDirectory) {
  for (auto it = t.kvs.begin(); it != t.kvs.end();)
    it =
        it->first == k.super() || it->first == k.family_counter() ? std::next(it) : t.kvs.erase(it);
  t.put(kRootIno, TestImage::inode(S_IFREG, 0));
  expect({with("root-missing", k.inode(kRootIno))});
}
TEST_F(Check, RootParent) {
  t.change(t.root, [&](meta::Inode& v) { v.parent = t.d; });
  expect({with("root-parent", k.inode(t.root))});
}
TEST_F(Check, RootHasEntry) {
  t.put_entry(t.e, "up", t.root, 4, 16);
  t.change(t.e, [](meta::Inode& v) { v.next_cookie = 17; });
  expect({with("root-has-entry", k.dirent(t.e, "up"))});
}
TEST_F(Check, EntryWithoutInode) {
  t.kvs.erase(k.inode(t.fifo));
  expect({with("entry-without-inode", k.dirent(t.root, "fifo"))});
}
TEST_F(Check, EntriesOfADirectoryThatDoesNotExist) {
  t.put_entry(Ino(Family{8}, 0), "x", t.h, 8, 16);
  t.change(t.h, [](meta::Inode& v) { v.nlink = 2; });
  expect({with("entry-no-directory", k.dirent(Ino(Family{8}, 0), "x"))});
}
TEST_F(Check, EntriesInAFile) {
  t.put_entry(t.f, "x", t.h, 8, 16);
  t.change(t.h, [](meta::Inode& v) { v.nlink = 2; });
  expect({with("entry-no-directory", k.dirent(t.f, "x"))});
}
TEST_F(Check, EntriesInARemovedDirectory) {
  Ino removed(Family{8}, 0);
  t.put_dir(removed, t.root, 0, Family{8}, 1, 17);
  t.kvs[k.orphan(removed)] = "";
  expect({});
  t.put_entry(removed, "x", t.h, 8, 16);
  t.change(t.h, [](meta::Inode& v) { v.nlink = 2; });
  expect({with("entry-no-directory", k.dirent(removed, "x"))});
}
TEST_F(Check, EntryType) {
  t.put_entry(t.root, "fifo", t.fifo, 12, 20);
  expect({with("entry-type", k.dirent(t.root, "fifo"))});
}
TEST_F(Check, CookieRange) {
  t.put_entry(t.root, "fifo", t.fifo, 1, 22);
  expect({with("cookie-range", k.dirent(t.root, "fifo"))});
  t.put_entry(t.root, "fifo", t.fifo, 1, 15);
  expect({with("cookie-range", k.dirent(t.root, "fifo"))});
}
TEST_F(Check, CookieDuplicate) {
  t.put_entry(t.root, "fifo", t.fifo, 1, 17);
  expect({with("cookie-duplicate", k.dirent(t.root, "fifo"))});
}
TEST_F(Check, InodeShape) {
  auto of = [&](const Ino TestImage::*ino, const std::function<void(meta::Inode&)>& edit) {
    TestImage u;
    u.change(u.*ino, edit);
    return u.findings() == List{with("inode-shape", u.keys.inode(u.*ino))};
  };
  EXPECT_TRUE(of(&TestImage::link, [](meta::Inode& v) { v.size = 6; }));
  EXPECT_TRUE(of(&TestImage::link, [](meta::Inode& v) { v.symlink = ""; }));
  EXPECT_TRUE(of(&TestImage::link, [](meta::Inode& v) { v.symlink = std::string(4096, 'x'); }));
  EXPECT_TRUE(of(&TestImage::h, [](meta::Inode& v) { v.symlink = "x"; }));
  EXPECT_TRUE(of(&TestImage::h, [](meta::Inode& v) { v.rdev = 1; }));
  EXPECT_TRUE(of(&TestImage::h, [](meta::Inode& v) { v.birth_family = Family{3}; }));
  EXPECT_TRUE(of(&TestImage::fifo, [](meta::Inode& v) { v.external_extents = true; }));
  EXPECT_TRUE(of(&TestImage::e, [](meta::Inode& v) { v.next_cookie = 15; }));
}
TEST_F(Check, DirectoryAtAFilesNumber) {
  t.put_dir(t.h, t.d, 2, Family{8}, 1, 16);
  t.put_entry(t.d, "h", t.h, 4, 18);
  t.change(t.d, [](meta::Inode& v) { v.nlink = 4; });
  expect({with("inode-shape", k.inode(t.h))});
}
TEST_F(Check, InodeWithoutEntry) {
  t.kvs.erase(k.dirent(t.root, "fifo"));
  expect({with("inode-without-entry", k.inode(t.fifo))});
}
TEST_F(Check, DirectoryWithoutEntryIsReportedOnceNotItsChildren) {
  t.kvs.erase(k.dirent(t.root, "d"));
  t.change(t.root, [](meta::Inode& v) { v.nlink = 2; });
  expect({with("inode-without-entry", k.inode(t.d))});
}
TEST_F(Check, DirectoryTwice) {
  t.put_entry(t.e, "again", t.d, 4, 16);
  t.change(t.e, [](meta::Inode& v) { v.next_cookie = 17, v.nlink = 3; });
  expect({with("directory-twice", k.inode(t.d))});
}
TEST_F(Check, DirectoryParent) {
  t.change(t.e, [&](meta::Inode& v) { v.parent = t.root; });
  expect({with("directory-parent", k.inode(t.e))});
}
TEST_F(Check, DirectoryCycle) {
  // d moves into e, which stands in d.
  t.kvs.erase(k.dirent(t.root, "d"));
  t.put_entry(t.e, "d", t.d, 4, 16);
  t.change(t.root, [](meta::Inode& v) { v.nlink = 2; });
  t.change(t.e, [](meta::Inode& v) { v.next_cookie = 17, v.nlink = 3; });
  t.change(t.d, [&](meta::Inode& v) { v.parent = t.e; });
  expect({with("directory-cycle", k.inode(t.d))});
}
TEST_F(Check, DirectoryInItselfBelowACycleIsOneFinding) {
  // e stands in itself; something else hangs below it.
  t.kvs.erase(k.dirent(t.d, "e"));
  t.put_entry(t.e, "self", t.e, 4, 16);
  t.put_dir(Ino(Family{4}, 0), t.e, 2, Family{4}, 1, 16);
  t.put_entry(t.e, "below", Ino(Family{4}, 0), 4, 17);
  t.change(t.d, [](meta::Inode& v) { v.nlink = 2; });
  t.change(t.e, [&](meta::Inode& v) { v.next_cookie = 18, v.nlink = 4, v.parent = t.e; });
  expect({with("directory-cycle", k.inode(t.e))});
}
TEST_F(Check, LinkCountOfAFile) {
  t.change(t.f, [](meta::Inode& v) { v.nlink = 1; });
  expect({with("link-count", k.inode(t.f))});
}
TEST_F(Check, LinkCountOfADirectory) {
  t.change(t.root, [](meta::Inode& v) { v.nlink = 2; });
  expect({with("link-count", k.inode(t.root))});
}
TEST_F(Check, LinkCountZeroWithAnEntry) {
  t.change(t.h, [](meta::Inode& v) { v.nlink = 0; });
  expect({with("link-count", k.inode(t.h))});
}
TEST_F(Check, OrphanWithoutInode) {
  t.kvs[k.orphan(Ino(Family{2}, 8))] = "";
  expect({with("orphan-without-inode", k.orphan(Ino(Family{2}, 8)))});
}
TEST_F(Check, OrphanWithALinkCount) {
  t.change(t.orphan, [](meta::Inode& v) { v.nlink = 1; });
  expect({with("orphan-linked", k.orphan(t.orphan))});
}
TEST_F(Check, OrphanWithAnEntry) {
  t.kvs[k.orphan(t.h)] = "";
  expect({with("orphan-linked", k.orphan(t.h))});
}
TEST_F(Check, UnlinkedWithoutOrphanKey) {
  t.kvs.erase(k.orphan(t.orphan));
  expect({with("inode-without-entry", k.inode(t.orphan))});
}
TEST_F(Check, BirthFamily) {
  t.change(t.e, [](meta::Inode& v) { v.birth_family = Family{2}; });  // that is d's number
  expect({with("birth-family", k.inode(t.e))});
  t.change(t.e, [](meta::Inode& v) { v.birth_family = Family{9}; });  // d gives birth there
  expect({with("birth-family", k.inode(t.e))});
  t.change(t.e, [](meta::Inode& v) { v.birth_family = Family{0}; });
  expect({with("birth-family", k.inode(t.e))});
}
TEST_F(Check, BirthBound) {
  t.change(t.d, [](meta::Inode& v) { v.birth_bound = 1; });
  expect({with("birth-bound", k.inode(t.h))});
}
TEST_F(Check, BirthBoundOfTheRoot) {
  t.change(t.root, [](meta::Inode& v) { v.birth_bound = 5; });
  expect({with("birth-bound", k.inode(t.null))});
}
TEST_F(Check, BirthBoundZero) {
  t.change(t.e, [](meta::Inode& v) { v.birth_bound = 0; });
  expect({with("birth-bound", k.inode(t.e))});
}

// ---- extents of files

TEST_F(Check, InlineAndExternalExtents) {
  t.change(t.f, [](meta::Inode& v) { v.external_extents = true; });
  expect({with("extents-shape", k.inode(t.f))});
}
TEST_F(Check, ExternalExtentsOfAnInodeThatHasNone) {
  t.change(t.big, [](meta::Inode& v) { v.external_extents = false; });
  expect({with("extents-shape", k.extents(t.big, 0))});
}
TEST_F(Check, TooManyInlineExtents) {
  t.change(t.f, [](meta::Inode& v) {
    v.extents = {};
    for (std::uint64_t i = 0; i < 65; ++i) v.extents.push_back({i * 2, 8300 + i * 2, 1, 0, 0});
    v.size = 200 * kBlockBytes;
  });
  std::vector<meta::DeviceRange> used{{0, 2}, {8, 1}};
  for (std::uint64_t i = 0; i < 65; ++i) used.push_back({108 + i * 2, 1});
  t.set_map(ArenaNo{1}, 0, used);
  t.kvs[k.arena(ArenaNo{1})] = encode(meta::Arena{"", Epoch{0}, TestImage::kArenaBlocks - 68});
  t.set_map(ArenaNo{0}, 0, {{100, 10}, {4090, 6}});
  t.kvs[k.arena(ArenaNo{0})] = encode(meta::Arena{"a", Epoch{2}, TestImage::kArenaBlocks - 22});
  expect({with("extents-shape", k.inode(t.f))});
}
TEST_F(Check, ExtentInTheWrongChunk) {
  std::string chunk = t.kvs[k.extents(t.big, 1)];
  t.kvs.erase(k.extents(t.big, 1));
  t.kvs[k.extents(t.big, 2)] = chunk;
  expect({with("extents-shape", k.extents(t.big, 2))});
}
TEST_F(Check, EmptyChunk) {
  t.kvs[k.extents(t.big, 7)] = meta::encode_extents({});
  expect({with("extents-shape", k.extents(t.big, 7))});
}
TEST_F(Check, ExtentsOverlapAcrossChunks) {
  t.kvs[k.extents(t.big, 1)] = meta::encode_extents({{16389, 4090, 10, 0, 0}});
  expect({with("extents-overlap", k.extents(t.big, 1))});
}
TEST_F(Check, ExtentsOverlapWithinARecordDoNotDecode) {
  t.change(t.f, [](meta::Inode& v) { v.extents[1].file_block = 4; });
  EXPECT_EQ(t.findings().front(), with("record-corrupt", k.inode(t.f)));
}
TEST_F(Check, ExtentsWithoutInode) {
  t.kvs.erase(k.inode(t.big));
  t.kvs.erase(k.dirent(t.root, "big"));
  expect({with("extents-without-inode", k.extents(t.big, 0))});
}
TEST_F(Check, WrittenExtentBeyondSize) {
  t.change(t.f, [](meta::Inode& v) { v.size = 4 * kBlockBytes; });
  expect({with("extent-beyond-size", k.inode(t.f))});
}
TEST_F(Check, ExternalExtentBeyondSizeIsReportedOnce) {
  t.change(t.big, [](meta::Inode& v) { v.size = 16390 * kBlockBytes - kBlockBytes; });
  expect({with("extent-beyond-size", k.extents(t.big, 0))});
}
TEST_F(Check, HolesAtTheEndAreFine) {
  t.change(t.f, [](meta::Inode& v) { v.size = kMaxFileBytes; });
  expect({});
}

// ---- space

TEST_F(Check, ExtentPastDevice) {
  t.change(t.h, [](meta::Inode& v) {
    v.size = 1;
    v.extents = {{0, TestImage::kDeviceBlocks, 1, 0, 0}};
  });
  expect({with("extent-past-device", k.inode(t.h))});
}
TEST_F(Check, ExtentPartlyPastDevice) {
  t.change(t.h, [](meta::Inode& v) {
    v.size = 2 * kBlockBytes;
    v.extents = {{0, TestImage::kDeviceBlocks - 1, 2, 0, 0}};
  });
  t.set_map(ArenaNo{2}, 0, {{99, 1}});
  t.kvs[k.arena(ArenaNo{2})] = encode(meta::Arena{"c", Epoch{1}, 99});
  expect({with("extent-past-device", k.inode(t.h))});
}
TEST_F(Check, ExtentIdentity) {
  t.change(t.f, [](meta::Inode& v) { v.extents[0] = {0, 0, 5, 0, 0}; });
  // Blocks 0 to 4 instead of 1 to 5: block 5 is nobody's now.
  expect({with("extent-identity", k.inode(t.f)), with("map-leak", k.amap(ArenaNo{0}, 0))});
}
TEST_F(Check, IdentityShownAsPublished) {
  t.set_map(ArenaNo{0}, 0, {{0, 9}, {100, 10}, {4090, 6}});
  t.kvs[k.arena(ArenaNo{0})] = encode(meta::Arena{"a", Epoch{2}, TestImage::kArenaBlocks - 31});
  expect({with("map-leak", k.amap(ArenaNo{0}, 0))});
}
TEST_F(Check, BlocksSharedByTwoFiles) {
  t.change(t.h, [](meta::Inode& v) {
    v.size = 1;
    v.extents = {{0, 109, 1, 0, 0}};
  });
  Findings found = check_all(t.image());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_string(found[0]), "blocks-shared " + k.inode(t.h) +
                                     ": blocks 109 to 110 belong also to " + k.extents(t.big, 0));
}
TEST_F(Check, BlocksSharedWithinAFile) {
  t.change(t.f, [](meta::Inode& v) { v.extents[1].device_block = 5; });
  expect({with("blocks-shared", k.inode(t.f)), with("map-leak", k.amap(ArenaNo{0}, 0))});
}
TEST_F(Check, BlocksSharedByAnExtentAndAFreedKey) {
  t.kvs[k.freed(ArenaNo{0}, "x")] = meta::encode_freed({{105, 1}});
  expect({with("blocks-shared", k.freed(ArenaNo{0}, "x"))});
}
TEST_F(Check, BlocksFreedTwice) {
  t.kvs[k.freed(ArenaNo{1}, "b-1")] = meta::encode_freed({{8193, 1}});
  expect({with("blocks-shared", k.freed(ArenaNo{1}, "b-1"))});
}
TEST_F(Check, FreedPlace) {
  t.kvs[k.freed(ArenaNo{2}, "a-1")] = t.kvs[k.freed(ArenaNo{1}, "a-1")];
  t.kvs.erase(k.freed(ArenaNo{1}, "a-1"));
  expect({with("freed-place", k.freed(ArenaNo{2}, "a-1")),
          with("freed-place", k.freed(ArenaNo{2}, "a-1"))});  // two ranges
}
TEST_F(Check, MapMissing) {
  t.set_map(ArenaNo{0}, 0, {{1, 8}, {100, 9}, {4090, 6}});
  t.kvs[k.arena(ArenaNo{0})] = encode(meta::Arena{"a", Epoch{2}, TestImage::kArenaBlocks - 29});
  Findings found = check_all(t.image());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_string(found[0]), "map-missing " + k.amap(ArenaNo{0}, 0) +
                                     ": blocks 109 to 110 are in use but free in the map");
}
TEST_F(Check, MapChunkLost) {
  t.kvs.erase(k.amap(ArenaNo{1}, 0));
  t.kvs[k.arena(ArenaNo{1})] = encode(meta::Arena{"", Epoch{0}, TestImage::kArenaBlocks});
  expect({with("map-missing", k.amap(ArenaNo{1}, 0)), with("map-missing", k.amap(ArenaNo{1}, 0))});
}
TEST_F(Check, FreedKeyLost) {
  t.kvs.erase(k.freed(ArenaNo{1}, "a-1"));
  expect({with("map-leak", k.amap(ArenaNo{1}, 0)), with("map-leak", k.amap(ArenaNo{1}, 0))});
}
TEST_F(Check, MapLeakInTheLastPartialArena) {
  t.set_map(ArenaNo{2}, 0, {{99, 2}});  // the second of them is past the device
  t.kvs[k.arena(ArenaNo{2})] = encode(meta::Arena{"c", Epoch{1}, 98});
  expect({with("map-leak", k.amap(ArenaNo{2}, 0))});
}
TEST_F(Check, MapPlace) {
  t.set_map(ArenaNo{3}, 0, {});
  t.set_map(ArenaNo{1}, 2, {});
  t.kvs[k.arena(ArenaNo{3})] = encode(meta::Arena{"", Epoch{0}, 0});
  expect({with("map-place", k.amap(ArenaNo{1}, 2)), with("map-place", k.amap(ArenaNo{3}, 0)),
          with("map-place", k.arena(ArenaNo{3}))});
}
TEST_F(Check, ArenaFree) {
  t.kvs[k.arena(ArenaNo{1})] = encode(meta::Arena{"", Epoch{0}, TestImage::kArenaBlocks});
  expect({with("arena-free", k.arena(ArenaNo{1}))});
}
TEST_F(Check, ArenaRecordLostWhileItsMapIsNotEmpty) {
  t.kvs.erase(k.arena(ArenaNo{1}));
  expect({with("arena-free", k.arena(ArenaNo{1}))});
}
TEST_F(Check, AnUntouchedArenaNeedsNoRecord) {
  t.kvs.erase(k.arena(ArenaNo{2}));
  expect({});
}

// ---- holders

TEST_F(Check, EpochsThatANodeNeverHad) {
  auto found = [&](const std::string& key, std::string value) {
    TestImage u;
    u.kvs[key] = std::move(value);
    return u.findings();
  };
  std::string lock = k.lock(Family{2}, "a", Epoch{3}), want = k.want(Family{2}, "b", Epoch{6}),
              nobody = k.lock(Family{2}, "x", Epoch{1});
  EXPECT_EQ(found(lock, encode(meta::LockRecord{})), List{with("epoch-unknown", lock)});
  EXPECT_EQ(found(want, encode(meta::LockRecord{})), List{with("epoch-unknown", want)});
  EXPECT_EQ(found(nobody, encode(meta::LockRecord{})), List{with("epoch-unknown", nobody)});
  EXPECT_EQ(found(k.hold(t.f, "a"), meta::encode_hold(Epoch{3})),
            List{with("epoch-unknown", k.hold(t.f, "a"))});
  EXPECT_EQ(found(k.hold(t.f, "a"), meta::encode_hold(Epoch{0})),
            List{with("epoch-unknown", k.hold(t.f, "a"))});
  EXPECT_EQ(found(k.plock(t.f), meta::encode_advisory("x", Epoch{1})),
            List{with("epoch-unknown", k.plock(t.f))});
  EXPECT_EQ(found(k.beat("x"), encode(meta::Beat{Epoch{1}, "", "", 0, 0})),
            List{with("epoch-unknown", k.beat("x"))});
  EXPECT_EQ(found(k.live("a"), encode(meta::Live{Epoch{3}, "", "", "", "", {}})),
            List{with("epoch-unknown", k.live("a"))});
  EXPECT_EQ(found(k.seq("x"), meta::encode_sequence(StepNo{1})),
            List{with("epoch-unknown", k.seq("x"))});
  EXPECT_EQ(found(k.arena(ArenaNo{2}), encode(meta::Arena{"a", Epoch{3}, 100})),
            List{with("epoch-unknown", k.arena(ArenaNo{2}))});
}
TEST_F(Check, LockConflictOfNames) {
  t.put_lock(Family{1}, "b", Epoch{5}, meta::LockMode::kShared, {});
  expect({with("lock-conflict", k.lock(Family{1}, "b", Epoch{5}))});
}
TEST_F(Check, LockConflictOfFiles) {
  t.put_lock(Family{1}, "b", Epoch{5}, meta::LockMode::kNone,
             {{99, 99, meta::LockMode::kExclusive}});
  expect({with("lock-conflict", k.lock(Family{1}, "b", Epoch{5}))});
  t.put_lock(Family{1}, "b", Epoch{5}, meta::LockMode::kNone,
             {{100, 100, meta::LockMode::kShared}});
  expect({with("lock-conflict", k.lock(Family{1}, "b", Epoch{5}))});
}
TEST_F(Check, AVoidLockBecomesAConflictWhenItsEpochIsCurrent) {
  t.kvs[k.epoch("c")] = meta::encode_epoch(Epoch{1});
  expect({with("lock-conflict", k.lock(Family{1}, "c", Epoch{1})),  // names and files with a
          with("lock-conflict", k.lock(Family{1}, "c", Epoch{1})),
          with("lock-conflict", k.lock(Family{1}, "c", Epoch{1}))});  // files with b
}
TEST_F(Check, HoldWithoutInode) {
  Ino missing(Family{1}, 77);
  t.kvs[k.hold(missing, "b")] = meta::encode_hold(Epoch{5});
  expect({with("hold-without-inode", k.hold(missing, "b"))});
  t.kvs[k.hold(missing, "b")] = meta::encode_hold(Epoch{4});  // void
  expect({});
}

}  // namespace
}  // namespace etcfs::check

#include "meta/schema/records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "etcfs.pb.h"

namespace etcfs::meta {
namespace {

Inode sample_inode() {
  Inode v;
  v.mode = S_IFREG | 04755;
  v.uid = 1000;
  v.gid = ~0u;
  v.nlink = 65000;
  v.size = kMaxFileBytes;
  v.atime = {-1, 999'999'999};
  v.mtime = {1, 2};
  v.ctime = {INT64_MIN, 0};
  v.btime = {INT64_MAX, 7};
  v.rdev = 0x801;
  v.xattrs = {{"user.a", std::string("\0\xff", 2)}, {"user.b", ""}};
  v.extents = {{0, 256, 4, 0, 0}, {4, 1 << 20, 1, Extent::kUnwritten, 9}, {100, 2, 3, 0, 0}};
  return v;
}
void expect_same(const Inode& a, const Inode& b) {
  EXPECT_EQ(a.mode, b.mode);
  EXPECT_EQ(a.uid, b.uid);
  EXPECT_EQ(a.gid, b.gid);
  EXPECT_EQ(a.nlink, b.nlink);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.atime, b.atime);
  EXPECT_EQ(a.mtime, b.mtime);
  EXPECT_EQ(a.ctime, b.ctime);
  EXPECT_EQ(a.btime, b.btime);
  EXPECT_EQ(a.rdev, b.rdev);
  EXPECT_EQ(a.symlink, b.symlink);
  EXPECT_EQ(a.xattrs, b.xattrs);
  EXPECT_EQ(a.extents, b.extents);
  EXPECT_EQ(a.external_extents, b.external_extents);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_EQ(a.birth_family, b.birth_family);
  EXPECT_EQ(a.birth_bound, b.birth_bound);
  EXPECT_EQ(a.next_cookie, b.next_cookie);
}

TEST(Records, InodeRoundTrips) {
  Inode file = sample_inode();
  auto back = decode_inode(encode(file));
  ASSERT_TRUE(back);
  expect_same(file, *back);

  Inode dir;
  dir.mode = S_IFDIR | 01777;
  dir.nlink = 3;
  dir.parent = Ino(Family{0xffffffffff}, 0);
  dir.birth_family = Family{12};
  dir.birth_bound = kMaxIndex + 1;
  dir.next_cookie = ~0ull;
  back = decode_inode(encode(dir));
  ASSERT_TRUE(back);
  expect_same(dir, *back);

  Inode link;
  link.mode = S_IFLNK | 0777;
  link.nlink = 1;
  link.symlink = std::string(4095, '\xff');
  link.external_extents = true;
  back = decode_inode(encode(link));
  ASSERT_TRUE(back);
  expect_same(link, *back);
}

// The encoder reuses its message: nothing of an earlier inode may show in a later one.
TEST(Records, InodeEncodingKeepsNothingOfTheOneBefore) {
  Inode small;
  small.mode = S_IFREG;
  std::string first = encode(small);
  Inode dir;
  dir.mode = S_IFDIR;
  dir.parent = Ino{5};
  dir.birth_family = Family{1};
  dir.birth_bound = 4;
  dir.next_cookie = 17;
  dir.symlink = "target";
  dir.external_extents = true;
  (void)encode(dir);
  (void)encode(sample_inode());
  EXPECT_EQ(encode(small), first);
  EXPECT_EQ(encode(sample_inode()), encode(sample_inode()));
}

TEST(Records, DirentHasExactBytes) {
  Dirent d{Ino{0x1000000}, 4, 300};
  EXPECT_EQ(encode(d), std::string("\x08\x80\x80\x80\x08\x10\x04\x18\xac\x02", 10));
  auto back = decode_dirent(encode(d));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->ino, d.ino);
  EXPECT_EQ(back->type, 4u);
  EXPECT_EQ(back->cookie, 300u);
}

TEST(Records, SmallRecordsHaveExactBytes) {
  EXPECT_EQ(encode_epoch(Epoch{1}), "\x08\x01");
  EXPECT_EQ(encode_sequence(StepNo{300}), "\x08\xac\x02");
  EXPECT_EQ(encode_family_counter(Family{2}), "\x08\x02");
  EXPECT_EQ(encode_hold(Epoch{3}), "\x08\x03");
  EXPECT_EQ(encode_advisory("n", Epoch{3}), "\x0a\x01n\x10\x03");
  EXPECT_EQ(encode_orphan(), "");
}

TEST(Records, SmallRecordsRoundTrip) {
  EXPECT_EQ(*decode_epoch(encode_epoch(Epoch{~0ull})), Epoch{~0ull});
  EXPECT_EQ(*decode_epoch(""), Epoch{0});
  EXPECT_EQ(*decode_sequence(encode_sequence(StepNo{7})), StepNo{7});
  EXPECT_EQ(*decode_family_counter(encode_family_counter(Family{1ull << 40})), Family{1ull << 40});
  EXPECT_EQ(*decode_hold(encode_hold(Epoch{9})), Epoch{9});
  auto a = decode_advisory(encode_advisory("node", Epoch{4}));
  ASSERT_TRUE(a);
  EXPECT_EQ(a->first, "node");
  EXPECT_EQ(a->second, Epoch{4});
}

TEST(Records, SuperRoundTripsAndIsJudged) {
  Super s;
  s.uuid = std::string(16, '\xfe');
  s.arena_blocks = 4096;
  s.device_blocks = 10000;
  s.identity_hash = std::string(32, '\x01');
  s.incompatible_features = 5;
  s.compatible_features = 6;
  s.overwrite = Overwrite::kInPlace;
  s.created = {123, 456};
  auto b = decode_super(encode(s));
  ASSERT_TRUE(b);
  EXPECT_EQ(b->format_version, 1u);
  EXPECT_EQ(b->uuid, s.uuid);
  EXPECT_EQ(b->arena_blocks, 4096u);
  EXPECT_EQ(b->device_blocks, 10000u);
  EXPECT_EQ(b->arenas(), 3u);
  EXPECT_EQ(b->identity_hash, s.identity_hash);
  EXPECT_EQ(b->incompatible_features, 5u);
  EXPECT_EQ(b->compatible_features, 6u);
  EXPECT_EQ(b->overwrite, Overwrite::kInPlace);
  EXPECT_EQ(b->created, s.created);
  auto corrupt = [&](auto change) {
    Super t = s;
    change(t);
    auto r = decode_super(encode(t));
    return !r && r.error() == Reason::kCorrupt;
  };
  EXPECT_TRUE(corrupt([](Super& t) { t.arena_blocks = 0; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.arena_blocks = 4097; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.arena_blocks = 2048; }));  // less than a chunk of the map
  EXPECT_TRUE(corrupt([](Super& t) { t.device_blocks = 0; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.uuid = "short"; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.identity_hash = ""; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.format_version = 0; }));
  EXPECT_TRUE(corrupt([](Super& t) { t.overwrite = static_cast<Overwrite>(0); }));
  EXPECT_FALSE(corrupt([](Super& t) { t.format_version = 2; }));  // mounting refuses it by name
}

TEST(Records, BeatAndLiveRoundTrip) {
  auto b = decode_beat(encode(Beat{Epoch{4}, "boot", std::string("m\0", 2), 0x801, 99}));
  ASSERT_TRUE(b);
  EXPECT_EQ(b->epoch, Epoch{4});
  EXPECT_EQ(b->boot_id, "boot");
  EXPECT_EQ(b->machine_id, std::string("m\0", 2));
  EXPECT_EQ(b->device_dev, 0x801u);
  EXPECT_EQ(b->device_ino, 99u);
  auto l = decode_live(encode(Live{Epoch{4}, "h", "1.2.3.4", "0.1", "/mnt/\xff", {5, 6}}));
  ASSERT_TRUE(l);
  EXPECT_EQ(l->epoch, Epoch{4});
  EXPECT_EQ(l->host, "h");
  EXPECT_EQ(l->address, "1.2.3.4");
  EXPECT_EQ(l->version, "0.1");
  EXPECT_EQ(l->mountpoint, "/mnt/\xff");
  EXPECT_EQ(l->started, (WallTime{5, 6}));
}

TEST(Records, LockRoundTripsAndIsJudged) {
  LockRecord r;
  r.names = LockMode::kExclusive;
  r.files = {{0, 9, LockMode::kShared}, {10, kMaxIndex, LockMode::kExclusive}};
  r.in_place = {{3, 3, LockMode::kExclusive}};
  auto b = decode_lock(encode(r));
  ASSERT_TRUE(b);
  EXPECT_EQ(b->names, LockMode::kExclusive);
  EXPECT_EQ(b->files, r.files);
  EXPECT_EQ(b->in_place, r.in_place);
  auto corrupt = [](std::vector<FileRange> files) {
    LockRecord t;
    t.files = std::move(files);
    auto result = decode_lock(encode(t));
    return !result && result.error() == Reason::kCorrupt;
  };
  EXPECT_TRUE(corrupt({{0, kMaxIndex + 1, LockMode::kShared}}));
  EXPECT_TRUE(corrupt({{5, 4, LockMode::kShared}}));
  EXPECT_TRUE(corrupt({{0, 4, LockMode::kShared}, {4, 5, LockMode::kShared}}));
  EXPECT_TRUE(corrupt({{0, 4, static_cast<LockMode>(3)}}));
  EXPECT_FALSE(corrupt({{0, 4, LockMode::kShared}, {5, 5, LockMode::kNone}}));
}

TEST(Records, ArenaMapFreedAndExtentsRoundTrip) {
  auto a = decode_arena(encode(Arena{"n", Epoch{2}, 77}));
  ASSERT_TRUE(a);
  EXPECT_EQ(a->owner, "n");
  EXPECT_EQ(a->owner_epoch, Epoch{2});
  EXPECT_EQ(a->free_blocks, 77u);
  std::string bits(kArenaChunkBlocks / 8, '\0');
  bits[511] = '\x80';
  EXPECT_EQ(*decode_amap(encode_amap(bits)), bits);
  std::vector<DeviceRange> ranges{{5, 1}, {1, 2}};
  EXPECT_EQ(*decode_freed(encode_freed(ranges)), ranges);
  std::vector<Extent> extents{{16384, 4, 8, 0, 0}, {16400, 100, 1, Extent::kUnwritten, 3}};
  EXPECT_EQ(*decode_extents(encode_extents(extents)), extents);
  EXPECT_EQ(*decode_extents(encode_extents({})), std::vector<Extent>{});
}

template <class T>
void expect_corrupt(const Result<T>& r) {
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error(), Reason::kCorrupt);
}

TEST(Records, GarbageIsCorrupt) {
  const std::string garbage = "\xff\xff\xff";
  expect_corrupt(decode_super(garbage));
  expect_corrupt(decode_beat(garbage));
  expect_corrupt(decode_live(garbage));
  expect_corrupt(decode_inode(garbage));
  expect_corrupt(decode_dirent(garbage));
  expect_corrupt(decode_lock(garbage));
  expect_corrupt(decode_arena(garbage));
  expect_corrupt(decode_epoch(garbage));
  expect_corrupt(decode_sequence(garbage));
  expect_corrupt(decode_extents(garbage));
  expect_corrupt(decode_amap(garbage));
  expect_corrupt(decode_freed(garbage));
  expect_corrupt(decode_family_counter(garbage));
  expect_corrupt(decode_hold(garbage));
  expect_corrupt(decode_advisory(garbage));
  expect_corrupt(decode_super(""));
  expect_corrupt(decode_inode(""));
  expect_corrupt(decode_dirent(""));
  expect_corrupt(decode_amap(""));
}

TEST(Records, EveryTruncationOfAnInodeIsCorruptOrAnotherInode) {
  const std::string whole = encode(sample_inode());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    auto r = decode_inode(whole.substr(0, n));
    if (r) {
      EXPECT_NE(encode(*r), whole) << n;
    } else {
      EXPECT_EQ(r.error(), Reason::kCorrupt) << n;
    }
  }
}

TEST(Records, InodeIsJudged) {
  auto corrupt = [](auto change) {
    Inode v = sample_inode();
    change(v);
    auto r = decode_inode(encode(v));
    return !r && r.error() == Reason::kCorrupt;
  };
  EXPECT_FALSE(corrupt([](Inode&) {}));
  EXPECT_TRUE(corrupt([](Inode& v) { v.mode = 0644; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.mode |= 1 << 16; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.size = kMaxFileBytes + 1; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.mtime.nsec = 1'000'000'000; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.birth_bound = kMaxIndex + 2; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.birth_family = Family{1ull << 40}; }));
  EXPECT_TRUE(corrupt([](Inode& v) { std::swap(v.xattrs[0], v.xattrs[1]); }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.xattrs[0].first = ""; }));
  EXPECT_TRUE(corrupt([](Inode& v) { std::swap(v.extents[0], v.extents[1]); }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.extents[0].blocks = 5; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.extents[0].blocks = 0; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.extents[2].blocks = ~0ull; }));
  EXPECT_TRUE(corrupt([](Inode& v) { v.extents[2].flags = 2; }));
}

TEST(Records, NodeNamesAreJudged) {
  expect_corrupt(decode_arena(encode(Arena{"a/b", Epoch{2}, 77})));
  expect_corrupt(decode_arena(encode(Arena{"\xff", Epoch{2}, 77})));
  expect_corrupt(decode_advisory(encode_advisory("", Epoch{2})));
  expect_corrupt(decode_advisory(encode_advisory("a b", Epoch{2})));
  EXPECT_TRUE(decode_arena(encode(Arena{"", Epoch{0}, 77})));
}

TEST(Records, UnknownFieldsAreSkipped) {
  pb::Dirent m;
  m.set_ino(5);
  m.set_type(8);
  std::string bytes = m.SerializeAsString() + "\xa0\x06\x01";  // field 100 = 1
  auto d = decode_dirent(bytes);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->ino, Ino{5});
}

}  // namespace
}  // namespace etcfs::meta

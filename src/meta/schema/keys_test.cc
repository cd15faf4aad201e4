#include "meta/schema/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "meta/kv.h"

namespace etcfs::meta {
namespace {

const Keys k("fs1");

TEST(Keys, SpellsEveryKeyExactly) {
  Ino dir(Family{0x1234}, 0), file(Family{0x1234}, 0xabc);
  EXPECT_EQ(k.prefix(), "/etcfs/fs1/");
  EXPECT_EQ(k.super(), "/etcfs/fs1/super");
  EXPECT_EQ(k.beat("n1"), "/etcfs/fs1/beat/n1");
  EXPECT_EQ(k.live("n1"), "/etcfs/fs1/live/n1");
  EXPECT_EQ(k.epoch("n1"), "/etcfs/fs1/epoch/n1");
  EXPECT_EQ(k.seq("n1"), "/etcfs/fs1/seq/n1");
  EXPECT_EQ(k.fence("n1"), "/etcfs/fs1/fence/n1");
  EXPECT_EQ(k.inode(file), "/etcfs/fs1/i/0000001234/000abc");
  EXPECT_EQ(k.dirent(dir, "a b"), "/etcfs/fs1/d/0000001234000000/a b");
  EXPECT_EQ(k.extents(file, 3), "/etcfs/fs1/x/0000001234000abc/00000003");
  EXPECT_EQ(k.lock(Family{1}, "n1", Epoch{0x10}), "/etcfs/fs1/lock/0000000001/n1/0000000000000010");
  EXPECT_EQ(k.want(Family{1}, "n1", Epoch{0x10}), "/etcfs/fs1/want/0000000001/n1/0000000000000010");
  EXPECT_EQ(k.hold(file, "n1"), "/etcfs/fs1/hold/0000001234000abc/n1");
  EXPECT_EQ(k.plock(file), "/etcfs/fs1/plock/0000001234000abc");
  EXPECT_EQ(k.orphan(file), "/etcfs/fs1/orphan/0000001234000abc");
  EXPECT_EQ(k.arena(ArenaNo{255}), "/etcfs/fs1/arena/000000ff");
  EXPECT_EQ(k.amap(ArenaNo{255}, 1), "/etcfs/fs1/amap/000000ff/00000001");
  EXPECT_EQ(k.freed(ArenaNo{255}, "u-1"), "/etcfs/fs1/freed/000000ff/u-1");
  EXPECT_EQ(k.family_counter(), "/etcfs/fs1/counter/family");
}

TEST(Keys, SpellsPrefixes) {
  Ino file(Family{0x1234}, 0xabc);
  EXPECT_EQ(k.all("lock"), "/etcfs/fs1/lock/");
  EXPECT_EQ(k.family_inodes(Family{2}), "/etcfs/fs1/i/0000000002/");
  EXPECT_EQ(k.entries(Ino(Family{2}, 0)), "/etcfs/fs1/d/0000000002000000/");
  EXPECT_EQ(k.extents_of(file), "/etcfs/fs1/x/0000001234000abc/");
  EXPECT_EQ(k.family_locks(Family{2}), "/etcfs/fs1/lock/0000000002/");
  EXPECT_EQ(k.family_wants(Family{2}), "/etcfs/fs1/want/0000000002/");
  EXPECT_EQ(k.family_holds_first(Family{2}), "/etcfs/fs1/hold/0000000002000000");
  EXPECT_EQ(k.family_holds_end(Family{2}), "/etcfs/fs1/hold/0000000003000000");
  EXPECT_EQ(k.family_holds_end(Family{0xffffffffff}), "/etcfs/fs1/hold0");
  EXPECT_EQ(k.holds(file), "/etcfs/fs1/hold/0000001234000abc/");
  EXPECT_EQ(k.arena_map(ArenaNo{7}), "/etcfs/fs1/amap/00000007/");
  EXPECT_EQ(k.arena_freed(ArenaNo{7}), "/etcfs/fs1/freed/00000007/");
}

TEST(Keys, SortAsTheirNumbersDo) {
  std::vector<Ino> inos{Ino(Family{0xff}, 0xffffff), Ino(Family{0x100}, 0), Ino(Family{1}, 0x10),
                        Ino(Family{1}, 0x9), Ino(Family{0xffffffffff}, kMaxIndex)};
  for (Ino a : inos)
    for (Ino b : inos) {
      EXPECT_EQ(a < b, k.inode(a) < k.inode(b));
      EXPECT_EQ(a < b, k.dirent(a, "x") < k.dirent(b, "a"));
      EXPECT_EQ(a < b, k.extents(a, 9) < k.extents(b, 1));
    }
  EXPECT_LT(k.extents(Ino{1}, 0xf), k.extents(Ino{1}, 0x10));
  EXPECT_LT(k.arena(ArenaNo{9}), k.arena(ArenaNo{10}));
}

TEST(Keys, ParseWhatTheySpell) {
  Ino file(Family{0xffffffffff}, kMaxIndex);
  EXPECT_EQ(k.parse_inode(k.inode(file)), file);
  std::string name = "\x01\xff\n z";
  auto d = k.parse_dirent(k.dirent(Ino(Family{7}, 0), name));
  ASSERT_TRUE(d);
  EXPECT_EQ(d->directory, Ino(Family{7}, 0));
  EXPECT_EQ(d->name, name);
  auto x = k.parse_extents(k.extents(file, 0xffffffff));
  ASSERT_TRUE(x);
  EXPECT_EQ(x->ino, file);
  EXPECT_EQ(x->chunk, 0xffffffffu);
  auto l = k.parse_lock(k.lock(Family{5}, "n-1.x_Y", Epoch{~0ull}));
  ASSERT_TRUE(l);
  EXPECT_EQ(l->family, Family{5});
  EXPECT_EQ(l->node, "n-1.x_Y");
  EXPECT_EQ(l->epoch, Epoch{~0ull});
  auto w = k.parse_want(k.want(Family{5}, "n", Epoch{1}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->node, "n");
  auto h = k.parse_hold(k.hold(file, "n"));
  ASSERT_TRUE(h);
  EXPECT_EQ(h->ino, file);
  EXPECT_EQ(h->node, "n");
  EXPECT_EQ(k.parse_plock(k.plock(file)), file);
  EXPECT_EQ(k.parse_orphan(k.orphan(file)), file);
  EXPECT_EQ(k.parse_arena(k.arena(ArenaNo{~0u})), ArenaNo{~0u});
  auto m = k.parse_amap(k.amap(ArenaNo{3}, 4));
  ASSERT_TRUE(m);
  EXPECT_EQ(m->arena, ArenaNo{3});
  EXPECT_EQ(m->chunk, 4u);
  auto f = k.parse_freed(k.freed(ArenaNo{3}, "a/b"));
  ASSERT_TRUE(f);
  EXPECT_EQ(f->arena, ArenaNo{3});
  EXPECT_EQ(f->unique, "a/b");
  EXPECT_EQ(k.parse_node("beat", k.beat("n1")), "n1");
}

TEST(Keys, ParseNothingElse) {
  std::string i = k.inode(Ino{1});
  EXPECT_FALSE(k.parse_inode(i + "0"));
  EXPECT_FALSE(k.parse_inode(i.substr(0, i.size() - 1)));
  EXPECT_FALSE(k.parse_inode("/etcfs/fs1/i/00000000AB/000000"));
  EXPECT_FALSE(k.parse_inode("/etcfs/fs2/i/0000000001/000000"));
  EXPECT_FALSE(k.parse_inode("/etcfs/fs1/i/0000000001-000000"));
  EXPECT_FALSE(k.parse_inode(""));
  EXPECT_FALSE(k.parse_inode(k.super()));
  std::string d = k.entries(Ino{1 << 24});
  for (std::string bad : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                          std::string("a\0b", 3), std::string(256, 'x')})
    EXPECT_FALSE(k.parse_dirent(d + bad)) << bad;
  EXPECT_TRUE(k.parse_dirent(d + std::string(255, 'x')));
  EXPECT_FALSE(k.parse_lock("/etcfs/fs1/lock/0000000001//0000000000000001"));
  EXPECT_FALSE(k.parse_lock("/etcfs/fs1/lock/0000000001/n/000000000000001"));
  EXPECT_FALSE(k.parse_lock("/etcfs/fs1/lock/0000000001/n/0000000000000001/"));
  EXPECT_FALSE(k.parse_lock(k.want(Family{1}, "n", Epoch{1})));
  EXPECT_FALSE(k.parse_hold(k.holds(Ino{1})));
  EXPECT_FALSE(k.parse_hold(k.hold(Ino{1}, "a/b")));
  EXPECT_FALSE(k.parse_freed(k.arena_freed(ArenaNo{1})));
  EXPECT_FALSE(k.parse_node("beat", k.all("beat")));
  EXPECT_FALSE(k.parse_node("beat", k.live("n1")));
  EXPECT_FALSE(k.parse_node("beat", k.beat("a b")));
}

TEST(Keys, NodeAndFilesystemNames) {
  EXPECT_TRUE(valid_node_name("aZ09._-"));
  EXPECT_TRUE(valid_node_name(std::string(63, 'a')));
  EXPECT_FALSE(valid_node_name(std::string(64, 'a')));
  EXPECT_FALSE(valid_node_name(""));
  EXPECT_FALSE(valid_node_name("a/b"));
  EXPECT_FALSE(valid_fs_name("a b"));
  EXPECT_FALSE(valid_fs_name("\xc3\xa4"));
  EXPECT_TRUE(valid_fs_name("data"));
}

TEST(PrefixEnd, IsTheSmallestStringAboveThePrefix) {
  EXPECT_EQ(prefix_end("a/"), "a0");
  EXPECT_EQ(prefix_end(std::string("a\0", 2)), "a\x01");
  EXPECT_EQ(prefix_end("a\xff"), "b");
  EXPECT_EQ(prefix_end("a\x7f\xff\xff"), "a\x80");
  EXPECT_EQ(prefix_end("\xff\xff"), std::string(1, '\0'));
  EXPECT_EQ(prefix_end(""), std::string(1, '\0'));
}

}  // namespace
}  // namespace etcfs::meta

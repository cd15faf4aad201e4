#include "sim/model_fs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace etcfs::sim {
namespace {

// Applies operations one after the other, the way the answers say.
class Model : public ::testing::Test {
 protected:
  Op op(OpKind kind, Ino ino, std::string name = {}) {
    Op o;
    o.number = ++number_;
    o.kind = kind;
    o.ino = ino;
    o.name = std::move(name);
    return o;
  }
  Op rename(Ino from, std::string name, Ino to, std::string new_name,
            fs::RenameMode how = fs::RenameMode::kReplace) {
    Op o = op(OpKind::kRename, from, std::move(name));
    o.ino2 = to;
    o.name2 = std::move(new_name);
    o.rename = how;
    return o;
  }
  bool ok(const Op& o, Outcome out = {}) {
    auto after = fs_.apply(o, &out, &why_);
    if (after) fs_ = std::move(*after);
    return after.has_value();
  }
  bool fails(const Op& o, Reason reason) {
    Outcome out;
    out.error = reason;
    return ok(o, out);
  }
  Ino born(OpKind kind, Ino parent, std::string name, std::uint32_t mode = 0644) {
    Op o = op(kind, parent, std::move(name));
    o.mode = mode;
    Outcome out;
    out.ino = kind == OpKind::kMkdir ? Ino(Family{++family_}, 0) : Ino(parent.family(), ++index_);
    EXPECT_TRUE(ok(o, out)) << why_;
    return out.ino;
  }
  std::uint64_t number_ = 0, family_ = 10;
  std::uint32_t index_ = 0;
  ModelFs fs_;
  std::string why_;
};

TEST_F(Model, BirthAndLookup) {
  const Ino dir = born(OpKind::kMkdir, kRootIno, "d", 0750);
  EXPECT_EQ(fs_.find(dir)->mode, S_IFDIR | 0750u);
  EXPECT_EQ(fs_.find(kRootIno)->nlink, 3u);
  Outcome found;
  found.ino = dir;
  EXPECT_TRUE(ok(op(OpKind::kLookup, kRootIno, "d"), found));
  EXPECT_FALSE(ok(op(OpKind::kLookup, kRootIno, "x"), found));  // there is no x
  EXPECT_TRUE(ok(op(OpKind::kLookup, kRootIno, "x"), Outcome{}));
  EXPECT_TRUE(fails(op(OpKind::kLookup, kRootIno, "x"), Reason::kNotFound));
  EXPECT_FALSE(fails(op(OpKind::kLookup, kRootIno, "d"), Reason::kNotFound));
  Op again = op(OpKind::kMkdir, kRootIno, "d");
  EXPECT_TRUE(fails(again, Reason::kExists));
  EXPECT_FALSE(fails(again, Reason::kNoSpace));
  Outcome reused;
  reused.ino = dir;
  EXPECT_FALSE(ok(op(OpKind::kMkdir, kRootIno, "e"), reused));  // a number is never given twice
}

TEST_F(Model, SetgidDirectoriesPassTheGroupOn) {
  const Ino dir = born(OpKind::kMkdir, kRootIno, "d", 0755);
  Op chmod = op(OpKind::kSetattr, dir);
  chmod.set.mode = 02755;
  chmod.set.gid = 7;
  ASSERT_TRUE(ok(chmod));
  EXPECT_EQ(fs_.find(born(OpKind::kMkdir, dir, "s", 0700))->mode, S_IFDIR | 02700u);
  EXPECT_EQ(fs_.find(born(OpKind::kMknod, dir, "f", S_IFREG | 0600))->gid, 7u);
}

TEST_F(Model, AttributesMustBeExact) {
  const Ino file = born(OpKind::kMknod, kRootIno, "f", S_IFREG | 0640);
  Outcome out;
  out.attr = fs::Attr{};
  out.attr->ino = file;
  out.attr->mode = S_IFREG | 0640;
  out.attr->nlink = 1;
  EXPECT_TRUE(ok(op(OpKind::kGetattr, file), out));
  out.attr->size = 1;
  EXPECT_FALSE(ok(op(OpKind::kGetattr, file), out));
  out.attr->size = 0;
  out.attr->nlink = 2;
  EXPECT_FALSE(ok(op(OpKind::kGetattr, file), out));
  Op utimens = op(OpKind::kSetattr, file);
  utimens.set.mtime = fs::SetAttr::When{false, {5, 6}};
  ASSERT_TRUE(ok(utimens));
  out.attr->nlink = 1;
  EXPECT_FALSE(ok(op(OpKind::kGetattr, file), out));
  out.attr->mtime = {5, 6};
  EXPECT_TRUE(ok(op(OpKind::kGetattr, file), out));
}

TEST_F(Model, RemovalErrors) {
  const Ino dir = born(OpKind::kMkdir, kRootIno, "d");
  born(OpKind::kMknod, dir, "f", S_IFREG | 0644);
  EXPECT_TRUE(fails(op(OpKind::kRmdir, kRootIno, "d"), Reason::kNotEmpty));
  EXPECT_FALSE(ok(op(OpKind::kRmdir, kRootIno, "d")));
  EXPECT_TRUE(fails(op(OpKind::kUnlink, kRootIno, "d"), Reason::kIsDirectory));
  EXPECT_TRUE(fails(op(OpKind::kRmdir, dir, "f"), Reason::kNotDirectory));
  EXPECT_TRUE(fails(op(OpKind::kUnlink, dir, "g"), Reason::kNotFound));
  EXPECT_TRUE(ok(op(OpKind::kUnlink, dir, "f")));
  EXPECT_TRUE(ok(op(OpKind::kRmdir, kRootIno, "d")));
  EXPECT_EQ(fs_.find(kRootIno)->nlink, 2u);
  EXPECT_TRUE(fails(op(OpKind::kMkdir, dir, "x"), Reason::kStale));
  EXPECT_TRUE(fails(op(OpKind::kMkdir, dir, "x"), Reason::kNotFound));
  EXPECT_FALSE(fails(op(OpKind::kMkdir, dir, "x"), Reason::kExists));
}

TEST_F(Model, RenameReplacesAndMovesDirectories) {
  const Ino a = born(OpKind::kMkdir, kRootIno, "a"), b = born(OpKind::kMkdir, kRootIno, "b");
  const Ino sub = born(OpKind::kMkdir, a, "sub");
  const Ino file = born(OpKind::kMknod, kRootIno, "f", S_IFREG | 0644);
  EXPECT_TRUE(fails(rename(kRootIno, "a", sub, "x"), Reason::kLoop));
  EXPECT_FALSE(ok(rename(kRootIno, "a", sub, "x")));
  EXPECT_TRUE(fails(rename(a, "sub", kRootIno, "a"), Reason::kNotEmpty));
  EXPECT_TRUE(fails(rename(kRootIno, "f", kRootIno, "a"), Reason::kIsDirectory));
  EXPECT_TRUE(fails(rename(kRootIno, "a", kRootIno, "f"), Reason::kNotDirectory));
  EXPECT_TRUE(fails(rename(kRootIno, "none", kRootIno, "f"), Reason::kNotFound));
  EXPECT_TRUE(
      fails(rename(kRootIno, "a", kRootIno, "b", fs::RenameMode::kNoReplace), Reason::kExists));
  ASSERT_TRUE(ok(rename(a, "sub", kRootIno, "b")));
  EXPECT_EQ(fs_.find(b), nullptr);
  EXPECT_EQ(fs_.find(sub)->parent, kRootIno);
  EXPECT_EQ(fs_.find(a)->nlink, 2u);
  EXPECT_EQ(fs_.find(kRootIno)->nlink, 4u);
  ASSERT_TRUE(ok(rename(kRootIno, "f", kRootIno, "a", fs::RenameMode::kExchange)));
  EXPECT_EQ(fs_.find(kRootIno)->entries.at("a"), file);
  EXPECT_EQ(fs_.find(kRootIno)->entries.at("f"), a);
  EXPECT_EQ(fs_.find(kRootIno)->nlink, 4u);
}

TEST_F(Model, RenameOntoTheSameFileDoesNothing) {
  const Ino file = born(OpKind::kMknod, kRootIno, "f", S_IFREG | 0644);
  Op link = op(OpKind::kLink, file);
  link.ino2 = kRootIno;
  link.name2 = "g";
  ASSERT_TRUE(ok(link));
  ASSERT_TRUE(ok(rename(kRootIno, "f", kRootIno, "g")));
  EXPECT_EQ(fs_.find(kRootIno)->entries.size(), 2u);
  EXPECT_EQ(fs_.find(file)->nlink, 2u);
}

TEST_F(Model, UnlinkedOpenFileLivesUntilItsLastRelease) {
  const Ino file = born(OpKind::kCreate, kRootIno, "f");
  Op write = op(OpKind::kWrite, file);
  write.size = 3;
  Outcome wrote;
  wrote.number = 3;
  ASSERT_TRUE(ok(write, wrote));
  ASSERT_TRUE(ok(op(OpKind::kUnlink, kRootIno, "f")));
  Op read = op(OpKind::kRead, file);
  read.size = 10;
  Outcome got;
  for (int i = 0; i < 3; i++) got.bytes += data_byte(write.number, i);
  EXPECT_TRUE(ok(read, got));
  EXPECT_FALSE(fails(read, Reason::kStale));  // it is open on this node
  read.node = 1;
  ASSERT_NE(fs_.find(file), nullptr);
  ASSERT_TRUE(ok(op(OpKind::kRelease, file)));
  EXPECT_EQ(fs_.find(file), nullptr);
  EXPECT_TRUE(fails(op(OpKind::kOpen, file), Reason::kStale));
}

TEST_F(Model, DataIsExactWithHolesAppendsAndTruncation) {
  const Ino file = born(OpKind::kCreate, kRootIno, "f");
  Op write = op(OpKind::kWrite, file);
  write.offset = 2;
  write.size = 2;
  Outcome wrote;
  wrote.number = 2;
  ASSERT_TRUE(ok(write, wrote));
  Op append = op(OpKind::kWrite, file);
  append.append = true;
  append.offset = 100;
  append.size = 1;
  wrote.number = 1;
  ASSERT_TRUE(ok(append, wrote));
  std::string right{'\0', '\0', data_byte(write.number, 2), data_byte(write.number, 3),
                    data_byte(append.number, 100)};
  EXPECT_EQ(*fs_.find(file)->data, right);
  Op read = op(OpKind::kRead, file);
  read.offset = 1;
  read.size = 3;
  Outcome got;
  got.bytes = right.substr(1, 3);
  EXPECT_TRUE(ok(read, got));
  got.bytes[1] ^= 1;
  EXPECT_FALSE(ok(read, got));
  Op cut = op(OpKind::kSetattr, file);
  cut.set.size = 3;
  ASSERT_TRUE(ok(cut));
  cut.set.size = 4;
  ASSERT_TRUE(ok(cut));
  EXPECT_EQ(*fs_.find(file)->data, right.substr(0, 3) + '\0');
}

TEST_F(Model, UncertainDataIsAMixtureOfItsVersions) {
  const Ino file = born(OpKind::kCreate, kRootIno, "f");
  auto version = [](std::string s) { return std::make_shared<const std::string>(std::move(s)); };
  fs_.change(file).versions = {version("aaaa"), version("bbbbbb")};
  Op read = op(OpKind::kRead, file);
  read.size = 100;
  Outcome got;
  for (const char* wrong : {"aac", "ababababa", "aa"}) {
    got.bytes = wrong;
    EXPECT_FALSE(ok(read, got)) << wrong;
  }
  Op beyond = read;
  beyond.offset = 50;
  EXPECT_TRUE(ok(beyond, Outcome{}));
  beyond.offset = 3;
  EXPECT_FALSE(ok(beyond, Outcome{}));
  got.bytes = "abab";
  EXPECT_TRUE(ok(read, got));
  EXPECT_FALSE(fs_.uncertain());
  got.bytes = "aaaa";
  EXPECT_FALSE(ok(read, got));  // now it is certain
}

TEST_F(Model, AnOperationThatNobodyLearntTheOutcomeOf) {
  Op mkdir = op(OpKind::kMkdir, kRootIno, "d");
  auto after = fs_.apply(mkdir, nullptr, nullptr);
  ASSERT_TRUE(after);
  EXPECT_FALSE(after->apply(mkdir, nullptr, nullptr));  // twice it cannot have had an effect
  // Later somebody learns its number.
  Outcome found;
  found.ino = Ino(Family{99}, 0);
  auto bound = after->apply(op(OpKind::kLookup, kRootIno, "d"), &found, nullptr);
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->find(kRootIno)->entries.at("d"), found.ino);
  EXPECT_TRUE(bound->find(found.ino)->is_dir());
}

TEST_F(Model, ListingsAreExact) {
  const Ino dir = born(OpKind::kMkdir, kRootIno, "d");
  Outcome out;
  out.listing["d"] = {dir, fs::FileType::kDirectory};
  EXPECT_TRUE(ok(op(OpKind::kReaddir, kRootIno), out));
  out.listing["e"] = {Ino(kRootFamily, 9), fs::FileType::kRegular};
  EXPECT_FALSE(ok(op(OpKind::kReaddir, kRootIno), out));
  EXPECT_FALSE(ok(op(OpKind::kReaddir, kRootIno), Outcome{}));
}

TEST_F(Model, AdvisoryLocksExclude) {
  const Ino file = born(OpKind::kCreate, kRootIno, "f");
  Op lock = op(OpKind::kLock, file);
  lock.owner = 1;
  ASSERT_TRUE(ok(lock));
  lock.owner = 2;
  EXPECT_FALSE(ok(lock));
  EXPECT_TRUE(fails(lock, Reason::kWouldBlock));
  Op unlock = op(OpKind::kUnlock, file);
  unlock.owner = 1;
  ASSERT_TRUE(ok(unlock));
  EXPECT_TRUE(ok(lock));
}

}  // namespace
}  // namespace etcfs::sim

#include "sim/history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace etcfs::sim {
namespace {

class HistoryTest : public ::testing::Test {
 protected:
  Op op(unsigned node, OpKind kind, std::string name, Ino ino = kRootIno) {
    Op o;
    o.node = node;
    o.kind = kind;
    o.ino = ino;
    o.name = std::move(name);
    o.mode = kind == OpKind::kMknod ? S_IFREG | 0644 : 0755;
    return o;
  }
  Record& call(unsigned node, OpKind kind, std::string name, Ino ino = kRootIno) {
    return h_.call(op(node, kind, std::move(name), ino));
  }
  void ret(Record& r, Ino ino = {}, std::uint64_t step = 0) {
    Outcome out;
    out.ino = ino;
    h_.returned(r, out, StepNo{step});
  }
  void fail(Record& r, Reason reason) {
    Outcome out;
    out.error = reason;
    h_.returned(r, out, StepNo{});
  }
  void mkdir(unsigned node, std::string name, Ino ino, std::uint64_t step = 0) {
    ret(call(node, OpKind::kMkdir, std::move(name)), ino, step);
  }
  void sees(unsigned node, std::string name, Ino ino) {
    ret(call(node, OpKind::kLookup, std::move(name)), ino);
  }
  void write(unsigned node, Ino ino, std::uint64_t size) {
    Op o = op(node, OpKind::kWrite, "", ino);
    o.size = size;
    Record& r = h_.call(o);
    Outcome out;
    out.number = size;
    h_.returned(r, out, StepNo{});
    last_write_ = r.op.number;
  }
  void reads(unsigned node, Ino ino, std::string bytes) {
    Op o = op(node, OpKind::kRead, "", ino);
    o.size = 1000;
    Record& r = h_.call(o);
    Outcome out;
    out.bytes = std::move(bytes);
    h_.returned(r, out, StepNo{});
  }
  std::string written(std::uint64_t size) const {
    std::string s;
    for (std::uint64_t i = 0; i < size; i++) s += data_byte(last_write_, i);
    return s;
  }
  bool right() { return h_.check().right; }

  static constexpr Ino kA{Family{10}, 0}, kB{Family{11}, 0}, kF{kRootFamily, 1};
  std::uint64_t last_write_ = 0;
  History h_;
};

TEST_F(HistoryTest, OneAfterTheOther) {
  mkdir(0, "a", kA);
  sees(1, "a", kA);
  EXPECT_TRUE(right());
}

TEST_F(HistoryTest, AStaleAnswerIsWrong) {
  mkdir(0, "a", kA);
  sees(1, "a", Ino{});  // called after mkdir had returned
  EXPECT_FALSE(right());
  EXPECT_NE(h_.check().text.find("Lookup"), std::string::npos);
}

TEST_F(HistoryTest, WhatOverlapsMayHaveEitherOrder) {
  Record& mk = call(0, OpKind::kMkdir, "a");
  sees(1, "a", Ino{});
  sees(1, "a", kA);
  ret(mk, kA);
  EXPECT_TRUE(right());
}

TEST_F(HistoryTest, OnceSeenItStaysSeen) {
  Record& mk = call(0, OpKind::kMkdir, "a");
  sees(1, "a", kA);
  sees(2, "a", Ino{});
  ret(mk, kA);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ARenameThatWouldChangeNothingMayStillTakeEffectLater) {
  ret(call(0, OpKind::kMknod, "f"), kF);
  Op link = op(0, OpKind::kLink, "", kF);
  link.ino2 = kRootIno;
  link.name2 = "g";
  ret(h_.call(link));
  Op rename = op(1, OpKind::kRename, "f");
  rename.ino2 = kRootIno;
  rename.name2 = "g";
  Record& pending = h_.call(rename);
  ret(call(0, OpKind::kUnlink, "g"));
  ret(pending);
  sees(0, "g", kF);
  EXPECT_TRUE(right());
}

TEST_F(HistoryTest, OnlyOneOfTwoExclusiveBirthsSucceeds) {
  Record& x = call(0, OpKind::kMkdir, "a");
  Record& y = call(1, OpKind::kMkdir, "a");
  ret(x, kA);
  ret(y, kB);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ALoserOfARaceMustHaveHadAWinner) {
  Record& x = call(0, OpKind::kMkdir, "a");
  Record& y = call(1, OpKind::kMkdir, "a");
  fail(y, Reason::kExists);
  ret(x, kA);
  EXPECT_TRUE(right());
  h_ = History{};
  fail(call(1, OpKind::kMkdir, "a"), Reason::kExists);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ACrashLosesASuffixOnly) {
  mkdir(0, "a", kA, 1);
  mkdir(0, "b", kB, 2);
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", kA);
  sees(1, "b", Ino{});
  EXPECT_TRUE(right());
}

TEST_F(HistoryTest, ACrashCannotLoseThePrefix) {
  mkdir(0, "a", kA, 1);
  mkdir(0, "b", kB, 2);
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", Ino{});
  sees(1, "b", kB);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ACrashCannotLoseWhatWasCommitted) {
  mkdir(0, "a", kA, 1);
  h_.crashed({{0, StepNo{1}}});
  sees(1, "a", Ino{});
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ACrashCannotLoseWhatWasSynced) {
  mkdir(0, "a", kA, 1);
  ret(call(0, OpKind::kSyncfs, "", Ino{}));
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", Ino{});
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ACrashCannotLoseWhatAnotherNodeBuiltOn) {
  mkdir(0, "a", kA, 1);
  ret(call(1, OpKind::kMkdir, "x", kA), kB, 1);  // a/x by another node
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", Ino{});
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, ACrashTakesNothingFromOthers) {
  mkdir(0, "a", kA, 1);
  mkdir(1, "b", kB, 1);
  h_.crashed({{0, StepNo{0}}});
  sees(1, "b", Ino{});
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, WhatWasUnderWayInACrashMayHaveHappened) {
  call(0, OpKind::kMkdir, "a");
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", kA);
  sees(1, "a", kA);
  EXPECT_TRUE(right());
  sees(1, "a", kB);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, SyncedDataIsWholeAfterACrash) {
  for (const bool whole : {true, false}) {
    h_ = History{};
    ret(call(0, OpKind::kMknod, "f"), kF, 1);
    write(0, kF, 100);
    ret(call(0, OpKind::kFsync, "", kF));
    h_.crashed({{0, StepNo{1}}});
    reads(1, kF, whole ? written(100) : "");
    EXPECT_EQ(right(), whole);
  }
}

TEST_F(HistoryTest, UnsyncedDataMayBeLostButIsNeverGarbage) {
  for (const char* what : {"lost", "part", "whole", "garbage"}) {
    h_ = History{};
    ret(call(0, OpKind::kMknod, "f"), kF, 1);
    write(0, kF, 100);
    h_.crashed({{0, StepNo{1}}});
    std::string bytes;
    if (what == std::string("part")) bytes = written(50);
    if (what == std::string("whole")) bytes = written(100);
    if (what == std::string("garbage")) bytes = std::string(100, '\x01') + "x";
    reads(1, kF, bytes);
    EXPECT_EQ(right(), what != std::string("garbage")) << what;
  }
}

TEST_F(HistoryTest, TwoNodesMayCrashAtOnce) {
  mkdir(0, "a", kA, 1);
  mkdir(1, "b", kB, 1);
  h_.crashed({{0, StepNo{0}}, {1, StepNo{0}}});
  sees(2, "a", Ino{});
  sees(2, "b", kB);
  EXPECT_TRUE(right());
}

TEST_F(HistoryTest, ANumberIsNeverGivenTwiceEvenIfItsBirthWasLost) {
  mkdir(0, "a", kA, 1);
  h_.crashed({{0, StepNo{0}}});
  sees(1, "a", Ino{});
  mkdir(1, "b", kA, 1);
  EXPECT_FALSE(right());
}

TEST_F(HistoryTest, HashIsOfEverything) {
  History x, y, z;
  for (History* h : {&x, &y}) h->returned(h->call(op(0, OpKind::kStatfs, "")), Outcome{}, StepNo{});
  z.returned(z.call(op(1, OpKind::kStatfs, "")), Outcome{}, StepNo{});
  EXPECT_EQ(x.hash(), y.hash());
  EXPECT_NE(x.hash(), z.hash());
}

}  // namespace
}  // namespace etcfs::sim

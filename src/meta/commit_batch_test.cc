#include "meta/commit_batch.h"

#include <gtest/gtest.h>

namespace etcfs::meta {
namespace {

constexpr CommitBatch::Room kRoomy{1000, 100'000};

std::vector<std::string> shown(const std::vector<KvOp>& ops) {
  std::vector<std::string> out;
  for (const KvOp& op : ops) {
    if (const auto* put = std::get_if<PutOp>(&op)) out.push_back(put->key + "=" + put->value);
    if (const auto* erase = std::get_if<DeleteOp>(&op)) out.push_back("-" + erase->key);
  }
  return out;
}

TEST(CommitBatch, LastWriteOfAKeyWinsInPlaceOfTheFirst) {
  Step a, b, c;
  a.put("dir", "1");
  a.put("f1", "x");
  b.put("dir", "2");
  b.erase("f1");
  c.put("dir", "3");
  CommitBatch batch;
  for (Step* s : {&a, &b, &c}) ASSERT_TRUE(batch.add(*s, kRoomy));
  EXPECT_EQ(batch.steps(), 3u);
  EXPECT_EQ(batch.ops(), 2u);
  EXPECT_EQ(batch.folded(), 3u);
  std::vector<KvOp> ops;
  batch.move_into(ops);
  EXPECT_EQ(shown(ops), (std::vector<std::string>{"dir=3", "-f1"}));
}

TEST(CommitBatch, StepThatDoesNotFitLeavesNoTrace) {
  Step a, b, c;
  a.put("dir", "1");
  b.put("dir", "2");
  b.put("x", "");
  b.put("y", "");
  c.put("x", "3");
  CommitBatch batch;
  ASSERT_TRUE(batch.add(a, {2, 1000}));
  const std::size_t bytes = batch.bytes();
  EXPECT_FALSE(batch.add(b, {2, 1000}));
  EXPECT_EQ(batch.bytes(), bytes);
  ASSERT_TRUE(batch.add(c, {2, 1000}));
  std::vector<KvOp> ops;
  batch.move_into(ops);
  EXPECT_EQ(shown(ops), (std::vector<std::string>{"dir=1", "x=3"}));
}

TEST(CommitBatch, FirstStepAlwaysFits) {
  Step a;
  a.put("a", "1");
  a.put("b", "1");
  CommitBatch batch;
  EXPECT_TRUE(batch.add(a, {1, 1}));
}

TEST(CommitBatch, BytesAreBounded) {
  Step a, b;
  a.put("a", std::string(500, 'x'));
  b.put("b", std::string(500, 'x'));
  CommitBatch batch;
  ASSERT_TRUE(batch.add(a, {10, 600}));
  EXPECT_FALSE(batch.add(b, {10, 600}));
  EXPECT_EQ(batch.bytes(), CommitBatch::cost(a.mutations[0]));
}

TEST(CommitBatch, MovedBackStepsRegroupToTheSame) {
  std::vector<Step> steps(400);  // more keys than the first table holds: it grows
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].put("shared", std::to_string(i));
    steps[i].put("key" + std::to_string(i), "v");
    if (i > 0) steps[i].erase("key" + std::to_string(i - 1));
  }
  CommitBatch batch;
  for (Step& s : steps) ASSERT_TRUE(batch.add(s, {10'000, 1'000'000}));
  std::vector<KvOp> ops;
  batch.move_into(ops);
  const auto first = shown(ops);
  EXPECT_EQ(first.size(), 401u);
  EXPECT_EQ(first[0], "shared=399");
  batch.move_back(ops);
  batch.clear();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].mutations[0].key, "shared");
    EXPECT_EQ(steps[i].mutations[0].value, std::to_string(i));
  }
  for (Step& s : steps) ASSERT_TRUE(batch.add(s, {10'000, 1'000'000}));
  ops.clear();
  batch.move_into(ops);
  EXPECT_EQ(shown(ops), first);
}

TEST(CommitBatchDeathTest, KeyTwiceInOneStepIsAnAssertion) {
  Step a;
  a.put("k", "1");
  a.put("k", "2");
  CommitBatch batch;
  EXPECT_DEATH((void)batch.add(a, kRoomy), "");
}

}  // namespace
}  // namespace etcfs::meta

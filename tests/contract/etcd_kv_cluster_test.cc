// Three members of which any may die, stop or lose the others.
#include <gtest/gtest.h>

#include "tests/contract/kv_bed.h"

namespace etcfs::testing {
namespace {

using meta::EtcdOptions;
using meta::RangeOp;

// Writes 1, 2, 3, … each exactly once, as the commit stream does: a compare makes a repetition
// harmless.
void count_up(meta::Kv& kv, const std::string& key, int from, int to) {
  for (int i = from; i <= to;) {
    meta::Txn txn = put_txn(key, std::to_string(i));
    if (i == 1)
      txn.compares = {
          compare_number(meta::Compare::Target::kVersion, meta::Compare::Op::kEqual, key, 0)};
    else
      txn.compares = {compare_value(meta::Compare::Op::kEqual, key, std::to_string(i - 1))};
    meta::TxnOutcome outcome = kv.txn(txn, rt::now() + 2s);
    ASSERT_NE(outcome.kind, meta::TxnOutcome::Kind::kRefused);
    if (outcome.done() && outcome.reply.succeeded) {
      i++;
      continue;
    }
    if (get(kv, key) == std::to_string(i)) i++;
  }
}

std::vector<std::string> counted(const std::string& key, int last) {
  std::vector<std::string> all;
  for (int i = 1; i <= last; i++) all.push_back("put " + key + "=" + std::to_string(i));
  return all;
}

TEST(EtcdCluster, WritersAndWatchesOutliveEachMember) {
  if (!EtcdServer::installed()) GTEST_SKIP() << "no etcd program";
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.start());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    EtcdOptions options{.endpoints = cluster.endpoints()};
    Client writer(runtime, options), reader(runtime, options);
    Recorder seen;
    auto watch = reader->watch("n", {}, Revision{1}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    int n = 0;
    for (std::size_t i = 0; i < cluster.size(); i++) {
      count_up(*writer, "n", n + 1, n + 20);
      n += 20;
      cluster.member(i).kill();
      count_up(*writer, "n", n + 1, n + 20);
      n += 20;
      ASSERT_TRUE(seen.wait_events(static_cast<std::size_t>(n))) << "member " << i;
      ASSERT_TRUE(cluster.member(i).start()) << cluster.member(i).log();
    }
    EXPECT_EQ(seen.texts(), counted("n", n));
    EXPECT_EQ(seen.lost, 0);
  });
}

TEST(EtcdCluster, AMemberThatStandsStillIsLeft) {
  if (!EtcdServer::installed()) GTEST_SKIP() << "no etcd program";
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.start());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    EtcdOptions options{.endpoints = cluster.endpoints()};
    Client writer(runtime, options), reader(runtime, options);
    Recorder seen;
    auto watch = reader->watch("n", {}, Revision{1}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    int n = 0;
    for (std::size_t i = 0; i < cluster.size(); i++) {
      cluster.member(i).pause();
      count_up(*writer, "n", n + 1, n + 10);
      n += 10;
      ASSERT_TRUE(reader->range(RangeOp{"n", {}}, Revision{}, soon()));
      ASSERT_TRUE(seen.wait_events(static_cast<std::size_t>(n))) << "member " << i;
      cluster.member(i).resume();
    }
    EXPECT_EQ(seen.texts(), counted("n", n));
  });
}

// A member that has lost the others keeps its connections and says nothing: hasleader ends the
// stream.
TEST(EtcdCluster, AWatchOnAMemberWithoutALeaderMovesOn) {
  if (!EtcdServer::installed()) GTEST_SKIP() << "no etcd program";
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.start());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client lonely(runtime, EtcdOptions{.endpoints = {cluster.member(0).endpoint()}});
    Recorder seen;
    auto watch = lonely->watch("n", {}, Revision{1}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    cluster.member(1).kill();
    cluster.member(2).kill();
    auto reply = lonely->range(RangeOp{"n", {}}, Revision{}, rt::now() + 4s);
    EXPECT_FALSE(reply) << "a read without a quorum must not succeed";
    cluster.member(1).launch();
    cluster.member(2).launch();
    ASSERT_TRUE(cluster.member(1).wait_ready() && cluster.member(2).wait_ready());
    Client writer(runtime, EtcdOptions{.endpoints = {cluster.member(1).endpoint()}});
    count_up(*writer, "n", 1, 5);
    ASSERT_TRUE(seen.wait_events(5));
    EXPECT_EQ(seen.texts(), counted("n", 5));
  });
}

}  // namespace
}  // namespace etcfs::testing

// What only the simulated etcd has: its faults, and that a seed names a run.
#include "tests/contract/kv_bed.h"

namespace etcfs::testing {
namespace {

using meta::RangeOp;
using meta::TxnOutcome;
using sim::SimFault;
using Kind = TxnOutcome::Kind;

struct World {
  explicit World(std::uint64_t seed = 1)
      : runtime({.simulated = true, .seed = seed}), server(runtime) {}
  std::unique_ptr<Client> client(sim::SimKvOptions options = {}) {
    return std::make_unique<Client>(runtime, server, options);
  }
  void run(const std::function<void()>& body) { run_in_fiber(runtime, body); }
  std::string value(const std::string& key) {
    auto reply = server.range(RangeOp{key, {}}, Revision{});
    return reply->kvs.empty() ? "<absent>" : reply->kvs[0].value;
  }
  rt::Runtime runtime;
  sim::SimKvServer server;
};

TEST(SimKv, ALostRequestIsUnknownAndNotApplied) {
  World w;
  w.run([&] {
    auto node = w.client();
    node->sim().fail_txn(2, SimFault::kLoseRequest);
    EXPECT_EQ((*node)->txn(put_txn("a", "1"), soon()).kind, Kind::kDone);
    EXPECT_EQ((*node)->txn(put_txn("a", "2"), soon()).kind, Kind::kUnknown);
    rt::sleep_for(60s);
    EXPECT_EQ(w.value("a"), "1");
  });
}

TEST(SimKv, ALostReplyIsUnknownAndApplied) {
  World w;
  w.run([&] {
    auto node = w.client();
    node->sim().fail_txn(1, SimFault::kLoseReply);
    EXPECT_EQ((*node)->txn(put_txn("a", "1"), soon()).kind, Kind::kUnknown);
    EXPECT_EQ(w.value("a"), "1");
  });
}

TEST(SimKv, ALateRequestIsAppliedAfterItsSenderGaveUp) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    World w(seed);
    w.run([&] {
      auto node = w.client();
      node->sim().fail_txn(1, SimFault::kLate);
      EXPECT_EQ((*node)->txn(put_txn("a", "1"), rt::now() + 1s).kind, Kind::kUnknown);
      EXPECT_EQ(w.value("a"), "<absent>") << "seed " << seed;
      rt::sleep_for(9s);
      EXPECT_EQ(w.value("a"), "1") << "seed " << seed;
    });
  }
}

TEST(SimKv, ReadsAreRepeatedUntilTheDeadline) {
  World w;
  w.run([&] {
    sim::SimKvOptions lossy;
    lossy.lose_request = lossy.lose_reply = 3'000;
    auto node = w.client(lossy);
    w.server.txn(put_txn("a", "1"));
    for (int i = 0; i < 50; i++) EXPECT_EQ(get(**node, "a"), "1");
    w.server.set_available(false);
    Time begun = rt::now();
    auto reply = (*node)->range(RangeOp{"a", {}}, Revision{}, begun + 5s);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), Reason::kTimeout);
    EXPECT_EQ(rt::now() - begun, 5s);
  });
}

TEST(SimKv, APartitionedNodeGoesOnWhereItWas) {
  World w;
  w.run([&] {
    auto node = w.client(), other = w.client();
    Recorder seen;
    auto watch = (*node)->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    put(**other, "a", "1");
    ASSERT_TRUE(seen.wait_events(1));
    node->sim().set_partitioned(true);
    put(**other, "a", "2");
    put(**other, "a", "3");
    EXPECT_EQ((*node)->txn(put_txn("a", "node"), rt::now() + 3s).kind, Kind::kUnknown);
    EXPECT_EQ(seen.events.size(), 1u);
    node->sim().set_partitioned(false);
    ASSERT_TRUE(seen.wait_events(3));
    EXPECT_EQ(seen.texts(), (std::vector<std::string>{"put a=1", "put a=2", "put a=3"}));
    EXPECT_EQ((*node)->txn(put_txn("a", "node"), soon()).kind, Kind::kDone);
  });
}

TEST(SimKv, ACompactionDuringAPartitionLosesTheWatch) {
  World w;
  w.run([&] {
    auto node = w.client(), other = w.client();
    Recorder seen;
    auto watch = (*node)->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    node->sim().set_partitioned(true);
    put(**other, "a", "1");
    ASSERT_TRUE((*other)->compact(put(**other, "a", "2"), soon()));
    node->sim().set_partitioned(false);
    ASSERT_TRUE(seen.wait_lost());
    EXPECT_TRUE(seen.events.empty());
  });
}

TEST(SimKv, AKilledNodeIsSilentButWhatItSentArrives) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    World w(seed);
    w.run([&] {
      auto node = w.client(), other = w.client();
      int calls = 0;
      bool came_back = false;
      std::unique_ptr<meta::Watch> watch;
      auto made = (*node)->watch(
          "a", {}, Revision{}, [&](const meta::WatchBatch&) { calls++; }, [] {}, soon());
      ASSERT_TRUE(made);
      watch = *std::move(made);
      node->group().spawn([&] {
        (*node)->txn(put_txn("b", "sent"), soon());
        came_back = true;
      });
      while (node->sim().txns_sent() == 0) rt::yield();
      node->group().kill();
      put(**other, "a", "1");
      rt::sleep_for(1s);
      EXPECT_EQ(w.value("b"), "sent") << "seed " << seed;
      EXPECT_EQ(calls, 0) << "seed " << seed;
      EXPECT_FALSE(came_back);
    });
  }
}

TEST(SimKv, NospaceRefusesPutsAndGrantsButNotDeletes) {
  World w;
  w.run([&] {
    auto node = w.client();
    put(**node, "a", "1");
    w.server.set_nospace(true);
    meta::Txn in_failure;
    in_failure.failure = {meta::PutOp{"b", "1"}};
    for (const meta::Txn& txn : {put_txn("b", "1"), in_failure}) {
      TxnOutcome outcome = (*node)->txn(txn, soon());
      EXPECT_EQ(outcome.kind, Kind::kRefused);
      EXPECT_EQ(outcome.reason, Reason::kMetadataFull);
    }
    EXPECT_EQ((*node)->lease_grant(5s, soon()).error(), Reason::kMetadataFull);
    done((*node)->txn(ops_txn({meta::DeleteOp{"a", {}}}), soon()));
    EXPECT_EQ((*node)->status(soon())->alarms, std::vector<std::string>{"NOSPACE"});
  });
}

TEST(SimKv, ANewLeaderProlongsLeases) {
  World w;
  w.run([&] {
    auto node = w.client();
    auto lease = (*node)->lease_grant(4s, soon());
    ASSERT_TRUE(lease);
    put(**node, "a", "1", *lease);
    rt::sleep_for(3s);
    w.server.new_leader();
    rt::sleep_for(3s);
    EXPECT_EQ(w.value("a"), "1");
    rt::sleep_for(2s);
    EXPECT_EQ(w.value("a"), "<absent>");
  });
}

std::string trace(std::uint64_t seed) {
  World w(seed);
  std::string text;
  w.run([&] {
    sim::SimKvOptions faulty;
    faulty.lose_request = faulty.lose_reply = faulty.late = 500;
    std::vector<std::unique_ptr<Client>> nodes;
    std::vector<std::unique_ptr<meta::Watch>> watches;
    for (int n = 0; n < 3; n++) nodes.push_back(w.client(faulty));
    rt::Group workers(w.runtime, "workers");
    for (int n = 0; n < 3; n++)
      workers.spawn([&, n] {
        auto watch = (*nodes[n])->watch(
            "k", "l", Revision{},
            [&, n](const meta::WatchBatch& batch) {
              text += std::to_string(n) + "<" + std::to_string(batch.revision.v) + ":" +
                      std::to_string(batch.events.size()) + " ";
            },
            [] {}, soon());
        if (watch) watches.push_back(*std::move(watch));
        for (int i = 0; i < 60; i++) {
          TxnOutcome outcome = (*nodes[n])->txn(
              put_txn("k" + std::to_string(i % 5), std::to_string(n)), rt::now() + 2s);
          text += std::to_string(n) + "=" + std::to_string(static_cast<int>(outcome.kind)) + "@" +
                  std::to_string(outcome.reply.revision.v) + " ";
        }
      });
    workers.wait();
    rt::sleep_for(20s);
    for (const auto& kv : w.server.dump())
      text += kv.key + kv.value + "/" + std::to_string(kv.mod_revision.v) + " ";
  });
  return text;
}

TEST(SimKv, TheSameSeedGivesTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 5; seed++) {
    std::string first = trace(seed);
    EXPECT_EQ(first, trace(seed)) << "seed " << seed;
    EXPECT_NE(first, trace(seed + 100)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace etcfs::testing

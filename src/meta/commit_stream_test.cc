#include "meta/commit_stream.h"

#include <gtest/gtest.h>

#include <set>

#include "base/log.h"
#include "meta/schema/records.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::meta {
namespace {

void run_sim(std::uint64_t seed, const std::function<void(rt::Runtime&)>& body) {
  rt::Options options;
  options.simulated = true;
  options.seed = seed;
  rt::Runtime runtime(options);
  rt::Group group(runtime, "test");
  group.spawn([&] {
    body(runtime);
    runtime.stop();
  });
  runtime.run();
}

// One node's stream on a store of its own.
struct Bed {
  explicit Bed(rt::Runtime& runtime, CommitStream::Limits limits = {},
               sim::SimKvOptions faults = {}, sim::SimKvLimits server_limits = {})
      : server(runtime, server_limits),
        group(runtime, "node"),
        kv(server, group, faults),
        guard(keys, "n1", Epoch{1}),
        stream(kv, keys, guard, limits) {
    put(keys.epoch("n1"), encode_epoch(Epoch{1}));
    stream.start(StepNo{0});
  }
  ~Bed() { group.kill(); }
  void put(const std::string& key, const std::string& value) {
    Txn txn;
    txn.success.emplace_back(PutOp{key, value, 0});
    ASSERT_TRUE(server.txn(txn).done());
  }
  std::string get(const std::string& key, Revision at = {}) {
    const auto reply = server.range(RangeOp{key, {}}, at);
    return reply && !reply->kvs.empty() ? reply->kvs[0].value : "(none)";
  }
  StepNo step(const std::string& key, const std::string& value) {
    Step s;
    s.put(key, value);
    return stream.append(std::move(s));
  }

  Keys keys{"t"};
  sim::SimKvServer server;
  rt::Group group;
  sim::SimKv kv;
  Guard guard;
  CommitStream stream;
};

TEST(CommitStream, FoldsWhatGathersAndCountsSteps) {
  run_sim(1, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    std::vector<int> committed;
    for (int i = 1; i <= 10; ++i) {
      Step s;
      s.put("dir", std::to_string(i));
      s.put("f" + std::to_string(i), "x");
      s.on_commit = [&, i] { committed.push_back(i); };
      EXPECT_EQ(bed.stream.append(std::move(s)), StepNo(static_cast<std::uint64_t>(i)));
    }
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(committed, (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(bed.get("dir"), "10");
    EXPECT_EQ(bed.get("f7"), "x");
    EXPECT_EQ(bed.get(bed.keys.seq("n1")), encode_sequence(StepNo{10}));
    EXPECT_EQ(bed.stream.counters().transactions, 1u);
    EXPECT_EQ(bed.stream.counters().mutations, 11u);
    EXPECT_EQ(bed.stream.counters().folded, 9u);
    EXPECT_EQ(bed.stream.last_committed(), StepNo{10});
    bed.stream.stop();
    EXPECT_EQ(bed.stream.wait_room().error(), Reason::kShutdown);
  });
}

TEST(CommitStream, BatchesStayWithinTheLimits) {
  run_sim(2, [](rt::Runtime& runtime) {
    CommitStream::Limits limits;
    limits.txn_ops = 10;  // seven operations of ours
    Bed bed(runtime, limits, {}, {.txn_ops = 10});
    for (int i = 0; i < 70; ++i) bed.step("k" + std::to_string(i), "v");
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(bed.stream.counters().transactions, 10u);
    EXPECT_EQ(bed.get("k69"), "v");
    limits = bed.stream.limits();
  });
}

TEST(CommitStream, ShrinksWhenTheServerAllowsLess) {
  run_sim(3, [](rt::Runtime& runtime) {
    Bed bed(runtime, {}, {}, {.txn_ops = 20});
    for (int i = 0; i < 100; ++i) bed.step("k" + std::to_string(i), "v");
    ASSERT_TRUE(bed.stream.sync());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(bed.get("k" + std::to_string(i)), "v");
    EXPECT_EQ(bed.stream.counters().steps, 100u);
  });
}

TEST(CommitStream, IdleStepGoesOutAtOnce) {
  run_sim(4, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    rt::sleep_for(1s);
    const Time begin = rt::now();
    Time durable{};
    Step s;
    s.put("a", "1");
    s.on_commit = [&] { durable = rt::now(); };
    bed.stream.append(std::move(s));
    rt::sleep_for(100ms);
    EXPECT_LE(durable - begin, 2ms);  // two ways of at most 1 ms
    EXPECT_GT(durable, begin);
  });
}

TEST(CommitStream, ModerateLoadGathers) {
  run_sim(5, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    for (int i = 0; i < 400; ++i) {  // 4,000 steps a second that nobody waits for
      bed.step("k" + std::to_string(i), "v");
      rt::sleep_for(250us);
    }
    EXPECT_LE(bed.stream.counters().transactions, 20u);
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(bed.get("k399"), "v");
  });
}

TEST(CommitStream, FencedStepsGoNowhere) {
  run_sim(6, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    bed.step("before", "1");
    ASSERT_TRUE(bed.stream.sync());
    bed.put(bed.keys.epoch("n1"), encode_epoch(Epoch{2}));
    int fenced = 0, ran = 0;
    bed.stream.on_fenced([&] { ++fenced; });
    Step s;
    s.put("after", "1");
    s.on_commit = [&] { ++ran; };
    const StepNo number = bed.stream.append(std::move(s));
    EXPECT_EQ(bed.stream.wait_committed(number).error(), Reason::kFenced);
    EXPECT_EQ(bed.stream.wait_room().error(), Reason::kFenced);
    EXPECT_TRUE(bed.stream.wait_committed(StepNo{1}));
    bed.step("later", "1");
    rt::sleep_for(1s);
    EXPECT_EQ(fenced, 1);
    EXPECT_EQ(ran, 0);
    EXPECT_EQ(bed.get("after"), "(none)");
    EXPECT_EQ(bed.get("later"), "(none)");
    bed.stream.stop();
  });
}

TEST(CommitStream, FullStreamMakesOperationsWait) {
  run_sim(7, [](rt::Runtime& runtime) {
    CommitStream::Limits limits;
    limits.queued_steps = 50;
    Bed bed(runtime, limits);
    bed.kv.set_partitioned(true);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(bed.stream.wait_room());
      bed.step("k" + std::to_string(i), "v");
    }
    bool room = false;
    rt::Group waiter(runtime);
    waiter.spawn([&] { room = bed.stream.wait_room().has_value(); });
    rt::sleep_for(20s);
    EXPECT_FALSE(room);
    bed.kv.set_partitioned(false);
    waiter.wait();
    EXPECT_TRUE(room);
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(bed.get("k49"), "v");
    EXPECT_GE(bed.stream.counters().unknown, 1u);
  });
}

TEST(CommitStream, NospaceIsWaitedOut) {
  run_sim(8, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    bed.server.set_nospace(true);
    bed.step("a", "1");
    rt::sleep_for(10s);
    EXPECT_EQ(bed.get("a"), "(none)");
    EXPECT_FALSE(bed.stream.fenced());
    bed.server.set_nospace(false);
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(bed.get("a"), "1");
  });
}

TEST(CommitStream, SequenceBeyondWhatWasSentStopsACopyOfTheNode) {
  const unsigned long errors = log::error_count();
  run_sim(9, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    bed.step("a", "1");
    ASSERT_TRUE(bed.stream.sync());
    bed.put(bed.keys.seq("n1"), encode_sequence(StepNo{7}));
    bed.step("b", "1");
    EXPECT_EQ(bed.stream.sync().error(), Reason::kFenced);
    EXPECT_EQ(bed.get("b"), "(none)");
  });
  EXPECT_EQ(log::error_count(), errors + 1);
}

TEST(CommitStream, EpochGoneFromEtcdIsNotTakenForOurs) {
  run_sim(10, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    Txn txn;
    txn.success.emplace_back(DeleteOp{bed.keys.epoch("n1"), {}});
    ASSERT_TRUE(bed.server.txn(txn).done());
    bed.step("a", "1");
    EXPECT_EQ(bed.stream.sync().error(), Reason::kFenced);
  });
}

// I1, I2: whatever is lost, late or answered twice, every revision of the store shows a prefix of
// the steps, each applied once.
TEST(CommitStream, EveryRevisionIsAPrefixWhateverIsLost) {
  constexpr int kSteps = 300;
  std::uint64_t unknown = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [&](rt::Runtime& runtime) {
      sim::SimKvOptions faults;
      faults.lose_request = faults.lose_reply = faults.late = 700;
      CommitStream::Limits limits;
      limits.txn_ops = 5 + seed;
      Bed bed(runtime, limits, faults);
      int next_commit = 1;
      for (int i = 1; i <= kSteps; ++i) {
        ASSERT_TRUE(bed.stream.wait_room());
        Step s;
        s.put("count", std::to_string(i));
        s.put("log/" + std::to_string(i), "x");
        s.on_commit = [&next_commit, i] { EXPECT_EQ(next_commit++, i); };
        bed.stream.append(std::move(s));
        if (runtime.random_below(8) == 0) rt::sleep_for(Nanos(runtime.random_below(20'000'000)));
      }
      ASSERT_TRUE(bed.stream.sync());
      rt::sleep_for(20s);  // late ones arrive
      EXPECT_EQ(next_commit, kSteps + 1);
      unknown += bed.stream.counters().unknown;
      int last = 0;
      for (std::int64_t r = 2; r <= bed.server.revision().v; ++r) {
        const std::string text = bed.get("count", Revision{r});
        const int count = text == "(none)" ? 0 : std::stoi(text);
        EXPECT_TRUE(count > last || count == 0) << "revision " << r;  // each revision is progress
        last = count;
        const auto logged = bed.server.range(RangeOp{"log/", "log0", 0, true}, Revision{r});
        ASSERT_TRUE(logged);
        EXPECT_EQ(logged->kvs.size(), static_cast<std::size_t>(count));
        for (int i = 1; i <= count; i += 37)
          EXPECT_EQ(bed.get("log/" + std::to_string(i), Revision{r}), "x");
      }
      EXPECT_EQ(last, kSteps);
    });
  }
  EXPECT_GT(unknown, 100u);  // the faults did happen
}

TEST(CommitStream, PlannedLossOfAReplyIsResolvedWithoutApplyingTwice) {
  run_sim(11, [](rt::Runtime& runtime) {
    Bed bed(runtime);
    bed.kv.fail_txn(1, sim::SimFault::kLoseReply);
    bed.step("a", "1");
    ASSERT_TRUE(bed.stream.sync());
    EXPECT_EQ(bed.stream.counters().unknown, 1u);
    EXPECT_EQ(bed.stream.counters().transactions, 1u);  // not sent again
    EXPECT_EQ(bed.get("a"), "1");
  });
}

TEST(ProbeTxnOps, FindsTheServersLimit) {
  run_sim(12, [](rt::Runtime& runtime) {
    for (std::size_t limit : {50u, 128u, 777u}) {
      Bed bed(runtime, {}, {}, {.txn_ops = limit});
      const std::int64_t before = bed.server.revision().v;
      const auto found = probe_txn_ops(bed.kv, bed.keys, 4096, rt::now() + 10s);
      ASSERT_TRUE(found);
      EXPECT_EQ(*found, limit);
      EXPECT_EQ(*probe_txn_ops(bed.kv, bed.keys, 40, rt::now() + 10s), 40u);
      EXPECT_EQ(bed.server.revision().v, before);
    }
  });
}

}  // namespace
}  // namespace etcfs::meta

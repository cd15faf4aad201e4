#include "cluster/membership.h"

#include <gtest/gtest.h>

#include "sim/fakes/sim_kv.h"

namespace etcfs::cluster {
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

const meta::Keys kKeys{"t"};

HostIdentity host(const std::string& name) {
  return {"boot-" + name, "machine-" + name, 1, 2, false};
}

// A process of a node. Destroying it is a crash.
struct Process {
  Process(sim::SimKvServer& server, const NodeName& node, HostIdentity identity,
          sim::SimKvOptions faults = {})
      : group(server.runtime(), node),
        kv(server, group, faults),
        membership(kv, kKeys, node, std::move(identity), {}) {
    membership.on_fenced([this] { ++fenced; });
  }
  ~Process() { group.kill(); }
  void join_and_start() {
    const auto joined = membership.join(rt::now() + 30s);
    ASSERT_TRUE(joined) << reason_name(joined.error());
    membership.start();
  }
  rt::Group group;
  sim::SimKv kv;
  Membership membership;
  int fenced = 0;
};

Epoch epoch_of(sim::SimKvServer& server, const NodeName& node) {
  const auto reply = server.range(meta::RangeOp{kKeys.epoch(node), {}}, {});
  return reply && !reply->kvs.empty() ? *meta::decode_epoch(reply->kvs[0].value) : Epoch{};
}
bool stands(sim::SimKvServer& server, const std::string& key) {
  return !server.range(meta::RangeOp{key, {}}, {})->kvs.empty();
}

TEST(Membership, JoinTakesTheNextEpochAndLeaveRaisesIt) {
  run_sim(1, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    {
      Process a(server, "a", host("a"));
      const auto joined = a.membership.join(rt::now() + 10s);
      ASSERT_TRUE(joined);
      EXPECT_EQ(joined->epoch, Epoch{1});
      EXPECT_EQ(joined->seq, StepNo{0});
      EXPECT_TRUE(joined->proven_dead.empty());
      a.membership.start();
      EXPECT_NE(a.membership.lease(), 0);
      rt::sleep_for(1s);
      EXPECT_TRUE(stands(server, kKeys.live("a")));
      EXPECT_TRUE(a.membership.is_current("a", Epoch{1}));
      EXPECT_FALSE(a.membership.is_current("a", Epoch{0}));
      EXPECT_GE(a.membership.deadline() - rt::now(), 1500ms);
      ASSERT_TRUE(a.membership.leave());
      a.membership.stop();
      EXPECT_EQ(a.fenced, 0);
    }
    EXPECT_FALSE(stands(server, kKeys.beat("a")));
    EXPECT_FALSE(stands(server, kKeys.live("a")));
    EXPECT_EQ(epoch_of(server, "a"), Epoch{2});
    Process again(server, "a", host("a"));
    const Time begin = rt::now();
    const auto joined = again.membership.join(rt::now() + 10s);
    ASSERT_TRUE(joined);
    EXPECT_LT(rt::now() - begin, 100ms);
    EXPECT_EQ(joined->epoch, Epoch{3});
    EXPECT_EQ(joined->proven_dead, std::vector<Epoch>{Epoch{1}});
  });
}

TEST(Membership, SecondLiveProcessOfANameIsRefused) {
  run_sim(2, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Process first(server, "a", host("a"));
    first.join_and_start();
    Process second(server, "a", host("elsewhere"));
    const auto joined = second.membership.join(rt::now() + 30s);
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error(), Reason::kBusy);
    Process same_host(server, "a", host("a"));  // the device lock is taken by the first
    EXPECT_EQ(same_host.membership.join(rt::now() + 30s).error(), Reason::kBusy);
    EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
    EXPECT_EQ(first.fenced, 0);
  });
}

TEST(Membership, OfTwoThatJoinAtOnceOneGetsIn) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Process one(server, "a", host("x")), two(server, "a", host("y"));
      rt::Group joiners(runtime);
      int in = 0, refused = 0;
      for (Process* p : {&one, &two})
        joiners.spawn([&, p] {
          const auto joined = p->membership.join(rt::now() + 30s);
          if (!joined) {
            EXPECT_EQ(joined.error(), Reason::kBusy);
            ++refused;
            return;
          }
          ++in;
          p->membership.start();
        });
      joiners.wait();
      EXPECT_EQ(in, 1);
      EXPECT_EQ(refused, 1);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
    });
  }
}

TEST(Membership, PredecessorElsewhereIsWaitedForATtl) {
  run_sim(3, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    {
      Process crashed(server, "a", host("x"));
      crashed.join_and_start();
    }
    Process next(server, "a", host("y"));
    const Time begin = rt::now();
    const auto joined = next.membership.join(rt::now() + 30s);
    ASSERT_TRUE(joined);
    EXPECT_GE(rt::now() - begin, 3s);
    EXPECT_LE(rt::now() - begin, 4s);
    EXPECT_EQ(joined->epoch, Epoch{2});
    EXPECT_TRUE(joined->proven_dead.empty());
  });
}

TEST(Membership, ProvenPredecessorIsTakenOverAtOnce) {
  run_sim(4, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    const auto join = [&](HostIdentity identity) {
      Process p(server, "a", std::move(identity));
      const Time begin = rt::now();
      const auto joined = p.membership.join(rt::now() + 30s);
      EXPECT_LT(rt::now() - begin, 100ms);
      EXPECT_TRUE(joined);
      return joined ? *joined : Membership::Joined{};
    };
    join(host("x"));
    HostIdentity locked = host("x");
    locked.device_lock_taken = true;
    EXPECT_EQ(join(locked).proven_dead, std::vector<Epoch>{Epoch{1}});
    HostIdentity rebooted = host("x");
    rebooted.boot_id = "boot-2";
    // Epoch 2 left nothing undone that we know of, but it may have died before it took over what
    // epoch 1 had: the proof is handed on.
    EXPECT_EQ(join(rebooted).proven_dead, (std::vector<Epoch>{Epoch{1}, Epoch{2}}));
  });
}

TEST(Membership, SilenceUnderNospaceProvesNothing) {
  run_sim(5, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Process first(server, "a", host("x"));
    first.join_and_start();
    rt::sleep_for(1s);
    server.set_nospace(true);
    Process second(server, "a", host("y"));
    Result<Membership::Joined> joined = Reason::kUnknown;
    rt::Group joiner(runtime);
    joiner.spawn([&] { joined = second.membership.join(rt::now() + 30s); });
    rt::sleep_for(10s);
    server.set_nospace(false);
    joiner.wait();
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error(), Reason::kBusy);
    EXPECT_EQ(first.fenced, 0);
  });
}

TEST(Membership, SurvivorFencesADeadNodeAfterOneTtl) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Process b(server, "b", host("b")), c(server, "c", host("c"));
      b.join_and_start();
      c.join_and_start();
      std::vector<std::pair<NodeName, Epoch>> raised;
      b.membership.on_epoch_raised([&](const NodeName& n, Epoch e) { raised.emplace_back(n, e); });
      Time died;
      {
        Process a(server, "a", host("a"));
        a.join_and_start();
        rt::sleep_for(2s);
        EXPECT_EQ(b.membership.members(),
                  (std::map<NodeName, Epoch>{{"a", Epoch{1}}, {"b", Epoch{1}}, {"c", Epoch{1}}}));
        died = rt::now();
      }
      rt::sleep_for(2400ms);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
      rt::sleep_for(1200ms);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{2});
      EXPECT_FALSE(b.membership.is_current("a", Epoch{1}));
      rt::sleep_for(20s);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{2});  // nobody fences what is fenced
      EXPECT_EQ(epoch_of(server, "b"), Epoch{1});
      EXPECT_EQ(epoch_of(server, "c"), Epoch{1});
      EXPECT_FALSE(b.membership.members().contains("a"));
      ASSERT_FALSE(raised.empty());
      EXPECT_EQ(raised.back(), (std::pair<NodeName, Epoch>{"a", Epoch{2}}));
      Process back(server, "a", host("elsewhere"));
      const Time begin = rt::now();
      const auto joined = back.membership.join(rt::now() + 30s);
      ASSERT_TRUE(joined);
      EXPECT_LT(rt::now() - begin, 100ms);
      EXPECT_EQ(joined->epoch, Epoch{3});
      EXPECT_TRUE(joined->proven_dead.empty());  // elsewhere proves nothing
    });
  }
}

TEST(Membership, NodeThatJustStartedFencesAnOldDeadOneAfterATtl) {
  run_sim(6, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    {
      Process a(server, "a", host("a"));
      a.join_and_start();
    }
    rt::sleep_for(60s);
    Process b(server, "b", host("b"));
    b.join_and_start();
    rt::sleep_for(2500ms);
    EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
    rt::sleep_for(1500ms);
    EXPECT_EQ(epoch_of(server, "a"), Epoch{2});
  });
}

TEST(Membership, CutOffNodeIsFencedAndLearnsIt) {
  run_sim(7, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Process a(server, "a", host("a")), b(server, "b", host("b"));
    a.join_and_start();
    b.join_and_start();
    a.kv.set_partitioned(true);
    rt::sleep_for(5s);
    EXPECT_EQ(epoch_of(server, "a"), Epoch{2});
    EXPECT_LT(a.membership.deadline(), rt::now());
    EXPECT_EQ(a.fenced, 0);
    a.kv.set_partitioned(false);
    rt::sleep_for(2s);
    EXPECT_EQ(a.fenced, 1);
    EXPECT_EQ(a.membership.leave().error(), Reason::kFenced);
    EXPECT_EQ(b.fenced, 0);
  });
}

TEST(Membership, CommonOutageFencesNobody) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Process a(server, "a", host("a")), b(server, "b", host("b")), c(server, "c", host("c"));
      for (Process* p : {&a, &b, &c}) {
        p->join_and_start();
        rt::sleep_for(Nanos(runtime.random_below(1'000'000'000)));  // beats out of step
      }
      for (int i = 0; i < 4; ++i) {
        server.set_available(false);
        rt::sleep_for(Nanos(runtime.random_below(12'000'000'000)));
        server.set_available(true);
        rt::sleep_for(Nanos(runtime.random_below(4'000'000'000)));
        server.set_nospace(true);
        rt::sleep_for(Nanos(runtime.random_below(12'000'000'000)));
        server.set_nospace(false);
        rt::sleep_for(Nanos(runtime.random_below(6'000'000'000)));
      }
      rt::sleep_for(10s);
      EXPECT_EQ(a.fenced + b.fenced + c.fenced, 0);
      for (const char* n : {"a", "b", "c"}) EXPECT_EQ(epoch_of(server, n), Epoch{1});
    });
  }
}

// Lost and late messages by the dozen: a node that beats well within the TTL is never fenced,
// whatever the survivors' watches and duplicates do.
TEST(Membership, LateMessagesNeverFenceALiveNode) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      sim::SimKvOptions faults;
      faults.lose_request = faults.lose_reply = faults.late = 800;
      Process a(server, "a", host("a")), b(server, "b", host("b"), faults);
      a.join_and_start();
      b.join_and_start();
      Epoch had;
      {
        Process dead(server, "dead", host("dead"), faults);
        dead.join_and_start();
        had = dead.membership.epoch();  // a lost reply costs an epoch
        rt::sleep_for(1s);
      }
      rt::sleep_for(60s);
      EXPECT_EQ(a.fenced, 0);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
      EXPECT_EQ(epoch_of(server, "dead"), Epoch{had.v + 1});
    });
  }
}

// The peer was silent for a TTL and more, but beats again before the fence is applied.
TEST(Membership, LateFenceComparesTheBeat) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Process a(server, "a", host("a")), b(server, "b", host("b"));
      a.join_and_start();
      b.join_and_start();
      rt::sleep_for(1s);
      a.kv.set_partitioned(true);
      rt::sleep_for(2400ms);
      sim::SimKvOptions late;
      late.late = 10'000;
      b.kv.set_options(late);
      rt::sleep_for(1100ms);  // by now b has tried
      a.kv.set_partitioned(false);
      rt::sleep_for(300ms);
      b.kv.set_options({});
      rt::sleep_for(15s);  // all that was late has arrived
      EXPECT_EQ(a.fenced, 0);
      EXPECT_EQ(epoch_of(server, "a"), Epoch{1});
      EXPECT_EQ(epoch_of(server, "b"), Epoch{1});
    });
  }
}

TEST(Membership, ExpiredLeaseIsReplaced) {
  run_sim(8, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Process a(server, "a", host("a"));
    a.join_and_start();
    const std::int64_t lease = a.membership.lease();
    ASSERT_TRUE(server.lease_revoke(lease));
    EXPECT_FALSE(stands(server, kKeys.live("a")));
    rt::sleep_for(8s);
    EXPECT_NE(a.membership.lease(), lease);
    EXPECT_TRUE(stands(server, kKeys.live("a")));
  });
}

}  // namespace
}  // namespace etcfs::cluster

#include "cluster/lock_service.h"

#include <gtest/gtest.h>

#include "cluster/lock_test_bed.h"

namespace etcfs::cluster {
namespace {

using namespace test;
constexpr Family kF{7};

TEST(LockService, FreeFamilyIsTakenAndLoadedInOneTransaction) {
  run_sim(1, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    a.put(kKeys.inode(Ino{kF, 0}), "dir");
    a.put(kKeys.inode(Ino{kF, 5}), "file");
    a.put(kKeys.inode(Ino{Family{8}, 0}), "other");
    a.put(kKeys.dirent(Ino{kF, 0}, "name"), "entry");
    a.put(kKeys.hold(Ino{kF, 5}, "z"), "hold");
    ASSERT_TRUE(a.stream->sync());
    ASSERT_TRUE(a.acquire(kF, kBothX));
    EXPECT_EQ(a.locks->counters().acquire_txns, 1u);
    EXPECT_EQ(a.locks->usable(kF), kBothX);
    const FamilyContents& got = a.client.last_contents;
    ASSERT_EQ(got.inodes.size(), 2u);
    EXPECT_EQ(got.inodes[0].value, "dir");
    EXPECT_EQ(got.inodes[1].value, "file");
    ASSERT_EQ(got.entries.size(), 1u);
    EXPECT_EQ(got.entries[0].value, "entry");
    ASSERT_EQ(got.holds.size(), 1u);
    EXPECT_FALSE(got.inodes_more || got.entries_more);
    EXPECT_TRUE(stands(server, kKeys.lock(kF, "a", Epoch{1})));
    ASSERT_TRUE(a.acquire(kF, kBothS));  // covered: nothing to do
    EXPECT_EQ(a.locks->counters().acquire_txns, 1u);
  });
}

TEST(LockService, LoadsOnlyThePartThatIsNew) {
  run_sim(2, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    for (std::uint32_t i = 0; i < 600; ++i) a.put(kKeys.inode(Ino{kF, i}), std::to_string(i));
    a.put(kKeys.dirent(Ino{kF, 0}, "name"), "entry");
    ASSERT_TRUE(a.stream->sync());
    ASSERT_TRUE(a.acquire(kF, kNamesS));
    EXPECT_EQ(a.client.last_contents.inodes.size(), 1u);
    EXPECT_EQ(a.client.last_contents.entries.size(), 1u);
    ASSERT_TRUE(a.acquire(kF, kFilesS));
    EXPECT_EQ(a.client.last_contents.inodes.size(), 512u);
    EXPECT_EQ(a.client.last_contents.inodes[0].value, "1");
    EXPECT_TRUE(a.client.last_contents.inodes_more);
    EXPECT_TRUE(a.client.last_contents.entries.empty());
    ASSERT_TRUE(a.acquire(kF, kBothX));  // alone: an upgrade is one transaction, and loads nothing
    EXPECT_TRUE(a.client.last_contents.inodes.empty());
    EXPECT_EQ(a.locks->counters().acquire_txns, 3u);
    EXPECT_EQ(a.locks->usable(kF), kBothX);
  });
}

TEST(LockService, IdleHolderGivesUpAtOnce) {
  run_sim(3, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    std::map<std::pair<Family, bool>, int> truth;
    ASSERT_TRUE(a.operate(kF, kBothX, truth));
    rt::sleep_for(1s);
    const Time begin = rt::now();
    ASSERT_TRUE(b.operate(kF, kBothX, truth));
    EXPECT_LT(rt::now() - begin, 30ms);
    EXPECT_EQ(a.client.asked, 1);
    EXPECT_TRUE(a.locks->contended(kF));
    EXPECT_TRUE(a.locks->usable(kF).none());
    EXPECT_FALSE(stands(server, kKeys.lock(kF, "a", Epoch{1})));
    EXPECT_EQ(keys_under(server, kKeys.all("want")), 0u);
    rt::sleep_for(5s);
    EXPECT_FALSE(a.locks->contended(kF));
    expect_exclusion(server);
  });
}

TEST(LockService, AskedForSharedAnExclusiveHolderKeepsShared) {
  run_sim(4, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    std::map<std::pair<Family, bool>, int> truth;
    ASSERT_TRUE(a.operate(kF, kBothX, truth));
    rt::sleep_for(1s);
    ASSERT_TRUE(b.operate(kF, kNamesS, truth));
    EXPECT_EQ(a.locks->usable(kF), (LockModes{LockMode::kShared, LockMode::kExclusive}));
    EXPECT_EQ(b.locks->usable(kF), kNamesS);
    ASSERT_TRUE(b.operate(kF, kFilesX, truth));  // the other part does not touch the first
    EXPECT_EQ(a.locks->usable(kF), kNamesS);
    EXPECT_EQ(b.locks->usable(kF), (LockModes{LockMode::kShared, LockMode::kExclusive}));
    expect_exclusion(server);
  });
}

TEST(LockService, TwoThatUpgradeAtOnceBothGetIt) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Node a(server, "a"), b(server, "b"), c(server, "c");
      std::map<std::pair<Family, bool>, int> truth;
      for (Node* n : {&a, &b, &c}) ASSERT_TRUE(n->operate(kF, kNamesS, truth));
      const Time begin = rt::now();
      rt::Group ops(runtime);
      for (Node* n : {&a, &b, &c})
        ops.spawn([&, n] { EXPECT_TRUE(n->operate(kF, kNamesX, truth)); });
      ops.wait();
      EXPECT_LT(rt::now() - begin, 500ms);
      EXPECT_EQ((truth[{kF, true}]), 3);
      expect_exclusion(server);
    });
  }
}

TEST(LockService, HammeringHolderKeepsItsMinimumAndThenGivesWay) {
  run_sim(5, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    std::map<std::pair<Family, bool>, int> truth;
    bool end = false;
    std::map<NodeName, int> served;
    Nanos longest{};
    rt::Group ops(runtime);
    for (Node* n : {&a, &b})
      ops.spawn([&, n] {
        while (!end) {
          const Time begin = rt::now();
          ASSERT_TRUE(n->operate(kF, kNamesX, truth));
          longest = std::max<Nanos>(longest, rt::now() - begin);
          ++served[n->name];
          rt::sleep_for(100us);
        }
      });
    rt::sleep_for(5s);
    end = true;
    ops.wait();
    EXPECT_GT(served["a"], 2000);  // batches, not one each
    EXPECT_GT(served["b"], 2000);
    EXPECT_LT(longest, 40ms);
    EXPECT_LT(a.client.grants, 300);
    EXPECT_GT(a.client.grants, 150);  // and no time is lost between them
    expect_exclusion(server);
  });
}

TEST(LockService, WriterIsNotStarvedByReaders) {
  run_sim(6, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b"), c(server, "c");
    std::map<std::pair<Family, bool>, int> truth;
    bool end = false;
    rt::Group ops(runtime);
    for (Node* n : {&a, &b})
      ops.spawn([&, n] {
        while (!end) {
          ASSERT_TRUE(n->operate(kF, kNamesS, truth));
          rt::sleep_for(100us);
        }
      });
    rt::sleep_for(100ms);
    for (int i = 0; i < 10; ++i) {
      const Time begin = rt::now();
      ASSERT_TRUE(c.operate(kF, kNamesX, truth));
      EXPECT_LT(rt::now() - begin, 300ms);
      rt::sleep_for(100ms);
    }
    end = true;
    ops.wait();
  });
}

TEST(LockService, SleepingAskerIsPassedOver) {
  run_sim(7, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    meta::Txn txn;  // b has asked and never takes
    txn.success.emplace_back(meta::PutOp{kKeys.want(kF, "b", Epoch{1}),
                                         meta::encode(record_of(kBothX)), b.membership.lease()});
    b.kv.set_partitioned(true);
    ASSERT_TRUE(server.txn(txn).done());
    const Time begin = rt::now();
    ASSERT_TRUE(a.acquire(kF, kNamesX));
    EXPECT_GE(rt::now() - begin, 50ms);
    EXPECT_LT(rt::now() - begin, 200ms);
  });
}

TEST(LockService, StrayWantOfOursIsDeleted) {
  run_sim(8, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    meta::Txn txn;
    txn.success.emplace_back(
        meta::PutOp{kKeys.want(kF, "a", Epoch{1}), meta::encode(record_of(kBothX)), 0});
    ASSERT_TRUE(server.txn(txn).done());
    rt::sleep_for(1s);
    EXPECT_EQ(keys_under(server, kKeys.all("want")), 0u);
  });
}

TEST(LockService, RenameOfTwoFamiliesFromBothSidesMakesProgress) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Node a(server, "a"), b(server, "b");
      rt::Group ops(runtime);
      int done = 0;
      for (Node* n : {&a, &b})
        ops.spawn([&, n] {
          for (int i = 0; i < 50; ++i) {
            const LockNeed needs[] = {{Family{9}, kNamesX}, {Family{8}, kNamesX}};
            const Time begin = rt::now();
            do {
              ASSERT_TRUE(n->locks->acquire(needs));
            } while (!n->locks->usable(Family{8}).covers(kNamesX) ||
                     !n->locks->usable(Family{9}).covers(kNamesX));
            n->locks->note_served(Family{8});
            n->locks->note_served(Family{9});
            EXPECT_LT(rt::now() - begin, 1s);
            ++done;
            rt::sleep_for(200us);
          }
        });
      ops.wait();
      EXPECT_EQ(done, 100);
      expect_exclusion(server);
    });
  }
}

TEST(LockService, WalkingAheadTakesWhatIsFree) {
  run_sim(9, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    ASSERT_TRUE(b.acquire(Family{130}, kNamesX));
    std::vector<Family> families;
    for (std::uint64_t f = 100; f < 200; ++f) {
      families.push_back(Family{f});
      a.put(kKeys.inode(Ino{Family{f}, 0}), std::to_string(f));
    }
    ASSERT_TRUE(a.stream->sync());
    ASSERT_TRUE(a.locks->acquire_ahead(families, kBothS));
    EXPECT_EQ(a.locks->counters().ahead, 99u);
    EXPECT_EQ(a.locks->held_families(), 99u);
    EXPECT_EQ(a.locks->counters().acquire_txns, 4u);
    EXPECT_TRUE(a.locks->usable(Family{130}).none());
    EXPECT_EQ(a.locks->usable(Family{131}), kBothS);
    EXPECT_EQ(a.client.families[Family{131}].counter[true], "131");
    EXPECT_EQ(b.client.asked, 0);
    expect_exclusion(server);
  });
}

TEST(LockService, AdoptedFamilyIsOursFromBirthAndAbandonedOneGone) {
  run_sim(10, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    meta::Step birth;
    birth.put(kKeys.inode(Ino{kF, 0}), "1");
    a.locks->adopt(birth, kF);
    a.stream->append(std::move(birth));
    EXPECT_EQ(a.locks->usable(kF), kBothX);
    ASSERT_TRUE(a.stream->sync());  // before that nobody else can know the family
    ASSERT_TRUE(b.acquire(kF, kBothS));
    EXPECT_EQ(b.client.families[kF].counter[true], "1");
    ASSERT_TRUE(a.acquire(kF, kBothX));
    meta::Step death;
    death.erase(kKeys.inode(Ino{kF, 0}));
    int committed = 0;
    death.on_commit = [&] { ++committed; };
    a.locks->abandon(death, kF);
    a.stream->append(std::move(death));
    EXPECT_TRUE(a.locks->usable(kF).none());
    ASSERT_TRUE(a.acquire(kF, kNamesS));  // waits until the delete has committed
    EXPECT_EQ(committed, 1);
    EXPECT_TRUE(a.client.last_contents.inodes.empty());
    EXPECT_TRUE(stands(server, kKeys.lock(kF, "a", Epoch{1})));
    expect_exclusion(server);
  });
}

TEST(LockService, LocksOfADeadNodeAreVoidOnceItIsFenced) {
  run_sim(11, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    {
      Node b(server, "b");
      ASSERT_TRUE(b.acquire(kF, kBothX));
      ASSERT_TRUE(b.acquire(Family{8}, kBothX));
      meta::LockRecord marked = record_of(kBothX);
      marked.in_place.push_back({0, 5, LockMode::kExclusive});
      b.put(kKeys.lock(Family{8}, "b", Epoch{1}), meta::encode(marked));
      ASSERT_TRUE(b.stream->sync());
    }
    const Time begin = rt::now();
    ASSERT_TRUE(a.acquire(kF, kBothX));
    EXPECT_GT(rt::now() - begin, 2s);
    EXPECT_LT(rt::now() - begin, 4s);
    EXPECT_FALSE(stands(server, kKeys.lock(kF, "b", Epoch{1})));
    ASSERT_TRUE(a.acquire(Family{8}, kBothX));
    EXPECT_TRUE(stands(server, kKeys.lock(Family{8}, "b", Epoch{1})));  // the marks still matter
    expect_exclusion(server);
  });
}

TEST(LockService, JanitorRemovesWhatDeadEpochsLeft) {
  run_sim(15, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    ASSERT_TRUE(a.acquire(kF, kNamesX));
    std::vector<Family> families;
    for (std::uint64_t f = 100; f < 1700; ++f) families.push_back(Family{f});
    {
      Node b(server, "b");
      ASSERT_TRUE(b.locks->acquire_ahead(families, kBothS));
      EXPECT_EQ(b.locks->held_families(), 1600u);
      meta::LockRecord marked = record_of(kBothX);
      marked.in_place.push_back({0, 5, LockMode::kExclusive});
      b.put(kKeys.lock(Family{100}, "b", Epoch{1}), meta::encode(marked));
      ASSERT_TRUE(b.stream->sync());
    }
    rt::sleep_for(10s);
    EXPECT_EQ(keys_under(server, kKeys.all("lock")), 2u);  // a's, and the one with marks
    EXPECT_TRUE(stands(server, kKeys.lock(Family{100}, "b", Epoch{1})));
    EXPECT_TRUE(stands(server, kKeys.lock(kF, "a", Epoch{1})));
    ASSERT_TRUE(a.locks->acquire_ahead(families, kBothS));
    EXPECT_EQ(a.locks->held_families(), 1600u);  // kF, and all but the marked one
    expect_exclusion(server);
  });
}

TEST(LockService, LateTakingIsPutRightWhenSomebodyWantsTheFamily) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Node a(server, "a"), b(server, "b");
      a.kv.fail_txn(1, sim::SimFault::kLate);
      rt::Group ops(runtime);
      ops.spawn([&] { ASSERT_TRUE(a.acquire(kF, kNamesX)); });
      ops.wait();
      // Given up again, while the first try may still be under way.
      const Family family[] = {kF};
      rt::sleep_for(20ms);
      a.locks->release_idle(family);
      rt::sleep_for(15s);
      const Time begin = rt::now();
      ASSERT_TRUE(b.acquire(kF, kBothX));
      EXPECT_LT(rt::now() - begin, 1s);
      expect_exclusion(server);
    });
  }
}

// A try that is still on its way when its sender has been fenced writes nothing (I7).
TEST(LockService, LateTakingOfAFencedNodeIsNotApplied) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    run_sim(seed, [](rt::Runtime& runtime) {
      sim::SimKvServer server(runtime);
      Node b(server, "b");
      {
        Node a(server, "a");
        sim::SimKvOptions late;
        late.late = 10'000;
        a.kv.set_options(late);
        rt::Group ops(runtime);
        ops.spawn([&] { (void)a.acquire(kF, kNamesX); });
        rt::sleep_for(3ms);
        ops.kill();
      }
      rt::sleep_for(20s);
      expect_exclusion(server);
    });
  }
}

TEST(LockService, LostReplyOfATakingIsFoundByReading) {
  run_sim(12, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a");
    a.put(counter_key(kF, true), "41");
    ASSERT_TRUE(a.stream->sync());
    // The beats count too: every transaction until the taking has been tried loses its reply.
    sim::SimKvOptions faults;
    faults.lose_reply = 10'000;
    a.kv.set_options(faults);
    rt::Group ops(runtime);
    ops.spawn([&] { ASSERT_TRUE(a.acquire(kF, kNamesX)); });
    rt::sleep_for(5ms);
    EXPECT_TRUE(stands(server, kKeys.lock(kF, "a", Epoch{1})));
    EXPECT_TRUE(a.locks->usable(kF).none());  // not granted while unknown
    a.kv.set_options({});
    ops.wait();
    EXPECT_EQ(a.client.families[kF].counter[true], "41");
    EXPECT_EQ(a.client.grants, 1);
  });
}

TEST(LockService, BudgetIsKeptByReleasingTheIdlest) {
  run_sim(13, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    LockService::Options options;
    options.held_budget = 64;
    Node a(server, "a", options);
    for (std::uint64_t f = 100; f < 400; ++f) {
      ASSERT_TRUE(a.acquire(Family{f}, kNamesS));
      rt::sleep_for(1ms);
    }
    rt::sleep_for(1s);
    EXPECT_LE(a.locks->held_families(), 64u);
    EXPECT_GE(a.locks->held_families(), 32u);
    EXPECT_EQ(a.locks->usable(Family{399}), kNamesS);
    EXPECT_TRUE(a.locks->usable(Family{100}).none());
    EXPECT_EQ(keys_under(server, kKeys.all("lock")), a.locks->held_families());
    a.locks->release_all();
    EXPECT_EQ(a.locks->held_families(), 0u);
    EXPECT_EQ(keys_under(server, kKeys.all("lock")), 0u);
    a.locks->stop();
    EXPECT_EQ(a.acquire(kF, kNamesS).error(), Reason::kShutdown);
    a.stream->stop();
    ASSERT_TRUE(a.membership.leave());
  });
}

TEST(LockService, FencedNodeGetsNothing) {
  run_sim(14, [](rt::Runtime& runtime) {
    sim::SimKvServer server(runtime);
    Node a(server, "a"), b(server, "b");
    ASSERT_TRUE(a.acquire(kF, kBothX));
    a.kv.set_partitioned(true);
    rt::Group ops(runtime);
    Result<void> waiting = Reason::kUnknown;
    ops.spawn([&] { waiting = a.acquire(Family{8}, kBothX); });
    ASSERT_TRUE(b.acquire(kF, kBothX));
    a.kv.set_partitioned(false);
    ops.wait();
    ASSERT_FALSE(waiting);
    EXPECT_EQ(waiting.error(), Reason::kFenced);
    EXPECT_TRUE(a.locks->usable(kF).none());
    expect_exclusion(server);
  });
}

}  // namespace
}  // namespace etcfs::cluster

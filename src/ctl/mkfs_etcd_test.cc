#include "ctl/mkfs_etcd.h"

#include <gtest/gtest.h>

#include "check/check.h"
#include "rt/rt.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::ctl {
namespace {

constexpr Nanos kTimeout = 5s;
const meta::Keys kKeys{"t"};

// Runs a body in a fiber against a simulated etcd.
struct MkfsEtcd : ::testing::Test {
  void run(const std::function<void(sim::SimKv&, sim::SimKvServer&)>& body) {
    rt::Options options;
    options.simulated = true;
    rt::Runtime runtime(options);
    sim::SimKvServer server(runtime);
    rt::Group group(runtime, "test");
    group.spawn([&] {
      {
        sim::SimKv kv(server, group);
        body(kv, server);
      }
      runtime.stop();
    });
    runtime.run();
  }
  static meta::Super super(char uuid = 'u') {
    meta::Super s;
    s.uuid = std::string(16, uuid);
    s.identity_hash = std::string(32, 'i');
    s.arena_blocks = 4096;
    s.device_blocks = 65536;
    s.created = {100, 5};
    return s;
  }
  static void put(meta::Kv& kv, std::string key, std::string value) {
    meta::Txn txn;
    txn.success.emplace_back(meta::PutOp{std::move(key), std::move(value), 0});
    ASSERT_TRUE(kv.txn(txn, rt::now() + kTimeout).done());
  }
  static std::vector<std::string> keys(const sim::SimKvServer& server) {
    std::vector<std::string> out;
    for (const meta::KeyValue& item : server.dump()) out.push_back(item.key);
    return out;
  }
};

TEST_F(MkfsEtcd, CreatesThreeKeysThatCheckClean) {
  run([](sim::SimKv& kv, sim::SimKvServer& server) {
    EXPECT_FALSE(*name_taken(kv, kKeys, rt::now() + kTimeout));
    ASSERT_TRUE(create_filesystem(kv, kKeys, super(), kTimeout));
    EXPECT_TRUE(*name_taken(kv, kKeys, rt::now() + kTimeout));
    EXPECT_EQ(keys(server),
              (std::vector<std::string>{"/etcfs/t/counter/family", "/etcfs/t/i/0000000001/000000",
                                        "/etcfs/t/super"}));
    auto image = check::load_image(kv, kKeys);
    ASSERT_TRUE(image);
    EXPECT_TRUE(check::check_all(*image).empty());
    EXPECT_EQ(image->family_counter, Family{2});
    EXPECT_EQ(image->super->uuid, super().uuid);
    const meta::Inode& root = image->inodes.at(kRootIno);
    EXPECT_EQ(root.mode, 040755u);
    EXPECT_EQ(root.mtime, (WallTime{100, 5}));
  });
}

TEST_F(MkfsEtcd, ASecondOfTheSameNameIsRefused) {
  run([](sim::SimKv& kv, sim::SimKvServer&) {
    ASSERT_TRUE(create_filesystem(kv, kKeys, super('a'), kTimeout));
    auto second = create_filesystem(kv, kKeys, super('b'), kTimeout);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error(), Reason::kExists);
    // A name that is the beginning of another, and one that differs behind it, are others.
    EXPECT_TRUE(create_filesystem(kv, meta::Keys("t-2"), super('c'), kTimeout));
    EXPECT_TRUE(create_filesystem(kv, meta::Keys("T"), super('d'), kTimeout));
  });
}

TEST_F(MkfsEtcd, RemainsOfAFilesystemTakeTheName) {
  for (const char* rest :
       {"/etcfs/t/i/0000000001/000001", "/etcfs/t/beat/n", "/etcfs/t/x", "/etcfs/t/a"})
    run([&](sim::SimKv& kv, sim::SimKvServer&) {
      put(kv, rest, "");
      EXPECT_TRUE(*name_taken(kv, kKeys, rt::now() + kTimeout)) << rest;
      auto created = create_filesystem(kv, kKeys, super(), kTimeout);
      ASSERT_FALSE(created);
      EXPECT_EQ(created.error(), Reason::kExists);
    });
}

TEST_F(MkfsEtcd, LostAndLateRepliesAreNoSecondFilesystem) {
  for (auto fault : {sim::SimFault::kLoseReply, sim::SimFault::kLoseRequest, sim::SimFault::kLate})
    run([&](sim::SimKv& kv, sim::SimKvServer& server) {
      kv.fail_txn(1, fault);
      EXPECT_TRUE(create_filesystem(kv, kKeys, super(), kTimeout));
      rt::sleep_for(20s);  // what is late arrives
      EXPECT_EQ(keys(server).size(), 3u);
    });
}

TEST_F(MkfsEtcd, NoAnswerIsAnError) {
  run([](sim::SimKv& kv, sim::SimKvServer&) {
    kv.set_partitioned(true);
    EXPECT_FALSE(create_filesystem(kv, kKeys, super(), 1s));
    EXPECT_FALSE(name_taken(kv, kKeys, rt::now() + 1s));
    EXPECT_FALSE(look_for_life(kv, kKeys, 1s, rt::now() + 1s));
    EXPECT_FALSE(remove_filesystem(kv, kKeys, Revision{1}, 1s));
    kv.set_partitioned(false);
  });
}

TEST_F(MkfsEtcd, ABeatThatMovesIsLife) {
  run([](sim::SimKv& kv, sim::SimKvServer&) {
    auto none = look_for_life(kv, kKeys, 3s, rt::now() + kTimeout);
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->alive.empty());
    put(kv, kKeys.beat("dead"), "");
    put(kv, kKeys.beat("n"), "");
    const Time begin = rt::now();
    auto silent = look_for_life(kv, kKeys, 3s, rt::now() + kTimeout);
    ASSERT_TRUE(silent);
    EXPECT_TRUE(silent->alive.empty());
    EXPECT_GE(rt::now() - begin, 3s);
    rt::Group beats(rt::Runtime::current(), "beats");
    beats.spawn([&] {
      rt::sleep_for(2s);
      put(kv, kKeys.beat("n"), "");
    });
    auto life = look_for_life(kv, kKeys, 3s, rt::now() + kTimeout);
    ASSERT_TRUE(life);
    EXPECT_EQ(life->alive, std::vector<NodeName>{"n"});
    beats.wait();
  });
}

TEST_F(MkfsEtcd, RemovalLeavesRaisedEpochsAndNothingElse) {
  run([](sim::SimKv& kv, sim::SimKvServer& server) {
    ASSERT_TRUE(create_filesystem(kv, kKeys, super('a'), kTimeout));
    ASSERT_TRUE(create_filesystem(kv, meta::Keys("t2"), super('b'), kTimeout));
    put(kv, kKeys.beat("n"), "");
    for (int i = 0; i < 120; ++i)  // more than fit into one transaction
      put(kv, kKeys.epoch("n" + std::to_string(i)), meta::encode_epoch(Epoch{7}));
    auto life = look_for_life(kv, kKeys, 1s, rt::now() + kTimeout);
    ASSERT_TRUE(life);
    ASSERT_TRUE(remove_filesystem(kv, kKeys, life->beats, kTimeout));
    std::size_t epochs = 0;
    for (const meta::KeyValue& item : server.dump()) {
      if (item.key.starts_with("/etcfs/t2/")) continue;
      ASSERT_TRUE(item.key.starts_with(kKeys.all("epoch"))) << item.key;
      EXPECT_EQ(item.value, meta::encode_epoch(Epoch{8}));
      ++epochs;
    }
    EXPECT_EQ(epochs, 120u);
    EXPECT_EQ(keys(server).size(), 123u);
    ASSERT_TRUE(create_filesystem(kv, kKeys, super('c'), kTimeout));
    auto image = check::load_image(kv, kKeys);
    ASSERT_TRUE(image);
    EXPECT_TRUE(check::check_all(*image).empty());
  });
}

TEST_F(MkfsEtcd, RemovalIsRefusedWhenABeatComesInBetween) {
  run([](sim::SimKv& kv, sim::SimKvServer&) {
    ASSERT_TRUE(create_filesystem(kv, kKeys, super(), kTimeout));
    put(kv, kKeys.epoch("n"), meta::encode_epoch(Epoch{7}));
    put(kv, kKeys.beat("n"), "");
    auto life = look_for_life(kv, kKeys, 1s, rt::now() + kTimeout);
    ASSERT_TRUE(life);
    put(kv, kKeys.beat("n"), "");
    auto removed = remove_filesystem(kv, kKeys, life->beats, kTimeout);
    ASSERT_FALSE(removed);
    EXPECT_EQ(removed.error(), Reason::kBusy);
    auto image = check::load_image(kv, kKeys);
    ASSERT_TRUE(image);
    EXPECT_TRUE(image->super);
    EXPECT_EQ(image->epochs.at("n"), Epoch{7});
  });
}

TEST_F(MkfsEtcd, RemovalOfManyKeysGoesByPieces) {
  run([](sim::SimKv& kv, sim::SimKvServer& server) {
    for (std::uint64_t n = 0; n < 12'000; n += 100) {
      meta::Txn txn;
      for (std::uint64_t i = n; i < n + 100; ++i)
        txn.success.emplace_back(meta::PutOp{kKeys.orphan(Ino{i + 1}), "", 0});
      ASSERT_TRUE(kv.txn(txn, rt::now() + kTimeout).done());
    }
    kv.fail_txn(2, sim::SimFault::kLoseReply);
    kv.fail_txn(4, sim::SimFault::kLoseRequest);
    ASSERT_TRUE(remove_filesystem(kv, kKeys, Revision{server.revision()}, kTimeout));
    EXPECT_TRUE(server.dump().empty());
  });
}

}  // namespace
}  // namespace etcfs::ctl

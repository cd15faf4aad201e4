// Space on a simulated etcd with the real commit stream. What stands in etcd is checked as a whole:
// the test keeps "files" under keys of its own, written in the same steps that publish and free
// their blocks.
#include "block/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <set>

#include "block/arena.h"
#include "rt/random.h"
#include "sim/fakes/sim_device.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::block {
namespace {

using meta::kArenaChunkBlocks;
const meta::Keys kKeys("t");

std::vector<DeviceRange> ranges_of(const std::string& value) { return *meta::decode_freed(value); }
std::string file_key(std::uint64_t id) { return kKeys.prefix() + "zz/" + std::to_string(id); }

meta::Super super_of(std::uint64_t arena_blocks, std::uint64_t device_blocks) {
  meta::Super s;
  s.arena_blocks = arena_blocks;
  s.device_blocks = device_blocks;
  return s;
}

struct World {
  explicit World(std::uint64_t seed,
                 meta::Super s = super_of(kArenaChunkBlocks, 8 * kArenaChunkBlocks))
      : runtime(options(seed)),
        server(runtime),
        disk(runtime, s.device_blocks * kBlockBytes),
        super(s) {}
  static rt::Options options(std::uint64_t seed) {
    rt::Options o;
    o.simulated = true;
    o.seed = seed;
    return o;
  }
  void run(std::function<void()> body) {
    rt::Group group(runtime, "test");
    bool ended = false;
    runtime.spawn(group, [&] {
      body();
      ended = true;
      runtime.stop();
    });
    runtime.run();
    ASSERT_TRUE(ended);
  }
  Epoch raise_epoch(const NodeName& node) {
    meta::Txn txn;
    const Epoch epoch{++epochs[node]};
    txn.success.emplace_back(meta::PutOp{kKeys.epoch(node), meta::encode_epoch(epoch), 0});
    EXPECT_TRUE(server.txn(txn).done());
    return epoch;
  }
  StepNo seq(const NodeName& node) {
    const auto reply = server.range({kKeys.seq(node), {}}, {});
    return reply->kvs.empty() ? StepNo{0} : *meta::decode_sequence(reply->kvs[0].value);
  }
  meta::Arena arena(std::uint32_t n) {
    const auto reply = server.range({kKeys.arena(ArenaNo{n}), {}}, {});
    if (reply->kvs.empty()) return {{}, {}, arena_capacity(super, ArenaNo{n})};
    return *meta::decode_arena(reply->kvs[0].value);
  }
  std::size_t freed_keys() {
    const std::string prefix = kKeys.all("freed");
    return server.range({prefix, meta::prefix_end(prefix)}, {})->kvs.size();
  }
  void check();

  rt::Runtime runtime;
  sim::SimKvServer server;
  sim::SimDisk disk;
  meta::Super super;
  std::map<NodeName, std::uint64_t> epochs;
};

// Every published block belongs to exactly one file or freed key; maps and summaries say so
// exactly.
void World::check() {
  std::map<ArenaNo, std::string> expected_maps;  // bytes per block
  const auto use = [&](DeviceRange r, const std::string& by) {
    for (std::uint64_t b = r.block; b < r.end(); ++b) {
      ASSERT_GE(b, kIdentityBlocks);
      ASSERT_LT(b, super.device_blocks);
      std::string& map = expected_maps[ArenaNo{static_cast<std::uint32_t>(b / super.arena_blocks)}];
      map.resize(super.arena_blocks, '\0');
      ASSERT_EQ(map[b % super.arena_blocks], '\0') << "block " << b << " twice, by " << by;
      map[b % super.arena_blocks] = 1;
    }
  };
  std::map<ArenaNo, std::string> maps;
  for (const meta::KeyValue& kv : server.dump()) {
    if (const auto freed = kKeys.parse_freed(kv.key)) {
      for (DeviceRange r : ranges_of(kv.value)) use(r, kv.key);
    } else if (const auto amap = kKeys.parse_amap(kv.key)) {
      std::string& map = maps[amap->arena];
      map.resize(super.arena_blocks, '\0');
      const std::string bits = *meta::decode_amap(kv.value);
      for (std::uint64_t b = 0; b < kArenaChunkBlocks; ++b)
        map[amap->chunk * kArenaChunkBlocks + b] = bits[b / 8] >> (b % 8) & 1;
    } else if (kv.key.starts_with(kKeys.prefix() + "zz/")) {
      for (DeviceRange r : ranges_of(kv.value)) use(r, kv.key);
    }
  }
  for (std::uint32_t n = 0; n < super.arenas(); ++n) {
    const std::string empty(super.arena_blocks, '\0');
    std::string is = maps.contains(ArenaNo{n}) ? maps[ArenaNo{n}] : empty;
    std::string should = expected_maps.contains(ArenaNo{n}) ? expected_maps[ArenaNo{n}] : empty;
    for (std::uint64_t b = 0; b < super.arena_blocks; ++b)
      ASSERT_EQ(is[b], should[b]) << "arena " << n << " block " << b;
    const auto used = static_cast<std::uint64_t>(std::count(is.begin(), is.end(), 1));
    ASSERT_EQ(arena(n).free_blocks, arena_capacity(super, ArenaNo{n}) - used) << "arena " << n;
  }
}

struct Node {
  Node(World& w, NodeName name, sim::SimKvOptions kv_options = {})
      : world(w),
        group(w.runtime, name),
        kv(w.server, group, kv_options),
        guard(kKeys, name, w.raise_epoch(name)),
        stream(kv, kKeys, guard, {}),
        space(kv, kKeys, guard, stream, w.super),
        device(w.disk, name),
        guarded(device, space) {}
  ~Node() { group.kill(); }
  void start(std::vector<Epoch> proven_dead = {}) {
    stream.start(world.seq(guard.node()));
    const auto started = space.start(proven_dead);
    ASSERT_TRUE(started) << reason_name(started.error());
  }
  std::vector<DeviceRange> take(std::uint64_t blocks, std::uint64_t near = 0) {
    const auto reserved = space.reserve(blocks);
    EXPECT_TRUE(reserved) << reason_name(reserved.error());
    return space.allocate(blocks, near);
  }
  StepNo create(std::uint64_t id, const std::vector<DeviceRange>& ranges) {
    meta::Step step;
    step.put(file_key(id), meta::encode_freed(ranges));
    space.publish(step, ranges);
    return stream.append(std::move(step));
  }
  StepNo remove(std::uint64_t id, const std::vector<DeviceRange>& ranges) {
    meta::Step step;
    step.erase(file_key(id));
    space.release(step, ranges);
    return stream.append(std::move(step));
  }

  World& world;
  rt::Group group;
  sim::SimKv kv;
  meta::Guard guard;
  meta::CommitStream stream;
  Space space;
  sim::SimDevice device;
  GuardedDevice guarded;
};

std::uint64_t blocks_in(const std::vector<DeviceRange>& ranges) {
  std::uint64_t n = 0;
  for (DeviceRange r : ranges) n += r.blocks;
  return n;
}

TEST(Space, ClaimsAnArenaAheadOfNeed) {
  World w(1);
  w.run([&] {
    Node a(w, "a");
    a.start();
    rt::sleep_for(1s);
    EXPECT_GE(a.space.owned_arenas(), 1u);
    const std::uint64_t sent = a.kv.txns_sent();
    ASSERT_TRUE(a.space.reserve(1));  // answered from memory
    EXPECT_EQ(a.kv.txns_sent(), sent);
    EXPECT_EQ(a.space.reserved_blocks(), 1u);
  });
}

TEST(Space, PublishedBlocksStandInTheMapAndTheSummary) {
  World w(2);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const auto got = a.take(10);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(a.space.owns(got[0]));
    EXPECT_EQ(a.space.allocated_unpublished_blocks(), 10u);
    w.check();  // allocated is not published
    a.create(1, got);
    ASSERT_TRUE(a.stream.sync());
    EXPECT_EQ(a.space.allocated_unpublished_blocks(), 0u);
    const auto n = static_cast<std::uint32_t>(got[0].block / w.super.arena_blocks);
    EXPECT_EQ(w.arena(n).owner, "a");
    EXPECT_EQ(w.arena(n).free_blocks, arena_capacity(w.super, ArenaNo{n}) - 10);
    w.check();
    a.remove(1, got);
    ASSERT_TRUE(a.stream.sync());
    EXPECT_EQ(w.arena(n).free_blocks, arena_capacity(w.super, ArenaNo{n}));
    w.check();
  });
}

TEST(Space, NearContinuesTheFile) {
  World w(3);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const auto first = a.take(4);
    const auto second = a.take(4, first[0].end());
    EXPECT_EQ(second, (std::vector<DeviceRange>{{first[0].end(), 4}}));
    a.create(1, {{first[0].block, 8}});
    ASSERT_TRUE(a.stream.sync());
    w.check();
  });
}

TEST(Space, ReleaseAndPublishOfOneChunkInOneStepAreOnePut) {
  World w(4);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const auto first = a.take(4);
    a.create(1, first);
    const auto second = a.take(4, first[0].end());
    meta::Step step;
    step.put(file_key(1), meta::encode_freed(second));
    a.space.publish(step, second);
    a.space.release(step, first);
    EXPECT_EQ(step.mutations.size(), 3u);
    EXPECT_EQ(a.space.keys_touched(first), 2u);
    std::set<std::string> keys;
    for (const meta::Mutation& m : step.mutations) EXPECT_TRUE(keys.insert(m.key).second);
    a.stream.append(std::move(step));
    ASSERT_TRUE(a.stream.sync());
    w.check();
  });
}

TEST(Space, BlocksComeBackOnlyAfterTheCommitAndOldReads) {
  World w(5, super_of(kArenaChunkBlocks, kArenaChunkBlocks));  // one arena
  w.run([&] {
    Node a(w, "a");
    a.start();
    const std::uint64_t all = kArenaChunkBlocks - 1;
    const auto got = a.take(all);
    EXPECT_EQ(got, (std::vector<DeviceRange>{{1, all}}));
    a.create(1, got);
    ASSERT_TRUE(a.stream.sync());
    EXPECT_EQ(a.space.reserve(1).error(), Reason::kNoSpace);
    auto read = std::make_unique<Space::ReadGuard>(a.space);
    a.remove(1, got);
    ASSERT_TRUE(a.stream.sync());
    EXPECT_EQ(a.space.totals()->free_blocks, all);             // free for df
    EXPECT_EQ(a.space.reserve(1).error(), Reason::kNoSpace);   // waited in vain for the reader
    auto later = std::make_unique<Space::ReadGuard>(a.space);  // began after the commit: no matter
    read.reset();
    EXPECT_TRUE(a.space.reserve(all));
    later.reset();
    a.space.unreserve(all);
    w.check();
  });
}

TEST(Space, ReserveWaitsForOwnFreesThatAreOnTheirWay) {
  World w(6, super_of(kArenaChunkBlocks, kArenaChunkBlocks));
  w.run([&] {
    Node a(w, "a");
    a.start();
    const std::uint64_t all = kArenaChunkBlocks - 1;
    const auto got = a.take(all);
    a.create(1, got);
    a.remove(1, got);
    ASSERT_LT(a.stream.last_committed(), a.stream.last_appended());
    EXPECT_TRUE(a.space.reserve(all));
    EXPECT_EQ(a.space.reserve(1).error(), Reason::kNoSpace);
    a.space.unreserve(1);
    EXPECT_TRUE(a.space.reserve(1));
  });
}

TEST(Space, AbandonedBlocksAreFreeAgain) {
  World w(7, super_of(kArenaChunkBlocks, kArenaChunkBlocks));
  w.run([&] {
    Node a(w, "a");
    a.start();
    const std::uint64_t all = kArenaChunkBlocks - 1;
    const auto got = a.take(all);
    EXPECT_EQ(a.space.allocated_unpublished_blocks(), all);
    a.space.abandon(got);
    EXPECT_EQ(a.space.allocated_unpublished_blocks(), 0u);
    EXPECT_TRUE(a.space.reserve(all));
  });
}

TEST(Space, TwoNodesNeverShareAnArenaAndFillTheDeviceTogether) {
  World w(8);
  w.run([&] {
    Node a(w, "a"), b(w, "b");
    a.start();
    b.start();
    std::set<std::uint64_t> seen;
    std::uint64_t total = 0, id = 0;
    bool full_a = false, full_b = false;
    while (!full_a || !full_b) {
      for (Node* n : {&a, &b}) {
        bool& full = n == &a ? full_a : full_b;
        if (full) continue;
        const auto reserved = n->space.reserve(700);
        if (!reserved) {
          EXPECT_EQ(reserved.error(), Reason::kNoSpace);
          full = true;
          continue;
        }
        const auto got = n->space.allocate(700, 0);
        EXPECT_EQ(blocks_in(got), 700u);
        for (DeviceRange r : got)
          for (std::uint64_t blk = r.block; blk < r.end(); ++blk)
            ASSERT_TRUE(seen.insert(blk).second) << blk;
        n->create(++id, got);
        total += 700;
      }
    }
    EXPECT_GE(total + 2 * 700, w.super.device_blocks - 1);
    EXPECT_EQ(a.space.owned_arenas() + b.space.owned_arenas(), 8u);
    ASSERT_TRUE(a.stream.sync());
    ASSERT_TRUE(b.stream.sync());
    w.check();
  });
}

TEST(Space, OwnerMergesWhatOthersFree) {
  World w(9);
  w.run([&] {
    Node a(w, "a"), b(w, "b");
    a.start();
    b.start();
    const auto got = a.take(100);
    a.create(1, got);
    ASSERT_TRUE(a.stream.sync());
    EXPECT_FALSE(b.space.owns(got[0]));
    EXPECT_EQ(b.space.keys_touched(got), 1u);
    b.remove(1, got);
    ASSERT_TRUE(b.stream.sync());
    w.check();
    rt::sleep_for(1s);
    EXPECT_EQ(w.freed_keys(), 0u);
    w.check();
    const auto n = static_cast<std::uint32_t>(got[0].block / w.super.arena_blocks);
    EXPECT_EQ(w.arena(n).free_blocks, arena_capacity(w.super, ArenaNo{n}));
  });
}

TEST(Space, OwnerWaitsForReadersOfTheNodeThatFreed) {
  World w(10);
  w.run([&] {
    Node a(w, "a"), b(w, "b");
    a.start();
    b.start();
    const auto got = a.take(100);
    a.create(1, got);
    ASSERT_TRUE(a.stream.sync());
    auto read = std::make_unique<Space::ReadGuard>(b.space);
    b.remove(1, got);
    ASSERT_TRUE(b.stream.sync());
    rt::sleep_for(10s);
    EXPECT_EQ(w.freed_keys(), 1u);  // not merged while b may still be reading
    w.check();
    read.reset();
    rt::sleep_for(1s);
    EXPECT_EQ(w.freed_keys(), 0u);
    w.check();
  });
}

TEST(Space, OwnerMergesWhatADeadReaderFreed) {
  World w(11);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const auto got = a.take(100);
    a.create(1, got);
    ASSERT_TRUE(a.stream.sync());
    {
      Node b(w, "b.0123456789abcdef");  // names may look like epochs
      b.start();
      Space::ReadGuard read(b.space);
      b.remove(1, got);
      ASSERT_TRUE(b.stream.sync());
    }
    rt::sleep_for(10s);
    EXPECT_EQ(w.freed_keys(), 1u);  // nobody has declared it dead
    w.raise_epoch("b.0123456789abcdef");
    rt::sleep_for(10s);
    EXPECT_EQ(w.freed_keys(), 0u);
    w.check();
  });
}

TEST(Space, ReReadsWhatItMissedWhenTheWatchIsLost) {
  World w(21);
  w.run([&] {
    Node a(w, "a"), b(w, "b");
    a.start();
    b.start();
    const auto one = a.take(100), two = a.take(50), three = a.take(7);
    a.create(1, one);
    a.create(2, two);
    a.create(3, three);
    ASSERT_TRUE(a.stream.sync());
    b.remove(1, one);
    ASSERT_TRUE(b.stream.sync());
    a.kv.set_partitioned(true);
    b.remove(2, two);
    ASSERT_TRUE(b.stream.sync());
    ASSERT_TRUE(w.server.compact(w.server.revision()));
    rt::sleep_for(2s);
    EXPECT_GE(w.freed_keys(), 1u);
    a.kv.set_partitioned(false);
    rt::sleep_for(30s);
    EXPECT_EQ(w.freed_keys(), 0u);
    b.remove(3, three);  // the new watch works as well
    ASSERT_TRUE(b.stream.sync());
    rt::sleep_for(2s);
    EXPECT_EQ(w.freed_keys(), 0u);
    w.check();
  });
}

TEST(Space, MergesAFreeThatTouchesMoreChunksThanAStepHolds) {
  World w(12, super_of(128 * kArenaChunkBlocks, 128 * kArenaChunkBlocks));  // one arena of 2 GiB
  w.run([&] {
    std::vector<std::vector<DeviceRange>> parts;
    Node a(w, "a");
    a.start();
    std::vector<DeviceRange> all;
    for (int i = 0; i < 100; ++i) {  // published bit by bit
      auto got = a.take(kArenaChunkBlocks);
      a.create(static_cast<std::uint64_t>(i), got);
      all.insert(all.end(), got.begin(), got.end());
    }
    ASSERT_TRUE(a.stream.sync());
    Node b(w, "b");
    b.start();
    meta::Step step;
    for (int i = 0; i < 100; ++i) step.erase(file_key(static_cast<std::uint64_t>(i)));
    b.space.release(step, all);
    b.stream.append(std::move(step));
    ASSERT_TRUE(b.stream.sync());
    rt::sleep_for(2s);
    EXPECT_EQ(w.freed_keys(), 0u);
    EXPECT_EQ(w.arena(0).free_blocks, 128 * kArenaChunkBlocks - 1);
    w.check();
  });
}

TEST(Space, CleanLeaveGivesEverythingBack) {
  World w(13);
  w.run([&] {
    std::vector<DeviceRange> kept;
    {
      Node a(w, "a");
      a.start();
      kept = a.take(10);
      a.create(1, kept);
      const auto gone = a.take(10);
      a.create(2, gone);
      a.remove(2, gone);
      a.space.give_back();
      ASSERT_TRUE(a.stream.sync());
      EXPECT_EQ(a.space.owned_arenas(), 0u);
      EXPECT_EQ(a.space.reserve(1u << 20).error(), Reason::kShutdown);
    }
    for (std::uint32_t n = 0; n < w.super.arenas(); ++n) EXPECT_EQ(w.arena(n).owner, "");
    w.check();
    Node b(w, "b");
    b.start();
    const std::uint64_t all = w.super.device_blocks - 1 - 10;
    EXPECT_EQ(b.space.reserve(all + 1).error(), Reason::kNoSpace);
    EXPECT_TRUE(b.space.reserve(all));
  });
}

TEST(Space, ArenasOfADeadEpochAreTakenOverOnlyByProof) {
  World w(14, super_of(kArenaChunkBlocks, kArenaChunkBlocks));
  w.run([&] {
    Epoch dead;
    std::vector<DeviceRange> kept;
    {
      Node a(w, "a");
      a.start();
      dead = a.guard.epoch();
      kept = a.take(10);
      a.create(1, kept);
      ASSERT_TRUE(a.stream.sync());
      a.take(20);  // lost with the crash
    }
    {
      Node other(w, "b");
      other.start({dead});  // the same number, another name
      EXPECT_EQ(other.space.reserve(1).error(), Reason::kNoSpace);
    }
    {
      Node unproven(w, "a");
      unproven.start();
      EXPECT_EQ(unproven.space.reserve(1).error(), Reason::kNoSpace);
      EXPECT_EQ(unproven.space.totals()->free_blocks, kArenaChunkBlocks - 1 - 10);
    }
    Node a(w, "a");
    a.start({dead});
    EXPECT_EQ(w.arena(0).owner_epoch, a.guard.epoch());
    EXPECT_TRUE(a.space.reserve(kArenaChunkBlocks - 1 - 10));
    w.check();
  });
}

TEST(Space, AClaimWhoseReplyIsLostIsFoundOut) {
  for (const sim::SimFault fault :
       {sim::SimFault::kLoseRequest, sim::SimFault::kLoseReply, sim::SimFault::kLate}) {
    World w(15, super_of(kArenaChunkBlocks, kArenaChunkBlocks));
    w.run([&] {
      Node a(w, "a");
      a.kv.fail_txn(1, fault);
      a.start();
      EXPECT_TRUE(a.space.reserve(kArenaChunkBlocks - 1));
      rt::sleep_for(30s);
      EXPECT_EQ(w.arena(0).owner, "a");
      EXPECT_EQ(a.space.owned_arenas(), 1u);
      a.space.unreserve(kArenaChunkBlocks - 1);
      w.check();
    });
  }
}

TEST(Space, FencedNodeIsRefused) {
  World w(16);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const auto got = a.take(1);
    w.raise_epoch("a");
    a.create(1, got);
    EXPECT_EQ(a.stream.sync().error(), Reason::kFenced);
    Buffer block = Buffer::allocate(kBlockBytes);
    const std::span<const std::byte> piece = block.span();
    EXPECT_EQ(a.guarded.write(got[0].block, {&piece, 1}).error(), Reason::kFenced);
    EXPECT_EQ(a.space.reserve(1u << 20).error(), Reason::kFenced);
    w.check();
  });
}

TEST(Space, TotalsCountReservationsOfThisNode) {
  World w(17);
  w.run([&] {
    Node a(w, "a");
    a.start();
    const std::uint64_t all = w.super.device_blocks - 1;
    EXPECT_EQ(a.space.totals()->total_blocks, all);
    EXPECT_EQ(a.space.totals()->free_blocks, all);
    ASSERT_TRUE(a.space.reserve(30));
    EXPECT_EQ(a.space.totals()->free_blocks, all - 30);
    const auto got = a.space.allocate(20, 0);
    EXPECT_EQ(a.space.totals()->free_blocks, all - 30);
    a.create(1, got);
    EXPECT_EQ(a.space.totals()->free_blocks, all - 30);
    Node b(w, "b");
    b.start();
    ASSERT_TRUE(a.stream.sync());
    rt::sleep_for(2s);
    EXPECT_EQ(b.space.totals()->free_blocks, all - 20);
  });
}

TEST(Space, IdleArenasGoBackWhenThereIsPlenty) {
  World w(18, super_of(kArenaChunkBlocks, 64 * kArenaChunkBlocks));
  w.run([&] {
    Node a(w, "a");
    a.start();
    const std::uint64_t most = 40 * kArenaChunkBlocks;
    ASSERT_TRUE(a.space.reserve(most));
    EXPECT_GE(a.space.owned_arenas(), 40u);
    a.space.unreserve(most);
    auto read = std::make_unique<Space::ReadGuard>(a.space);
    rt::sleep_for(40s);
    EXPECT_GE(a.space.owned_arenas(), 40u);  // somebody may be about to write in place
    read.reset();
    rt::sleep_for(10s);
    EXPECT_LT(a.space.owned_arenas(), 24u);
    EXPECT_GE(a.space.owned_arenas(), 8u);
    ASSERT_TRUE(a.space.reserve(most));  // and come again
    w.check();
  });
}

#if GTEST_HAS_DEATH_TEST
TEST(SpaceDeathTest, WriteOutsideOwnArenasIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        World w(19);
        w.run([&] {
          Node a(w, "a"), b(w, "b");
          a.start();
          b.start();
          const auto got = a.take(1);
          Buffer block = Buffer::allocate(kBlockBytes);
          const std::span<const std::byte> piece = block.span();
          (void)b.guarded.write(got[0].block, {&piece, 1});
        });
      },
      "arena != nullptr");
}
#endif

// --- random histories with crashes

// Two nodes create, read and delete files at random over a faulty etcd; one of them is killed now
// and then and comes back. Model: which blocks may not be given out now.
class History {
 public:
  explicit History(std::uint64_t seed)
      : w(seed, super_of(kArenaChunkBlocks, 4 * kArenaChunkBlocks + 1000)), random(seed) {}

  void play() {
    w.run([&] {
      for (const char* name : {"a", "b"}) boot(name, {});
      for (int i = 0; i < 6; ++i) {
        rt::sleep_for(Nanos(random.below(3'000'000'000)));
        const NodeName victim = random.below(2) ? "a" : "b";
        const Epoch dead = nodes[victim]->guard.epoch();
        crash(victim);
        if (::testing::Test::HasFatalFailure()) return;
        w.check();
        boot(victim, {dead});
      }
      for (auto& [name, node] : nodes) {
        stop_workers(name);
        ASSERT_TRUE(node->stream.sync());
      }
      rt::sleep_for(60s);  // several of etcd's replies may be lost in a row
      w.check();
      EXPECT_EQ(w.freed_keys(), 0u);
      EXPECT_GT(created, 50u);
      EXPECT_GT(deleted, 20u);
      for (auto& [name, node] : nodes) {
        EXPECT_EQ(node->space.reserved_blocks(), 0u);
        EXPECT_EQ(node->space.allocated_unpublished_blocks(), 0u);
        node->space.give_back();
        ASSERT_TRUE(node->stream.sync());
      }
      w.check();
      nodes.clear();
    });
  }

 private:
  struct File {
    std::vector<DeviceRange> ranges;
  };
  struct Worker {
    std::unique_ptr<rt::Group> group;
    bool stopping = false;
  };

  void boot(const NodeName& name, std::vector<Epoch> proven_dead) {
    sim::SimKvOptions faults;
    faults.lose_request = faults.lose_reply = faults.late = 50;
    if (random.below(2)) faults.latency_max = 60ms;  // answers and events overtake each other
    nodes[name] = std::make_unique<Node>(w, name, faults);
    nodes[name]->start(std::move(proven_dead));
    Worker& worker = workers[name];
    worker.stopping = false;
    worker.group = std::make_unique<rt::Group>(w.runtime, name);
    for (int i = 0; i < 4; ++i)
      worker.group->spawn([this, &worker, &node = *nodes[name]] {
        while (!worker.stopping) act(node);
      });
  }
  void stop_workers(const NodeName& name) {
    workers[name].stopping = true;
    workers[name].group->wait();
  }

  // The machine stops: files whose step had not committed are gone, deletions not committed are
  // undone.
  void crash(const NodeName& name) {
    w.raise_epoch(name);
    workers[name].group->kill();
    nodes[name].reset();
    for (auto it = busy.begin(); it != busy.end();)
      it = it->second == name ? busy.erase(it) : std::next(it);
    for (auto& [reader, count] : readers)
      if (reader.second == name) count = 0;
    std::map<std::uint64_t, File> stored;
    for (const meta::KeyValue& kv : w.server.dump())
      if (kv.key.starts_with(kKeys.prefix() + "zz/"))
        stored[std::stoull(kv.key.substr(kKeys.prefix().size() + 3))] = {
            *meta::decode_freed(kv.value)};
    std::set<std::uint64_t> known;
    for (auto& [id, owner] : in_work)
      if (owner != name) known.insert(id);  // the other node is at it
    std::erase_if(in_work, [&](const auto& item) { return item.second == name; });
    std::erase_if(files, [&](const auto& item) {
      return !stored.contains(item.first) && creator[item.first] == name;
    });
    for (auto& [id, file] : stored)
      if (!known.contains(id)) files[id] = file;
  }

  void mark(const std::vector<DeviceRange>& ranges, const NodeName& by) {
    for (DeviceRange r : ranges)
      for (std::uint64_t b = r.block; b < r.end(); ++b) busy.emplace(b, by);
  }
  void unmark(const std::vector<DeviceRange>& ranges, const NodeName& by) {
    for (DeviceRange r : ranges)
      for (std::uint64_t b = r.block; b < r.end(); ++b) {
        auto [from, to] = busy.equal_range(b);
        for (auto it = from; it != to; ++it) {
          if (it->second != by) continue;
          busy.erase(it);
          break;
        }
      }
  }
  bool stored(std::uint64_t id) const {
    return !w.server.range({file_key(id), {}}, {})->kvs.empty();
  }
  bool in_some_file(std::uint64_t block) const {
    for (const auto& [id, file] : files)
      for (DeviceRange r : file.ranges)
        if (block >= r.block && block < r.end()) return true;
    return false;
  }

  void act(Node& node) {
    rt::sleep_for(Nanos(random.below(20'000'000)));
    if (!node.stream.wait_room()) return;
    const std::uint64_t what = random.below(10);
    if (what < 5) return create(node);
    if (files.empty()) return;
    auto it = files.begin();
    std::advance(it, static_cast<long>(random.below(files.size())));
    if (what < 7) return read(node, it->first);
    remove(node, it->first);
  }

  void create(Node& node) {
    const NodeName& me = node.guard.node();
    const std::uint64_t blocks = 1 + random.below(random.below(4) ? 30 : 1500);
    const auto reserved = node.space.reserve(blocks);
    if (!reserved) {
      ASSERT_TRUE(reserved.error() == Reason::kNoSpace || reserved.error() == Reason::kFenced);
      return;
    }
    const auto got = node.space.allocate(blocks, 0);
    ASSERT_EQ(blocks_in(got), blocks);
    for (DeviceRange r : got)
      for (std::uint64_t b = r.block; b < r.end(); ++b) {
        ASSERT_FALSE(busy.contains(b)) << "block " << b << " given out while in use";
        // Dropped by a step that has been applied, whether the remover knows it or not.
        ASSERT_FALSE(dropped.contains(b) && stored(dropped[b]))
            << "block " << b << " given out before the step that dropped it";
        ASSERT_FALSE(in_some_file(b)) << "block " << b << " given out while in a file";
      }
    mark(got, me);
    rt::sleep_for(Nanos(random.below(3'000'000)));  // the write
    if (random.below(5) == 0) {
      unmark(got, me);
      return node.space.abandon(got);
    }
    const std::uint64_t id = ++last_id;
    creator[id] = me;
    in_work[id] = me;
    const StepNo step = node.create(id, got);
    if (!node.stream.wait_committed(step)) return;
    in_work.erase(id);
    files[id] = {got};
    unmark(got, me);
    ++created;
  }

  void read(Node& node, std::uint64_t id) {
    const NodeName& me = node.guard.node();
    Space::ReadGuard guard(node.space);
    const std::vector<DeviceRange> ranges = files[id].ranges;
    mark(ranges, me);
    ++readers[{id, me}];
    rt::sleep_for(Nanos(random.below(40'000'000)));
    --readers[{id, me}];
    unmark(ranges, me);
  }

  void remove(Node& node, std::uint64_t id) {
    const NodeName me = node.guard.node();
    if (readers[{id, me == "a" ? "b" : "a"}] > 0) return;  // the other's lock forbids it
    const std::vector<DeviceRange> ranges = files[id].ranges;
    files.erase(id);
    in_work[id] = me;
    for (DeviceRange r : ranges)
      for (std::uint64_t b = r.block; b < r.end(); ++b) dropped[b] = id;
    const StepNo step = node.remove(id, ranges);
    if (!node.stream.wait_committed(step)) return;
    in_work.erase(id);
    ++deleted;
  }

  World w;
  rt::Random random;
  std::map<NodeName, std::unique_ptr<Node>> nodes;
  std::map<NodeName, Worker> workers;
  std::map<std::uint64_t, File> files;  // committed, nobody is at them
  std::map<std::uint64_t, NodeName> in_work, creator;
  std::map<std::pair<std::uint64_t, NodeName>, int> readers;
  std::map<std::uint64_t, std::uint64_t>
      dropped;                                  // block -> the file that was last removed from it
  std::multimap<std::uint64_t, NodeName> busy;  // blocks that may not be given out
  std::uint64_t last_id = 0, created = 0, deleted = 0;
};

TEST(Space, RandomHistoriesWithCrashesLeakAndShareNothing) {
  const std::uint64_t base = rt::Runtime().random();
  for (std::uint64_t i = 0; i < 4; ++i) {
    std::printf("seed %lu\n", base + i);
    History(base + i).play();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(Space, SmallAllocationsAreCheap) {
  World w(20, super_of(64 * kArenaChunkBlocks, 64 * kArenaChunkBlocks));
  w.run([&] {
    Node a(w, "a");
    a.start();
    ASSERT_TRUE(a.space.reserve(200'000));
    const std::clock_t begin = std::clock();
    std::uint64_t sum = 0;
    for (int i = 0; i < 100'000; ++i) sum += a.space.allocate(1, 0)[0].block;
    const double each = static_cast<double>(std::clock() - begin) * 1e9 / CLOCKS_PER_SEC / 100'000;
    std::printf("allocate(1): %.0f ns\n", each);
    EXPECT_NE(sum, 0u);
    EXPECT_LT(each, 20'000);  // far above what is expected, so that a loaded machine passes
  });
}

}  // namespace
}  // namespace etcfs::block

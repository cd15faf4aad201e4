// Nodes with locks on one simulated etcd, for the tests of the lock service: each with a client
// that caches a counter per family and part, as a filesystem caches what its locks cover.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "cluster/lock_service.h"
#include "cluster/lock_view.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::cluster::test {

inline const meta::Keys kKeys{"t"};
inline constexpr LockModes kNamesS{LockMode::kShared, LockMode::kNone};
inline constexpr LockModes kNamesX{LockMode::kExclusive, LockMode::kNone};
inline constexpr LockModes kFilesS{LockMode::kNone, LockMode::kShared};
inline constexpr LockModes kFilesX{LockMode::kNone, LockMode::kExclusive};
inline constexpr LockModes kBothS{LockMode::kShared, LockMode::kShared};
inline constexpr LockModes kBothX{LockMode::kExclusive, LockMode::kExclusive};

inline void run_sim(std::uint64_t seed, const std::function<void(rt::Runtime&)>& body) {
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

// The key whose value is the counter of a part: the directory's inode, or that of file 1.
inline std::string counter_key(Family family, bool names) {
  return kKeys.inode(Ino{family, names ? 0u : 1u});
}

class Client final : public LockClient {
 public:
  struct Cached {
    std::map<bool, std::string> counter;  // by part (names?), only what the locks cover
    int pins = 0;
    rt::Condition unpinned;
  };
  void on_granted(Family family, LockModes before, LockModes now,
                  FamilyContents contents) override {
    ++grants;
    last_contents = contents;
    EXPECT_TRUE(now.covers(before));
    for (bool names : {true, false}) {
      const LockMode had = names ? before.names : before.files;
      const LockMode has = names ? now.names : now.files;
      if (has == LockMode::kNone) continue;
      std::string& counter = families[family].counter[names];
      if (had == LockMode::kNone) counter.clear();
      for (const meta::KeyValue& kv : contents.inodes) {
        if (kv.key != counter_key(family, names)) continue;
        EXPECT_EQ(had, LockMode::kNone);  // what was held is not loaded again
        counter = kv.value;
      }
    }
  }
  void on_asked(Family) override { ++asked; }
  std::vector<meta::Mutation> prepare_release(Family family, LockModes keep) override {
    auto& runtime = rt::Runtime::current();
    if (runtime.random_below(3) == 0) rt::sleep_for(Nanos(runtime.random_below(3'000'000)));
    locks->close(family, keep);
    Cached& cached = families[family];
    cached.unpinned.wait([&] { return cached.pins == 0; });
    std::vector<meta::Mutation> out;
    if (runtime.random_below(2) == 0)
      out.push_back({kKeys.hold(Ino{family, 1}, node), meta::encode_hold(epoch)});
    return out;
  }
  void on_released(Family family, LockModes keep) override {
    ++released;
    if (keep.names == LockMode::kNone) families[family].counter.erase(true);
    if (keep.files == LockMode::kNone) families[family].counter.erase(false);
  }

  LockService* locks = nullptr;
  NodeName node;
  Epoch epoch;
  std::map<Family, Cached> families;
  FamilyContents last_contents;
  int grants = 0, asked = 0, released = 0;
};

// A process. Destroying it is a crash.
struct Node {
  Node(sim::SimKvServer& server, const NodeName& name_in, LockService::Options options = {},
       sim::SimKvOptions faults = {})
      : name(name_in),
        group(server.runtime(), name),
        kv(server, group, faults),
        membership(kv, kKeys, name, {"boot", "machine-" + name, 1, 2, true}, {}) {
    const auto joined = membership.join(rt::now() + 60s);
    EXPECT_TRUE(joined);
    guard.emplace(kKeys, name, joined->epoch);
    meta::CommitStream::Limits limits;
    stream = std::make_unique<meta::CommitStream>(kv, kKeys, *guard, limits);
    locks = std::make_unique<LockService>(kv, kKeys, *guard, *stream, membership, options);
    client.locks = locks.get();
    client.node = name;
    client.epoch = joined->epoch;
    locks->set_client(client);
    stream->start(joined->seq);
    membership.start();
    while (!locks->start()) {
    }
  }
  ~Node() { group.kill(); }

  Result<void> acquire(Family family, LockModes modes) {
    const LockNeed need{family, modes};
    return locks->acquire({&need, 1});
  }
  // One operation: checks the cached counter against `truth`, raises it under X. Blocks.
  Result<void> operate(Family family, LockModes modes,
                       std::map<std::pair<Family, bool>, int>& truth);
  void put(const std::string& key, const std::string& value) {
    meta::Step step;
    step.put(key, value);
    stream->append(std::move(step));
  }

  NodeName name;
  rt::Group group;
  sim::SimKv kv;
  Membership membership;
  std::optional<meta::Guard> guard;
  std::unique_ptr<meta::CommitStream> stream;
  Client client;
  std::unique_ptr<LockService> locks;  // dies before its client
};

inline Result<void> Node::operate(Family family, LockModes modes,
                                  std::map<std::pair<Family, bool>, int>& truth) {
  while (!locks->usable(family).covers(modes)) ETCFS_CHECK(acquire(family, modes));
  Client::Cached& cached = client.families[family];
  struct Pin {
    Client::Cached& c;
    explicit Pin(Client::Cached& cached_in) : c(cached_in) { ++c.pins; }
    ~Pin() {
      if (--c.pins == 0) c.unpinned.notify_all();
    }
  } pin(cached);
  locks->note_served(family);
  for (bool names : {true, false}) {
    const LockMode mode = names ? modes.names : modes.files;
    if (mode == LockMode::kNone) continue;
    const auto found = cached.counter.find(names);
    EXPECT_NE(found, cached.counter.end()) << "nothing cached under a lock";
    if (found == cached.counter.end()) continue;
    int& now = truth[{family, names}];
    EXPECT_EQ(found->second.empty() ? 0 : std::stoi(found->second), now)
        << name << " is stale: family " << family.v << " names " << names;
    if (mode != LockMode::kExclusive) continue;
    found->second = std::to_string(++now);
    put(counter_key(family, names), found->second);
  }
  if (rt::Runtime::current().random_below(4) == 0) rt::sleep_for(300us);  // under the pin
  return {};
}

// I3, and I7 for lock records, at every revision the store has had.
inline void expect_exclusion(sim::SimKvServer& server) {
  const std::string locks = kKeys.all("lock"), epochs = kKeys.all("epoch");
  for (std::int64_t r = 2; r <= server.revision().v; ++r) {
    std::map<NodeName, Epoch> current;
    const auto epoch_keys = server.range({epochs, meta::prefix_end(epochs)}, Revision{r});
    ASSERT_TRUE(epoch_keys);
    for (const auto& kv : epoch_keys->kvs)
      current[*kKeys.parse_node("epoch", kv.key)] = *meta::decode_epoch(kv.value);
    const auto lock_keys = server.range({locks, meta::prefix_end(locks)}, Revision{r});
    std::map<Family, std::vector<LockModes>> held;
    for (const auto& kv : lock_keys->kvs) {
      const auto id = kKeys.parse_lock(kv.key);
      if (current[id->node] != id->epoch) {
        ASSERT_NE(kv.mod_revision, Revision{r}) << kv.key << " was put after its epoch was raised";
        continue;
      }
      const LockModes modes = modes_of(*meta::decode_lock(kv.value));
      for (const LockModes& other : held[id->family])
        ASSERT_FALSE(conflict(modes, other))
            << "family " << id->family.v << " held against the rule at revision " << r;
      held[id->family].push_back(modes);
    }
  }
}

inline bool stands(sim::SimKvServer& server, const std::string& key) {
  return !server.range(meta::RangeOp{key, {}}, {})->kvs.empty();
}
inline std::size_t keys_under(sim::SimKvServer& server, const std::string& prefix) {
  return server.range({prefix, meta::prefix_end(prefix)}, {})->kvs.size();
}

}  // namespace etcfs::cluster::test

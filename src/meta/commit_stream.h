// The commit stream: the ordered, guarded way of a node's structural changes into etcd (design
// section 4; I1, I2, I7). Steps are numbered from the value of seq/<node> on; one flusher fiber sends
// the longest prefix that fits a transaction, one transaction in flight. An unknown outcome is resolved
// by reading epoch/<node> and seq/<node>: since seq counts steps, a late arrival of a first try and a
// regrouped second try cannot be mistaken for each other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "meta/guard.h"
#include "meta/kv.h"
#include "rt/rt.h"

namespace etcfs::meta {

struct Mutation {
  std::string key;
  std::optional<std::string> value;   // nullopt = delete
};

// One atomic change. Must fit one transaction (asserted against limits); on_commit runs on the
// runtime thread after it has committed, in order, must not block; it never runs once fenced.
struct Step {
  std::vector<Mutation> mutations;
  std::function<void()> on_commit;
  void put(std::string key, std::string value) {
    mutations.push_back({std::move(key), std::move(value)});
  }
  void erase(std::string key) { mutations.push_back({std::move(key), std::nullopt}); }
};

class CommitStream {
 public:
  struct Limits {
    std::size_t txn_ops = 120;              // found by probe_limits(); etcd's default allows 128
    std::size_t txn_bytes = 1'000'000;      // below etcd's 1.5 MiB request limit
    std::size_t queued_steps = 20'000;      // beyond: wait_room() blocks
    std::size_t queued_bytes = 32u << 20;
  };
  struct Counters {
    std::uint64_t transactions = 0, steps = 0, mutations = 0, folded = 0, unknown = 0;
  };

  CommitStream(Kv& kv, const Keys& keys, const Guard& guard, Limits limits);
  ~CommitStream();

  void start(StepNo last_committed);        // value of seq/<node>; spawns the flusher
  void stop();                              // blocks until all is committed, or fenced; no appends after

  // Blocks while the stream is full. Every operation calls it before it looks at any state.
  Result<void> wait_room();                 // kFenced, kShutdown
  // Never blocks, never fails; after fencing the step goes nowhere. Folding: a key may occur in many
  // steps; within one step at most once.
  StepNo append(Step step);
  // Blocks until the step has committed. kFenced if it never will.
  Result<void> wait_committed(StepNo step);
  Result<void> sync() { return wait_committed(last_appended()); }

  StepNo last_appended() const;
  StepNo last_committed() const;
  bool fenced() const;
  // Somebody else has learnt that the epoch is over: from here on as if the stream had.
  void fence_now();
  void on_fenced(std::function<void()> fn); // runs once, on the runtime thread, must not block
  const Counters& counters() const;
  const Limits& limits() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// Tries with transactions that do nothing how many operations this server allows; at most `most`.
Result<std::size_t> probe_txn_ops(Kv& kv, const Keys& keys, std::size_t most, Time deadline);

}  // namespace etcfs::meta

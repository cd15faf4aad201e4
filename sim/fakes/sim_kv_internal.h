// What SimKvServer and SimKv share: a node's connection and its watches. Included by them alone.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/fakes/sim_kv.h"

namespace etcfs::sim {

inline bool in_range(const std::string& key, const std::string& end, const std::string& k) {
  if (end.empty()) return k == key;
  return k >= key && (end == std::string_view("\0", 1) || k < end);
}

// Outlives the SimKv while requests of it are under way.
struct SimKvLink {
  SimKvOptions options;
  bool partitioned = false;

  Nanos latency(rt::Runtime& runtime) const {
    auto spread = static_cast<std::uint64_t>((options.latency_max - options.latency_min).count());
    return options.latency_min + Nanos(runtime.random_below(spread + 1));
  }
};

struct SimWatchState {
  SimKvServer& server;
  rt::Group& group;
  std::shared_ptr<SimKvLink> link;
  std::string key, end;
  std::function<void(const meta::WatchBatch&)> on_batch;
  std::function<void()> on_lost;
  std::int64_t next = 0;   // revision of the next event
  bool cancelled = false;  // nothing may be called any more
  bool behind = false;     // began in the past: etcd catches it up ten times a second
  bool lost = false;       // events it has not seen were compacted away while it was cut off
  std::deque<meta::WatchBatch> queue{};
  rt::Condition changed{};

  bool connected() const { return !link->partitioned && server.available_; }
  bool dead() const { return cancelled || group.killed(); }

  static void pump(const std::shared_ptr<SimWatchState>& self);  // fiber of the node's group

 private:
  meta::WatchBatch collect();
};

}  // namespace etcfs::sim

// The state of Membership, shared by its parts: membership.cc (beats, lease, leave),
// membership_join.cc and membership_peers.cc (watching and fencing others).
#pragma once

#include "cluster/membership.h"

namespace etcfs::cluster {

struct Membership::Impl {
  // What beat/<node> says, and when by our own clock we saw it move last.
  struct Peer {
    Epoch epoch;
    Revision beat;
    Time seen{};
  };
  // What stands in etcd under our own name before we join.
  struct Standing {
    Epoch epoch;  // 0: none yet
    std::optional<meta::Beat> beat;
    Revision beat_revision;
    bool fence_intent = false;
    Time asked{}, answered{};
  };

  Impl(meta::Kv& kv_in, const meta::Keys& keys_in, NodeName node_in, HostIdentity host_in,
       MembershipOptions options_in)
      : kv(kv_in),
        keys(keys_in),
        node(std::move(node_in)),
        host(std::move(host_in)),
        options(std::move(options_in)),
        margin(options.ttl / 10) {}

  // membership_join.cc; all block
  Result<Joined> join(Time limit);
  Result<Standing> look(Time limit);
  bool provably_gone(const meta::Beat& beat) const;
  enum class Taken { kYes, kNo, kUnsure };
  Taken take(const Standing& standing, Joined& joined, Reason& why);

  // membership.cc
  void start();          // blocks
  void stop();           // blocks
  Result<void> leave();  // blocks
  void beat_loop();      // fibers
  void beat_once();
  void lease_loop();
  Result<void> renew_lease();  // blocks
  bool pause(Nanos duration);  // blocks; false: stopping or fenced
  void note_beat(Time begin, Time end);
  void fence_self();  // another node has raised our epoch
  void learn_epoch(const NodeName& name, Epoch seen);
  meta::Beat own_beat() const;

  // membership_peers.cc
  void observe_loop();  // fibers
  void fence_loop();
  Result<void> load_peers();  // blocks; also starts the watches
  void apply_beat(const meta::KeyValue& kv, bool deleted);
  void apply_epoch(const meta::KeyValue& kv);
  std::optional<NodeName> silent_peer() const;
  void fence(const NodeName& name);  // blocks

  // set once
  meta::Kv& kv;
  const meta::Keys& keys;
  const NodeName node;
  const HostIdentity host;
  const MembershipOptions options;
  const Nanos margin;
  std::optional<meta::Guard> guard;  // from join on
  std::vector<std::function<void(const NodeName&, Epoch)>> raised_fns;
  std::vector<std::function<void()>> fenced_fns;

  Epoch epoch, proven_from;  // see Beat
  std::int64_t lease = 0;
  // Own proven beats: start of the last one, and since when none was more than TTL/2 after another.
  Time last_beat{}, steady_since{};
  bool fenced = false, leaving = false, stopping = false;
  std::map<NodeName, Peer> peers;  // whose beat stands, without us
  std::map<NodeName, Epoch> epochs;
  bool loaded = false, watch_lost = false;
  Revision peers_revision;
  std::unique_ptr<meta::Watch> beat_watch, epoch_watch;
  rt::Condition wake;  // stopping, fenced, loaded, watch_lost
  std::optional<rt::Group> group;
};

}  // namespace etcfs::cluster

// Membership: epochs, beats, joining, leaving and fencing (design section 9, in the form of the first
// issue: no suspension, quarantine proofs by agents or grace yet).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "meta/guard.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"
#include "rt/rt.h"

namespace etcfs::cluster {

// Who we are, as far as it proves that a predecessor is gone.
struct HostIdentity {
  std::string boot_id, machine_id;
  std::uint64_t device_dev = 0, device_ino = 0;
  // True when the OFD lock on the device descriptor at this node's offset was taken: every process of
  // that node name on this device node is gone and its requests have ended.
  bool device_lock_taken = false;
};

struct MembershipOptions {
  Nanos ttl = std::chrono::seconds(3);
  Nanos beat_interval = std::chrono::milliseconds(500);
  std::string version, address, host, mountpoint;
};

class Membership {
 public:
  Membership(meta::Kv& kv, const meta::Keys& keys, NodeName node, HostIdentity host,
             MembershipOptions options);
  ~Membership();

  struct Joined {
    Epoch epoch;
    StepNo seq;                          // value of seq/<node>
    std::vector<Epoch> proven_dead;      // older epochs of this name whose writes have provably ended
  };
  // Takes the next epoch in one transaction. Waits for the TTL where a predecessor is neither provably
  // gone nor seen alive. kBusy: a process of this name is alive (its beat moved). Blocks.
  Result<Joined> join(Time deadline);
  // Beats, watches, fencing of others. Blocks, at most a TTL, until the others are known and there is
  // a lease; both come by themselves later where etcd is slow.
  void start();
  // One transaction that drops beat and live and raises the epoch: frees all locks. After the commit
  // stream has stopped. Blocks.
  Result<void> leave();
  void stop();                           // ends the fibers without leaving

  Epoch epoch() const;
  std::int64_t lease() const;            // for want/ and live/ keys; 0 until start()
  Time deadline() const;                 // start of the last proven beat + TTL - margin
  // False only when the epoch is certainly no longer the node's current one.
  bool is_current(const NodeName& node, Epoch epoch) const;
  // Latest known epoch of every node whose beat stands.
  std::map<NodeName, Epoch> members() const;
  // fn(node) runs on the runtime thread, must not block, whenever an epoch/ key was seen to rise.
  void on_epoch_raised(std::function<void(const NodeName&, Epoch)> fn);
  void on_fenced(std::function<void()> fn);   // our own epoch was raised by another

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::cluster

// Node: the object graph of one node: membership, commit stream, locks, space, filesystem. The daemon
// and the simulator build the same one; it knows neither FUSE nor gRPC nor io_uring.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "block/device.h"
#include "cluster/lock_service.h"
#include "cluster/membership.h"
#include "fs/cache/kernel_cache.h"
#include "fs/filesystem.h"
#include "meta/commit_stream.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"

namespace etcfs::daemon {

struct NodeConfig {
  std::string fs_name;
  NodeName name;
  cluster::HostIdentity host;
  cluster::MembershipOptions membership;
  cluster::LockService::Options locks;
  fs::FsOptions fs;
  Nanos start_timeout = std::chrono::seconds(30);
  std::size_t txn_ops_most = 4096;   // upper bound for the probe of etcd's limit
};

class Node {
 public:
  Node(meta::Kv& kv, block::Device& device, fs::KernelCache& kernel, NodeConfig config);
  ~Node();

  // Reads super, joins, starts everything top-down. Blocks. kNotFound: no such filesystem; kBusy: a
  // live process has this node name.
  Result<void> start();
  // Flushes, releases locks, gives arenas back, leaves; in reverse order. Blocks. Also after fencing
  // (then nothing more reaches etcd).
  // An error: some data could not be written back, and is lost.
  Result<void> stop();
  void on_fenced(std::function<void()> fn);  // before start(); runs once, must not block
  bool fenced() const;

  fs::Filesystem& fs();
  const meta::Super& super() const;
  cluster::Membership& membership();
  meta::CommitStream& stream();
  cluster::LockService& locks();
  block::Space& space();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::daemon

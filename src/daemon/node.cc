#include "daemon/node.h"

#include "base/log.h"
#include "block/space.h"
#include "meta/guard.h"

namespace etcfs::daemon {

struct Node::Impl {
  Impl(meta::Kv& kv, block::Device& device, fs::KernelCache& kernel, NodeConfig config)
      : kv(kv),
        device(device),
        kernel(kernel),
        config(std::move(config)),
        keys(this->config.fs_name) {}

  meta::Kv& kv;
  block::Device& device;
  fs::KernelCache& kernel;
  NodeConfig config;
  meta::Keys keys;
  meta::Super super;
  std::unique_ptr<cluster::Membership> membership;
  std::unique_ptr<meta::Guard> guard;
  std::unique_ptr<meta::CommitStream> stream;
  std::unique_ptr<cluster::LockService> locks;
  std::unique_ptr<block::Space> space;
  std::unique_ptr<fs::Filesystem> fs;
  std::function<void()> fenced_fn;
  bool fenced = false;
  bool started = false;

  void on_fenced() {
    if (fenced) return;
    fenced = true;
    ETCFS_LOG_WARN("this node was fenced: nothing it still has reaches the cluster",
                   log::field("node", config.name), log::field("epoch", guard->epoch().v));
    if (fenced_fn) fenced_fn();
  }

  Result<void> load_super() {
    ETCFS_TRY(auto reply,
              kv.range({.key = keys.super()}, Revision{}, rt::now() + config.start_timeout));
    if (reply.kvs.empty()) return Reason::kNotFound;
    ETCFS_TRY(super, meta::decode_super(reply.kvs[0].value));
    if (super.format_version != 1 || super.incompatible_features != 0) return Reason::kNotSupported;
    return {};
  }

  Result<void> start() {
    ETCFS_CHECK(load_super());
    // Before the join: from then on the first beat must not be late.
    meta::CommitStream::Limits limits;
    ETCFS_TRY(std::size_t ops,
              meta::probe_txn_ops(kv, keys, config.txn_ops_most, rt::now() + config.start_timeout));
    limits.txn_ops = ops;
    membership = std::make_unique<cluster::Membership>(kv, keys, config.name, config.host,
                                                       config.membership);
    ETCFS_TRY(auto joined, membership->join(rt::now() + config.start_timeout));
    guard = std::make_unique<meta::Guard>(keys, config.name, joined.epoch);
    membership->on_fenced([this] {
      if (stream) stream->fence_now();
      on_fenced();
    });
    stream = std::make_unique<meta::CommitStream>(kv, keys, *guard, limits);
    stream->on_fenced([this] { on_fenced(); });
    stream->start(joined.seq);
    membership->start();
    locks = std::make_unique<cluster::LockService>(kv, keys, *guard, *stream, *membership,
                                                   config.locks);
    space = std::make_unique<block::Space>(kv, keys, *guard, *stream, super);
    ETCFS_CHECK(space->start(joined.proven_dead));
    fs = std::make_unique<fs::Filesystem>(fs::Filesystem::Deps{.kv = kv,
                                                               .keys = keys,
                                                               .guard = *guard,
                                                               .stream = *stream,
                                                               .membership = *membership,
                                                               .locks = *locks,
                                                               .space = *space,
                                                               .device = device,
                                                               .kernel = kernel,
                                                               .super = super},
                                          config.fs);
    ETCFS_CHECK(locks->start());
    ETCFS_CHECK(fs->start());
    started = true;
    ETCFS_LOG_INFO("node started", log::field("node", config.name),
                   log::field("epoch", joined.epoch.v), log::field("txn_ops", ops));
    return {};
  }

  Result<void> stop() {
    Result<void> written;
    if (fs) written = fs->stop();
    if (locks && !fenced) locks->release_all();
    if (space && !fenced) space->give_back();
    if (locks) locks->stop();
    if (stream) {
      stream->stop();
      const auto& n = stream->counters();
      ETCFS_LOG_INFO("commit stream ended", log::field("transactions", n.transactions),
                     log::field("steps", n.steps), log::field("mutations", n.mutations),
                     log::field("folded", n.folded), log::field("unknown", n.unknown));
    }
    if (membership) {
      if (started && !fenced) {
        if (auto r = membership->leave(); !r)
          ETCFS_LOG_WARN("could not leave cleanly; the others wait for one TTL",
                         log::field("reason", reason_name(r.error())));
      }
      membership->stop();
    }
    return written;
  }
};

Node::Node(meta::Kv& kv, block::Device& device, fs::KernelCache& kernel, NodeConfig config)
    : impl_(std::make_unique<Impl>(kv, device, kernel, std::move(config))) {}

// Bottom-up, whatever of it stands.
Node::~Node() {
  impl_->fs.reset();
  impl_->space.reset();
  impl_->locks.reset();
  impl_->stream.reset();
  impl_->membership.reset();
}

Result<void> Node::start() {
  auto r = impl_->start();
  if (!r) (void)impl_->stop();
  return r;
}
Result<void> Node::stop() { return impl_->stop(); }
void Node::on_fenced(std::function<void()> fn) { impl_->fenced_fn = std::move(fn); }
bool Node::fenced() const { return impl_->fenced; }
fs::Filesystem& Node::fs() { return *impl_->fs; }
const meta::Super& Node::super() const { return impl_->super; }
cluster::Membership& Node::membership() { return *impl_->membership; }
meta::CommitStream& Node::stream() { return *impl_->stream; }
cluster::LockService& Node::locks() { return *impl_->locks; }
block::Space& Node::space() { return *impl_->space; }

}  // namespace etcfs::daemon

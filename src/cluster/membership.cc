// Our own life: beats, the lease, leaving. A beat is sent every interval whether or not earlier
// ones have been answered: a lost reply then costs one interval, not a timeout. All carry the
// guard, so a late one changes nothing that matters.
#include "cluster/membership.h"

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"
#include "cluster/membership_impl.h"

namespace etcfs::cluster {

using log::field;

namespace {
constexpr std::chrono::seconds kLeaseTtl{10};
}

meta::Beat Membership::Impl::own_beat() const {
  return {epoch, host.boot_id, host.machine_id, host.device_dev, host.device_ino, proven_from};
}

bool Membership::Impl::pause(Nanos duration) {
  return !wake.wait_until(rt::now() + duration, [&] { return stopping || fenced; });
}

void Membership::Impl::start() {
  ETCFS_ASSERT(guard && !group);
  group.emplace(rt::Runtime::current(), "membership");
  group->spawn([this] { beat_loop(); });
  group->spawn([this] { observe_loop(); });
  group->spawn([this] { fence_loop(); });
  group->spawn([this] { lease_loop(); });
  // Best effort: without them others' dead records count as live, and wants stand without a lease.
  wake.wait_until(rt::now() + options.ttl,
                  [&] { return stopping || fenced || (loaded && lease != 0); });
}

void Membership::Impl::stop() {
  stopping = true;
  wake.notify_all();
  if (group) group->wait();
  beat_watch.reset();
  epoch_watch.reset();
}

void Membership::Impl::beat_loop() {
  while (pause(options.beat_interval)) group->spawn([this] { beat_once(); });
}

void Membership::Impl::beat_once() {
  meta::Txn txn;
  txn.compares.push_back(guard->compare());
  txn.success.emplace_back(meta::PutOp{keys.beat(node), meta::encode(own_beat()), 0});
  txn.failure.emplace_back(guard->read());
  const Time begin = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, begin + options.ttl);
  if (!outcome.done()) return;
  if (outcome.reply.succeeded) return note_beat(begin, rt::now());
  fence_self();
}

void Membership::Impl::note_beat(Time begin, Time end) {
  if (begin <= last_beat) return;
  // Between two beats etcd may have served nobody from the start of one to the end of the other.
  if (end - last_beat > options.ttl / 2) steady_since = end;
  last_beat = begin;
}

void Membership::Impl::fence_self() {
  if (fenced || leaving) return;
  fenced = true;
  ETCFS_LOG_WARN("this node was fenced", field("node", node), field("epoch", epoch.v));
  wake.notify_all();
  auto fns = std::move(fenced_fns);
  for (auto& fn : fns) fn();
}

void Membership::Impl::learn_epoch(const NodeName& name, Epoch seen) {
  Epoch& known = epochs[name];
  if (seen <= known) return;
  known = seen;
  if (name == node) {
    if (seen > epoch) fence_self();
    return;
  }
  for (auto& fn : raised_fns) fn(name, seen);
}

void Membership::Impl::lease_loop() {
  while (true) {
    const Result<void> renewed = renew_lease();
    if (lease != 0) wake.notify_all();
    if (!pause(renewed ? Nanos(kLeaseTtl) / 3 : Nanos(500ms))) return;
  }
}

// Keeps the lease, or grants another and puts live/<me> on it.
Result<void> Membership::Impl::renew_lease() {
  const Time limit = rt::now() + Nanos(kLeaseTtl) / 3;
  if (lease != 0) {
    const Result<void> kept = kv.lease_keepalive(lease, limit);
    if (kept || kept.error() != Reason::kNotFound) return kept;
    ETCFS_LOG_WARN("lease expired", field("node", node));
    lease = 0;
  }
  ETCFS_TRY(const std::int64_t granted, kv.lease_grant(kLeaseTtl, limit));
  meta::Live live;
  live.epoch = epoch;
  live.host = options.host;
  live.address = options.address;
  live.version = options.version;
  live.mountpoint = options.mountpoint;
  live.started = rt::Runtime::current().wall_now();
  meta::Txn txn;
  txn.compares.push_back(guard->compare());
  txn.success.emplace_back(meta::PutOp{keys.live(node), meta::encode(live), granted});
  lease = granted;
  const meta::TxnOutcome outcome = kv.txn(txn, limit);  // for people and tools only
  if (!outcome.done()) ETCFS_LOG_DEBUG("live key not put", field("node", node));
  return {};
}

// Beats go on until the leave has committed, so that a slow one is not taken for a death.
Result<void> Membership::Impl::leave() {
  if (fenced) return Reason::kFenced;
  leaving = true;
  meta::Txn txn;
  txn.compares.push_back(guard->compare());
  txn.success.emplace_back(
      meta::PutOp{keys.epoch(node), meta::encode_epoch(Epoch{epoch.v + 1}), 0});
  txn.success.emplace_back(meta::DeleteOp{keys.beat(node), {}});
  txn.success.emplace_back(meta::DeleteOp{keys.live(node), {}});
  txn.failure.emplace_back(meta::RangeOp{keys.beat(node), {}});
  const Time limit = rt::now() + 4 * options.ttl;
  while (true) {
    meta::TxnOutcome outcome = kv.txn(txn, rt::now() + options.ttl / 2);
    if (outcome.done()) {
      bool left = outcome.reply.succeeded;
      if (!left) {  // an earlier try was applied, if our beat is gone; a fencer leaves it
        const auto* beats = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(0).v);
        left = beats && beats->kvs.empty();
      }
      if (!left) return Reason::kFenced;
      stop();
      if (lease != 0) (void)kv.lease_revoke(lease, rt::now() + options.ttl / 2);
      lease = 0;
      return {};
    }
    if (rt::now() >= limit) {
      leaving = false;
      return outcome.reason;
    }
    rt::sleep_for(50ms);
  }
}

Membership::Membership(meta::Kv& kv, const meta::Keys& keys, NodeName node, HostIdentity host,
                       MembershipOptions options)
    : impl_(
          std::make_unique<Impl>(kv, keys, std::move(node), std::move(host), std::move(options))) {}

// Without stop() this is a crash.
Membership::~Membership() {
  if (impl_->group) impl_->group->kill();
}

Result<Membership::Joined> Membership::join(Time deadline) { return impl_->join(deadline); }
void Membership::start() { impl_->start(); }
Result<void> Membership::leave() { return impl_->leave(); }
void Membership::stop() { impl_->stop(); }
Epoch Membership::epoch() const { return impl_->epoch; }
std::int64_t Membership::lease() const { return impl_->lease; }
Time Membership::deadline() const { return impl_->last_beat + impl_->options.ttl - impl_->margin; }

bool Membership::is_current(const NodeName& node, Epoch epoch) const {
  const auto it = impl_->epochs.find(node);
  return it == impl_->epochs.end() || epoch >= it->second;
}

std::map<NodeName, Epoch> Membership::members() const {
  std::map<NodeName, Epoch> out;
  for (const auto& [name, peer] : impl_->peers)
    if (is_current(name, peer.epoch)) out.emplace(name, peer.epoch);
  if (impl_->epoch.v != 0 && !impl_->fenced) out.emplace(impl_->node, impl_->epoch);
  return out;
}

void Membership::on_epoch_raised(std::function<void(const NodeName&, Epoch)> fn) {
  impl_->raised_fns.push_back(std::move(fn));
}
void Membership::on_fenced(std::function<void()> fn) {
  if (impl_->fenced) return fn();
  impl_->fenced_fns.push_back(std::move(fn));
}

}  // namespace etcfs::cluster

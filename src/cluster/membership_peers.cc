// Watching the others and fencing the dead (design section 9, "Fencing"). A peer is silent when by
// our own clock a TTL has passed since its beat moved last, and in that time our own proven beats
// were never more than TTL/2 apart: after a common outage nobody fences. The fence compares epoch
// and mod_revision of the beat, so late watches and late duplicates only make it fail; the failure
// branch then tells what is true. A fencer raises the epoch and leaves the beat: it names an older
// epoch from then on, which nobody fences again, and says where that epoch ran, for the proof that
// its writes have ended.
#include <algorithm>

#include "base/log.h"
#include "cluster/membership_impl.h"

namespace etcfs::cluster {

using log::field;
using meta::Compare;

void Membership::Impl::observe_loop() {
  while (!stopping && !fenced) {
    beat_watch.reset();
    epoch_watch.reset();
    watch_lost = false;
    if (!load_peers()) {
      if (!pause(200ms)) return;
      continue;
    }
    loaded = true;
    wake.notify_all();
    wake.wait([&] { return stopping || fenced || watch_lost; });
  }
}

Result<void> Membership::Impl::load_peers() {
  const std::string beats = keys.all("beat"), raises = keys.all("epoch");
  meta::Txn txn;
  txn.success.emplace_back(meta::RangeOp{raises, meta::prefix_end(raises)});
  txn.success.emplace_back(meta::RangeOp{beats, meta::prefix_end(beats)});
  const Time limit = rt::now() + options.ttl;
  meta::TxnOutcome outcome = kv.txn(txn, limit);
  if (!outcome.done()) return outcome.reason;
  const auto* epoch_reply = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(0).v);
  const auto* beat_reply = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(1).v);
  if (!epoch_reply || !beat_reply) return Reason::kCorrupt;
  for (const meta::KeyValue& kv_seen : epoch_reply->kvs) apply_epoch(kv_seen);
  std::map<NodeName, Peer> before = std::move(peers);
  peers.clear();
  for (const meta::KeyValue& seen : beat_reply->kvs) {
    apply_beat(seen, false);
    const auto name = keys.parse_node("beat", seen.key);
    if (!name) continue;
    const auto now_there = peers.find(*name);
    const auto was = before.find(*name);
    if (now_there != peers.end() && was != before.end() && was->second.beat == seen.mod_revision)
      now_there->second.seen = was->second.seen;
  }
  const Revision next{outcome.reply.revision.v + 1};
  const auto lost = [this] {
    watch_lost = true;
    wake.notify_all();
  };
  ETCFS_TRY(epoch_watch, kv.watch(
                             raises, meta::prefix_end(raises), next,
                             [this](const meta::WatchBatch& batch) {
                               for (const auto& e : batch.events)
                                 if (e.type == meta::WatchEvent::Type::kPut) apply_epoch(e.kv);
                             },
                             lost, limit));
  ETCFS_TRY(beat_watch, kv.watch(
                            beats, meta::prefix_end(beats), next,
                            [this](const meta::WatchBatch& batch) {
                              for (const auto& e : batch.events)
                                apply_beat(e.kv, e.type == meta::WatchEvent::Type::kDelete);
                            },
                            lost, limit));
  return {};
}

void Membership::Impl::apply_epoch(const meta::KeyValue& seen) {
  const auto name = keys.parse_node("epoch", seen.key);
  const Result<Epoch> value = meta::decode_epoch(seen.value);
  if (name && value) return learn_epoch(*name, *value);
  ETCFS_LOG_WARN("unreadable epoch record", field("key", seen.key));
}

void Membership::Impl::apply_beat(const meta::KeyValue& seen, bool deleted) {
  const auto name = keys.parse_node("beat", seen.key);
  if (!name || *name == node) return;
  const auto known = peers.find(*name);
  if (known != peers.end() && known->second.beat >= seen.mod_revision) return;  // a read was faster
  if (deleted) {
    peers.erase(*name);
    return;
  }
  const Result<meta::Beat> beat = meta::decode_beat(seen.value);
  if (!beat) {
    ETCFS_LOG_WARN("unreadable beat", field("key", seen.key));
    return;
  }
  peers[*name] = {beat->epoch, seen.mod_revision, rt::now()};
}

void Membership::Impl::fence_loop() {
  while (pause(options.ttl / 15)) {
    while (!stopping && !fenced && !leaving) {
      const auto silent = silent_peer();
      if (!silent) break;
      const Time before = rt::now();
      fence(*silent);
      if (rt::now() - before < 10ms && !pause(10ms)) return;
    }
  }
}

std::optional<NodeName> Membership::Impl::silent_peer() const {
  const Time now = rt::now();
  if (now - last_beat > options.ttl / 2) return std::nullopt;
  for (const auto& [name, peer] : peers) {
    const auto known = epochs.find(name);
    if (known != epochs.end() && peer.epoch < known->second) continue;  // fenced already
    if (now - std::max(peer.seen, steady_since) >= options.ttl) return name;
  }
  return std::nullopt;
}

void Membership::Impl::fence(const NodeName& name) {
  const Peer peer = peers.at(name);
  meta::Txn txn;
  Compare same_epoch, same_beat;
  same_epoch.target = Compare::Target::kValue;
  same_epoch.key = keys.epoch(name);
  same_epoch.value = meta::encode_epoch(peer.epoch);
  same_beat.key = keys.beat(name);
  same_beat.number = peer.beat.v;
  txn.compares = {guard->compare(), std::move(same_epoch), std::move(same_beat)};
  txn.success.emplace_back(
      meta::PutOp{keys.epoch(name), meta::encode_epoch(Epoch{peer.epoch.v + 1}), 0});
  txn.failure.emplace_back(meta::RangeOp{keys.epoch(node), {}});
  txn.failure.emplace_back(meta::RangeOp{keys.epoch(name), {}});
  txn.failure.emplace_back(meta::RangeOp{keys.beat(name), {}});
  meta::TxnOutcome outcome = kv.txn(txn, rt::now() + options.ttl / 2);
  if (!outcome.done()) return;  // if it was applied, the next try learns so
  if (outcome.reply.succeeded) {
    ETCFS_LOG_WARN("fenced a silent node", field("node", name), field("epoch", peer.epoch.v),
                   field("by", node));
    return learn_epoch(name, Epoch{peer.epoch.v + 1});
  }
  for (std::size_t i = 0; i < 2; ++i)
    if (const auto* r = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(i).v))
      for (const meta::KeyValue& seen : r->kvs) apply_epoch(seen);
  const auto* beats = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(2).v);
  if (!beats) return;
  const auto known = peers.find(name);
  if (beats->kvs.empty()) {
    if (known != peers.end()) peers.erase(known);
  } else if (known != peers.end() && known->second.beat == beats->kvs[0].mod_revision) {
    known->second.seen = rt::now();  // its epoch moved, not its beat: do not ask again at once
  } else {
    apply_beat(beats->kvs[0], false);
  }
}

}  // namespace etcfs::cluster

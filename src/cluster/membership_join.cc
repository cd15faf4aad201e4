// Joining: one transaction takes the next epoch under our name and puts the first beat (design
// section 9). It compares epoch/<me>, beat/<me> and the absence of fence/<me>, so of two processes
// of one name that both think the predecessor dead only one gets in, and a predecessor that beats
// in the last moment keeps the name.
//
// What stands under beat/<me> says what the predecessor was:
//   absent                      left cleanly, or never was: join at once, its writes have ended
//   of an older epoch           fenced (a fencer leaves the beat, it says where that epoch ran):
//   join at
//                               once; its writes have ended only if the host proves it
//   of the present epoch        alive or just dead: proof by the host, or silence for a TTL during
//   which
//                               etcd took writes all the time; if it moves, it lives: kBusy
#include <algorithm>

#include "base/log.h"
#include "cluster/membership_impl.h"

namespace etcfs::cluster {

using log::field;
using meta::Compare;

Result<Membership::Joined> Membership::Impl::join(Time limit) {
  Epoch seen_epoch;
  Revision seen_beat;
  Time silent_since{}, last_asked{};
  Reason why = Reason::kTimeout;
  bool waiting_logged = false;
  while (rt::now() < limit) {
    Result<Standing> got = look(limit);
    if (!got && got.error() == Reason::kCorrupt) return Reason::kCorrupt;
    if (!got) {
      why = got.error();
      rt::sleep_for(100ms);
      continue;
    }
    const Standing& s = *got;
    const bool held = s.beat && s.beat->epoch >= s.epoch;
    if (held && s.epoch == seen_epoch && s.beat_revision != seen_beat) return Reason::kBusy;
    if (s.epoch != seen_epoch || seen_beat != s.beat_revision ||
        s.answered - last_asked > options.ttl / 2)
      silent_since = s.answered;  // also where we could not look for long: nobody else could beat
    seen_epoch = s.epoch;
    seen_beat = s.beat_revision;
    last_asked = s.asked;
    const bool free = !held || provably_gone(*s.beat) || s.asked - silent_since >= options.ttl;
    if (free && !s.fence_intent) {
      Joined joined;
      if (take(s, joined, why) == Taken::kYes) return joined;
      if (why == Reason::kCorrupt) return why;
      continue;  // look again: lost a race, or the outcome is unknown
    }
    why = s.fence_intent ? Reason::kBusy : Reason::kTimeout;
    if (!waiting_logged)
      ETCFS_LOG_INFO("waiting to join: a predecessor of this name is not proven gone",
                     field("node", node), field("epoch", s.epoch.v),
                     field("fence_intent", s.fence_intent));
    waiting_logged = true;
    rt::sleep_for(options.ttl / 12);
  }
  return why;
}

// Asks through a transaction that could put: under etcd's NOSPACE alarm it is refused like a beat,
// so that a silence during the alarm proves nothing.
Result<Membership::Impl::Standing> Membership::Impl::look(Time limit) {
  meta::Txn txn;
  Compare never;
  never.target = Compare::Target::kVersion;
  never.op = Compare::Op::kLess;
  never.key = keys.epoch(node);
  txn.compares.push_back(std::move(never));
  txn.success.emplace_back(meta::PutOp{keys.beat(node), {}, 0});
  txn.failure.emplace_back(meta::RangeOp{keys.epoch(node), {}});
  txn.failure.emplace_back(meta::RangeOp{keys.beat(node), {}});
  txn.failure.emplace_back(meta::RangeOp{keys.fence(node), {}});
  Standing s;
  s.asked = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, std::min(limit, s.asked + options.ttl / 2));
  s.answered = rt::now();
  if (!outcome.done()) return outcome.reason;
  if (outcome.reply.succeeded || outcome.reply.ops.size() != 3) return Reason::kCorrupt;
  const auto* epochs = std::get_if<meta::RangeReply>(&outcome.reply.ops[0].v);
  const auto* beats = std::get_if<meta::RangeReply>(&outcome.reply.ops[1].v);
  const auto* fences = std::get_if<meta::RangeReply>(&outcome.reply.ops[2].v);
  if (!epochs || !beats || !fences) return Reason::kCorrupt;
  if (!epochs->kvs.empty()) {
    ETCFS_TRY(s.epoch, meta::decode_epoch(epochs->kvs[0].value));
  }
  if (!beats->kvs.empty()) {
    ETCFS_TRY(s.beat, meta::decode_beat(beats->kvs[0].value));
    s.beat_revision = beats->kvs[0].mod_revision;
  }
  s.fence_intent = !fences->kvs.empty();
  return s;
}

bool Membership::Impl::provably_gone(const meta::Beat& beat) const {
  if (host.machine_id.empty() || beat.machine_id != host.machine_id) return false;
  if (host.boot_id.empty() || beat.boot_id.empty()) return false;
  if (beat.boot_id != host.boot_id) return true;  // the machine has started anew since
  return host.device_lock_taken && beat.device_dev == host.device_dev &&
         beat.device_ino == host.device_ino;
}

// An unknown outcome needs no record: if it was or is applied after all, the next look sees an
// epoch of this host without a process (or a silent one), and takes the epoch after it.
Membership::Impl::Taken Membership::Impl::take(const Standing& s, Joined& joined, Reason& why) {
  const Epoch mine{s.epoch.v + 1};
  meta::Txn txn;
  Compare same_epoch, same_beat, no_intent;
  same_epoch.key = keys.epoch(node);
  if (s.epoch.v == 0) {
    same_epoch.target = Compare::Target::kVersion;
  } else {
    same_epoch.target = Compare::Target::kValue;
    same_epoch.value = meta::encode_epoch(s.epoch);
  }
  same_beat.key = keys.beat(node);
  same_beat.number = s.beat_revision.v;  // 0: absent
  no_intent.target = Compare::Target::kVersion;
  no_intent.key = keys.fence(node);
  txn.compares = {std::move(same_epoch), std::move(same_beat), std::move(no_intent)};
  epoch = proven_from = mine;
  const bool gone = s.beat && provably_gone(*s.beat);
  if (gone) proven_from = s.beat->proven_from;
  txn.success.emplace_back(meta::PutOp{keys.epoch(node), meta::encode_epoch(mine), 0});
  txn.success.emplace_back(meta::PutOp{keys.beat(node), meta::encode(own_beat()), 0});
  txn.success.emplace_back(meta::RangeOp{keys.seq(node), {}});
  const Time begin = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, begin + options.ttl / 2);
  if (!outcome.done()) {
    why = outcome.reason;
    rt::sleep_for(100ms);
    return Taken::kUnsure;
  }
  if (!outcome.reply.succeeded) return Taken::kNo;
  joined.epoch = mine;
  const auto* seq = std::get_if<meta::RangeReply>(&outcome.reply.ops.at(2).v);
  if (seq && !seq->kvs.empty()) {
    const Result<StepNo> number = meta::decode_sequence(seq->kvs[0].value);
    if (!number) {
      why = number.error();
      return Taken::kNo;
    }
    joined.seq = *number;
  }
  if (gone)
    for (Epoch dead = proven_from; dead <= s.beat->epoch; ++dead.v) joined.proven_dead.push_back(dead);
  if (!s.beat && s.epoch.v > 1) joined.proven_dead.push_back(Epoch{s.epoch.v - 1});
  guard.emplace(keys, node, mine);
  epochs[node] = mine;
  last_beat = begin;
  steady_since = begin;
  ETCFS_LOG_INFO("joined", field("node", node), field("epoch", mine.v), field("seq", joined.seq.v));
  return Taken::kYes;
}

}  // namespace etcfs::cluster

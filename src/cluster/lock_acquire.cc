// The driver: one fiber per family while somebody waits for more than is usable. It holds nothing
// while it waits. Its states are what it knows (view), what it means (held, want_meant) and nothing
// else: after any unknown outcome it reads again, and what it finds decides.
//
//   quick   nothing is known of others: one transaction, valid only if the family is free
//   take    by a view as of R: valid only if no lock of the family was put after R
//   want    somebody conflicts, or was there first: ask, then follow lock/<family>/ until it is our
//   turn
#include <algorithm>

#include "base/log.h"
#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

using log::field;

namespace {

constexpr Nanos kFirstRecheck = 50ms, kLastRecheck = 400ms;

Nanos jittered(Nanos d) {
  const auto half = static_cast<std::uint64_t>(d.count() / 2);
  return Nanos(half + rt::Runtime::current().random_below(half + 1)) + d / 4;
}

}  // namespace

void LockService::Impl::drive(Ref& ref) {
  Entry& e = ref.entry();
  Work& w = ref.work();
  Nanos pause = 10ms;
  while (!dead()) {
    settle_waiters(e);
    LockModes wish;
    for (const Waiter* waiter : w.waiters)
      if (!waiter->done) wish = merge(wish, waiter->need);
    if (wish.none()) break;
    if (w.slot || e.stream_pending > 0) {
      w.wake.wait();
      continue;
    }
    Attempt result;
    {
      Slot slot(w);
      result = attempt(e, w, wish);
    }
    if (result == Attempt::kBackOff) {
      rt::sleep_for(jittered(pause));
      pause = std::min<Nanos>(pause * 2, 500ms);
    } else {
      pause = 10ms;
    }
    if (result == Attempt::kWait && !dead())  // nothing blocked since the view was judged
      w.wake.wait_until(w.recheck_at);
  }
  close_watch(w);
  w.view_known = false;
  w.view = {};
  w.passed_over.clear();
  w.behind.reset();
  w.recheck = {};
  drop_want(e, w);
  w.driving = false;
  // A waiter that came while the want was being dropped found a driver; it must have one.
  if (!dead() &&
      std::any_of(w.waiters.begin(), w.waiters.end(), [](const Waiter* x) { return !x->done; }))
    start_driver(e);
}

LockService::Impl::Attempt LockService::Impl::attempt(Entry& e, Work& w, LockModes wish) {
  const LockModes target = merge(e.held, wish);
  if (w.view_known && rt::now() >= w.recheck_at) {
    w.view_known = false;
    w.recheck = std::min<Nanos>(w.recheck * 2, kLastRecheck);
  }
  if (w.watch_lost) {
    w.view_known = false;
    close_watch(w);
  }
  if (!w.view_known) {
    const bool alone = (e.held.none() || e.alone_at.v > 0) && !w.want_meant;
    if (alone && !suspects.contains(e.family) && !has_other_wants(e.family))
      return try_quick(e, w, target);
    if (const Attempt read = read_view(e, w); read != Attempt::kAgain) return read;
  }
  const Verdict verdict = judge(w.view, me, target, is_live, w.passed_over);
  if (verdict.free) return try_take(e, w, target);
  return wait_turn(e, w, verdict, wish);
}

// What a transaction that was not applied, or perhaps was, means for what comes next.
LockService::Impl::Attempt LockService::Impl::not_done(Family family,
                                                       const meta::TxnOutcome& outcome,
                                                       bool record_at_stake) {
  if (outcome.kind == meta::TxnOutcome::Kind::kUnknown) {
    if (record_at_stake) suspects.insert(family);
  } else if (!refusal_logged) {
    refusal_logged = true;
    ETCFS_LOG_WARN("etcd refuses lock transactions; retrying",
                   field("reason", reason_name(outcome.reason)));
  }
  return Attempt::kBackOff;
}

bool LockService::Impl::check_epoch(const meta::OpReply& reply) {
  const auto* r = std::get_if<meta::RangeReply>(&reply.v);
  if (!r) return true;
  if (!r->kvs.empty()) {
    const Result<Epoch> now = meta::decode_epoch(r->kvs[0].value);
    if (now && *now == me.epoch) return true;
  }
  fence();
  return false;
}

// The answers to read_ops() from `first` on. False: fenced or malformed.
bool LockService::Impl::take_view(Work& w, const std::vector<meta::OpReply>& ops, std::size_t first,
                                  Revision at) {
  if (ops.size() < first + 3 || !check_epoch(ops[first])) return false;
  const auto* locks = std::get_if<meta::RangeReply>(&ops[first + 1].v);
  const auto* asked = std::get_if<meta::RangeReply>(&ops[first + 2].v);
  if (!locks || !asked) return false;
  if (!w.synced) w.view.locks_at = {};  // what stood there has a gap before the watch began
  w.view.set_locks(keys, *locks, at);
  w.view.set_wants(keys, *asked, at);
  if (w.watch && !w.synced) {
    w.synced = true;
    for (const meta::WatchBatch& batch : w.pending) follow(w, batch);
    w.pending.clear();
  }
  w.view_known = true;
  if (w.recheck == Nanos{}) w.recheck = kFirstRecheck;
  w.recheck_at = rt::now() + jittered(w.recheck);
  return true;
}

LockService::Impl::Attempt LockService::Impl::read_view(Entry& e, Work& w) {
  meta::Txn txn;
  txn.success = read_ops(e.family);
  const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + kLockTxnDeadline);
  if (!outcome.done()) return not_done(e.family, outcome, false);
  return take_view(w, outcome.reply.ops, 0, outcome.reply.revision) ? Attempt::kAgain
                                                                    : Attempt::kBackOff;
}

LockService::Impl::Attempt LockService::Impl::try_quick(Entry& e, Work& w, LockModes target) {
  const Revision alone{e.held.none() ? 0 : e.alone_at.v};
  meta::Txn txn;
  txn.compares = {guard.compare(), none_newer(keys.family_locks(e.family), alone),
                  none_newer(keys.family_wants(e.family), alone)};
  const Loads loads = add_grant(txn.success, e.family, e.held, target);
  txn.failure = read_ops(e.family);
  const Time begin = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, begin + kLockTxnDeadline);
  ++counters.acquire_txns;
  if (!outcome.done()) return not_done(e.family, outcome, true);
  if (!outcome.reply.succeeded)
    return take_view(w, outcome.reply.ops, 0, outcome.reply.revision) ? Attempt::kAgain
                                                                      : Attempt::kBackOff;
  e.alone_at = outcome.reply.revision;
  granted(e, target, contents_of(outcome.reply.ops, loads), rt::now() - begin, true);
  return Attempt::kGranted;
}

LockService::Impl::Attempt LockService::Impl::try_take(Entry& e, Work& w, LockModes target) {
  constexpr std::size_t kMostVoid = 16;
  meta::Txn txn;
  txn.compares = {guard.compare(), none_newer(keys.family_locks(e.family), w.view.locks_read_at)};
  const Loads loads = add_grant(txn.success, e.family, e.held, target);
  txn.success.emplace_back(meta::DeleteOp{keys.want(e.family, me.node, me.epoch), {}});
  std::size_t voided = 0;
  bool alone = true;
  for (const auto& [id, lock] : w.view.locks) {
    if (id == me) continue;
    if (is_live(id)) {
      alone = false;
    } else if (!lock.in_place &&
               ++voided <= kMostVoid) {  // of a dead epoch: nobody writes it again
      txn.success.emplace_back(meta::DeleteOp{keys.lock(e.family, id.node, id.epoch), {}});
    }
  }
  txn.failure = read_ops(e.family);
  const Time begin = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, begin + kLockTxnDeadline);
  ++counters.acquire_txns;
  if (!outcome.done()) {
    w.view_known = false;  // whether it was applied is read before anything else
    return not_done(e.family, outcome, true);
  }
  if (!outcome.reply.succeeded)
    return take_view(w, outcome.reply.ops, 0, outcome.reply.revision) ? Attempt::kAgain
                                                                      : Attempt::kBackOff;
  w.want_meant = false;
  w.view_known = false;
  e.alone_at = alone ? outcome.reply.revision : Revision{};
  granted(e, target, contents_of(outcome.reply.ops, loads), rt::now() - begin, true);
  return Attempt::kGranted;
}

// The lock is not ours to take now. Sees to it that we have asked, that no record of ours stands
// which memory does not mean, and that the family is being followed.
LockService::Impl::Attempt LockService::Impl::wait_turn(Entry& e, Work& w, const Verdict& verdict,
                                                        LockModes wish) {
  const Time now = rt::now();
  if (verdict.behind != w.behind) {
    w.behind = verdict.behind;
    w.behind_since = now;
  }
  if (w.behind && now - w.behind_since >= options.want_patience) {
    w.passed_over.insert(*w.behind);
    w.behind.reset();
    return Attempt::kAgain;
  }
  const auto own = w.view.locks.find(me);
  if (own != w.view.locks.end() && !(own->second.modes == e.held)) {
    audit_own_lock(e);
    w.view_known = false;
    return Attempt::kAgain;
  }
  const auto asked = w.view.wants.find(me);
  if (asked == w.view.wants.end() || !asked->second.modes.covers(wish))
    if (membership.lease() != 0) return put_want(e, w, wish);
  if (!w.watch) {
    open_watch(e, w);
    return Attempt::kAgain;
  }
  if (w.behind) w.recheck_at = std::min(w.recheck_at, w.behind_since + options.want_patience);
  return Attempt::kWait;
}

LockService::Impl::Attempt LockService::Impl::put_want(Entry& e, Work& w, LockModes wish) {
  meta::Txn txn;
  txn.compares.push_back(guard.compare());
  txn.success = read_ops(e.family);
  txn.success.insert(txn.success.begin(),
                     meta::PutOp{keys.want(e.family, me.node, me.epoch),
                                 meta::encode(record_of(wish)), membership.lease()});
  txn.failure.emplace_back(guard.read());
  if (!w.want_meant) ++counters.waits;
  w.want_meant = true;
  const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + kLockTxnDeadline);
  if (!outcome.done()) {
    w.view_known = false;
    return not_done(e.family, outcome, false);
  }
  if (!outcome.reply.succeeded) {
    if (!outcome.reply.ops.empty()) check_epoch(outcome.reply.ops[0]);
    return Attempt::kBackOff;
  }
  return take_view(w, outcome.reply.ops, 1, outcome.reply.revision) ? Attempt::kAgain
                                                                    : Attempt::kBackOff;
}

// Follows lock/<family>/ from now on; without a watch the re-check timer has to do. Not from the
// view on: etcd catches up a watch that begins in the past only ten times a second. So the view
// must be read once more, and what the watch says meanwhile is kept until then: applied to the old
// view it would hide what happened between the two.
void LockService::Impl::open_watch(Entry& e, Work& w) {
  const std::string prefix = keys.family_locks(e.family);
  auto on_batch = [this, &w](const meta::WatchBatch& batch) {
    if (!w.synced) return w.pending.push_back(batch);
    follow(w, batch);
    if (!batch.events.empty()) w.wake.notify_all();
  };
  auto on_lost = [&w] {
    w.watch_lost = true;
    w.wake.notify_all();
  };
  w.synced = false;
  w.view_known = false;
  auto watch = kv.watch(prefix, meta::prefix_end(prefix), Revision{}, std::move(on_batch),
                        std::move(on_lost), rt::now() + kLockTxnDeadline);
  if (watch)
    w.watch = std::move(*watch);
  else
    rt::sleep_for(jittered(kFirstRecheck));
}

void LockService::Impl::close_watch(Work& w) {
  w.watch.reset();
  w.watch_lost = w.synced = false;
  w.pending.clear();
}

void LockService::Impl::follow(Work& w, const meta::WatchBatch& batch) {
  for (const meta::WatchEvent& event : batch.events) w.view.apply_lock(keys, event);
  w.view.locks_at = std::max(w.view.locks_at, batch.revision);
}

// Best effort; what it misses, audit_own_wants() finds.
void LockService::Impl::drop_want(Entry& e, Work& w) {
  if (!w.want_meant) return;
  w.want_meant = false;
  if (fenced) return;
  meta::Txn txn;
  txn.compares.push_back(guard.compare());
  txn.success.emplace_back(meta::DeleteOp{keys.want(e.family, me.node, me.epoch), {}});
  (void)kv.txn(txn, rt::now() + kLockTxnDeadline);
}

}  // namespace etcfs::cluster

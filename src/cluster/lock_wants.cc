// The mirror of want/ (all of it: few nodes wait at any time), which tells a holder that it is
// asked, and the repair of what stands under our name without being meant: a want or a record that
// a try of unknown outcome has left, possibly applied long after we had given it up. Such a record
// hurts nobody until somebody wants the family, and then its want is in the mirror: that is when we
// look.
#include <algorithm>

#include "base/log.h"
#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

using log::field;

namespace {
constexpr Nanos kAuditInterval = 200ms;
constexpr Nanos kContendedFor = 3s;
}  // namespace

Result<void> LockService::Impl::load_wants() {
  const std::string prefix = keys.all("want");
  const Time limit = rt::now() + 5s;
  ETCFS_TRY(const meta::RangeReply reply,
            kv.range(meta::RangeOp{prefix, meta::prefix_end(prefix)}, Revision{}, limit));
  std::map<Family, Wants> seen;
  for (const meta::KeyValue& found : reply.kvs)
    if (const auto id = keys.parse_want(found.key))
      seen[id->family].insert_or_assign({id->node, id->epoch}, want_of(found));
  wants = std::move(seen);
  wants_at = reply.revision;
  ETCFS_TRY(want_watch, kv.watch(
                            prefix, meta::prefix_end(prefix), Revision{reply.revision.v + 1},
                            [this](const meta::WatchBatch& batch) {
                              for (const meta::WatchEvent& event : batch.events) apply_want(event);
                            },
                            [this] {
                              want_watch_lost = true;
                              wake.notify_all();
                            },
                            limit));
  return {};
}

void LockService::Impl::want_loop() {
  while (true) {
    wake.wait([&] { return dead() || want_watch_lost; });
    if (dead()) return;
    want_watch.reset();
    if (!load_wants()) {
      if (wake.wait_until(rt::now() + 200ms, [&] { return dead(); })) return;
      continue;
    }
    want_watch_lost = false;
    std::vector<Family> asked;
    for (const auto& [family, of_family] : wants) asked.push_back(family);
    for (Family family : asked) check_asked(family);
  }
}

void LockService::Impl::apply_want(const meta::WatchEvent& event) {
  const auto id = keys.parse_want(event.kv.key);
  if (!id || event.kv.mod_revision <= wants_at) return;
  if (event.type == meta::WatchEvent::Type::kPut) {
    wants[id->family].insert_or_assign({id->node, id->epoch}, want_of(event.kv));
  } else if (const auto found = wants.find(id->family); found != wants.end()) {
    found->second.erase({id->node, id->epoch});
    if (found->second.empty()) wants.erase(found);
  }
  if (Entry* e = find(id->family); e && e->work) e->work->view.apply_want(keys, event);
  check_asked(id->family);
}

bool LockService::Impl::has_other_wants(Family family) const {
  const auto found = wants.find(family);
  if (found == wants.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(),
                     [&](const auto& w) { return w.first != me && is_live(w.first); });
}

std::optional<Revision> LockService::Impl::own_arrival(Family family) const {
  const auto found = wants.find(family);
  if (found == wants.end()) return std::nullopt;
  const auto own = found->second.find(me);
  if (own == found->second.end()) return std::nullopt;
  return own->second.arrived;
}

void LockService::Impl::audit_loop() {
  while (!wake.wait_until(rt::now() + kAuditInterval, [&] { return dead(); })) {
    const Time now = rt::now();
    std::erase_if(recent_asks, [&](const auto& a) { return now - a.second > kContendedFor; });
    audit_own_wants();
    std::vector<Family> asked;
    for (const auto& [family, of_family] : wants)
      if (has_other_wants(family)) asked.push_back(family);
    for (Family family : asked) {
      check_asked(family);
      if (dead() || !suspects.contains(family)) continue;
      Ref ref(*this, family);
      Work& w = ref.work();
      if (w.slot || ref.entry().stream_pending > 0) continue;
      Slot slot(w);
      audit_own_lock(ref.entry());
    }
  }
}

// Deletes wants under our name that no driver means.
void LockService::Impl::audit_own_wants() {
  std::vector<std::pair<Family, Revision>> stray;
  for (const auto& [family, of_family] : wants) {
    const auto own = of_family.find(me);
    if (own == of_family.end()) continue;
    const Entry* e = find(family);
    if (!e || !e->work || !e->work->want_meant) stray.emplace_back(family, own->second.mod);
  }
  for (const auto& [family, mod] : stray) {
    const Entry* e = find(family);
    if (e && e->work && e->work->want_meant) continue;
    meta::Compare same;
    same.key = keys.want(family, me.node, me.epoch);
    same.number = mod.v;
    meta::Txn txn;
    txn.success.emplace_back(meta::DeleteOp{same.key, {}});
    txn.compares = {guard.compare(), std::move(same)};
    (void)kv.txn(txn, rt::now() + kLockTxnDeadline);
  }
}

// Makes the record under our name what memory means. The repair compares the record's revision, so
// that a repair applied late changes nothing else.
void LockService::Impl::audit_own_lock(Entry& e) {
  const std::string key = keys.lock(e.family, me.node, me.epoch);
  meta::Txn read;
  read.success.emplace_back(guard.read());
  read.success.emplace_back(meta::RangeOp{key, {}});
  const meta::TxnOutcome seen = kv.txn(read, rt::now() + kLockTxnDeadline);
  if (!seen.done() || !check_epoch(seen.reply.ops.at(0))) return;
  const auto* found = std::get_if<meta::RangeReply>(&seen.reply.ops.at(1).v);
  if (!found || found->kvs.empty() || e.stream_pending > 0) return;
  const Result<meta::LockRecord> record = meta::decode_lock(found->kvs[0].value);
  if (record && modes_of(*record) == e.held) return;
  ETCFS_LOG_INFO("a lock record stands that is not meant; putting it right",
                 field("family", e.family.v), field("node", me.node));
  meta::Compare same;
  same.key = key;
  same.number = found->kvs[0].mod_revision.v;
  meta::Txn repair;
  repair.compares = {guard.compare(), std::move(same)};
  if (e.held.none())
    repair.success.emplace_back(meta::DeleteOp{key, {}});
  else
    repair.success.emplace_back(meta::PutOp{key, meta::encode(record_of(e.held)), 0});
  (void)kv.txn(repair, rt::now() + kLockTxnDeadline);
}

}  // namespace etcfs::cluster

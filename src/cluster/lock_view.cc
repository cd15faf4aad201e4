#include "cluster/lock_view.h"

#include "base/log.h"

namespace etcfs::cluster {
namespace {

constexpr LockModes kAll{LockMode::kExclusive, LockMode::kExclusive};

SeenLock lock_of(const meta::KeyValue& kv) {
  const Result<meta::LockRecord> record = meta::decode_lock(kv.value);
  if (!record) {
    ETCFS_LOG_WARN("unreadable lock record", log::field("key", kv.key));
    return {kAll, true, kv.mod_revision};
  }
  return {modes_of(*record), !record->in_place.empty(), kv.mod_revision};
}

LockMode keep_part(LockMode held, LockMode asked) {
  if (asked == LockMode::kExclusive) return LockMode::kNone;
  if (asked == LockMode::kShared && held == LockMode::kExclusive) return LockMode::kShared;
  return held;
}

}  // namespace

LockModes modes_of(const meta::LockRecord& record) {
  LockModes modes{record.names, LockMode::kNone};
  for (const meta::FileRange& r : record.files) modes.files = stronger(modes.files, r.mode);
  return modes;
}

meta::LockRecord record_of(LockModes modes) {
  meta::LockRecord record;
  record.names = modes.names;
  if (modes.files != LockMode::kNone) record.files.push_back({0, kMaxIndex, modes.files});
  return record;
}

SeenWant want_of(const meta::KeyValue& kv) {
  const Result<meta::LockRecord> record = meta::decode_lock(kv.value);
  return {record ? modes_of(*record) : kAll, kv.create_revision, kv.mod_revision};
}

void FamilyView::set_locks(const meta::Keys& keys, const meta::RangeReply& reply, Revision at) {
  if (at < locks_at) return;
  locks.clear();
  locks_at = locks_read_at = at;
  for (const meta::KeyValue& kv : reply.kvs)
    if (const auto id = keys.parse_lock(kv.key))
      locks.insert_or_assign({id->node, id->epoch}, lock_of(kv));
}

void FamilyView::set_wants(const meta::Keys& keys, const meta::RangeReply& reply, Revision at) {
  if (at < wants_at) return;
  wants.clear();
  wants_at = at;
  for (const meta::KeyValue& kv : reply.kvs)
    if (const auto id = keys.parse_want(kv.key))
      wants.insert_or_assign({id->node, id->epoch}, want_of(kv));
}

void FamilyView::apply_lock(const meta::Keys& keys, const meta::WatchEvent& event) {
  const auto id = keys.parse_lock(event.kv.key);
  if (!id || event.kv.mod_revision <= locks_at) return;
  if (event.type == meta::WatchEvent::Type::kDelete)
    locks.erase({id->node, id->epoch});
  else
    locks.insert_or_assign({id->node, id->epoch}, lock_of(event.kv));
}

void FamilyView::apply_want(const meta::Keys& keys, const meta::WatchEvent& event) {
  const auto id = keys.parse_want(event.kv.key);
  if (!id || event.kv.mod_revision <= wants_at) return;
  if (event.type == meta::WatchEvent::Type::kDelete)
    wants.erase({id->node, id->epoch});
  else
    wants.insert_or_assign({id->node, id->epoch}, want_of(event.kv));
}

LockModes keep_for(LockModes held, LockModes asked) {
  return {keep_part(held.names, asked.names), keep_part(held.files, asked.files)};
}

LockModes keep_for_all(LockModes held, const Wants& wants, const HolderId& me,
                       std::optional<Revision> own_arrived, const IsLive& is_live) {
  LockModes keep = held;
  for (const auto& [id, want] : wants) {
    if (id == me || !is_live(id)) continue;
    if (own_arrived && *own_arrived < want.arrived) continue;
    if (conflict(held, want.modes)) keep = keep_for(keep, want.modes);
  }
  return keep;
}

Verdict judge(const FamilyView& view, const HolderId& me, LockModes target, const IsLive& is_live,
              const PassedOver& passed_over) {
  const auto blocked_by_locks = [&](const HolderId& who, LockModes modes) {
    for (const auto& [id, lock] : view.locks)
      if (id != who && is_live(id) && conflict(modes, lock.modes)) return true;
    return false;
  };
  if (blocked_by_locks(me, target)) return {};
  // A record of ours that already says so: a try whose reply was lost. Nobody else can hold
  // anything.
  if (const auto own = view.locks.find(me);
      own != view.locks.end() && own->second.modes.covers(target))
    return {true, {}};
  const auto own_want = view.wants.find(me);
  const auto older_than = [&](const SeenWant& w, std::optional<Revision> arrived) {
    return !arrived || w.arrived < *arrived;
  };
  std::optional<Revision> own_arrived;
  if (own_want != view.wants.end()) own_arrived = own_want->second.arrived;
  Verdict verdict{true, {}};
  for (const auto& [id, want] : view.wants) {
    if (id == me || !is_live(id) || !older_than(want, own_arrived)) continue;
    if (!conflict(want.modes, target) || passed_over.contains({id, want.arrived})) continue;
    verdict.free = false;
    bool could_take = !blocked_by_locks(id, want.modes);
    for (const auto& [other, older] : view.wants)
      if (other != id && other != me && is_live(other) && older.arrived < want.arrived &&
          conflict(older.modes, want.modes) && !passed_over.contains({other, older.arrived}))
        could_take = false;
    if (could_take) verdict.behind = {{id, want.arrived}};
  }
  return verdict;
}

}  // namespace etcfs::cluster

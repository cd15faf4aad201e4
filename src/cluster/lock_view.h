// What stands in etcd under one family, and the rules that follow from it: pure functions, no I/O.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/ids.h"
#include "cluster/lock_service.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::cluster {

struct HolderId {
  NodeName node;
  Epoch epoch;
  friend auto operator<=>(const HolderId&, const HolderId&) = default;
};
struct SeenLock {
  LockModes modes;
  bool in_place = false;  // carries in-place marks: not removed by whoever comes next
  Revision mod;
};
struct SeenWant {
  LockModes modes;
  Revision arrived, mod;  // arrived: create_revision, the order in which askers are served
};
using Wants = std::map<HolderId, SeenWant>;
using IsLive = std::function<bool(const HolderId&)>;

// lock/<family>/ and want/<family>/ as of a revision each. An unreadable record counts as X of all.
struct FamilyView {
  Revision locks_at, wants_at;
  // Of the last read of lock/<family>/. A taking compares with this, not with locks_at: a server that
  // loses an event of a watch may delay us, and never makes two nodes hold X.
  Revision locks_read_at;
  std::map<HolderId, SeenLock> locks;
  Wants wants;

  void set_locks(const meta::Keys& keys, const meta::RangeReply& reply, Revision at);
  void set_wants(const meta::Keys& keys, const meta::RangeReply& reply, Revision at);
  void apply_lock(const meta::Keys& keys, const meta::WatchEvent& event);
  void apply_want(const meta::Keys& keys, const meta::WatchEvent& event);
};

LockModes modes_of(const meta::LockRecord& record);
meta::LockRecord record_of(LockModes modes);
SeenWant want_of(const meta::KeyValue& kv);

constexpr bool conflict(LockModes a, LockModes b) {
  return !meta::compatible(a.names, b.names) || !meta::compatible(a.files, b.files);
}
// What a holder keeps of `held` for an asker: nothing of a part asked for exclusively, S of a part
// asked for shared, all of a part not asked for.
LockModes keep_for(LockModes held, LockModes asked);
// keep_for() every live asker other than `me`; with an own want standing only for those older than
// it.
LockModes keep_for_all(LockModes held, const Wants& wants, const HolderId& me,
                       std::optional<Revision> own_arrived, const IsLive& is_live);

// May `me` take `target`?
struct Verdict {
  bool free = false;
  // Not free only because of an older asker that could take at once: who, for the patience with it.
  std::optional<std::pair<HolderId, Revision>> behind;
};
using PassedOver = std::set<std::pair<HolderId, Revision>>;
Verdict judge(const FamilyView& view, const HolderId& me, LockModes target, const IsLive& is_live,
              const PassedOver& passed_over);

}  // namespace etcfs::cluster

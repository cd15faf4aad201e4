// Transactions that take a lock record, and what they load in the same round trip.
#include <algorithm>

#include "base/assert.h"
#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

using meta::RangeOp;

// True while no key under the prefix has been put after `than` (0: while there is none).
meta::Compare LockService::Impl::none_newer(std::string prefix, Revision than) const {
  meta::Compare c;
  c.target = meta::Compare::Target::kModRevision;
  c.op = meta::Compare::Op::kLess;
  c.end = meta::prefix_end(prefix);
  c.key = std::move(prefix);
  c.number = than.v + 1;
  return c;
}

std::vector<meta::KvOp> LockService::Impl::read_ops(Family family) const {
  const std::string locks = keys.family_locks(family), asked = keys.family_wants(family);
  std::vector<meta::KvOp> ops;
  ops.emplace_back(guard.read());
  ops.emplace_back(RangeOp{locks, meta::prefix_end(locks)});
  ops.emplace_back(RangeOp{asked, meta::prefix_end(asked)});
  return ops;
}

// Puts the record and reads what the parts newly held cover: the names part the directory's own
// inode (index 0) and the entries, the files part the other inodes and the holds.
LockService::Impl::Loads LockService::Impl::add_grant(std::vector<meta::KvOp>& ops, Family family,
                                                      LockModes before, LockModes target) {
  Loads at;
  ops.emplace_back(
      meta::PutOp{keys.lock(family, me.node, me.epoch), meta::encode(record_of(target)), 0});
  const bool names = before.names == LockMode::kNone && target.names != LockMode::kNone;
  const bool files = before.files == LockMode::kNone && target.files != LockMode::kNone;
  if (family == kRenameFamily) return at;  // a mere lock
  const std::string first = keys.inode(Ino{family, 0}), second = keys.inode(Ino{family, 1});
  const std::string end = meta::prefix_end(keys.family_inodes(family));
  const auto add = [&](RangeOp op) {
    ops.emplace_back(std::move(op));
    return static_cast<int>(ops.size()) - 1;
  };
  if (names && files)
    at.inodes = add(RangeOp{first, end, options.load_limit});
  else if (names)
    at.inodes = add(RangeOp{first, {}});
  else if (files)
    at.inodes = add(RangeOp{second, end, options.load_limit});
  if (names) {
    const std::string entries_prefix = keys.entries(Ino{family, 0});
    at.entries = add(RangeOp{entries_prefix, meta::prefix_end(entries_prefix), options.load_limit});
  }
  // Also with an upgrade: others that held S may have left holds when they gave it up.
  if (files || (before.files == LockMode::kShared && target.files == LockMode::kExclusive))
    at.holds = add(RangeOp{keys.family_holds_first(family), keys.family_holds_end(family)});
  return at;
}

FamilyContents LockService::Impl::contents_of(std::vector<meta::OpReply>& ops,
                                              const Loads& loads) const {
  FamilyContents out;
  const auto take = [&](int at, std::vector<meta::KeyValue>& kvs, bool* more) {
    if (at < 0) return;
    ETCFS_ASSERT(static_cast<std::size_t>(at) < ops.size());
    auto* reply = std::get_if<meta::RangeReply>(&ops[static_cast<std::size_t>(at)].v);
    if (!reply) {
      if (more) *more = true;
      return;
    }
    kvs = std::move(reply->kvs);
    if (more) *more = reply->more;
  };
  take(loads.inodes, out.inodes, &out.inodes_more);
  take(loads.entries, out.entries, &out.entries_more);
  take(loads.holds, out.holds, nullptr);
  return out;
}

// The record stands in etcd and memory follows: client first, then whoever waits.
void LockService::Impl::granted(Entry& e, LockModes target, FamilyContents contents, Nanos cost,
                                bool expected) {
  const LockModes before = e.held;
  const Time now = rt::now();
  e.granted_at = e.expect_since = now;
  e.first_served = {};
  e.cost = cost;
  e.expected = expected;
  set_held(e, target);
  e.usable = target;
  if (client) client->on_granted(e.family, before, target, std::move(contents));
  settle_waiters(e);
  check_asked(e.family);
  enforce_budget();
}

}  // namespace etcfs::cluster

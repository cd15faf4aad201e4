#include <set>
#include <variant>

#include "sim/fakes/sim_kv.h"
#include "sim/fakes/sim_kv_internal.h"

namespace etcfs::sim {

using meta::Compare;
using meta::DeleteOp;
using meta::DeleteReply;
using meta::KeyValue;
using meta::KvOp;
using meta::OpReply;
using meta::PutOp;
using meta::RangeOp;
using meta::RangeReply;
using meta::Txn;
using meta::TxnOp;
using meta::TxnOutcome;
using meta::TxnReply;
using meta::WatchEvent;

namespace {

constexpr Nanos kLeaseTick = 500ms;  // etcd looks for expired leases that often
constexpr std::chrono::seconds kMinLease{2};

TxnOutcome refused(Reason reason) {
  TxnOutcome outcome;
  outcome.kind = TxnOutcome::Kind::kRefused;
  outcome.reason = reason;
  return outcome;
}

// The limit is spent on the largest of the three lists, and what is left is the limit for what is
// nested.
std::optional<Reason> check_shape(const Txn& txn, std::size_t limit) {
  std::size_t ops = std::max({txn.compares.size(), txn.success.size(), txn.failure.size()});
  if (ops > limit) return Reason::kTooManyOps;
  for (const Compare& compare : txn.compares)
    if (compare.key.empty()) return Reason::kInvalid;
  for (const auto* branch : {&txn.success, &txn.failure}) {
    for (const KvOp& op : *branch) {
      if (auto* nested = std::get_if<TxnOp>(&op)) {
        if (auto reason = check_shape(*nested->txn, limit - ops)) return reason;
      } else if (std::visit(
                     [](const auto& o) {
                       if constexpr (requires { o.key; }) return o.key.empty();
                       return false;
                     },
                     op)) {
        return Reason::kInvalid;
      }
    }
  }
  return std::nullopt;
}

struct Writes {
  std::set<std::string> puts;
  std::vector<std::pair<std::string, std::string>> deletes;
  bool deleted(const std::string& key) const {
    return std::any_of(deletes.begin(), deletes.end(),
                       [&](const auto& d) { return in_range(d.first, d.second, key); });
  }
};

// A key may be put once, and not inside a range that is deleted; of a nested transaction both
// branches count, and may put the same key. False: refused.
bool check_writes(const std::vector<KvOp>& ops, Writes& out) {
  for (const KvOp& op : ops)
    if (auto* erase = std::get_if<DeleteOp>(&op)) out.deletes.emplace_back(erase->key, erase->end);
  for (const KvOp& op : ops) {
    auto* nested = std::get_if<TxnOp>(&op);
    if (!nested) continue;
    Writes then, otherwise;
    if (!check_writes(nested->txn->success, then)) return false;
    if (!check_writes(nested->txn->failure, otherwise)) return false;
    for (const std::string& key : then.puts)
      if (out.deleted(key) || !out.puts.insert(key).second) return false;
    for (const std::string& key : otherwise.puts)
      if (out.deleted(key) || (!out.puts.insert(key).second && !then.puts.count(key))) return false;
    for (auto* deletes : {&then.deletes, &otherwise.deletes})
      out.deletes.insert(out.deletes.end(), deletes->begin(), deletes->end());
  }
  for (const KvOp& op : ops)
    if (auto* put = std::get_if<PutOp>(&op))
      if (out.deleted(put->key) || !out.puts.insert(put->key).second) return false;
  return true;
}

bool has_put(const Txn& txn) {
  for (const auto* branch : {&txn.success, &txn.failure})
    for (const KvOp& op : *branch) {
      if (std::holds_alternative<PutOp>(op)) return true;
      if (auto* nested = std::get_if<TxnOp>(&op))
        if (has_put(*nested->txn)) return true;
    }
  return false;
}

std::size_t bytes_of(const Txn& txn) {
  std::size_t bytes = 0;
  for (const Compare& c : txn.compares) bytes += c.key.size() + c.end.size() + c.value.size() + 16;
  for (const auto* branch : {&txn.success, &txn.failure})
    for (const KvOp& op : *branch) {
      bytes += 16;
      if (auto* put = std::get_if<PutOp>(&op)) bytes += put->key.size() + put->value.size();
      if (auto* erase = std::get_if<DeleteOp>(&op)) bytes += erase->key.size() + erase->end.size();
      if (auto* range = std::get_if<RangeOp>(&op)) bytes += range->key.size() + range->end.size();
      if (auto* nested = std::get_if<TxnOp>(&op)) bytes += bytes_of(*nested->txn);
    }
  return bytes;
}

template <class T>
bool compare_with(Compare::Op op, const T& have, const T& want) {
  switch (op) {
    case Compare::Op::kEqual:
      return have == want;
    case Compare::Op::kGreater:
      return have > want;
    case Compare::Op::kLess:
      return have < want;
    case Compare::Op::kNotEqual:
      return have != want;
  }
  return false;
}

void set_revision(TxnReply& reply, Revision revision) {
  reply.revision = revision;
  for (OpReply& op : reply.ops)
    if (auto* nested = std::get_if<std::shared_ptr<TxnReply>>(&op.v))
      set_revision(**nested, revision);
}

}  // namespace

SimKvServer::SimKvServer(rt::Runtime& runtime, SimKvLimits limits)
    : runtime_(runtime), limits_(limits), group_(runtime, "etcd") {
  group_.spawn([this] { expire_leases(); });
}

SimKvServer::~SimKvServer() { group_.kill(); }

// --- the store ---

const SimKvServer::Version* SimKvServer::find(const Versions& versions, std::int64_t at) {
  auto it = std::upper_bound(versions.begin(), versions.end(), at,
                             [](std::int64_t rev, const Version& v) { return rev < v.mod; });
  if (it == versions.begin() || std::prev(it)->deleted) return nullptr;
  return &*std::prev(it);
}

template <class Fn>
void SimKvServer::each(const std::string& key, const std::string& end, std::int64_t at,
                       Fn fn) const {
  for (auto it = keys_.lower_bound(key); it != keys_.end() && in_range(key, end, it->first); ++it)
    if (const Version* version = find(it->second, at)) fn(it->first, *version);
}

RangeReply SimKvServer::read(const RangeOp& op, std::int64_t at) const {
  RangeReply reply;
  reply.revision = Revision{revision_ + (open_.empty() ? 0 : 1)};
  each(op.key, op.end, at, [&](const std::string& key, const Version& v) {
    reply.count++;
    if (op.count_only) return;
    if (op.limit > 0 && reply.count > op.limit) {
      reply.more = true;
      return;
    }
    reply.kvs.push_back({key, op.keys_only ? std::string() : v.value, Revision{v.create},
                         Revision{v.mod}, v.version, v.lease});
  });
  return reply;
}

Result<RangeReply> SimKvServer::range(const RangeOp& op, Revision at) const {
  if (op.key.empty() || at.v > revision_) return Reason::kInvalid;
  if (at.v != 0 && at.v < compacted_) return Reason::kCompacted;
  return read(op, at.v == 0 ? revision_ : at.v);
}

void SimKvServer::put(const PutOp& op) {
  std::int64_t mod = revision_ + 1;
  Versions& versions = keys_[op.key];
  Version next{mod, mod, 1, op.lease, op.value, false};
  if (!versions.empty() && !versions.back().deleted) {
    next.create = versions.back().create;
    next.version = versions.back().version + 1;
    if (auto old = leases_.find(versions.back().lease); old != leases_.end())
      old->second.keys.erase(op.key);
  }
  if (op.lease != 0) leases_.at(op.lease).keys.insert(op.key);
  open_.push_back(
      {WatchEvent::Type::kPut,
       {op.key, op.value, Revision{next.create}, Revision{mod}, next.version, op.lease}});
  if (!versions.empty() && versions.back().mod == mod) versions.pop_back();
  versions.push_back(std::move(next));
}

std::int64_t SimKvServer::erase(const std::string& key, const std::string& end) {
  std::int64_t mod = revision_ + 1;
  std::vector<std::string> found;
  each(key, end, mod, [&](const std::string& k, const Version&) { found.push_back(k); });
  for (const std::string& k : found) {
    Versions& versions = keys_[k];
    if (auto old = leases_.find(versions.back().lease); old != leases_.end())
      old->second.keys.erase(k);
    Version tombstone;
    tombstone.mod = mod;
    tombstone.deleted = true;
    versions.push_back(std::move(tombstone));
    KeyValue gone;
    gone.key = k;
    gone.mod_revision = Revision{mod};
    open_.push_back({WatchEvent::Type::kDelete, std::move(gone)});
  }
  return static_cast<std::int64_t>(found.size());
}

void SimKvServer::commit() {
  if (open_.empty()) return;
  revision_++;
  history_.push_back(std::exchange(open_, {}));
  wake_watches();
}

// --- transactions ---

bool SimKvServer::holds(const Compare& c) const {
  bool all = true, any = false;
  auto one = [&](const Version& v) {
    any = true;
    switch (c.target) {
      case Compare::Target::kVersion:
        all = all && compare_with(c.op, v.version, c.number);
        break;
      case Compare::Target::kCreateRevision:
        all = all && compare_with(c.op, v.create, c.number);
        break;
      case Compare::Target::kModRevision:
        all = all && compare_with(c.op, v.mod, c.number);
        break;
      case Compare::Target::kValue:
        all = all && compare_with(c.op, v.value, c.value);
        break;
    }
  };
  each(c.key, c.end, revision_, [&](const std::string&, const Version& v) { one(v); });
  if (!any) {
    if (c.target == Compare::Target::kValue) return false;
    one(Version{});
  }
  return all;
}

SimKvServer::Path SimKvServer::choose(const Txn& txn) const {
  Path path;
  path.succeeded = std::all_of(txn.compares.begin(), txn.compares.end(),
                               [&](const Compare& c) { return holds(c); });
  for (const KvOp& op : path.succeeded ? txn.success : txn.failure)
    if (auto* nested = std::get_if<TxnOp>(&op)) path.nested.push_back(choose(*nested->txn));
  return path;
}

std::optional<Reason> SimKvServer::refuse(const Txn& txn) const {
  if (bytes_of(txn) > limits_.request_bytes) return Reason::kTooManyOps;
  if (auto reason = check_shape(txn, limits_.txn_ops)) return reason;
  for (const auto* branch : {&txn.success, &txn.failure}) {
    Writes writes;
    if (!check_writes(*branch, writes)) return Reason::kInvalid;
  }
  if (nospace_ && has_put(txn)) return Reason::kMetadataFull;
  return std::nullopt;
}

// Only what is going to be done is looked at here: a put names a lease that must exist.
std::optional<Reason> SimKvServer::refuse_path(const Txn& txn, const Path& path) const {
  std::size_t nested_at = 0;
  for (const KvOp& op : path.succeeded ? txn.success : txn.failure) {
    if (auto* put = std::get_if<PutOp>(&op))
      if (put->lease != 0 && !leases_.count(put->lease)) return Reason::kNotFound;
    if (auto* nested = std::get_if<TxnOp>(&op))
      if (auto reason = refuse_path(*nested->txn, path.nested[nested_at++])) return reason;
  }
  return std::nullopt;
}

TxnReply SimKvServer::apply(const Txn& txn, const Path& path) {
  TxnReply reply;
  reply.succeeded = path.succeeded;
  std::size_t nested_at = 0;
  for (const KvOp& op : path.succeeded ? txn.success : txn.failure) {
    OpReply& out = reply.ops.emplace_back();
    if (auto* range = std::get_if<RangeOp>(&op)) out.v = read(*range, revision_ + 1);
    if (auto* p = std::get_if<PutOp>(&op)) put(*p);
    if (auto* d = std::get_if<DeleteOp>(&op)) out.v = DeleteReply{erase(d->key, d->end)};
    if (auto* nested = std::get_if<TxnOp>(&op))
      out.v = std::make_shared<TxnReply>(apply(*nested->txn, path.nested[nested_at++]));
  }
  return reply;
}

TxnOutcome SimKvServer::txn(const Txn& txn) {
  if (auto reason = refuse(txn)) return refused(*reason);
  Path path = choose(txn);
  if (auto reason = refuse_path(txn, path)) return refused(*reason);
  TxnOutcome outcome;
  outcome.kind = TxnOutcome::Kind::kDone;
  outcome.reply = apply(txn, path);
  commit();
  set_revision(outcome.reply, Revision{revision_});
  return outcome;
}

// --- leases ---

Result<std::int64_t> SimKvServer::lease_grant(std::chrono::seconds ttl) {
  if (ttl.count() <= 0) return Reason::kInvalid;
  if (nospace_) return Reason::kMetadataFull;
  Lease lease;
  lease.ttl = std::max(ttl, kMinLease);
  lease.expires = runtime_.now() + lease.ttl;
  std::int64_t id = 0;
  while (id == 0 || leases_.count(id)) id = static_cast<std::int64_t>(runtime_.random() >> 1);
  leases_.emplace(id, std::move(lease));
  leases_changed_.notify_all();
  return id;
}

Result<void> SimKvServer::lease_keepalive(std::int64_t id) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return Reason::kNotFound;
  it->second.expires = runtime_.now() + it->second.ttl;
  return {};
}

void SimKvServer::drop_lease(std::map<std::int64_t, Lease>::iterator it) {
  std::set<std::string> keys = std::move(it->second.keys);
  leases_.erase(it);
  for (const std::string& key : keys) erase(key, {});
  commit();
}

Result<void> SimKvServer::lease_revoke(std::int64_t id) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return Reason::kNotFound;
  drop_lease(it);
  return {};
}

void SimKvServer::expire_leases() {
  for (;;) {
    if (leases_.empty()) {
      leases_changed_.wait();
      continue;
    }
    Time first = Time::max();
    for (const auto& [id, lease] : leases_) first = std::min(first, lease.expires);
    if (runtime_.now() < first) {
      leases_changed_.wait_until(first);
      continue;
    }
    rt::sleep_for(Nanos(runtime_.random_below(static_cast<std::uint64_t>(kLeaseTick.count()))));
    if (!available_) {  // no leader, nobody expires anything
      rt::sleep_for(kLeaseTick);
      continue;
    }
    for (auto it = leases_.begin(); it != leases_.end();) {
      auto here = it++;
      if (here->second.expires <= runtime_.now()) drop_lease(here);
    }
  }
}

void SimKvServer::new_leader() {
  for (auto& [id, lease] : leases_) lease.expires = runtime_.now() + lease.ttl;
}

// --- history ---

Result<void> SimKvServer::compact(Revision revision) {
  if (revision.v > revision_) return Reason::kInvalid;
  if (revision.v <= compacted_) return {};
  compacted_ = revision.v;
  for (auto it = keys_.begin(); it != keys_.end();) {
    Versions& versions = it->second;
    auto keep = std::upper_bound(versions.begin(), versions.end(), compacted_,
                                 [](std::int64_t rev, const Version& v) { return rev < v.mod; });
    if (keep != versions.begin() && !std::prev(keep)->deleted) --keep;
    versions.erase(versions.begin(), keep);
    it = versions.empty() ? keys_.erase(it) : std::next(it);
  }
  trim_history();
  return {};
}

// To a watch that is connected events count as sent when they happen; one that is cut off and has
// not had all that is compacted now is lost.
void SimKvServer::trim_history() {
  std::int64_t keep = compacted_;
  for (const auto& weak : watches_) {
    auto watch = weak.lock();
    if (!watch || watch->cancelled) continue;
    if (watch->connected() && !watch->lost)
      keep = std::min(keep, watch->next);
    else if (watch->next <= compacted_)
      watch->lost = true;
  }
  while (!history_.empty() && history_first_ < keep) {
    history_.pop_front();
    history_first_++;
  }
}

void SimKvServer::add_watch(const std::shared_ptr<SimWatchState>& watch) {
  if (watch->next == 0) watch->next = revision_ + 1;
  watch->behind = watch->next <= revision_;
  if (watch->next < compacted_) watch->lost = true;  // at it is allowed, as in etcd
  std::erase_if(watches_, [](const auto& weak) { return weak.expired(); });
  watches_.push_back(watch);
}

void SimKvServer::wake_watches() {
  for (const auto& weak : watches_)
    if (auto watch = weak.lock()) watch->changed.notify_all();
}

// --- the rest ---

meta::Kv::Status SimKvServer::status() const {
  meta::Kv::Status status;
  status.version = "3.4.23";
  for (const auto& [key, versions] : keys_)
    for (const Version& v : versions)
      status.db_bytes += static_cast<std::int64_t>(key.size() + v.value.size() + 64);
  if (nospace_) status.alarms.push_back("NOSPACE");
  return status;
}

std::vector<KeyValue> SimKvServer::dump() const {
  RangeOp all;
  all.key = std::string(1, '\0');
  all.end = std::string(1, '\0');
  return read(all, revision_).kvs;
}

void SimKvServer::set_available(bool available) {
  available_ = available;
  if (available) wake_watches();
}

void SimKvServer::set_nospace(bool nospace) { nospace_ = nospace; }

}  // namespace etcfs::sim

#include "ctl/mkfs_etcd.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "rt/rt.h"

namespace etcfs::ctl {
namespace {

constexpr int kTries = 5;                      // of a transaction whose outcome stays unknown
constexpr std::size_t kEpochsAtOnce = 50;      // well below etcd's 128 operations
constexpr std::int64_t kKeysPerPiece = 5'000;  // of a removal: one etcd transaction each

// The two parts of the prefix around epoch/.
struct Span {
  std::string begin, end;
};
std::vector<Span> spans(const meta::Keys& keys) {
  const std::string epochs = keys.all("epoch");
  return {{keys.prefix(), epochs}, {meta::prefix_end(epochs), meta::prefix_end(keys.prefix())}};
}

Result<std::map<NodeName, Revision>> load_beats(meta::Kv& kv, const meta::Keys& keys, Time deadline,
                                                Revision& revision) {
  meta::RangeOp op;
  op.key = keys.all("beat");
  op.end = meta::prefix_end(op.key);
  op.keys_only = true;
  ETCFS_TRY(const meta::RangeReply reply, kv.range(op, Revision{}, deadline));
  revision = reply.revision;
  std::map<NodeName, Revision> beats;
  for (const meta::KeyValue& item : reply.kvs)
    if (auto node = keys.parse_node("beat", item.key)) beats[*node] = item.mod_revision;
  return beats;
}

// Removes [begin, end) by pieces; each piece may be repeated, so an unknown outcome is tried again.
Result<void> remove_span(meta::Kv& kv, const Span& span, Nanos call_timeout) {
  int tries = 0;
  for (;;) {
    meta::RangeOp op;
    op.key = span.begin;
    op.end = span.end;
    op.limit = kKeysPerPiece;
    op.keys_only = true;
    ETCFS_TRY(const meta::RangeReply reply, kv.range(op, Revision{}, rt::now() + call_timeout));
    if (reply.kvs.empty()) return {};
    meta::Txn txn;
    txn.success.emplace_back(meta::DeleteOp{span.begin, reply.kvs.back().key + '\0'});
    const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + call_timeout);
    if (outcome.done()) {
      tries = 0;
    } else if (outcome.kind == meta::TxnOutcome::Kind::kRefused || ++tries == kTries) {
      return outcome.reason;
    }
  }
}

}  // namespace

Result<bool> name_taken(meta::Kv& kv, const meta::Keys& keys, Time deadline) {
  for (const Span& span : spans(keys)) {
    meta::RangeOp op;
    op.key = span.begin;
    op.end = span.end;
    op.limit = 1;
    op.keys_only = true;
    ETCFS_TRY(const meta::RangeReply reply, kv.range(op, Revision{}, deadline));
    if (!reply.kvs.empty()) return true;
  }
  return false;
}

Result<Liveness> look_for_life(meta::Kv& kv, const meta::Keys& keys, Nanos ttl, Time deadline) {
  Liveness out;
  ETCFS_TRY(const auto first, load_beats(kv, keys, deadline, out.beats));
  if (first.empty()) return out;
  const Time until = rt::now() + ttl;
  while (rt::now() < until) {
    rt::sleep_for(std::min<Nanos>(250ms, until - rt::now()));
    ETCFS_TRY(const auto later, load_beats(kv, keys, deadline + ttl, out.beats));
    for (const auto& [node, revision] : later) {
      auto it = first.find(node);
      if (it == first.end() || it->second != revision) out.alive.push_back(node);
    }
    if (!out.alive.empty()) return out;
  }
  return out;
}

Result<void> remove_filesystem(meta::Kv& kv, const meta::Keys& keys, Revision beats,
                               Nanos call_timeout) {
  meta::RangeOp op;
  op.key = keys.all("epoch");
  op.end = meta::prefix_end(op.key);
  ETCFS_TRY(const meta::RangeReply epochs, kv.range(op, Revision{}, rt::now() + call_timeout));
  meta::Compare silent;
  silent.op = meta::Compare::Op::kLess;
  silent.key = keys.all("beat");
  silent.end = meta::prefix_end(silent.key);
  silent.number = beats.v + 1;
  // Many nodes: their epochs are raised before, a few dozen at a time. A repetition raises them
  // again, which does no harm.
  for (std::size_t at = 0, n = epochs.kvs.size(); at == 0 || at < n; at += kEpochsAtOnce) {
    const bool last = at + kEpochsAtOnce >= n;
    meta::Txn txn;
    txn.compares.push_back(silent);
    for (std::size_t i = at; i < std::min(n, at + kEpochsAtOnce); ++i) {
      const meta::KeyValue& item = epochs.kvs[i];
      meta::Compare same;  // a node that joins meanwhile is alive
      same.key = item.key;
      same.number = item.mod_revision.v;
      txn.compares.push_back(same);
      const Result<Epoch> epoch = meta::decode_epoch(item.value);
      if (!epoch) return epoch.error();
      txn.success.emplace_back(meta::PutOp{item.key, meta::encode_epoch(Epoch{epoch->v + 1}), 0});
    }
    if (last) txn.success.emplace_back(meta::DeleteOp{keys.super(), {}});
    const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + call_timeout);
    if (!outcome.done()) return outcome.reason;  // mkfs can be run again
    if (!outcome.reply.succeeded) return Reason::kBusy;
  }
  for (const Span& span : spans(keys)) ETCFS_CHECK(remove_span(kv, span, call_timeout));
  return {};
}

Result<void> create_filesystem(meta::Kv& kv, const meta::Keys& keys, const meta::Super& super,
                               Nanos call_timeout) {
  meta::Inode root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.atime = root.mtime = root.ctime = root.btime = super.created;
  root.parent = kRootIno;
  root.birth_family = kRootFamily;
  root.birth_bound = 1;
  root.next_cookie = meta::kFirstCookie;
  meta::Txn txn;
  for (const Span& span : spans(keys)) {
    meta::Compare absent;  // true for an empty range only: every key that exists has a revision
    absent.key = span.begin;
    absent.end = span.end;
    txn.compares.push_back(absent);
  }
  txn.success.emplace_back(meta::PutOp{keys.super(), encode(super), 0});
  txn.success.emplace_back(meta::PutOp{keys.inode(kRootIno), encode(root), 0});
  txn.success.emplace_back(meta::PutOp{keys.family_counter(),
                                       meta::encode_family_counter(Family{kRootFamily.v + 1}), 0});
  meta::RangeOp look;
  look.key = keys.super();
  txn.failure.emplace_back(look);
  Reason why = Reason::kUnknown;
  for (int i = 0; i < kTries; ++i) {
    const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + call_timeout);
    if (outcome.kind == meta::TxnOutcome::Kind::kRefused) return outcome.reason;
    why = outcome.reason;
    if (!outcome.done()) continue;  // the next try sees what became of it
    if (outcome.reply.succeeded) return {};
    const auto* found = outcome.reply.ops.empty()
                            ? nullptr
                            : std::get_if<meta::RangeReply>(&outcome.reply.ops[0].v);
    if (found == nullptr || found->kvs.empty()) return Reason::kExists;
    const Result<meta::Super> other = meta::decode_super(found->kvs[0].value);
    if (other && other->uuid == super.uuid) return {};  // an earlier try that was done after all
    return Reason::kExists;
  }
  return why;
}

}  // namespace etcfs::ctl

// Walking ahead: many families in one transaction, each in a nested one of its own that applies
// only where nobody holds or wants anything. So a busy family costs nothing but itself; nobody is
// asked.
#include <algorithm>

#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

struct LockService::Impl::Ahead {
  Ahead(Impl& s, Family family) : ref(s, family), slot(ref.work()) {}
  Ref ref;
  Slot slot;
  Loads loads;
};

Result<void> LockService::Impl::acquire_ahead(std::span<const Family> families, LockModes modes) {
  std::vector<Family> ordered(families.begin(), families.end());
  std::sort(ordered.begin(), ordered.end());
  ordered.erase(std::unique(ordered.begin(), ordered.end()), ordered.end());
  std::span<const Family> rest = ordered;
  while (!rest.empty()) {
    ETCFS_CHECK(state());
    ETCFS_TRY(const std::size_t looked_at, ahead_once(rest, modes));
    rest = rest.subspan(looked_at);
  }
  return {};
}

// Answers how many of `families` have been dealt with; 0 only after the batch was made smaller.
Result<std::size_t> LockService::Impl::ahead_once(std::span<const Family> families,
                                                  LockModes modes) {
  const std::size_t most = std::min(ahead_batch, stream.limits().txn_ops / 2);
  std::vector<std::unique_ptr<Ahead>> batch;
  meta::Txn txn;
  txn.compares.push_back(guard.compare());
  txn.failure.emplace_back(guard.read());
  std::size_t looked_at = 0;
  for (Family family : families) {
    if (batch.size() == std::max<std::size_t>(most, 1)) break;
    ++looked_at;
    const Entry* e = find(family);
    const bool idle = !e || (e->held.none() && !e->work && e->stream_pending == 0);
    if (!idle || suspects.contains(family) || has_other_wants(family)) continue;
    auto& item = *batch.emplace_back(std::make_unique<Ahead>(*this, family));
    auto nested = std::make_shared<meta::Txn>();
    nested->compares = {none_newer(keys.family_locks(family), Revision{}),
                        none_newer(keys.family_wants(family), Revision{})};
    item.loads = add_grant(nested->success, family, {}, modes);
    txn.success.emplace_back(meta::TxnOp{std::move(nested)});
  }
  if (batch.empty()) return looked_at;
  const Time begin = rt::now();
  meta::TxnOutcome outcome = kv.txn(txn, begin + kLockTxnDeadline);
  ++counters.acquire_txns;
  if (!outcome.done()) {
    if (outcome.kind == meta::TxnOutcome::Kind::kUnknown)
      for (const auto& item : batch) suspects.insert(item->ref.entry().family);
    if (outcome.reason == Reason::kTooManyOps && batch.size() > 1) {
      ahead_batch = batch.size() / 2;
      return std::size_t{0};
    }
    return outcome.reason;
  }
  if (!outcome.reply.succeeded) {
    if (!outcome.reply.ops.empty()) check_epoch(outcome.reply.ops[0]);
    return looked_at;
  }
  for (std::size_t i = 0; i < batch.size() && i < outcome.reply.ops.size(); ++i) {
    const auto* nested = std::get_if<std::shared_ptr<meta::TxnReply>>(&outcome.reply.ops[i].v);
    if (!nested || !*nested || !(*nested)->succeeded) continue;
    Entry& e = batch[i]->ref.entry();
    e.alone_at = outcome.reply.revision;
    ++counters.ahead;
    granted(e, modes, contents_of((*nested)->ops, batch[i]->loads), rt::now() - begin,
            !batch[i]->ref.work().waiters.empty());
  }
  return looked_at;
}

}  // namespace etcfs::cluster

// Removes what dead epochs have left under lock/ and want/, so that the first taking of such a
// family is again one transaction and walking ahead finds it free. Safe without a compare: nobody
// writes the key of a dead epoch again. Records with in-place marks stay (design section 9).
#include "base/log.h"
#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

namespace {
constexpr std::int64_t kPage = 1000;
constexpr Nanos kPagePause = 2ms;  // the sweep is nobody's hurry
constexpr Nanos kSettle = 500ms;  // after an epoch was raised; jittered, so that one node does most
}  // namespace

void LockService::Impl::janitor_loop() {
  while (true) {
    wake.wait([&] { return dead() || sweep_due; });
    const Nanos delay = kSettle + Nanos(rt::Runtime::current().random_below(2 * kSettle.count()));
    if (wake.wait_until(rt::now() + delay, [&] { return dead(); })) return;
    sweep_due = false;
    if (!sweep() && !dead()) sweep_due = true;
  }
}

// One pass over lock/ and the mirror of want/. False: etcd did not answer; what is left stays.
bool LockService::Impl::sweep() {
  std::vector<std::string> keys_void;
  for (const auto& [family, of_family] : wants)
    for (const auto& [id, want] : of_family)
      if (!is_live(id)) keys_void.push_back(keys.want(family, id.node, id.epoch));
  const std::string prefix = keys.all("lock"), end = meta::prefix_end(prefix);
  std::string from = prefix;
  std::size_t removed = 0;
  while (!dead()) {
    const auto page = kv.range(meta::RangeOp{from, end, kPage}, Revision{}, rt::now() + 5s);
    if (!page) return false;
    for (const meta::KeyValue& found : page->kvs) {
      const auto id = keys.parse_lock(found.key);
      if (!id || is_live({id->node, id->epoch})) continue;
      const auto record = meta::decode_lock(found.value);
      if (record && record->in_place.empty()) keys_void.push_back(found.key);
    }
    removed += keys_void.size();
    if (!remove_void(std::move(keys_void))) return false;
    keys_void.clear();
    if (!page->more || page->kvs.empty()) break;
    from = page->kvs.back().key + '\0';
    rt::sleep_for(kPagePause);
  }
  if (removed > 0)
    ETCFS_LOG_INFO("removed what dead epochs had left under lock/ and want/",
                   log::field("keys", removed));
  return true;
}

bool LockService::Impl::remove_void(std::vector<std::string> keys_void) {
  const std::size_t most = stream.limits().txn_ops / 2;
  for (std::size_t at = 0; at < keys_void.size() && !dead();) {
    meta::Txn txn;
    txn.compares.push_back(guard.compare());
    txn.failure.emplace_back(guard.read());
    for (; at < keys_void.size() && txn.success.size() < most; ++at)
      txn.success.emplace_back(meta::DeleteOp{std::move(keys_void[at]), {}});
    const meta::TxnOutcome outcome = kv.txn(txn, rt::now() + kLockTxnDeadline);
    if (!outcome.done()) return false;
    if (!outcome.reply.succeeded) return check_epoch(outcome.reply.ops.at(0));
  }
  return true;
}

}  // namespace etcfs::cluster

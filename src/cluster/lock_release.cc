// Giving up: what another node asks for, what lies idle beyond the budget, everything at the end.
// The change of the record is a step of the commit stream, after all that it must be ordered behind
// (I3); until it has committed no taking is sent for that family (Entry::stream_pending).
#include <algorithm>

#include "base/log.h"
#include "cluster/lock_service_impl.h"
#include "meta/commit_batch.h"

namespace etcfs::cluster {

namespace {
constexpr Nanos kIdleGap = 2ms;   // no operation served for so long: the holder is idle
constexpr Nanos kBusyGap = 10ms;  // served within: not released for the budget's sake
constexpr std::size_t kReleaseWorkers = 8;
}  // namespace

LockModes LockService::Impl::keep_now(const Entry& e) {
  const auto asked = wants.find(e.family);
  if (asked == wants.end()) return e.held;
  std::optional<Revision> own;
  if (e.work && e.work->want_meant) own = own_arrival(e.family);
  return keep_for_all(e.held, asked->second, me, own, is_live);
}

// Called at every change that may make us give way. Does not block; also outside fibers.
void LockService::Impl::check_asked(Family family) {
  Entry* e = find(family);
  if (!e || dead()) return;
  if (e->work) e->work->wake.notify_all();
  if (e->held.none() || keep_now(*e) == e->held) return;
  recent_asks[family] = rt::Runtime::current().now();
  auto held = std::make_shared<Ref>(*this, family);
  if (held->work().releasing) return;
  held->work().releasing = true;
  if (client) client->on_asked(family);
  group->spawn([this, held = std::move(held)]() mutable {
    const auto ref = std::move(held);
    give_up(*ref);
  });
}

// When an asked holder has had its minimum: counted from the first operation served, at least twice
// what taking cost; an idle holder at once; what an acquire() of several families has got so far,
// and what has not been used yet by those it was taken for, a little longer, never beyond
// maximum_hold.
Time LockService::Impl::due(const Entry& e) const {
  const Nanos hold =
      std::min(std::max<Nanos>(options.minimum_hold, 2 * e.cost), options.maximum_hold);
  const Time most = e.granted_at + options.maximum_hold;
  if (e.reserved > 0) return most;
  if (e.expected) return std::min(most, e.expect_since + hold);
  if (e.first_served == Time{}) return e.granted_at;
  return std::min(e.first_served + hold, e.last_served + kIdleGap);
}

void LockService::Impl::give_up(Ref& ref) {
  Entry& e = ref.entry();
  Work& w = ref.work();
  while (!dead()) {
    const LockModes keep = keep_now(e);
    if (keep == e.held) break;
    if (w.slot) {
      w.wake.wait();
      continue;
    }
    if (const Time at = due(e); rt::now() < at) {
      w.wake.wait_until(at);
      continue;
    }
    const auto step = release(e, w, keep);
    recent_asks[e.family] = rt::now();
    if (step) (void)stream.wait_committed(*step);  // somebody waits: no gathering
  }
  w.releasing = false;
  w.wake.notify_all();
}

std::optional<StepNo> LockService::Impl::release(Entry& e, Work& w, LockModes keep) {
  Slot slot(w);
  (void)stream.wait_room();
  if (fenced || e.held.none()) return std::nullopt;
  std::vector<meta::Mutation> mutations;
  if (client) mutations = client->prepare_release(e.family, keep);
  if (fenced || e.held.none()) return std::nullopt;  // none: abandoned by an rmdir meanwhile
  e.usable = {std::min(e.usable.names, keep.names), std::min(e.usable.files, keep.files)};
  const meta::CommitStream::Limits& limits = stream.limits();
  const std::size_t most_ops = limits.txn_ops - 8, most_bytes = limits.txn_bytes / 2;
  meta::Step step;
  std::size_t bytes = 0;
  for (meta::Mutation& m : mutations) {
    const std::size_t cost = meta::CommitBatch::cost(m);
    if (step.mutations.size() >= most_ops || (bytes > 0 && bytes + cost > most_bytes)) {
      (void)stream.append(std::move(step));
      step = {};
      bytes = 0;
    }
    bytes += cost;
    step.mutations.push_back(std::move(m));
  }
  std::string key = keys.lock(e.family, me.node, me.epoch);
  if (keep.none())
    step.erase(std::move(key));
  else
    step.put(std::move(key), meta::encode(record_of(keep)));
  step.on_commit = [this, family = e.family] { stream_done(family); };
  ++counters.releases;
  ++e.stream_pending;
  e.alone_at = {};
  set_held(e, keep);
  const StepNo number = stream.append(std::move(step));
  if (client) client->on_released(e.family, keep);
  return number;
}

// A step that changed the record has committed.
void LockService::Impl::stream_done(Family family) {
  Entry* e = find(family);
  ETCFS_ASSERT(e && e->stream_pending > 0);
  --e->stream_pending;
  if (e->work) e->work->wake.notify_all();
  maybe_drop(*e);
}

void LockService::Impl::queue_release(Entry& e) {
  if (e.queued || dead() || !group) return;
  e.queued = true;
  release_queue.push_back(e.family);
  if (release_workers >= kReleaseWorkers) return;
  ++release_workers;
  group->spawn([this] { release_worker(); });
}

void LockService::Impl::release_worker() {
  while (!release_queue.empty() && !dead()) {
    const Family family = release_queue.front();
    release_queue.pop_front();
    release_one(family);
  }
  --release_workers;
}

void LockService::Impl::release_one(Family family) {
  Entry* e = find(family);
  ETCFS_ASSERT(e && e->queued);
  e->queued = false;
  const bool busy = e->work || rt::now() - e->last_served < kBusyGap;
  if (e->held.none() || (busy && !releasing_all)) return maybe_drop(*e);
  Ref ref(*this, family);
  Work& w = ref.work();
  w.wake.wait([&] { return !w.slot || dead(); });
  if (!dead()) (void)release(ref.entry(), w, {});
}

void LockService::Impl::enforce_budget() {
  if (held_count <= options.held_budget || !release_queue.empty()) return;
  std::size_t surplus = held_count - options.held_budget + options.held_budget / 32;
  std::size_t looked = 2 * surplus;
  for (Entry* e = lru_first; e && surplus > 0 && looked > 0; e = e->lru_next, --looked) {
    if (e->work || e->queued) continue;
    queue_release(*e);
    --surplus;
  }
}

void LockService::Impl::release_all() {
  releasing_all = true;
  while (!dead() && held_count > 0) {
    std::vector<Family> all;
    for (const auto& [family, e] : entries)
      if (!e.held.none() && !e.queued) all.push_back(family);
    std::sort(all.begin(), all.end());
    for (Family family : all) queue_release(entries.at(family));
    wake.wait_until(rt::now() + 100ms, [&] { return dead() || held_count == 0; });
  }
  releasing_all = false;
  if (!fenced) (void)stream.sync();
}

}  // namespace etcfs::cluster

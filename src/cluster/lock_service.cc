// What callers of the lock service see. The parts are listed in lock_service_impl.h.
#include "cluster/lock_service.h"

#include <algorithm>

#include "base/log.h"
#include "cluster/lock_service_impl.h"

namespace etcfs::cluster {

LockService::Impl::Entry& LockService::Impl::entry(Family family) {
  Entry& e = entries[family];
  e.family = family;
  return e;
}

LockService::Impl::Entry* LockService::Impl::find(Family family) {
  const auto it = entries.find(family);
  return it == entries.end() ? nullptr : &it->second;
}

// Forgets what is no longer needed. The entry may be gone afterwards.
void LockService::Impl::maybe_drop(Entry& e) {
  if (e.work && e.work->refs == 0) e.work.reset();
  if (e.work || !e.held.none() || e.stream_pending > 0 || e.reserved > 0 || e.queued) return;
  entries.erase(e.family);
}

void LockService::Impl::wake_all() {
  wake.notify_all();
  std::vector<Family> busy;  // notify only; the order has no effect beyond that of readiness
  for (auto& [family, e] : entries)
    if (e.work) busy.push_back(family);
  std::sort(busy.begin(), busy.end());
  for (Family family : busy) {
    Work& w = *entries.at(family).work;
    w.wake.notify_all();
    w.granted.notify_all();
  }
}

void LockService::Impl::fence() {
  if (fenced) return;
  fenced = true;
  wake_all();
}

void LockService::Impl::lru_remove(Entry& e) {
  (e.lru_prev ? e.lru_prev->lru_next : lru_first) = e.lru_next;
  (e.lru_next ? e.lru_next->lru_prev : lru_last) = e.lru_prev;
  e.lru_prev = e.lru_next = nullptr;
}

void LockService::Impl::lru_touch(Entry& e) {
  if (lru_last != &e) {
    if (e.lru_prev || e.lru_next || lru_first == &e) lru_remove(e);
    e.lru_prev = lru_last;
    (lru_last ? lru_last->lru_next : lru_first) = &e;
    lru_last = &e;
  }
  e.lru_at = rt::now();
}

void LockService::Impl::set_held(Entry& e, LockModes modes) {
  const bool before = !e.held.none(), now = !modes.none();
  e.held = modes;
  if (!before && now) {
    ++held_count;
    lru_touch(e);
  } else if (before && !now) {
    --held_count;
    lru_remove(e);
    if (held_count == 0) wake.notify_all();
  }
}

void LockService::Impl::settle_waiters(Entry& e) {
  if (!e.work || e.work->waiters.empty()) return;
  for (Waiter* waiter : e.work->waiters)
    if (e.usable.covers(waiter->need)) waiter->done = true;
  e.work->granted.notify_all();
}

void LockService::Impl::start_driver(Entry& e) {
  Work& w = *e.work;
  if (w.driving) return w.wake.notify_all();
  w.driving = true;
  group->spawn([this, held = std::make_shared<Ref>(*this, e.family)]() mutable {
    const auto ref = std::move(held);
    drive(*ref);
  });
}

Result<void> LockService::Impl::wait_granted(const LockNeed& need) {
  ETCFS_CHECK(state());
  if (const Entry* e = find(need.family); e && e->usable.covers(need.modes)) return {};
  struct Queued {  // leaves the list also when the fiber is killed
    Work& w;
    Waiter waiter;
    ~Queued() { std::erase(w.waiters, &waiter); }
  };
  Ref ref(*this, need.family);
  Work& w = ref.work();
  Queued queued{w, {need.modes}};
  w.waiters.push_back(&queued.waiter);
  start_driver(ref.entry());
  w.granted.wait([&] { return queued.waiter.done || dead(); });
  if (queued.waiter.done) return {};
  return state();
}

LockService::LockService(meta::Kv& kv, const meta::Keys& keys, const meta::Guard& guard,
                         meta::CommitStream& stream, Membership& membership, Options options)
    : impl_(std::make_unique<Impl>(kv, keys, guard, stream, membership, options)) {}

// Without stop() this is a crash.
LockService::~LockService() {
  if (impl_->group) impl_->group->kill();
}

void LockService::set_client(LockClient& client) { impl_->client = &client; }

Result<void> LockService::start() {
  Impl& s = *impl_;
  ETCFS_ASSERT(!s.group);
  s.stream.on_fenced([&s] { s.fence(); });
  s.membership.on_fenced([&s] { s.fence(); });
  s.membership.on_epoch_raised([&s](const NodeName&, Epoch) {
    s.sweep_due = true;
    s.wake_all();
  });
  ETCFS_CHECK(s.load_wants());
  s.group.emplace(rt::Runtime::current(), "locks");
  s.group->spawn([&s] { s.want_loop(); });
  s.group->spawn([&s] { s.audit_loop(); });
  s.group->spawn([&s] { s.janitor_loop(); });
  return {};
}

void LockService::stop() {
  Impl& s = *impl_;
  s.stopping = true;
  s.wake_all();
  if (s.group) s.group->wait();
  s.want_watch.reset();
}

LockModes LockService::usable(Family family) const {
  const auto it = impl_->entries.find(family);
  if (it == impl_->entries.end() || impl_->fenced) return {};
  return it->second.usable;
}

Result<void> LockService::acquire(std::span<const LockNeed> needs) {
  Impl& s = *impl_;
  ++s.counters.acquires;
  if (needs.size() == 1) return s.wait_granted(needs.front());
  std::map<Family, LockModes> ordered;
  for (const LockNeed& need : needs) ordered[need.family] = merge(ordered[need.family], need.modes);
  // What was got is kept (for at most maximum_hold) while the rest is waited for; otherwise two
  // nodes that want the same two families could take them from each other for ever.
  struct Reserved {
    Impl& s;
    std::vector<Impl::Entry*> entries;
    ~Reserved() {
      const bool dead = s.dead();
      for (Impl::Entry* e : entries) {
        --e->reserved;
        if (!dead) e->expect_since = rt::now();
        if (e->work) e->work->wake.notify_all();
        s.maybe_drop(*e);
      }
    }
  } reserved{s, {}};
  for (const auto& [family, modes] : ordered) {
    ETCFS_CHECK(s.wait_granted({family, modes}));
    Impl::Entry& e = s.entry(family);
    ++e.reserved;
    reserved.entries.push_back(&e);
  }
  return {};
}

void LockService::note_served(Family family) {
  Impl& s = *impl_;
  Impl::Entry* e = s.find(family);
  if (!e || e->held.none()) return;
  const Time now = rt::now();
  e->last_served = now;
  e->expected = false;
  if (e->first_served == Time{}) e->first_served = now;
  if (now - e->lru_at > 1s) s.lru_touch(*e);
}

void LockService::adopt(meta::Step& step, Family family) {
  Impl& s = *impl_;
  constexpr LockModes kAll{LockMode::kExclusive, LockMode::kExclusive};
  step.put(s.keys.lock(family, s.me.node, s.me.epoch), meta::encode(record_of(kAll)));
  Impl::Entry& e = s.entry(family);
  ETCFS_ASSERT(e.held.none() && e.stream_pending == 0);
  e.granted_at = e.expect_since = e.last_served = e.first_served = rt::now();
  s.set_held(e, kAll);
  e.usable = kAll;
  s.settle_waiters(e);
  s.enforce_budget();
}

void LockService::abandon(meta::Step& step, Family family) {
  Impl& s = *impl_;
  Impl::Entry* e = s.find(family);
  ETCFS_ASSERT(e && e->held.names == LockMode::kExclusive && e->held.files == LockMode::kExclusive);
  step.erase(s.keys.lock(family, s.me.node, s.me.epoch));
  ++e->stream_pending;
  step.on_commit = [&s, family, before = std::move(step.on_commit)] {
    if (before) before();
    s.stream_done(family);
  };
  s.set_held(*e, {});
  e->usable = {};
}

void LockService::close(Family family, LockModes keep) {
  Impl::Entry* e = impl_->find(family);
  if (!e) return;
  e->usable = {std::min(e->usable.names, keep.names), std::min(e->usable.files, keep.files)};
}

bool LockService::contended(Family family) const {
  const Impl& s = *impl_;
  return !s.recent_asks.empty() && s.recent_asks.contains(family);
}

void LockService::release_idle(std::span<const Family> families) {
  Impl& s = *impl_;
  for (Family family : families)
    if (Impl::Entry* e = s.find(family); e && !e->held.none() && !e->work) s.queue_release(*e);
}

Result<void> LockService::acquire_ahead(std::span<const Family> families, LockModes modes) {
  return impl_->acquire_ahead(families, modes);
}
void LockService::release_all() { impl_->release_all(); }

const LockService::Counters& LockService::counters() const { return impl_->counters; }
std::size_t LockService::held_families() const { return impl_->held_count; }

}  // namespace etcfs::cluster

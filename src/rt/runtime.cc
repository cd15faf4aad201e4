#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rt/runtime_impl.h"

namespace etcfs::rt {
namespace {

thread_local Runtime* t_current = nullptr;

constexpr Time kVirtualStart{std::chrono::seconds(1'000)};
constexpr std::int64_t kVirtualWallOffsetSec = 1'700'000'000;
constexpr std::size_t kBatch = 64;
// A simulated run in which somebody yields in a loop would never see the time move: every so many
// resumptions cost a microsecond.
constexpr std::uint64_t kResumptionsPerMicrosecond = 1'000;
constexpr std::uint64_t kSchedulerStream = 0x5ced5ced5ced5cedull;

std::uint64_t os_seed() {
  std::uint64_t seed = 0;
  ETCFS_ASSERT(::getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

timespec read_clock(clockid_t clock) {
  timespec ts{};
  ETCFS_ASSERT(::clock_gettime(clock, &ts) == 0);
  return ts;
}

}  // namespace

Runtime::Impl::Impl(Runtime& r, Options o)
    : owner(r),
      options(o),
      stacks(o.stack_bytes),
      ready(o.simulated),
      random(o.simulated ? o.seed : os_seed()),
      scheduler_random(o.seed ^ kSchedulerStream),
      virtual_now(kVirtualStart) {
  if (options.simulated) return;
  epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ETCFS_ASSERT(epoll_fd >= 0 && event_fd >= 0);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // edge-triggered: each write wakes, and nobody need read it
  event.data.u64 = 0;
  ETCFS_ASSERT(::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &event) == 0);
}

Runtime::Impl::~Impl() {
  ETCFS_ASSERT(live == 0);
  if (epoll_fd >= 0) ::close(epoll_fd);
  if (event_fd >= 0) ::close(event_fd);
}

Fiber* Runtime::Impl::make(Group& group, std::function<void()> body) {
  Fiber* fiber;
  if (free_fibers.empty()) {
    fiber = &fibers.emplace_back();
  } else {
    fiber = free_fibers.back();
    free_fibers.pop_back();
  }
  fiber->id = next_id++;
  fiber->body = std::move(body);
  fiber->stack = stacks.take();
  fiber->group = &group;
  group.impl().add(fiber);
  live++;
  return fiber;
}

void Runtime::Impl::recycle(Fiber* fiber) {
  ETCFS_ASSERT(fiber->timer_index == kNoTimer && !fiber->waits_on);
  Group::Impl& group = fiber->group->impl();
  group.remove(fiber);
  stacks.give(fiber->stack);
  fiber->state = Fiber::State::kFree;
  fiber->started = fiber->ended = fiber->token = fiber->timed_out = fiber->killed = false;
  fiber->context = Context{};
  fiber->resumer = nullptr;
  fiber->exceptions = ExceptionState{};
  fiber->acquiring = nullptr;
  fiber->group = nullptr;
  fiber->stack = Stack{};
  free_fibers.push_back(fiber);
  live--;
  if (group.size > 0) return;
  for (Fiber* waiter : std::exchange(group.waiters, {})) wake(waiter);
}

void Runtime::Impl::make_ready(Fiber* fiber) {
  fiber->state = Fiber::State::kReady;
  ready.push(fiber);
}

void Runtime::Impl::wake(Fiber* fiber) {
  ETCFS_ASSERT(fiber->state == Fiber::State::kBlocked);
  fiber->waits_on = nullptr;
  timers.disarm(fiber);
  make_ready(fiber);
}

void Runtime::Impl::block() {
  ETCFS_ASSERT(current &&
               !current->killed);  // a blocking call outside any fiber, or while unwinding
  current->timed_out = false;
  current->state = Fiber::State::kBlocked;
  suspend();
}

bool Runtime::Impl::block_until(Time deadline) {
  ETCFS_ASSERT(current && !current->killed);
  timers.arm(current, deadline);
  block();
  return !current->timed_out;
}

void Runtime::Impl::detach(Fiber* fiber) {
  timers.disarm(fiber);
  if (fiber->state == Fiber::State::kReady) ready.remove(fiber);
  if (fiber->waits_on) std::erase(*fiber->waits_on, fiber);
  fiber->waits_on = nullptr;
  fiber->state = Fiber::State::kBlocked;
}

void Runtime::Impl::fire_timers(Time time) {
  while (!timers.empty() && timers.next() <= time) {
    Fiber* fiber = timers.pop();
    fiber->timed_out = true;
    if (fiber->waits_on) std::erase(*fiber->waits_on, fiber);
    fiber->waits_on = nullptr;
    make_ready(fiber);
  }
}

Time Runtime::Impl::now() const {
  if (options.simulated) return virtual_now;
  const timespec ts = read_clock(CLOCK_BOOTTIME);
  return Time{std::chrono::seconds(ts.tv_sec) + Nanos(ts.tv_nsec)};
}

void Runtime::Impl::run_posted() {
  if (!has_posted.load(std::memory_order_acquire)) return;
  {
    std::lock_guard lock(posted_mu);
    posted_batch.swap(posted);
    has_posted.store(false, std::memory_order_relaxed);
  }
  for (auto& fn : posted_batch) {
    fn();
    fn = nullptr;  // what it holds goes before the next one runs
  }
  posted_batch.clear();
}

// Waits until a descriptor is ready, a function is posted or the next timer is due; or only looks.
void Runtime::Impl::poll(bool may_block) {
  timespec timeout{};
  bool forever = false;
  if (may_block) {
    if (timers.empty()) {
      forever = true;
    } else if (const Nanos left = timers.next() - now(); left > Nanos::zero()) {
      timeout.tv_sec = left / std::chrono::seconds(1);
      timeout.tv_nsec = (left % std::chrono::seconds(1)).count();
    }
    std::lock_guard lock(posted_mu);
    if (!posted.empty()) return;
    sleeping = true;
  }
  epoll_event events[32];
  const int n = ::epoll_pwait2(epoll_fd, events, 32, forever ? nullptr : &timeout, nullptr);
  ETCFS_ASSERT(n >= 0 || errno == EINTR);
  if (may_block) {
    std::lock_guard lock(posted_mu);
    sleeping = false;
  }
  for (int i = 0; i < n; i++) {
    const std::uint64_t data = events[i].data.u64;
    if (data == 0) continue;  // the eventfd
    auto it = polls.find(static_cast<int>(data & 0xffffffff));
    if (it == polls.end() || it->second->generation != data >> 32) continue;  // removed meanwhile
    const std::shared_ptr<Poll> keep = it->second;
    keep->ready();
  }
}

void Runtime::Impl::run_daemon() {
  std::size_t since_poll = 0;
  while (!stopping) {
    run_posted();
    if (!timers.empty()) fire_timers(now());
    if (ready.size() == 0) {
      if (stopping) break;
      poll(/*may_block=*/true);
      since_poll = 0;
      continue;
    }
    const std::size_t batch = std::min(ready.size(), kBatch);
    for (std::size_t i = 0; i < batch && !stopping && ready.size() > 0; i++)
      resume(ready.pop_front());
    since_poll += batch;
    if (since_poll >= kBatch && !polls.empty()) {
      poll(/*may_block=*/false);
      since_poll = 0;
    }
  }
}

void Runtime::Impl::run_simulated() {
  while (!stopping) {
    run_posted();
    fire_timers(virtual_now);
    if (ready.size() > 0) {
      const std::size_t n = ready.size();
      Fiber* fiber = ready.pop_at(n == 1 ? 0 : scheduler_random.below(n));
      schedule_hash = (schedule_hash ^ fiber->id) * 0x100000001b3ull;
      schedule_hash ^= static_cast<std::uint64_t>(virtual_now.time_since_epoch().count()) << 1;
      if (++resumptions % kResumptionsPerMicrosecond == 0)
        virtual_now += std::chrono::microseconds(1);
      resume(fiber);
    } else if (!timers.empty()) {
      virtual_now = std::max(virtual_now, timers.next());
    } else if (!has_posted.load(std::memory_order_acquire)) {
      break;
    }
  }
}

Runtime::Runtime(Options options) : impl_(std::make_unique<Impl>(*this, options)) {
  previous_ = std::exchange(t_current, this);
}

Runtime::~Runtime() {
  impl_.reset();
  if (t_current == this) t_current = previous_;
}

Runtime& Runtime::current() {
  ETCFS_ASSERT(t_current);
  return *t_current;
}

bool Runtime::in_fiber() { return t_current && t_current->impl_->current; }

void Runtime::spawn(Group& group, std::function<void()> body) {
  ETCFS_ASSERT(&group.runtime() == this);
  if (group.killed()) return;  // a crashed node starts nothing; the body is dropped here
  impl_->make_ready(impl_->make(group, std::move(body)));
}

void Runtime::run() {
  ETCFS_ASSERT(!impl_->running);
  Runtime* const outer = std::exchange(t_current, this);
  impl_->running = true;
  if (impl_->options.simulated) {
    impl_->run_simulated();
  } else {
    impl_->run_daemon();
  }
  impl_->running = false;
  impl_->stopping = false;
  t_current = outer;
}

void Runtime::stop() { impl_->stopping = true; }

void Runtime::post(std::function<void()> fn) {
  bool wake;
  {
    std::lock_guard lock(impl_->posted_mu);
    impl_->posted.push_back(std::move(fn));
    impl_->has_posted.store(true, std::memory_order_release);
    wake = std::exchange(impl_->sleeping, false);
  }
  if (!wake) return;
  const std::uint64_t one = 1;
  ETCFS_ASSERT(::write(impl_->event_fd, &one, sizeof one) == sizeof one);
}

void Runtime::add_poll(int fd, std::function<void()> ready) {
  ETCFS_ASSERT(!impl_->options.simulated);
  auto poll = std::make_shared<Impl::Poll>(Impl::Poll{impl_->next_generation++, std::move(ready)});
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 =
      static_cast<std::uint64_t>(poll->generation) << 32 | static_cast<std::uint32_t>(fd);
  ETCFS_ASSERT(::epoll_ctl(impl_->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
  ETCFS_ASSERT(impl_->polls.emplace(fd, std::move(poll)).second);
}

void Runtime::remove_poll(int fd) {
  if (impl_->polls.erase(fd) == 0) return;
  ETCFS_ASSERT(::epoll_ctl(impl_->epoll_fd, EPOLL_CTL_DEL, fd, nullptr) == 0);
}

Time Runtime::now() const { return impl_->now(); }

WallTime Runtime::wall_now() const {
  if (!impl_->options.simulated) {
    const timespec ts = read_clock(CLOCK_REALTIME);
    return {ts.tv_sec, static_cast<std::uint32_t>(ts.tv_nsec)};
  }
  const Nanos since = impl_->virtual_now.time_since_epoch();
  const auto sec = std::chrono::duration_cast<std::chrono::seconds>(since);
  return {kVirtualWallOffsetSec + sec.count(), static_cast<std::uint32_t>((since - sec).count())};
}

std::uint64_t Runtime::random() { return impl_->random.next(); }

std::uint64_t Runtime::random_below(std::uint64_t n) {
  ETCFS_ASSERT(n > 0);
  return impl_->random.below(n);
}

bool Runtime::simulated() const { return impl_->options.simulated; }
std::size_t Runtime::live_fibers() const { return impl_->live; }
std::uint64_t Runtime::schedule_hash() const { return impl_->schedule_hash; }

Fiber* Runtime::self() {
  ETCFS_ASSERT(impl_->current);
  return impl_->current;
}

void Runtime::park() {
  Fiber* const fiber = self();
  ETCFS_ASSERT(!fiber->killed);
  if (!fiber->token) {
    fiber->state = Fiber::State::kParked;
    impl_->suspend();
  }
  fiber->token = false;
}

bool Runtime::park_until(Time deadline) {
  Fiber* const fiber = self();
  ETCFS_ASSERT(!fiber->killed);
  if (!fiber->token) {
    if (deadline <= now()) return false;
    impl_->timers.arm(fiber, deadline);
    fiber->state = Fiber::State::kParked;
    impl_->suspend();
  }
  return std::exchange(fiber->token, false);
}

void Runtime::unpark(Fiber* fiber) {
  if (fiber->state == Fiber::State::kFree || fiber->killed) return;
  fiber->token = true;
  if (fiber->state != Fiber::State::kParked) return;
  impl_->timers.disarm(fiber);
  impl_->make_ready(fiber);
}

void Runtime::yield() {
  Fiber* const fiber = self();
  ETCFS_ASSERT(!fiber->killed);
  impl_->make_ready(fiber);
  impl_->suspend();
}

void sleep_until(Time deadline) {
  Runtime& runtime = Runtime::current();
  if (deadline <= runtime.now()) return runtime.yield();
  runtime.impl().block_until(deadline);
}

void sleep_for(Nanos duration) { sleep_until(now() + duration); }
void yield() { Runtime::current().yield(); }

}  // namespace etcfs::rt

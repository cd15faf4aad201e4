// Mutex, Condition and Gate: lists of waiting fibers. A killed fiber is taken off its list by
// kill(), before anything is unwound.
#include <utility>

#include "rt/runtime_impl.h"

namespace etcfs::rt {
namespace {
Runtime::Impl& rt() { return Runtime::current().impl(); }
}  // namespace

Mutex::~Mutex() {
  // Handed over to a fiber that was killed before it ran again, and that will find it gone.
  if (owner_ && owner_->acquiring == this) owner_->acquiring = nullptr;
  ETCFS_ASSERT(waiters_.empty());
}

void Mutex::lock() {
  Fiber* const self = Runtime::current().self();
  if (!owner_) {
    owner_ = self;
    return;
  }
  ETCFS_ASSERT(owner_ != self);
  waiters_.push_back(self);
  self->waits_on = &waiters_;
  self->acquiring = this;
  struct Unwinding {  // killed after unlock() had made it the owner: hand it on
    Fiber* self;
    ~Unwinding() {
      Mutex* const mutex = std::exchange(self->acquiring, nullptr);
      if (self->killed && mutex && mutex->owner_ == self) mutex->unlock();
    }
  } unwinding{self};
  rt().block();
  ETCFS_ASSERT(owner_ == self);
}

bool Mutex::try_lock() {
  if (owner_) return false;
  owner_ = Runtime::current().self();
  return true;
}

void Mutex::unlock() {
  ETCFS_ASSERT(owner_ && owner_ == Runtime::current().self());
  if (waiters_.empty()) {
    owner_ = nullptr;
    return;
  }
  owner_ = waiters_.front();
  waiters_.erase(waiters_.begin());
  rt().wake(owner_);
}

Condition::~Condition() { ETCFS_ASSERT(waiters_.empty()); }

void Condition::wait() {
  Fiber* const self = Runtime::current().self();
  waiters_.push_back(self);
  self->waits_on = &waiters_;
  rt().block();
}

bool Condition::wait_until(Time deadline) {
  Runtime& runtime = Runtime::current();
  Fiber* const self = runtime.self();
  if (deadline <= runtime.now()) return false;
  waiters_.push_back(self);
  self->waits_on = &waiters_;
  return rt().block_until(deadline);
}

void Condition::notify_one() {
  if (waiters_.empty()) return;
  Fiber* const first = waiters_.front();
  waiters_.erase(waiters_.begin());
  rt().wake(first);
}

void Condition::notify_all() {
  for (Fiber* fiber : waiters_) rt().wake(fiber);
  waiters_.clear();
}

bool Gate::try_enter() {
  if (closed_) return false;
  count_++;
  return true;
}

void Gate::leave() {
  ETCFS_ASSERT(count_ > 0);
  if (--count_ == 0) empty_.notify_all();
}

void Gate::close() {
  closed_ = true;
  empty_.wait([this] { return count_ == 0; });
}

}  // namespace etcfs::rt

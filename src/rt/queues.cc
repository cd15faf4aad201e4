// The timer heap and the ready queue of the scheduler.
#include <algorithm>

#include "rt/runtime_impl.h"

namespace etcfs::rt {

void TimerHeap::place(std::size_t i, Entry entry) {
  entries_[i] = entry;
  entry.fiber->timer_index = i;
}

// Moves the entry at i up or down to where it belongs.
void TimerHeap::sift(std::size_t i) {
  const Entry entry = entries_[i];
  while (i > 0 && before(entry, entries_[(i - 1) / 2])) {
    place(i, entries_[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  for (std::size_t child; (child = 2 * i + 1) < entries_.size(); i = child) {
    if (child + 1 < entries_.size() && before(entries_[child + 1], entries_[child])) child++;
    if (!before(entries_[child], entry)) break;
    place(i, entries_[child]);
  }
  place(i, entry);
}

void TimerHeap::arm(Fiber* fiber, Time deadline) {
  ETCFS_ASSERT(fiber->timer_index == kNoTimer);
  entries_.push_back({deadline, order_++, fiber});
  sift(entries_.size() - 1);
}

void TimerHeap::disarm(Fiber* fiber) {
  const std::size_t i = fiber->timer_index;
  if (i == kNoTimer) return;
  ETCFS_ASSERT(i < entries_.size() && entries_[i].fiber == fiber);
  fiber->timer_index = kNoTimer;
  const Entry last = entries_.back();
  entries_.pop_back();
  if (last.fiber == fiber) return;
  entries_[i] = last;
  sift(i);
}

Fiber* TimerHeap::pop() {
  Fiber* fiber = entries_.front().fiber;
  disarm(fiber);
  return fiber;
}

void ReadyQueue::push(Fiber* fiber) {
  size_++;
  if (bag_) {
    bagged_.push_back(fiber);
    return;
  }
  fiber->ready_next = nullptr;
  fiber->ready_prev = tail_;
  (tail_ ? tail_->ready_next : head_) = fiber;
  tail_ = fiber;
}

void ReadyQueue::remove(Fiber* fiber) {
  ETCFS_ASSERT(size_ > 0);
  size_--;
  if (bag_) {
    auto it = std::find(bagged_.begin(), bagged_.end(), fiber);
    ETCFS_ASSERT(it != bagged_.end());
    bagged_.erase(it);
    return;
  }
  (fiber->ready_prev ? fiber->ready_prev->ready_next : head_) = fiber->ready_next;
  (fiber->ready_next ? fiber->ready_next->ready_prev : tail_) = fiber->ready_prev;
}

Fiber* ReadyQueue::pop_front() {
  Fiber* fiber = head_;
  remove(fiber);
  return fiber;
}

Fiber* ReadyQueue::pop_at(std::size_t i) {
  ETCFS_ASSERT(bag_ && i < bagged_.size());
  Fiber* fiber = bagged_[i];
  bagged_[i] = bagged_.back();
  bagged_.pop_back();
  size_--;
  return fiber;
}

}  // namespace etcfs::rt

// Inside of rt: what a fiber and a runtime consist of. Only src/rt/*.cc include this.
//
// States of a fiber: kReady (in the ready queue), kRunning (on the CPU, or it resumed another one
// to unwind it), kParked (waits for its token), kBlocked (waits on a list of a Mutex, Condition or
// Group, or only for its timer). unpark() of a blocked fiber leaves the token for the next park():
// so the protocols of park() and of the locks never eat each other's wake-ups.
// Fiber objects are recycled but never freed before the runtime, so that a late unpark() of a dead
// handle can do no worse than a spurious wake-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/assert.h"
#include "rt/random.h"
#include "rt/rt.h"
#include "rt/stack.h"

namespace etcfs::rt {

// Thrown by a blocking call of a killed fiber, caught by the fiber's entry only. Not a
// std::exception, so that nobody catches it by accident.
struct Unwind {};

// A place to switch back to. The bounds are needed by the sanitizers only.
struct Context {
  void* fctx = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_bytes = 0;
  void* asan_fake_stack = nullptr;
  void* tsan_fiber = nullptr;
};

// The C++ runtime's per-thread exception state; each fiber has its own, since it may block in a
// catch block and since unwinding one fiber may happen inside a destructor of another.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

inline constexpr std::size_t kNoTimer = SIZE_MAX;

class Fiber {
 public:
  enum class State : std::uint8_t { kFree, kReady, kRunning, kParked, kBlocked };

  State state = State::kFree;
  bool started = false;
  bool ended = false;
  bool token = false;      // unpark() came first
  bool timed_out = false;  // the timer woke it
  bool killed = false;     // unwinding, or about to
  Context context;
  Context* resumer = nullptr;
  ExceptionState exceptions;
  std::uint64_t id = 0;  // in order of spawn, never used twice
  std::function<void()> body;
  Fiber* ready_next = nullptr;
  Fiber* ready_prev = nullptr;
  std::vector<Fiber*>* waits_on = nullptr;  // the list it stands in
  Mutex* acquiring = nullptr;               // between lock() and its return
  Group* group = nullptr;
  Fiber* group_next = nullptr;
  Fiber* group_prev = nullptr;
  std::size_t timer_index = kNoTimer;  // in the heap
  Stack stack;
};

// Timers of blocked and parked fibers: a binary heap by (deadline, order of arming), with removal.
class TimerHeap {
 public:
  bool empty() const { return entries_.empty(); }
  Time next() const { return entries_.front().deadline; }
  void arm(Fiber* fiber, Time deadline);
  void disarm(Fiber* fiber);  // nothing when not armed
  Fiber* pop();

 private:
  struct Entry {
    Time deadline;
    std::uint64_t order;
    Fiber* fiber;
  };
  static bool before(const Entry& a, const Entry& b) {
    return a.deadline != b.deadline ? a.deadline < b.deadline : a.order < b.order;
  }
  void place(std::size_t i, Entry entry);
  void sift(std::size_t i);
  std::vector<Entry> entries_;
  std::uint64_t order_ = 0;
};

// FIFO in the daemon (intrusive list), a bag that the seed picks from in the simulator.
class ReadyQueue {
 public:
  explicit ReadyQueue(bool bag) : bag_(bag) {}
  std::size_t size() const { return size_; }
  void push(Fiber* fiber);
  void remove(Fiber* fiber);
  Fiber* pop_front();
  Fiber* pop_at(std::size_t i);

 private:
  const bool bag_;
  std::size_t size_ = 0;
  Fiber* head_ = nullptr;
  Fiber* tail_ = nullptr;
  std::vector<Fiber*> bagged_;
};

struct Runtime::Impl {
  explicit Impl(Runtime& owner, Options o);
  ~Impl();

  // --- fibers
  Fiber* make(Group& group, std::function<void()> body);
  void make_ready(Fiber* fiber);
  // Switches to the fiber and comes back when it blocks or ends; then recycles it if it ended.
  void resume(Fiber* fiber);
  // Of the current fiber, whose state says what it waits for. Throws Unwind when it was killed.
  void suspend();
  void block();                     // suspend() in kBlocked
  bool block_until(Time deadline);  // false: the deadline came first
  // Takes the fiber off every list, timer and queue. It can then only be unwound.
  void detach(Fiber* fiber);
  // Wakes a blocked fiber that its waker has taken off the list.
  void wake(Fiber* fiber);
  void recycle(Fiber* fiber);

  // --- loop
  void run_daemon();
  void run_simulated();
  void run_posted();
  void fire_timers(Time now);
  void poll(bool may_block);
  Time now() const;

  Runtime& owner;
  const Options options;
  Fiber* current = nullptr;
  Context main;  // of the thread that called run() (or kill())
  StackPool stacks;
  std::deque<Fiber> fibers;  // addresses are stable
  std::vector<Fiber*> free_fibers;
  std::size_t live = 0;
  std::uint64_t next_id = 1;
  ReadyQueue ready;
  TimerHeap timers;
  bool running = false;
  bool stopping = false;
  Random random;
  Random scheduler_random;
  Time virtual_now;
  std::uint64_t resumptions = 0;
  std::uint64_t schedule_hash = 0xcbf29ce484222325ull;

  // --- polls
  struct Poll {
    std::uint32_t generation;
    std::function<void()> ready;
  };
  int epoll_fd = -1;
  int event_fd = -1;
  std::uint32_t next_generation = 1;
  std::unordered_map<int, std::shared_ptr<Poll>> polls;  // looked up only, never iterated

  // --- handed over by other OS threads
  std::mutex posted_mu;
  std::vector<std::function<void()>> posted;  // guarded by posted_mu
  bool sleeping = false;  // guarded by posted_mu: the loop is in, or about to enter, epoll_wait
  std::atomic<bool> has_posted{false};  // a hint, to look without the mutex
  std::vector<std::function<void()>> posted_batch;
};

struct Group::Impl {
  std::string name;
  Group* parent = nullptr;  // the group of the fiber that made it
  std::vector<Group*> children;
  Fiber* head = nullptr;
  Fiber* tail = nullptr;
  std::size_t size = 0;
  bool killed = false;
  std::vector<Fiber*> waiters;

  void add(Fiber* fiber);
  void remove(Fiber* fiber);
};

}  // namespace etcfs::rt

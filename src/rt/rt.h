// rt: fibers, their synchronisation, clocks and randomness: ordinary blocking code over one OS thread.
//
// A Runtime belongs to the OS thread that calls run(). All code of a node above the seams runs in
// fibers of that one runtime, so between two blocking calls it is never interrupted and needs no
// locks. A blocking call is one that can reach Runtime::park(); public declarations say "blocks".
// Other OS threads (gRPC, io_uring, kernel notifications) hand results over with post().
// In the simulator the same interface runs under a seeded scheduler with virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace etcfs::rt {

class Runtime;
class Group;
class Fiber;  // opaque handle; stays valid until the fiber's body has returned

// Where the runtime waits when no fiber can run. In the daemon: epoll over an eventfd and the file
// descriptors of add_poll(); in the simulator: virtual time jumps to the next timer.
struct Options {
  bool simulated = false;           // virtual time; ready fibers are picked by the seed
  std::uint64_t seed = 1;           // scheduler choices and Random of a simulated runtime
  std::size_t stack_bytes = 128 * 1024;  // mapped lazily, with a guard page, pooled
};

class Runtime {
 public:
  explicit Runtime(Options options = {});
  ~Runtime();  // no fiber may be left running; see Group::kill()
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  static Runtime& current();      // of this OS thread; asserts that there is one
  static bool in_fiber();         // true inside a fiber

  // Starts a fiber in `group`. Callable from a fiber or before run(); the new fiber runs later.
  void spawn(Group& group, std::function<void()> body);

  // Runs fibers until stop() was called or, when simulated, nothing can ever run again.
  void run();
  void stop();                            // from a fiber
  void post(std::function<void()> fn);    // any OS thread; fn runs on the runtime thread, outside
                                          // any fiber, and must not block (it may unpark, notify, spawn)

  // Calls `ready` on the runtime thread (outside any fiber, must not block) whenever fd is readable
  // (level-triggered). Not available when simulated. remove_poll before closing fd.
  void add_poll(int fd, std::function<void()> ready);
  void remove_poll(int fd);

  Time now() const;                       // boot-time clock, or virtual time
  WallTime wall_now() const;              // for inode times; in the simulator derived from now()
  std::uint64_t random();                 // seeded in the simulator, from the OS otherwise
  std::uint64_t random_below(std::uint64_t n);  // uniform in [0, n)
  bool simulated() const;
  std::uint64_t schedule_hash() const;    // simulated: of who ran when, so far; equal runs have equal ones

  // Building blocks; everything else is made of them. park() blocks the current fiber until
  // unpark(it); an unpark that comes first makes the next park() return at once.
  Fiber* self();
  void park();
  bool park_until(Time deadline);         // false: the deadline came first
  void unpark(Fiber* fiber);
  void yield();                           // blocks: other ready fibers run first
  std::size_t live_fibers() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
  Runtime* previous_ = nullptr;           // current() of the thread before this one was made
};

inline Time now() { return Runtime::current().now(); }
void sleep_for(Nanos duration);           // blocks
void sleep_until(Time deadline);          // blocks
void yield();                             // blocks

// A set of fibers that live and die together: the fibers of one node in the simulator, of one
// service in the daemon. A group made inside a fiber is a child of that fiber's group: killing a
// group kills its children too, so the groups of all services of a node die with the node's.
class Group {
 public:
  explicit Group(Runtime& runtime, std::string name = {});
  ~Group();                               // asserts that no fiber is left
  void spawn(std::function<void()> body);
  void wait();                            // blocks until all fibers of the group have ended
  // The crash of a node: its fibers never run again; their stacks are unwound (destructors run, but
  // may not block: park() in an unwinding fiber is an assertion). Not from a fiber of the group or of
  // its children. Youngest fibers first; all are off all wait lists before the first is unwound. The
  // unwinding is an exception thrown out of the blocking call: never block in a destructor or in
  // another noexcept function, never catch (...) without throwing on. spawn() into a killed group
  // drops the body.
  void kill();
  bool killed() const;
  std::size_t size() const;
  Runtime& runtime() { return runtime_; }

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Runtime& runtime_;
  std::unique_ptr<Impl> impl_;
};

// Fiber-level synchronisation. None of it may be used from outside the runtime's thread. Waiters are
// served in order of arrival (in the simulator, woken in an order chosen by the seed where several
// become ready at once).
class Mutex {
 public:
  Mutex() = default;
  ~Mutex();                               // asserts that nobody waits
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock();                            // blocks
  bool try_lock();
  void unlock();
  bool locked() const { return owner_ != nullptr; }

 private:
  Fiber* owner_ = nullptr;
  std::vector<Fiber*> waiters_;
};

class Condition {                         // level-free: check the predicate in a loop
 public:
  Condition() = default;
  ~Condition();                           // asserts that nobody waits (killed fibers do not)
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  void wait();                            // blocks until notified
  bool wait_until(Time deadline);         // blocks; false: deadline
  template <class Pred>
  void wait(Pred pred) {
    while (!pred()) wait();
  }
  template <class Pred>
  bool wait_until(Time deadline, Pred pred) {
    while (!pred())
      if (!wait_until(deadline)) return pred();
    return true;
  }
  void notify_one();                      // also from post()ed functions
  void notify_all();
  bool has_waiters() const { return !waiters_.empty(); }

 private:
  std::vector<Fiber*> waiters_;
};

// One value handed from another OS thread (or fiber) to a fiber. set() once; get() blocks.
// set() from another thread must be wrapped in Runtime::post().
template <class T>
class Future {
 public:
  void set(T value) {
    value_ = std::move(value);
    cond_.notify_all();
  }
  bool ready() const { return value_.has_value(); }
  T get() {
    cond_.wait([&] { return value_.has_value(); });
    return std::move(*value_);
  }
  bool wait_until(Time deadline) {
    return cond_.wait_until(deadline, [&] { return value_.has_value(); });
  }

 private:
  std::optional<T> value_;
  Condition cond_;
};

// Counts what is under way; close() refuses new entries and blocks until all have left.
class Gate {
 public:
  bool try_enter();                       // false once closed
  void leave();
  void close();                           // blocks
  bool closed() const { return closed_; }
  std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
  bool closed_ = false;
  Condition empty_;
};

}  // namespace etcfs::rt

#include "rt/rt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "rt/random.h"

using std::chrono_literals::operator""h;

namespace etcfs::rt {
namespace {

Options simulated(std::uint64_t seed = 1) {
  Options o;
  o.simulated = true;
  o.seed = seed;
  return o;
}

// Runs `body` as the only first fiber, in both kinds of runtime.
class BothKinds : public ::testing::TestWithParam<bool> {
 protected:
  BothKinds()
      : runtime_([] {
          Options o;
          o.simulated = GetParam();
          return o;
        }()) {}
  void run(std::function<void()> body) {
    Group group(runtime_, "test");
    group.spawn([&] {
      body();
      runtime_.stop();
    });
    runtime_.run();
    EXPECT_EQ(group.size(), 0u);
  }
  Runtime runtime_;
};
INSTANTIATE_TEST_SUITE_P(Rt, BothKinds, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "Simulated" : "Real"; });

TEST_P(BothKinds, RunsAFiberToItsEnd) {
  bool ran = false;
  run([&] {
    EXPECT_TRUE(Runtime::in_fiber());
    EXPECT_EQ(&Runtime::current(), &runtime_);
    ran = true;
  });
  EXPECT_TRUE(ran);
  EXPECT_FALSE(Runtime::in_fiber());
  EXPECT_EQ(runtime_.live_fibers(), 0u);
}

TEST_P(BothKinds, UnparkBeforeParkIsNotLost) {
  run([&] {
    runtime_.unpark(runtime_.self());
    runtime_.unpark(runtime_.self());
    runtime_.park();  // returns at once; two unparks are one token
    EXPECT_FALSE(runtime_.park_until(now() + 1ms));
  });
}

TEST_P(BothKinds, UnparkWakesAParkedFiberOnce) {
  std::string log;
  run([&] {
    Group group(runtime_);
    Fiber* parked = nullptr;
    group.spawn([&] {
      parked = runtime_.self();
      runtime_.park();
      log += "woken ";
      if (!runtime_.park_until(now() + 1ms)) log += "timeout";
    });
    while (!parked) yield();
    runtime_.unpark(parked);
    runtime_.unpark(parked);
    group.wait();
  });
  EXPECT_EQ(log, "woken timeout");
}

TEST_P(BothKinds, UnparkOfAFiberThatWaitsForALockIsKeptForItsNextPark) {
  run([&] {
    Group group(runtime_);
    Mutex mutex;
    mutex.lock();
    Fiber* other = nullptr;
    bool locked = false, parked_through = false;
    group.spawn([&] {
      other = runtime_.self();
      mutex.lock();
      locked = true;
      runtime_.park();
      parked_through = true;
      mutex.unlock();
    });
    while (!other) yield();
    runtime_.unpark(other);
    yield();
    EXPECT_FALSE(locked);  // not woken out of lock()
    mutex.unlock();
    group.wait();
    EXPECT_TRUE(parked_through);
  });
}

TEST_P(BothKinds, ParkUntilAPastDeadlineReturnsFalse) {
  run([&] { EXPECT_FALSE(runtime_.park_until(now() - 1ms)); });
}

TEST_P(BothKinds, SleepersWakeInOrderOfTheirDeadlines) {
  std::vector<int> order;
  run([&] {
    Group group(runtime_);
    const Time start = now();
    for (int i : {5, 1, 4, 2, 3}) {
      group.spawn([&, i] {
        sleep_until(start + i * 2ms);
        EXPECT_GE(now(), start + i * 2ms);
        order.push_back(i);
      });
    }
    group.wait();
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
}

TEST_P(BothKinds, MutexIsHandedOverInOrderOfArrival) {
  std::vector<int> order;
  run([&] {
    Group group(runtime_);
    Mutex mutex;
    mutex.lock();
    for (int i = 0; i < 5; i++) {
      const std::size_t before = order.size();
      bool arrived = false;
      group.spawn([&, i, arrived = &arrived] {
        *arrived = true;
        std::lock_guard lock(mutex);
        order.push_back(i);
        yield();
      });
      while (!arrived) yield();
      EXPECT_EQ(order.size(), before);
    }
    EXPECT_FALSE(mutex.try_lock());
    mutex.unlock();
    EXPECT_TRUE(mutex.locked());  // handed over, not up for grabs
    EXPECT_FALSE(mutex.try_lock());
    group.wait();
    EXPECT_FALSE(mutex.locked());
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_P(BothKinds, ConditionNotifiesOneOrAll) {
  run([&] {
    Group group(runtime_);
    Condition condition;
    int woken = 0, waiting = 0;
    for (int i = 0; i < 4; i++) {
      group.spawn([&] {
        waiting++;
        condition.wait();
        woken++;
      });
    }
    while (waiting < 4) yield();
    condition.notify_one();
    sleep_for(1ms);
    EXPECT_EQ(woken, 1);
    condition.notify_all();
    group.wait();
    EXPECT_EQ(woken, 4);
    EXPECT_FALSE(condition.has_waiters());
    condition.notify_one();  // nobody: no effect on later waits
    EXPECT_FALSE(condition.wait_until(now() + 1ms));
  });
}

TEST_P(BothKinds, TimedOutWaiterDoesNotEatANotification) {
  run([&] {
    Group group(runtime_);
    Condition condition;
    bool timed_out = false, notified = false;
    group.spawn([&] { timed_out = !condition.wait_until(now() + 1ms); });
    sleep_for(3ms);
    EXPECT_TRUE(timed_out);
    group.spawn([&] {
      condition.wait();
      notified = true;
    });
    sleep_for(1ms);
    condition.notify_one();
    group.wait();
    EXPECT_TRUE(notified);
  });
}

TEST_P(BothKinds, WaitUntilWithPredicate) {
  run([&] {
    Group group(runtime_);
    Condition condition;
    int value = 0;
    group.spawn([&] {
      for (int i = 0; i < 3; i++) {
        sleep_for(1ms);
        value++;
        condition.notify_all();
      }
    });
    EXPECT_TRUE(condition.wait_until(now() + 10s, [&] { return value == 3; }));
    EXPECT_FALSE(condition.wait_until(now() + 1ms, [&] { return value == 4; }));
    group.wait();
  });
}

TEST_P(BothKinds, GateWaitsForWhatIsUnderWay) {
  run([&] {
    Group group(runtime_);
    Gate gate;
    ASSERT_TRUE(gate.try_enter());
    bool closed = false;
    group.spawn([&] {
      gate.close();
      closed = true;
    });
    sleep_for(1ms);
    EXPECT_TRUE(gate.closed());
    EXPECT_FALSE(closed);
    EXPECT_FALSE(gate.try_enter());
    EXPECT_EQ(gate.count(), 1u);
    gate.leave();
    group.wait();
    EXPECT_TRUE(closed);
  });
}

TEST_P(BothKinds, FutureHandsAValueOver) {
  run([&] {
    Group group(runtime_);
    Future<std::string> future;
    group.spawn([&] { future.set("value"); });
    EXPECT_EQ(future.get(), "value");
    Future<int> never;
    EXPECT_FALSE(never.wait_until(now() + 1ms));
    EXPECT_FALSE(never.ready());
    group.wait();
  });
}

TEST_P(BothKinds, ThousandsOfFibersWithDeepStacks) {
  run([&] {
    Group group(runtime_);
    std::uint64_t sum = 0;
    for (int i = 0; i < 3000; i++) {
      group.spawn([&] {
        volatile char deep[32 * 1024];
        deep[0] = 1;
        deep[sizeof deep - 1] = 2;
        sleep_for(1ms);
        sum += static_cast<std::uint64_t>(deep[0] + deep[sizeof deep - 1]);
      });
    }
    group.wait();
    EXPECT_EQ(sum, 9000u);
  });
}

// ---------------------------------------------------------------------------------------- kill

struct Recorder {
  std::vector<std::string>& log;
  std::string what;
  ~Recorder() { log.push_back(what); }
};

TEST_P(BothKinds, KillUnwindsEveryStateYoungestFirst) {
  std::vector<std::string> log;
  run([&] {
    Group group(runtime_, "victims");
    Mutex mutex;
    Condition condition;
    mutex.lock();
    group.spawn([&] {
      Recorder r{log, "parked"};
      runtime_.park();
      log.push_back("never");
    });
    group.spawn([&] {
      Recorder r{log, "sleeping"};
      sleep_for(1h);
      log.push_back("never");
    });
    group.spawn([&] {
      Recorder r{log, "locking"};
      std::lock_guard lock(mutex);
      log.push_back("never");
    });
    group.spawn([&] {
      Recorder r{log, "waiting"};
      condition.wait_until(now() + 1h);
      log.push_back("never");
    });
    sleep_for(1ms);
    Recorder* captured = new Recorder{log, "unstarted"};
    group.spawn([r = std::shared_ptr<Recorder>(captured)] { r->log.push_back("never"); });
    EXPECT_EQ(group.size(), 5u);
    group.kill();
    EXPECT_TRUE(group.killed());
    EXPECT_EQ(group.size(), 0u);
    EXPECT_FALSE(condition.has_waiters());
    group.spawn([&] { log.push_back("never"); });
    EXPECT_EQ(group.size(), 0u);
    mutex.unlock();
    EXPECT_FALSE(mutex.locked());  // the dead waiter did not get it
    sleep_for(1ms);
  });
  EXPECT_EQ(log,
            (std::vector<std::string>{"unstarted", "waiting", "locking", "sleeping", "parked"}));
}

TEST_P(BothKinds, KillReachesGroupsMadeInsideAndWakesWhoWaitsForThem) {
  bool inner_unwound = false, waiter_done = false;
  run([&] {
    Group outer(runtime_, "node");
    Group bystander(runtime_);
    outer.spawn([&] {
      Group inner(runtime_, "service");
      inner.spawn([&] {
        struct Mark {
          bool& flag;
          ~Mark() { flag = true; }
        } mark{inner_unwound};
        runtime_.park();
      });
      inner.wait();
    });
    sleep_for(1ms);
    bystander.spawn([&] {
      outer.wait();
      waiter_done = true;
    });
    sleep_for(1ms);
    outer.kill();
    bystander.wait();
  });
  EXPECT_TRUE(inner_unwound);
  EXPECT_TRUE(waiter_done);
}

TEST_P(BothKinds, KilledOwnerReleasesItsMutexToALivingWaiter) {
  run([&] {
    Group victims(runtime_), others(runtime_);
    Mutex mutex;
    bool got = false;
    victims.spawn([&] {
      std::lock_guard lock(mutex);
      sleep_for(1h);
    });
    sleep_for(1ms);
    victims.spawn([&] {
      std::lock_guard lock(mutex);
      ADD_FAILURE() << "a dead fiber got the lock";
    });
    sleep_for(1ms);
    others.spawn([&] {
      std::lock_guard lock(mutex);
      got = true;
    });
    sleep_for(1ms);
    victims.kill();
    others.wait();
    EXPECT_TRUE(got);
    EXPECT_FALSE(mutex.locked());
  });
}

TEST_P(BothKinds, KilledHeirOfAMutexHandsItOn) {
  run([&] {
    Group victims(runtime_), others(runtime_);
    Mutex mutex;
    bool got = false, heir_arrived = false, other_arrived = false;
    mutex.lock();
    victims.spawn([&] {
      heir_arrived = true;
      std::lock_guard lock(mutex);
      ADD_FAILURE() << "a dead fiber got the lock";
    });
    while (!heir_arrived) yield();
    others.spawn([&] {
      other_arrived = true;
      std::lock_guard lock(mutex);
      got = true;
    });
    while (!other_arrived) yield();
    mutex.unlock();  // to the heir, which does not run any more
    victims.kill();
    others.wait();
    EXPECT_TRUE(got);
  });
}

TEST_P(BothKinds, WhatAnUnwoundFiberOwnedMayBeWaitedForByOthersOfItsGroup) {
  run([&] {
    Group victims(runtime_);
    struct Shared {
      Condition condition;
      Mutex mutex;
    };
    Shared* shared = nullptr;
    bool go = false;
    int waiting = 0;
    // The youngest fiber owns what the older ones wait on, so they unwind after it is gone.
    victims.spawn([&] {
      while (!go) yield();
      waiting++;
      shared->condition.wait();
    });
    victims.spawn([&] {
      while (!go) yield();
      waiting++;
      std::lock_guard lock(shared->mutex);
      ADD_FAILURE() << "a dead fiber got the lock";
    });
    victims.spawn([&] {
      auto mine = std::make_unique<Shared>();
      shared = mine.get();
      runtime_.park();
    });
    while (!shared) yield();
    shared->mutex.lock();
    go = true;
    while (waiting < 2) yield();
    shared->mutex.unlock();  // to the second one, which will not run any more
    victims.kill();
    EXPECT_EQ(victims.size(), 0u);
  });
}

TEST_P(BothKinds, KillInsideTheUnwindingOfAnotherKill) {
  std::vector<std::string> log;
  run([&] {
    auto inner = std::make_unique<Group>(runtime_, "inner");
    Group outer(runtime_, "outer");
    inner->spawn([&] {
      Recorder r{log, "inner"};
      runtime_.park();
    });
    outer.spawn([&] {
      struct KillsInner {
        Group& g;
        ~KillsInner() { g.kill(); }
      } kills{*inner};
      Recorder r{log, "outer"};
      runtime_.park();
    });
    sleep_for(1ms);
    outer.kill();
  });
  EXPECT_EQ(log, (std::vector<std::string>{"outer", "inner"}));
}

TEST_P(BothKinds, LateUnparkOfADeadFiberDoesNothing) {
  run([&] {
    Group group(runtime_);
    Fiber* fiber = nullptr;
    group.spawn([&] {
      fiber = runtime_.self();
      runtime_.park();
    });
    while (!fiber) yield();
    group.kill();
    runtime_.unpark(fiber);
    yield();
    EXPECT_EQ(runtime_.live_fibers(), 1u);
  });
}

TEST_P(BothKinds, FibersMayBlockInCatchBlocksOfTheirOwn) {
  std::string log;
  run([&] {
    Group group(runtime_);
    for (const char* name : {"a", "b"}) {
      group.spawn([&, name] {
        try {
          throw std::string(name);
        } catch (const std::string& s) {
          sleep_for(name == std::string("a") ? 2ms : 1ms);
          try {
            throw;  // rethrows this fiber's own exception
          } catch (const std::string& again) {
            EXPECT_EQ(again, name);
            log += again;
          }
        }
      });
    }
    group.wait();
  });
  EXPECT_EQ(log, "ba");
}

TEST(RtDeathTest, BlockingWhileUnwindingIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Runtime runtime(simulated());
        Group group(runtime);
        group.spawn([&] {
          struct Blocks {
            ~Blocks() { yield(); }
          } blocks;
          runtime.park();
        });
        runtime.run();
        group.kill();
      },
      "assertion failed");
}

TEST(RtDeathTest, StackOverflowHitsTheGuardPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Runtime runtime(simulated());
        Group group(runtime);
        std::function<std::uint64_t(std::uint64_t)> deep = [&](std::uint64_t n) {
          volatile char frame[4096];
          frame[n % 4096] = 1;
          return n == 0 ? 0 : deep(n - 1) + static_cast<std::uint64_t>(frame[n % 4096]);
        };
        group.spawn([&] { EXPECT_EQ(deep(100'000), 0u); });
        runtime.run();
      },
      "");
}

TEST(Runtime, KillAfterRunUnwindsWhatIsLeft) {
  Runtime runtime(simulated());
  Group group(runtime);
  bool unwound = false;
  group.spawn([&] {
    struct Mark {
      bool& flag;
      ~Mark() { flag = true; }
    } mark{unwound};
    runtime.park();
  });
  runtime.run();
  EXPECT_FALSE(unwound);
  group.kill();
  EXPECT_TRUE(unwound);
}

// --------------------------------------------------------------------------------- other threads

TEST(Runtime, PostedFunctionsRunInOrderOnItsThread) {
  Runtime runtime;
  Group group(runtime);
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<int> seen(kThreads, 0);
  int total = 0;
  Condition done;
  const auto thread = std::this_thread::get_id();
  std::vector<std::thread> threads;
  group.spawn([&] {
    for (int t = 0; t < kThreads; t++) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; i++) {
          runtime.post([&, t, i] {
            EXPECT_EQ(std::this_thread::get_id(), thread);
            EXPECT_FALSE(Runtime::in_fiber());
            EXPECT_EQ(seen[t], i);
            seen[t] = i + 1;
            if (++total == kThreads * kEach) done.notify_all();
          });
          if (i % 512 == 0) std::this_thread::yield();
        }
      });
    }
    done.wait([&] { return total == kThreads * kEach; });
    runtime.stop();
  });
  runtime.run();
  for (auto& t : threads) t.join();
  EXPECT_EQ(total, kThreads * kEach);
}

TEST(Runtime, PostWakesASleepingLoopEveryTime) {
  Runtime runtime;
  Group group(runtime);
  constexpr int kRounds = 2'000;
  std::atomic<int> asked{0};
  std::thread other;
  group.spawn([&] {
    // Each round needs a wake-up out of epoll_wait: a lost one would hang the test.
    Fiber* const self = runtime.self();
    other = std::thread([&, self] {
      for (int i = 0; i < kRounds; i++) {
        while (asked.load() <= i) std::this_thread::yield();
        runtime.post([&, self] { runtime.unpark(self); });
      }
    });
    for (int i = 0; i < kRounds; i++) {
      asked++;
      runtime.park();
    }
    runtime.stop();
  });
  runtime.run();
  other.join();
  EXPECT_EQ(asked, kRounds);
}

TEST(Runtime, PollIsCalledWhileReadableAlsoWhenBusyAndNotAfterRemoval) {
  Runtime runtime;
  Group group(runtime);
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  std::string got;
  bool busy_done = false;
  group.spawn([&] {
    Condition read_some;
    runtime.add_poll(fds[0], [&] {
      char c;
      ASSERT_EQ(::read(fds[0], &c, 1), 1);
      got += c;
      read_some.notify_all();
    });
    ASSERT_EQ(::write(fds[1], "abc", 3), 3);
    read_some.wait([&] { return got == "abc"; });  // idle loop; level-triggered
    ASSERT_EQ(::write(fds[1], "d", 1), 1);
    for (int i = 0; i < 1'000 && got != "abcd"; i++) yield();  // never idle
    busy_done = got == "abcd";
    runtime.remove_poll(fds[0]);
    ASSERT_EQ(::write(fds[1], "e", 1), 1);
    sleep_for(2ms);
    runtime.stop();
  });
  runtime.run();
  EXPECT_TRUE(busy_done);
  EXPECT_EQ(got, "abcd");
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(Runtime, TimersFireWhileOthersKeepTheLoopBusy) {
  Runtime runtime;
  Group group(runtime);
  bool fired = false;
  group.spawn([&] {
    sleep_for(2ms);
    fired = true;
  });
  group.spawn([&] {
    while (!fired) yield();
    runtime.stop();
  });
  runtime.run();
  EXPECT_TRUE(fired);
}

TEST(Runtime, RealRandomDiffersBetweenRuntimes) {
  Runtime a, b;
  EXPECT_NE(a.random(), b.random());
}

// ------------------------------------------------------------------------------------ simulation

struct Trace {
  std::string text;
  std::uint64_t hash;
  friend bool operator==(const Trace&, const Trace&) = default;
};

// Fibers that race for everything the runtime has.
Trace race(std::uint64_t seed) {
  Runtime runtime(simulated(seed));
  Group group(runtime);
  Mutex mutex;
  Condition condition;
  Trace trace;
  for (int i = 0; i < 8; i++) {
    group.spawn([&, i] {
      for (int k = 0; k < 20; k++) {
        switch (runtime.random_below(5)) {
          case 0:
            yield();
            break;
          case 1:
            sleep_for(Nanos(runtime.random_below(5) * 1000));
            break;
          case 2: {
            std::lock_guard lock(mutex);
            yield();
            break;
          }
          case 3:
            condition.wait_until(now() + 3us);
            break;
          case 4:
            condition.notify_all();
            break;
        }
        trace.text += static_cast<char>('a' + i);
      }
    });
  }
  runtime.run();
  EXPECT_EQ(group.size(), 0u);
  trace.hash = runtime.schedule_hash();
  return trace;
}

TEST(Simulation, SameSeedSameSchedule) {
  for (std::uint64_t seed = 1; seed <= 20; seed++)
    EXPECT_EQ(race(seed), race(seed)) << "seed " << seed;
}

TEST(Simulation, DifferentSeedsDiffer) {
  std::vector<std::string> texts;
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    const Trace t = race(seed);
    texts.push_back(t.text);
    hashes.push_back(t.hash);
  }
  std::sort(texts.begin(), texts.end());
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(texts.begin(), texts.end()), texts.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST(Simulation, TimeJumpsToTheNextTimerAndCostsNothing) {
  Runtime runtime(simulated());
  Group group(runtime);
  const Time start = runtime.now();
  const WallTime wall = runtime.wall_now();
  group.spawn([&] {
    sleep_for(24h * 365);
    EXPECT_EQ(now() - start, 24h * 365);
  });
  runtime.run();
  EXPECT_EQ(runtime.now() - start, 24h * 365);
  EXPECT_EQ(runtime.wall_now().sec - wall.sec, 24 * 3600 * 365);
}

TEST(Simulation, RunReturnsWhenNothingCanEverRun) {
  Runtime runtime(simulated());
  Group group(runtime);
  bool woken = false;
  Fiber* fiber = nullptr;
  group.spawn([&] {
    fiber = runtime.self();
    runtime.park();
    woken = true;
  });
  runtime.run();
  EXPECT_FALSE(woken);
  EXPECT_EQ(group.size(), 1u);
  runtime.unpark(fiber);
  runtime.run();
  EXPECT_TRUE(woken);
}

TEST(Simulation, YieldingForeverDoesNotStopTheClock) {
  Runtime runtime(simulated());
  Group group(runtime);
  bool stop = false;
  group.spawn([&] {
    sleep_for(1ms);
    stop = true;
  });
  group.spawn([&] {
    while (!stop) yield();
  });
  runtime.run();
  EXPECT_EQ(group.size(), 0u);
}

TEST(Random, IsTheSameEverywhereAndUniform) {
  Random r(42);
  EXPECT_EQ(r.next(), 1546998764402558742u);
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 70'000; i++) counts[r.below(7)]++;
  for (int c : counts) EXPECT_NEAR(c, 10'000, 500);
  EXPECT_EQ(r.below(1), 0u);
}

}  // namespace
}  // namespace etcfs::rt

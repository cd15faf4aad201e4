// The spike behind docs/decisions/0001: our scheduler over Boost.Context against Boost.Fiber, in
// the four things a request does. Each iteration of "/rt" and "/boost" does the same work.
#include <benchmark/benchmark.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "rt/rt.h"

#ifdef ETCFS_BENCH_BOOST_FIBER
#include <boost/fiber/all.hpp>
#endif

namespace {

using etcfs::rt::Condition;
using etcfs::rt::Group;
using etcfs::rt::Mutex;
using etcfs::rt::Runtime;

constexpr int kMany = 1'000;

// Runs `body` inside a fiber of a real runtime.
template <class Body>
void in_runtime(Body body) {
  Runtime runtime;
  Group group(runtime);
  group.spawn([&] {
    body(runtime);
    runtime.stop();
  });
  runtime.run();
}

void spawn_run_finish_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    Group group(runtime);
    int ran = 0;
    for (auto _ : state) {
      for (int i = 0; i < kMany; i++) {
        group.spawn([&] { ran++; });
        if (i % 16 == 15) group.wait();
      }
      group.wait();
    }
    benchmark::DoNotOptimize(ran);
  });
  state.SetItemsProcessed(state.iterations() * kMany);
}
BENCHMARK(spawn_run_finish_rt);

void yield_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    Group group(runtime);
    bool stop = false;
    group.spawn([&] {
      while (!stop) runtime.yield();
    });
    for (auto _ : state) runtime.yield();  // two switches: there and back
    stop = true;
    group.wait();
  });
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(yield_rt);

void park_unpark_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    Group group(runtime);
    bool stop = false;
    etcfs::rt::Fiber* const main = runtime.self();
    etcfs::rt::Fiber* other = nullptr;
    group.spawn([&] {
      other = runtime.self();
      while (!stop) {
        runtime.park();
        runtime.unpark(main);
      }
    });
    runtime.yield();
    for (auto _ : state) {
      runtime.unpark(other);
      runtime.park();
    }
    stop = true;
    runtime.unpark(other);
    group.wait();
  });
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(park_unpark_rt);

void mutex_free_rt(benchmark::State& state) {
  in_runtime([&](Runtime&) {
    Mutex mutex;
    for (auto _ : state) {
      std::lock_guard lock(mutex);
      benchmark::ClobberMemory();
    }
  });
}
BENCHMARK(mutex_free_rt);

void mutex_contended_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    Group group(runtime);
    Mutex mutex;
    bool stop = false;
    for (int i = 0; i < 4; i++) {
      group.spawn([&] {
        while (!stop) {
          std::lock_guard lock(mutex);
          runtime.yield();
        }
      });
    }
    for (auto _ : state) {
      std::lock_guard lock(mutex);
      runtime.yield();
    }
    stop = true;
    group.wait();
  });
}
BENCHMARK(mutex_contended_rt);

void post_from_thread_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    etcfs::rt::Fiber* const self = runtime.self();
    std::atomic<bool> stop{false}, ask{false};
    std::thread other([&] {
      while (!stop)
        if (ask.exchange(false)) runtime.post([&] { runtime.unpark(self); });
    });
    for (auto _ : state) {
      ask = true;
      runtime.park();
    }
    stop = true;
    other.join();
  });
}
BENCHMARK(post_from_thread_rt)->UseRealTime();

void clock_rt(benchmark::State& state) {
  in_runtime([&](Runtime& runtime) {
    for (auto _ : state) benchmark::DoNotOptimize(runtime.now());
  });
}
BENCHMARK(clock_rt);

#ifdef ETCFS_BENCH_BOOST_FIBER
namespace bf = boost::fibers;

void spawn_run_finish_boost(benchmark::State& state) {
  int ran = 0;
  boost::context::pooled_fixedsize_stack pool(128 * 1024);
  for (auto _ : state) {
    for (int i = 0; i < kMany; i++) {
      bf::fiber(bf::launch::post, std::allocator_arg, pool, [&] { ran++; }).detach();
      if (i % 16 == 15) boost::this_fiber::yield();
    }
    boost::this_fiber::yield();
  }
  benchmark::DoNotOptimize(ran);
  state.SetItemsProcessed(state.iterations() * kMany);
}
BENCHMARK(spawn_run_finish_boost);

void yield_boost(benchmark::State& state) {
  bool stop = false;
  bf::fiber other([&] {
    while (!stop) boost::this_fiber::yield();
  });
  for (auto _ : state) boost::this_fiber::yield();
  stop = true;
  other.join();
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(yield_boost);

void park_unpark_boost(benchmark::State& state) {
  bf::mutex mutex;
  bf::condition_variable condition;
  int turn = 0;
  bool stop = false;
  bf::fiber other([&] {
    std::unique_lock lock(mutex);
    while (!stop) {
      condition.wait(lock, [&] { return turn == 1 || stop; });
      turn = 0;
      condition.notify_one();
    }
  });
  for (auto _ : state) {
    std::unique_lock lock(mutex);
    turn = 1;
    condition.notify_one();
    condition.wait(lock, [&] { return turn == 0; });
  }
  {
    std::unique_lock lock(mutex);
    stop = true;
    condition.notify_one();
  }
  other.join();
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(park_unpark_boost);

void mutex_free_boost(benchmark::State& state) {
  bf::mutex mutex;
  for (auto _ : state) {
    std::lock_guard lock(mutex);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(mutex_free_boost);

void mutex_contended_boost(benchmark::State& state) {
  bf::mutex mutex;
  bool stop = false;
  std::vector<bf::fiber> fibers;
  for (int i = 0; i < 4; i++) {
    fibers.emplace_back([&] {
      while (!stop) {
        std::lock_guard lock(mutex);
        boost::this_fiber::yield();
      }
    });
  }
  for (auto _ : state) {
    std::lock_guard lock(mutex);
    boost::this_fiber::yield();
  }
  stop = true;
  for (auto& fiber : fibers) fiber.join();
}
BENCHMARK(mutex_contended_boost);
#endif

}  // namespace

BENCHMARK_MAIN();

// Runs n blocking calls on a bounded number of fibers and waits for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>

#include "rt/rt.h"

namespace etcfs::fs {

// Blocks until call(0) … call(n - 1) have all returned; at most `width` run at once, one of them in
// the calling fiber. `call` is kept alive by every fiber that uses it.
inline void fan_out(rt::Group& group, std::size_t n, std::size_t width,
                    std::function<void(std::size_t)> call) {
  struct State {
    std::function<void(std::size_t)> call;
    std::size_t n = 0, next = 0, running = 0;
    rt::Condition ended;
    void work() {
      while (next < n) call(next++);
    }
  };
  if (n == 0) return;
  if (n == 1) return call(0);
  auto state = std::make_shared<State>();
  state->call = std::move(call);
  state->n = n;
  const std::size_t helpers = std::min(n, width) - 1;
  state->running = helpers;
  for (std::size_t i = 0; i < helpers; ++i)
    group.spawn([state] {
      state->work();
      if (--state->running == 0) state->ended.notify_all();
    });
  state->work();
  state->ended.wait([&] { return state->running == 0; });
}

}  // namespace etcfs::fs

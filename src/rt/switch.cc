// Switching between fibers, on Boost.Context's assembly; with the annotations that AddressSanitizer
// and ThreadSanitizer need to follow (Debian's Boost is built without them).
#include <cxxabi.h>

#include <boost/context/detail/fcontext.hpp>

#include "rt/runtime_impl.h"

#ifdef ETCFS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ETCFS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace etcfs::rt {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

// `from` is null when the stack being left will never be used again.
void announce_leave([[maybe_unused]] Context* from, [[maybe_unused]] const Context& to) {
#ifdef ETCFS_ASAN
  __sanitizer_start_switch_fiber(from ? &from->asan_fake_stack : nullptr, to.stack_bottom,
                                 to.stack_bytes);
#endif
#ifdef ETCFS_TSAN
  __tsan_switch_to_fiber(to.tsan_fiber, 0);
#endif
}

// Also learns the bounds of the stack it came from: the thread's own are known in no other way.
void announce_arrival([[maybe_unused]] Context& here, [[maybe_unused]] Context& came_from) {
#ifdef ETCFS_ASAN
  __sanitizer_finish_switch_fiber(here.asan_fake_stack, &came_from.stack_bottom,
                                  &came_from.stack_bytes);
#endif
}

void swap_exceptions(ExceptionState& other) {
  auto* mine = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
  std::swap(mine->caught, other.caught);
  std::swap(mine->uncaught, other.uncaught);
}

// noexcept: an exception of somebody else that reaches the end of a fiber terminates at its throw.
void run_body(Fiber* fiber) noexcept {
  try {
    if (!fiber->killed) fiber->body();
  } catch (const Unwind&) {
    ETCFS_ASSERT(fiber->killed);
  }
  fiber->body = nullptr;
}

void fiber_entry(transfer_t from) {
  auto* fiber = static_cast<Fiber*>(from.data);
  fiber->resumer->fctx = from.fctx;
  announce_arrival(fiber->context, *fiber->resumer);
  run_body(fiber);
  fiber->ended = true;
  announce_leave(nullptr, *fiber->resumer);
  jump_fcontext(fiber->resumer->fctx, nullptr);
  __builtin_unreachable();
}

}  // namespace

void Runtime::Impl::resume(Fiber* fiber) {
  Fiber* const before = current;
  Context& here = before ? before->context : main;
#ifdef ETCFS_TSAN
  if (!before) main.tsan_fiber = __tsan_get_current_fiber();
#endif
  if (!fiber->started) {
    fiber->started = true;
    fiber->context.fctx = make_fcontext(fiber->stack.top(), fiber->stack.bytes, fiber_entry);
    fiber->context.stack_bottom = fiber->stack.bottom;
    fiber->context.stack_bytes = fiber->stack.bytes;
#ifdef ETCFS_TSAN
    fiber->context.tsan_fiber = __tsan_create_fiber(0);
#endif
  }
  fiber->state = Fiber::State::kRunning;
  fiber->resumer = &here;
  current = fiber;
  swap_exceptions(fiber->exceptions);
  announce_leave(&here, fiber->context);
  const transfer_t back = jump_fcontext(fiber->context.fctx, fiber);
  announce_arrival(here, fiber->context);
  swap_exceptions(fiber->exceptions);
  fiber->context.fctx = back.fctx;
  current = before;
  if (fiber->ended) {
#ifdef ETCFS_TSAN
    __tsan_destroy_fiber(fiber->context.tsan_fiber);
#endif
    recycle(fiber);
  }
}

void Runtime::Impl::suspend() {
  Fiber* const fiber = current;
  announce_leave(&fiber->context, *fiber->resumer);
  const transfer_t back = jump_fcontext(fiber->resumer->fctx, nullptr);
  fiber->resumer->fctx = back.fctx;
  announce_arrival(fiber->context, *fiber->resumer);
  if (fiber->killed) throw Unwind{};
}

}  // namespace etcfs::rt

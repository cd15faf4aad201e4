#include "rt/stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

#ifdef ETCFS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace etcfs::rt {

StackPool::StackPool(std::size_t stack_bytes)
    : page_bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
#ifdef ETCFS_ASAN
  stack_bytes *= 4;  // red zones around every local
#endif
  stack_bytes_ = (stack_bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_;
}

StackPool::~StackPool() {
  for (Stack stack : idle_) unmap(stack);
}

Stack StackPool::take() {
  if (!idle_.empty()) {
    Stack stack = idle_.back();
    idle_.pop_back();
    return stack;
  }
  void* p = ::mmap(nullptr, stack_bytes_ + page_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  ETCFS_ASSERT(p != MAP_FAILED);
  auto* base = static_cast<std::byte*>(p);
  ETCFS_ASSERT(::mprotect(base, page_bytes_, PROT_NONE) == 0);
  return {base + page_bytes_, stack_bytes_};
}

void StackPool::give(Stack stack) {
#ifdef ETCFS_ASAN
  // The frames that ended the fiber never returned and left their red zones behind.
  __asan_unpoison_memory_region(stack.bottom, stack.bytes);
#endif
  if (idle_.size() < kKept) {
    idle_.push_back(stack);
  } else {
    unmap(stack);
  }
}

void StackPool::unmap(Stack stack) {
  ::munmap(stack.bottom - page_bytes_, stack.bytes + page_bytes_);
}

}  // namespace etcfs::rt

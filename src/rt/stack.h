// Stacks of fibers: mapped lazily, a guard page below (an overflow is a SIGSEGV, never silent),
// reused last in first out so that a spawn finds a warm one.
#pragma once

#include <cstddef>
#include <vector>

namespace etcfs::rt {

struct Stack {
  std::byte* bottom = nullptr;  // lowest usable address
  std::size_t bytes = 0;
  std::byte* top() const { return bottom + bytes; }
};

class StackPool {
 public:
  explicit StackPool(std::size_t stack_bytes);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  Stack take();            // asserts that memory can be mapped
  void give(Stack stack);  // unmaps beyond kKept idle ones

 private:
  static constexpr std::size_t kKept = 1024;
  void unmap(Stack stack);
  std::size_t page_bytes_;
  std::size_t stack_bytes_;
  std::vector<Stack> idle_;
};

}  // namespace etcfs::rt

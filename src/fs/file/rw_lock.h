// Readers and writers of one file. Fair: served in order of arrival, so neither starves the other.
#pragma once

#include <cstdint>

#include "rt/rt.h"

namespace etcfs::fs {

class RwLock {
 public:
  void lock() {  // blocks
    turn_.lock();
    readers_left_.wait([&] { return readers_ == 0; });
  }
  void unlock() { turn_.unlock(); }
  void lock_shared() {  // blocks
    turn_.lock();
    ++readers_;
    turn_.unlock();
  }
  void unlock_shared() {
    if (--readers_ == 0) readers_left_.notify_one();
  }
  bool in_use() const { return readers_ > 0 || turn_.locked(); }

 private:
  rt::Mutex turn_;  // held by a writer to its end, by a reader only to get in
  rt::Condition readers_left_;
  std::uint32_t readers_ = 0;
};

}  // namespace etcfs::fs

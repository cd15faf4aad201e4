// Threads for jobs that may block in the kernel for long: one is added whenever a job finds none
// free, up to a bound; idle ones end after a while. Only src/fuse/kernel_cache.cc includes this.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace etcfs::fuse {

class ThreadPool {
 public:
  ThreadPool(std::string name, unsigned most);
  ~ThreadPool();  // like stop(), without waiting
  void submit(std::function<void()> job);
  // Takes no more jobs and waits up to `patience_ms` until those it has are done; those that are
  // stuck keep their thread, which ends when they do.
  void stop(int patience_ms);

 private:
  struct Shared {
    std::string name;
    unsigned most;
    std::mutex mu;
    std::condition_variable work, ended;
    std::deque<std::function<void()>> jobs;
    unsigned threads = 0, idle = 0;
    bool stopping = false;
  };
  static void run(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace etcfs::fuse

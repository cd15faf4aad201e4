#include "fuse/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>
#include <utility>

namespace etcfs::fuse {
namespace {
constexpr auto kIdleTime = std::chrono::seconds(10);
}

ThreadPool::ThreadPool(std::string name, unsigned most) : shared_(std::make_shared<Shared>()) {
  shared_->name = std::move(name);
  shared_->most = most;
}

ThreadPool::~ThreadPool() { stop(0); }

void ThreadPool::run(std::shared_ptr<Shared> s) {
  pthread_setname_np(pthread_self(), s->name.c_str());
  std::unique_lock lock(s->mu);
  for (;;) {
    if (s->jobs.empty()) {
      if (s->stopping) break;
      s->idle++;
      const bool more =
          s->work.wait_for(lock, kIdleTime, [&] { return !s->jobs.empty() || s->stopping; });
      s->idle--;
      if (!more) break;
      continue;
    }
    std::function<void()> job = std::move(s->jobs.front());
    s->jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
  s->threads--;
  s->ended.notify_all();
}

void ThreadPool::submit(std::function<void()> job) {
  Shared& s = *shared_;
  std::lock_guard lock(s.mu);
  if (s.stopping) return;
  s.jobs.push_back(std::move(job));
  if (s.jobs.size() > s.idle && s.threads < s.most) {
    s.threads++;
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(&ThreadPool::run, shared_).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return;
  }
  s.work.notify_one();
}

void ThreadPool::stop(int patience_ms) {
  Shared& s = *shared_;
  std::unique_lock lock(s.mu);
  s.stopping = true;
  s.work.notify_all();
  s.ended.wait_for(lock, std::chrono::milliseconds(patience_ms), [&] { return s.threads == 0; });
}

}  // namespace etcfs::fuse

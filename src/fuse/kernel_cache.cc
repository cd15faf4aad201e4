#include "fuse/kernel_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "fuse/notifier.h"
#include "fuse/thread_pool.h"

namespace etcfs::fuse {
namespace {

constexpr unsigned kMostNameThreads = 64, kMostPageThreads = 64, kMostBackgroundThreads = 8;
constexpr std::size_t kInodesPerJob = 256;  // of invalidate_all(): a blocked one holds up this many
constexpr std::size_t kPrunePerCall = 256;
constexpr int kStopPatienceMs = 1000;

struct Descriptor {  // closed when the last job that uses it is done
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() { ::close(fd); }
  Descriptor(const Descriptor&) = delete;
  const int fd;
};
using DescriptorRef = std::shared_ptr<Descriptor>;

void log_unless_gone(const char* what, Ino ino, int error) {
  if (error == 0 || means_nothing_cached(error)) return;
  ETCFS_LOG_WARN("kernel cache notification failed", log::field("kind", what),
                 log::field("ino", ino.v), log::field("error", std::strerror(error)));
}

}  // namespace

struct KernelCache::Impl {
  explicit Impl(rt::Runtime& rt) : runtime(rt) {}

  struct Expiry {
    Ino directory;
    std::vector<std::string> names;
    std::atomic<bool> cancelled{false};  // nobody waits any more
    bool done = false, ok = true;
    rt::Condition changed;
  };
  using ExpiryRef = std::shared_ptr<Expiry>;
  // One call that waits for `left` jobs.
  struct Batch {
    std::size_t left = 0;
    rt::Condition changed;
  };

  // From a thread: fn on the runtime thread, unless that may be gone.
  void post(std::function<void()> fn) {
    std::lock_guard lock(post_mu);
    if (!closed) runtime.post(std::move(fn));
  }
  void start_next_expiry(const std::shared_ptr<Impl>& self, Ino directory);
  bool expire(const DescriptorRef& fd, Expiry& expiry);
  void run_and_wait(const std::shared_ptr<Impl>& self, std::vector<std::function<void()>> jobs);

  rt::Runtime& runtime;
  DescriptorRef descriptor;  // null: nothing is cached in the kernel
  bool expire_entries = false;
  std::map<Ino, std::deque<ExpiryRef>> expiring;  // the front one is in a thread
  ThreadPool names{"kc-names", kMostNameThreads};
  ThreadPool pages{"kc-pages", kMostPageThreads};
  ThreadPool background{"kc-back", kMostBackgroundThreads};
  std::mutex post_mu;
  bool closed = false;  // guarded by post_mu
};

KernelCache::KernelCache(rt::Runtime& runtime)
    : runtime_(runtime), impl_(std::make_shared<Impl>(runtime)) {}

KernelCache::~KernelCache() { detach(); }

void KernelCache::attach(int fd) {
  ETCFS_ASSERT(!impl_->descriptor);
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  ETCFS_ASSERT(own >= 0);
  impl_->descriptor = std::make_shared<Descriptor>(own);
}

void KernelCache::set_expire_entries(bool can) { impl_->expire_entries = can; }

void KernelCache::detach() {
  impl_->descriptor.reset();
  {
    std::lock_guard lock(impl_->post_mu);
    impl_->closed = true;
  }
  impl_->names.stop(kStopPatienceMs);
  impl_->pages.stop(kStopPatienceMs);
  impl_->background.stop(kStopPatienceMs);
}

// In a thread. False: not all of them, because nobody waits any more.
bool KernelCache::Impl::expire(const DescriptorRef& fd, Expiry& expiry) {
  for (const std::string& name : expiry.names) {
    if (expiry.cancelled) return false;
    const int error = notify_expire_entry(fd->fd, expiry.directory, name);
    if (error == 0 || means_nothing_cached(error)) continue;
    log_unless_gone("expire_entry", expiry.directory, error);
    return false;
  }
  return true;
}

void KernelCache::Impl::start_next_expiry(const std::shared_ptr<Impl>& self, Ino directory) {
  auto it = expiring.find(directory);
  while (!it->second.empty() && it->second.front()->cancelled) it->second.pop_front();
  if (it->second.empty() || !descriptor) {
    for (const ExpiryRef& expiry : it->second) {
      expiry->done = true;
      expiry->changed.notify_all();
    }
    expiring.erase(it);
    return;
  }
  names.submit([self, fd = descriptor, expiry = it->second.front()] {
    const bool ok = self->expire(fd, *expiry);
    self->post([self, expiry, ok] {
      expiry->done = true;
      expiry->ok = ok;
      expiry->changed.notify_all();
      self->expiring.find(expiry->directory)->second.pop_front();
      self->start_next_expiry(self, expiry->directory);
    });
  });
}

bool KernelCache::expire_names(Ino directory, std::vector<std::string> names, Time deadline) {
  if (!impl_->descriptor || names.empty()) return true;
  if (!impl_->expire_entries) return false;
  auto expiry = std::make_shared<Impl::Expiry>();
  expiry->directory = directory;
  expiry->names = std::move(names);
  auto& queue = impl_->expiring[directory];
  queue.push_back(expiry);
  if (queue.size() == 1) impl_->start_next_expiry(impl_, directory);
  if (expiry->changed.wait_until(deadline, [&] { return expiry->done; })) return expiry->ok;
  expiry->cancelled = true;
  return false;
}

void KernelCache::Impl::run_and_wait(const std::shared_ptr<Impl>& self,
                                     std::vector<std::function<void()>> jobs) {
  auto batch = std::make_shared<Batch>();
  batch->left = jobs.size();
  for (auto& job : jobs) {
    pages.submit([self, batch, job = std::move(job)] {
      job();
      self->post([batch] {
        if (--batch->left == 0) batch->changed.notify_all();
      });
    });
  }
  batch->changed.wait([&] { return batch->left == 0; });
}

void KernelCache::invalidate(Ino ino, std::uint64_t offset, std::uint64_t length) {
  if (!impl_->descriptor) return;
  impl_->run_and_wait(impl_, {[fd = impl_->descriptor, ino, offset, length] {
                        log_unless_gone(
                            "inval_inode", ino,
                            notify_inval_inode(fd->fd, ino, static_cast<std::int64_t>(offset),
                                               static_cast<std::int64_t>(length)));
                      }});
}

void KernelCache::invalidate_all(std::vector<Ino> inodes) {
  if (!impl_->descriptor || inodes.empty()) return;
  std::vector<std::function<void()>> jobs;
  for (std::size_t i = 0; i < inodes.size(); i += kInodesPerJob) {
    const auto end = std::min(inodes.size(), i + kInodesPerJob);
    jobs.push_back([fd = impl_->descriptor,
                    some = std::vector<Ino>(inodes.begin() + static_cast<std::ptrdiff_t>(i),
                                            inodes.begin() + static_cast<std::ptrdiff_t>(end))] {
      for (Ino ino : some)
        log_unless_gone("inval_inode", ino, notify_inval_inode(fd->fd, ino, 0, 0));
    });
  }
  impl_->run_and_wait(impl_, std::move(jobs));
}

void KernelCache::invalidate_attributes(Ino ino) {
  if (!impl_->descriptor) return;
  log_unless_gone("inval_attributes", ino, notify_inval_inode(impl_->descriptor->fd, ino, -1, 0));
}

void KernelCache::store_last_byte(Ino ino, std::uint64_t size, std::byte last) {
  if (!impl_->descriptor || size == 0) return;
  impl_->background.submit([fd = impl_->descriptor, ino, size, last] {
    log_unless_gone("store", ino, notify_store(fd->fd, ino, size - 1, std::span(&last, 1)));
  });
}

void KernelCache::prune(std::vector<Ino> inodes) {
  if (!impl_->descriptor || inodes.empty()) return;
  impl_->background.submit([fd = impl_->descriptor, inodes = std::move(inodes)] {
    for (std::size_t i = 0; i < inodes.size(); i += kPrunePerCall) {
      const auto some = std::span(inodes).subspan(i, std::min(kPrunePerCall, inodes.size() - i));
      if (notify_prune(fd->fd, some) != 0)
        return;  // older kernels: EINVAL, they forget by themselves
    }
  });
}

}  // namespace etcfs::fuse

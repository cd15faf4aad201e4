// The real KernelCache: notifications written to the FUSE device by OS threads that read no
// requests.
//
// Why threads, and of which kinds (all tried, see docs/architecture.md): expiring a name waits for
// the directory's kernel lock, which a parked request may hold for as long as it is parked;
// dropping pages waits for READs under way and makes the kernel send WRITEs, which the runtime
// thread must be free to answer; storing a byte waits for the page. So names, pages and background
// work have queues and threads of their own, each with as many threads as are blocked, and names of
// one directory wait in one thread. Dropping attributes alone never blocks and is done where it is
// called.
//
// Before attach() and after the connection has ended the kernel has nothing of ours: everything
// succeeds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fs/cache/kernel_cache.h"
#include "rt/rt.h"

namespace etcfs::fuse {

class KernelCache final : public fs::KernelCache {
 public:
  explicit KernelCache(rt::Runtime& runtime);
  ~KernelCache() override;
  // The descriptor of the mount, to be duplicated.
  void attach(int fd);
  // The kernel knows how to expire names (before 6.2 it would unmount what is mounted below them);
  // until this is said, expire_names() is false.
  void set_expire_entries(bool can);
  // Gives the duplicate up. Waits (OS thread, not fiber) for running notifications for a short
  // while; those that are stuck end with the process.
  void detach();

  bool expire_names(Ino directory, std::vector<std::string> names, Time deadline) override;
  void invalidate(Ino ino, std::uint64_t offset, std::uint64_t length) override;
  void invalidate_all(std::vector<Ino> inodes) override;
  void invalidate_attributes(Ino ino) override;
  void store_last_byte(Ino ino, std::uint64_t size, std::byte last) override;
  void prune(std::vector<Ino> inodes) override;

  struct Impl;

 private:
  rt::Runtime& runtime_;
  std::shared_ptr<Impl> impl_;  // shared with the threads
};

}  // namespace etcfs::fuse

// Filesystem: one method per operation; the meaning of POSIX, knowing neither FUSE nor etcd's API.
//
// Every method blocks its fiber where it must wait for a lock, for room in the commit stream or for the
// device, and returns without having yielded after its last look at shared state: the caller sends
// the answer at once (before any blocking call), so that "answered" and "returned" are the same
// moment for the kernel-cache protocol (design section 7).
//
// Names are raw bytes without '/' and NUL; "." and ".." never arrive here except in listings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "block/device.h"
#include "block/space.h"
#include "cluster/lock_service.h"
#include "cluster/membership.h"
#include "fs/cache/kernel_cache.h"
#include "fs/types.h"
#include "meta/commit_stream.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::fs {

struct FsOptions {
  Nanos name_timeout = std::chrono::seconds(1);       // at most about 1 s, see design section 7
  bool sync = false;                                  // -o sync: every operation waits for its commit
  std::uint64_t dirty_bytes = 256 * kMiB;             // beyond: write() waits for write-back
  Nanos dirty_age = std::chrono::seconds(1);
  std::int64_t load_page = 5000;                      // keys of one range read of a listing
  std::size_t cached_inodes = 400'000;                // beyond: idle families are released
};

class Filesystem {
 public:
  struct Deps {
    meta::Kv& kv;
    const meta::Keys& keys;
    const meta::Guard& guard;
    meta::CommitStream& stream;
    cluster::Membership& membership;
    cluster::LockService& locks;
    block::Space& space;
    block::Device& device;
    KernelCache& kernel;
    meta::Super super;
  };
  Filesystem(Deps deps, FsOptions options);
  ~Filesystem();
  Result<void> start();      // blocks; walks orphans
  // Refuses new operations, waits for running ones, writes all data back; blocks. An error: some data
  // could not be written, and is lost with the node.
  Result<void> stop();

  Result<Entry> lookup(const Caller& caller, Ino parent, std::string_view name);
  Result<AttrReply> getattr(Ino ino);
  Result<AttrReply> setattr(const Caller& caller, Ino ino, const SetAttr& set);
  Result<std::string> readlink(Ino ino);
  // mode carries S_IFMT (regular, fifo, socket, devices)
  Result<Entry> mknod(const Caller& caller, Ino parent, std::string_view name, std::uint32_t mode,
                      std::uint64_t rdev);
  Result<Entry> mkdir(const Caller& caller, Ino parent, std::string_view name, std::uint32_t mode);
  Result<Entry> symlink(const Caller& caller, Ino parent, std::string_view name, std::string_view target);
  Result<Entry> link(const Caller& caller, Ino ino, Ino new_parent, std::string_view new_name);
  Result<void> unlink(const Caller& caller, Ino parent, std::string_view name);
  Result<void> rmdir(const Caller& caller, Ino parent, std::string_view name);
  Result<void> rename(const Caller& caller, Ino parent, std::string_view name, Ino new_parent,
                      std::string_view new_name, RenameMode mode);

  struct Created {
    Entry entry;
    OpenReply open;
  };
  Result<Created> create(const Caller& caller, Ino parent, std::string_view name, std::uint32_t mode,
                         int open_flags);
  Result<OpenReply> open(const Caller& caller, Ino ino, int open_flags);   // O_TRUNC is honoured
  Result<ReadReply> read(Ino ino, Handle handle, std::uint64_t offset, std::size_t size);
  Result<std::size_t> write(const Caller& caller, Ino ino, Handle handle, std::uint64_t offset,
                            std::span<const std::byte> data, WriteFlags flags);
  Result<void> flush(Ino ino, Handle handle, std::uint64_t lock_owner);    // each close(2)
  Result<void> release(Ino ino, Handle handle, std::uint64_t flock_owner); // last close
  Result<void> fsync(Ino ino, Handle handle, bool data_only);
  Result<std::uint64_t> lseek(Ino ino, Handle handle, std::uint64_t offset, SeekWhat what);
  Result<void> fallocate(Ino ino, Handle handle, int mode, std::uint64_t offset, std::uint64_t length);

  Result<OpenReply> opendir(Ino ino);
  // Fills from `offset` (0 or a DirItem::next_offset) until the filler refuses or the end.
  Result<void> readdir(Ino ino, Handle handle, std::uint64_t offset, bool plus, const DirFiller& fill);
  Result<void> releasedir(Ino ino, Handle handle);
  Result<void> fsyncdir(Ino ino);

  Result<StatFs> statfs();   // answered from memory in every state
  Result<std::string> getxattr(Ino ino, std::string_view name);
  Result<std::string> listxattr(Ino ino);                       // NUL-terminated names
  Result<void> setxattr(const Caller& caller, Ino ino, std::string_view name, std::string_view value,
                        XattrMode mode);
  Result<void> removexattr(const Caller& caller, Ino ino, std::string_view name);

  // Advisory locks: within this node; kNoLocks where another node holds some (first form).
  Result<LockRequest> getlk(Ino ino, const LockRequest& request);          // type kUnlock: free
  Result<void> setlk(const Caller& caller, Ino ino, const LockRequest& request, bool wait);

  Result<void> syncfs();     // everything acknowledged so far is durable

  struct Stats {
    std::uint64_t inodes = 0, families = 0, dirty_bytes = 0, operations = 0;
  };
  Stats stats() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::fs

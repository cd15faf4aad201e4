// Operations on open files: what design section 7 asks of READ and WRITE stands here.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "fs/impl.h"

namespace etcfs::fs {
namespace {

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

struct Registered {  // a READ or WRITE from its arrival to its answer
  using Requests = std::unordered_map<Ino, std::vector<PendingRequest>>;
  Registered(Core& c, Requests& requests, Ino ino, std::uint64_t begin, std::uint64_t size)
      : c(c), requests(requests), ino(ino), serial(++c.request_serial) {
    requests[ino].push_back({begin, begin + size, serial});
  }
  ~Registered() {
    auto it = requests.find(ino);
    std::erase_if(it->second, [&](const PendingRequest& r) { return r.serial == serial; });
    if (it->second.empty()) requests.erase(it);
    if (&requests == &c.pending_writes) c.write_done.notify_all();
  }
  PendingRequest& request() const {
    for (PendingRequest& r : requests[ino])
      if (r.serial == serial) return r;
    ETCFS_ASSERT(false);
  }
  Core& c;
  Requests& requests;
  const Ino ino;
  const std::uint64_t serial;
};

}  // namespace

OpenReply Core::open_handle(Ino ino, int flags, bool directory) {
  auto file = std::make_unique<OpenFile>();
  file->ino = ino;
  file->flags = flags;
  file->directory = directory;
  OpenInfo& info = opens[ino];
  info.handles++;
  if (!directory && writes(flags)) info.writers++;
  file->errors_seen = info.write_errors;
  const Handle handle = next_handle++;
  handles.emplace(handle, std::move(file));
  // Whatever the kernel has cached is right as long as we hold the lock, and dropped with it.
  return {.handle = handle, .keep_cache = true, .direct_io = false, .cache_readdir = directory};
}

Result<OpenReply> Filesystem::open(const Caller& caller, Ino ino, int open_flags) {
  Impl& c = *impl_;
  bool cut = !(open_flags & O_TRUNC);
  for (;;) {
    InodeRef target;
    ETCFS_TRY(OpenReply reply, c.run(!cut, [&](Attempt& a) -> Result<OpenReply> {
      auto inode =
          a.inode(ino, writes(open_flags) || !cut ? LockMode::kExclusive : LockMode::kShared);
      if (!inode) return inode.error();
      if ((*inode)->is_dir()) return Reason::kIsDirectory;
      if (!cut && (*inode)->is_regular()) {
        target = *inode;
        return OpenReply{};
      }
      return c.open_handle(ino, open_flags, false);
    }));
    if (!target) return reply;
    Pin pin(c, target);
    ETCFS_CHECK(c.io.truncate(target, 0));
    if (caller.uid != 0) kill_suidgid(target->rec);
    cut = true;
  }
}

Result<ReadReply> Filesystem::read(Ino ino, Handle, std::uint64_t offset, std::size_t size) {
  Impl& c = *impl_;
  const Registered registered(c, c.pending_reads, ino, offset, size);
  auto overlaps = [&] {
    auto it = c.pending_writes.find(ino);
    if (it == c.pending_writes.end()) return false;
    return std::any_of(it->second.begin(), it->second.end(), [&](const PendingRequest& w) {
      return w.serial < registered.serial && w.begin < offset + size && offset < w.end;
    });
  };
  for (;;) {
    c.write_done.wait([&] { return !overlaps(); });
    InodeRef target;
    LockMode mode{};
    ETCFS_CHECK(c.run(false, [&](Attempt& a) -> Result<void> {
      OpenInfo* info = c.open_info(ino);
      // A page of a file that may be written here through a mapping is cached under X only.
      mode = info && info->writers ? LockMode::kExclusive : LockMode::kShared;
      auto inode = a.inode(ino, mode);
      if (!inode) return inode.error();
      if (!(*inode)->is_regular()) return Reason::kInvalid;
      target = *inode;
      return {};
    }));
    Pin pin(c, target, Pin::For::kRead);
    FamilyState& fam = c.family(ino.family());
    c.hold_back(fam);
    registered.request().overtaken = false;
    auto data = c.io.read(target, offset, size);
    if (!data) return data.error();
    if (registered.request().overtaken) continue;
    // Given up meanwhile: an answer now would be cached behind the pass that drops the pages.
    const LockMode held = c.d.locks.usable(ino.family()).files;
    if (!meta::covers(held, mode) || target->gone || overlaps()) continue;
    fam.answered++;
    target->kernel_pages = true;
    return data;
  }
}

Result<std::size_t> Filesystem::write(const Caller&, Ino ino, Handle, std::uint64_t offset,
                                      std::span<const std::byte> data, WriteFlags flags) {
  Impl& c = *impl_;
  if (data.empty()) return std::size_t{0};
  const Registered registered(c, c.pending_writes, ino, offset, data.size());
  InodeRef target;
  bool waited = false;
  ETCFS_CHECK(c.run(true, [&](Attempt& a) -> Result<void> {
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode && inode.error() == Reason::kRetry && !waited && !flags.writeback) {
      // Parked: others may read these pages in the kernel; they are not the file's yet.
      waited = true;
      c.drop_full_pages(ino, offset, data.size());
    }
    if (!inode) return inode.error();
    if (!(*inode)->is_regular()) return Reason::kInvalid;
    target = *inode;
    return {};
  }));
  Pin pin(c, target);
  FamilyState& fam = c.family(ino.family());
  if (!flags.writeback) c.hold_back(fam);
  auto at = c.io.write(target, offset, data, flags.append && !flags.writeback);
  if (!at) return at.error();
  if (auto reads = c.pending_reads.find(ino); reads != c.pending_reads.end())
    for (PendingRequest& r : reads->second)
      if (r.begin < *at + data.size() && *at < r.end) r.overtaken = true;
  bool killed = flags.kill_suidgid && kill_suidgid(target->rec);
  killed = kill_capability(target->rec) || killed;
  if (killed) {
    meta::Step step;
    c.put_inode(step, *target);
    c.append(std::move(step));
    c.d.kernel.invalidate_attributes(ino);
  }
  if (*at != offset) {
    // Placed at the true end: what the kernel cached at its own idea of it is wrong, and so is its
    // size.
    c.drop_full_pages(ino, offset, data.size());
    c.d.kernel.invalidate_attributes(ino);
    c.d.kernel.store_last_byte(ino, *at + data.size(), data.back());
  } else if (fam.closed || waited) {
    c.drop_full_pages(ino, offset, data.size());
  }
  fam.answered++;
  target->kernel_pages = true;
  return data.size();
}

Result<void> Core::take_write_error(Handle handle) {
  auto it = handles.find(handle);
  if (it == handles.end()) return {};
  OpenInfo* info = open_info(it->second->ino);
  if (!info || it->second->errors_seen == info->write_errors) return {};
  it->second->errors_seen = info->write_errors;
  return Reason::kIo;
}

Result<void> Filesystem::flush(Ino ino, Handle handle, std::uint64_t lock_owner) {
  Impl& c = *impl_;
  c.drop_locks(ino, LockRequest::Kind::kPosix, lock_owner);
  return c.take_write_error(handle);
}

Result<void> Filesystem::release(Ino ino, Handle handle, std::uint64_t flock_owner) {
  Impl& c = *impl_;
  if (flock_owner) c.drop_locks(ino, LockRequest::Kind::kFlock, flock_owner);
  return c.close_handle(handle);
}

Result<void> Core::close_handle(Handle handle) {
  auto it = handles.find(handle);
  if (it == handles.end()) return Reason::kInvalid;
  const Ino ino = it->second->ino;
  const bool writer = !it->second->directory && writes(it->second->flags);
  handles.erase(it);
  OpenInfo& info = opens[ino];
  ETCFS_ASSERT(info.handles > 0);
  if (writer) info.writers--;
  if (--info.handles > 0) return {};
  const bool held = info.held;
  opens.erase(ino);
  if (ino.is_directory()) return {};
  if (held) {
    // In the same moment: a deletion, or another hold of the file, comes after it in the stream.
    meta::Step step;
    step.erase(d.keys.hold(ino, d.guard.node()));
    const StepNo done = append(std::move(step));
    group.spawn([this, ino, done] { look_for_orphan(ino, done); });
    return {};
  }
  FamilyState* fam = find_family(ino.family());
  if (!fam) return {};
  auto inode = fam->files.find(ino.index());
  if (inode != fam->files.end() && inode->second->rec.nlink == 0) queue_reap(ino);
  return {};
}

Result<void> Filesystem::fsync(Ino ino, Handle handle, bool data_only) {
  Impl& c = *impl_;
  ETCFS_CHECK(c.take_write_error(handle));
  // Being given up: that writes everything back and appends it.
  c.released.wait([&] {
    FamilyState* fam = c.find_family(ino.family());
    return !fam || !fam->closed || c.d.stream.fenced();
  });
  if (c.d.stream.fenced()) return Reason::kFenced;
  InodeRef target;
  if (FamilyState* fam = c.find_family(ino.family())) {
    auto it = fam->files.find(ino.index());
    if (it != fam->files.end()) target = it->second;
  }
  // Not in memory: nothing of it is dirty, its steps were appended before the lock was given up.
  if (target && target->is_regular()) {
    Pin pin(c, target);
    if (auto r = c.io.flush(target, data_only); !r) {
      if (OpenInfo* info = c.open_info(ino)) {
        info->write_errors++;
        (void)c.take_write_error(handle);
      }
      return r;
    }
  }
  ETCFS_CHECK(c.d.stream.sync());
  // With nothing to commit, nobody has asked etcd whether this node may still promise anything.
  while (c.now() >= c.d.membership.deadline()) {
    if (c.d.stream.fenced()) return Reason::kFenced;
    rt::sleep_for(std::chrono::milliseconds(10));
  }
  return c.take_write_error(handle);  // of a release that has lost what it could not write
}

Result<std::uint64_t> Filesystem::lseek(Ino ino, Handle, std::uint64_t offset, SeekWhat what) {
  Impl& c = *impl_;
  InodeRef target;
  ETCFS_CHECK(c.run(false, [&](Attempt& a) -> Result<void> {
    auto inode = a.inode(ino, LockMode::kShared);
    if (!inode) return inode.error();
    target = *inode;
    return {};
  }));
  if (!target->is_regular()) return Reason::kInvalid;
  Pin pin(c, target, Pin::For::kRead);
  return c.io.seek(target, offset, what);
}

Result<void> Filesystem::fallocate(Ino, Handle, int, std::uint64_t, std::uint64_t) {
  return Reason::kNotSupported;
}

}  // namespace etcfs::fs

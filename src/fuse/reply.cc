#include "fuse/reply.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

namespace etcfs::fuse {
namespace {

constexpr Nanos kLongestValidity = std::chrono::hours(24 * 3650);
constexpr std::uint64_t kOffsetMax = INT64_MAX;
constexpr std::uint32_t kFattrKillSuidgid = 1u << 11;

WallTime wall_time(std::uint64_t sec, std::uint32_t nsec) {
  return {static_cast<std::int64_t>(sec), nsec};
}

std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace

int errno_of(Reason reason) { return reason_errno(reason); }

Validity validity_of(Nanos timeout) {
  const Nanos t = std::clamp(timeout, Nanos{0}, kLongestValidity);
  const auto sec = std::chrono::duration_cast<std::chrono::seconds>(t);
  return {static_cast<std::uint64_t>(sec.count()), static_cast<std::uint32_t>((t - sec).count())};
}

fuse_attr to_attr(const fs::Attr& a) {
  fuse_attr out{};
  out.ino = a.ino.v;
  out.size = a.size;
  out.blocks = a.blocks512;
  out.atime = static_cast<std::uint64_t>(a.atime.sec);
  out.mtime = static_cast<std::uint64_t>(a.mtime.sec);
  out.ctime = static_cast<std::uint64_t>(a.ctime.sec);
  out.atimensec = a.atime.nsec;
  out.mtimensec = a.mtime.nsec;
  out.ctimensec = a.ctime.nsec;
  out.mode = a.mode;
  out.nlink = a.nlink;
  out.uid = a.uid;
  out.gid = a.gid;
  out.rdev = static_cast<std::uint32_t>(a.rdev);
  out.blksize = kBlockBytes;
  return out;
}

fuse_attr_out to_attr_out(const fs::AttrReply& reply) {
  fuse_attr_out out{};
  const Validity v = validity_of(reply.attr_timeout);
  out.attr_valid = v.sec;
  out.attr_valid_nsec = v.nsec;
  out.attr = to_attr(reply.attr);
  return out;
}

fuse_entry_out to_entry_out(const fs::Entry& entry) {
  fuse_entry_out out{};
  const Validity name = validity_of(entry.entry_timeout);
  out.entry_valid = name.sec;
  out.entry_valid_nsec = name.nsec;
  if (entry.ino.v == 0) return out;
  const Validity attr = validity_of(entry.attr_timeout);
  out.attr_valid = attr.sec;
  out.attr_valid_nsec = attr.nsec;
  out.nodeid = to_node(entry.ino);
  out.attr = to_attr(entry.attr);
  return out;
}

fuse_open_out to_open_out(const fs::OpenReply& reply) {
  fuse_open_out out{};
  out.fh = reply.handle;
  if (reply.keep_cache) out.open_flags |= FOPEN_KEEP_CACHE;
  if (reply.direct_io) out.open_flags |= FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
  if (reply.cache_readdir) out.open_flags |= FOPEN_CACHE_DIR;
  return out;
}

fuse_kstatfs to_statfs(const fs::StatFs& stat) {
  fuse_kstatfs out{};
  out.blocks = stat.blocks;
  out.bfree = out.bavail = stat.free_blocks;
  out.files = stat.files;
  out.ffree = stat.free_files;
  out.bsize = out.frsize = static_cast<std::uint32_t>(stat.block_bytes);
  out.namelen = stat.name_max;
  return out;
}

fs::LockRequest to_lock_request(const fuse_lk_in& in) {
  fs::LockRequest lock;
  lock.kind =
      (in.lk_flags & FUSE_LK_FLOCK) ? fs::LockRequest::Kind::kFlock : fs::LockRequest::Kind::kPosix;
  switch (in.lk.type) {
    case F_RDLCK:
      lock.type = fs::LockRequest::Type::kRead;
      break;
    case F_WRLCK:
      lock.type = fs::LockRequest::Type::kWrite;
      break;
    default:
      lock.type = fs::LockRequest::Type::kUnlock;
      break;
  }
  const bool whole = lock.kind == fs::LockRequest::Kind::kFlock;
  lock.start = whole ? 0 : in.lk.start;
  lock.end = whole || in.lk.end >= kOffsetMax ? UINT64_MAX : in.lk.end;
  lock.owner = in.owner;
  lock.pid = static_cast<std::int32_t>(in.lk.pid);
  return lock;
}

fuse_lk_out to_lk_out(const fs::LockRequest& lock) {
  fuse_lk_out out{};
  switch (lock.type) {
    case fs::LockRequest::Type::kRead:
      out.lk.type = F_RDLCK;
      break;
    case fs::LockRequest::Type::kWrite:
      out.lk.type = F_WRLCK;
      break;
    case fs::LockRequest::Type::kUnlock:
      out.lk.type = F_UNLCK;
      break;
  }
  out.lk.start = std::min(lock.start, kOffsetMax);
  out.lk.end = std::min(lock.end, kOffsetMax);
  out.lk.pid = static_cast<std::uint32_t>(lock.pid);
  return out;
}

fs::SetAttr to_set_attr(const fuse_setattr_in& in) {
  fs::SetAttr set;
  if (in.valid & FATTR_MODE) set.mode = in.mode;
  if (in.valid & FATTR_UID) set.uid = in.uid;
  if (in.valid & FATTR_GID) set.gid = in.gid;
  if (in.valid & FATTR_SIZE) set.size = in.size;
  if (in.valid & FATTR_ATIME)
    set.atime = {(in.valid & FATTR_ATIME_NOW) != 0, wall_time(in.atime, in.atimensec)};
  if (in.valid & FATTR_MTIME)
    set.mtime = {(in.valid & FATTR_MTIME_NOW) != 0, wall_time(in.mtime, in.mtimensec)};
  if (in.valid & FATTR_CTIME) set.ctime = wall_time(in.ctime, in.ctimensec);
  // Named for truncation only; that a change of owner clears is fs's to know.
  set.kill_suidgid = (in.valid & kFattrKillSuidgid) != 0;
  return set;
}

fs::WriteFlags to_write_flags(const fuse_write_in& in) {
  fs::WriteFlags flags;
  flags.writeback = (in.write_flags & FUSE_WRITE_CACHE) != 0;
  flags.kill_suidgid = (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
  if (flags.writeback) return flags;  // the pages of nobody's descriptor
  flags.append = (in.flags & O_APPEND) != 0;
  flags.sync = (in.flags & O_SYNC) == O_SYNC;
  flags.dsync = (in.flags & O_DSYNC) != 0;
  return flags;
}

bool DirPacker::add(const fs::DirItem& item) {
  const std::size_t head = plus_ ? sizeof(fuse_entry_out) : 0;
  const std::size_t bare = head + offsetof(fuse_dirent, name) + item.name.size();
  const std::size_t total = padded(bare);
  if (total > size_ - used_) return false;
  std::byte* at = buffer_ + used_;
  if (plus_) {
    // "." and ".." are never looked up by a listing, so they take no reference on a node.
    const bool dots = item.name == "." || item.name == "..";
    const fuse_entry_out entry = item.entry && !dots ? to_entry_out(*item.entry) : fuse_entry_out{};
    std::memcpy(at, &entry, sizeof entry);
    at += sizeof entry;
  }
  fuse_dirent dirent{};
  dirent.ino = item.ino.v;
  dirent.off = item.next_offset;
  dirent.namelen = static_cast<std::uint32_t>(item.name.size());
  dirent.type = static_cast<std::uint32_t>(item.type);
  std::memcpy(at, &dirent, offsetof(fuse_dirent, name));
  at += offsetof(fuse_dirent, name);
  std::memcpy(at, item.name.data(), item.name.size());
  std::memset(at + item.name.size(), 0, total - bare);
  used_ += total;
  return true;
}

}  // namespace etcfs::fuse

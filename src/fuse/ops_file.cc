// Open files: create, open, read, write and what goes with a descriptor.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/request.h"

namespace etcfs::fuse {
namespace {

// Opening with O_TRUNC by one who may not keep setuid and setgid: the kernel asks for their
// clearing with the open (killpriv v2). What fs answered before is not current any more after this
// blocking call, so the caller of this lets the kernel keep nothing of it.
Result<bool> kill_suidgid(Request& req, Ino ino, std::uint32_t open_flags, std::uint32_t flags) {
  if (!(open_flags & FUSE_OPEN_KILL_SUIDGID) || !(flags & O_TRUNC)) return false;
  fs::SetAttr set;
  set.kill_suidgid = true;
  ETCFS_CHECK(req.fs().setattr(req.caller(), ino, set));
  return true;
}

void create(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info*) {
  Request req(r);
  const auto& in = req.arg<fuse_create_in>();
  Result<fs::Filesystem::Created> made =
      req.fs().create(req.caller(), to_ino(parent), name, mode, static_cast<int>(in.flags));
  if (!made) return req.error(made.error());
  const Ino ino = made->entry.ino;
  if (made->entry.attr.mode & (S_ISUID | S_ISGID)) {  // it was there: a new one has what was asked
    const Result<bool> killed = kill_suidgid(req, ino, in.open_flags, in.flags);
    if (!killed) {
      (void)req.fs().release(ino, made->open.handle, 0);
      return req.error(killed.error());
    }
    if (*killed) {
      made->entry.entry_timeout = made->entry.attr_timeout = Nanos{0};
      made->open.keep_cache = false;
    }
  }
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out{to_entry_out(made->entry), to_open_out(made->open)};
  static_assert(sizeof out == sizeof(fuse_entry_out) + sizeof(fuse_open_out));
  if (!req.payload(out)) (void)req.fs().release(ino, made->open.handle, 0);
}

void open(fuse_req_t r, fuse_ino_t node, fuse_file_info*) {
  Request req(r);
  const Ino ino = to_ino(node);
  const auto& in = req.arg<fuse_open_in>();
  Result<fs::OpenReply> open = req.fs().open(req.caller(), ino, static_cast<int>(in.flags));
  if (!open) return req.error(open.error());
  const Result<bool> killed = kill_suidgid(req, ino, in.open_flags, in.flags);
  if (!killed) {
    (void)req.fs().release(ino, open->handle, 0);
    return req.error(killed.error());
  }
  if (*killed) open->keep_cache = false;
  if (!req.payload(to_open_out(*open))) (void)req.fs().release(ino, open->handle, 0);
}

void read(fuse_req_t r, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* fi) {
  Request req(r);
  const Result<fs::ReadReply> bytes =
      req.fs().read(to_ino(ino), fi->fh, static_cast<std::uint64_t>(offset), size);
  if (!bytes) return req.error(bytes.error());
  req.pieces(*bytes);
}

void write(fuse_req_t r, fuse_ino_t ino, const char* data, size_t size, off_t offset,
           fuse_file_info* fi) {
  Request req(r);
  const fs::WriteFlags flags = to_write_flags(req.arg<fuse_write_in>());
  const Result<std::size_t> done =
      req.fs().write(req.caller(), to_ino(ino), fi->fh, static_cast<std::uint64_t>(offset),
                     std::as_bytes(std::span(data, size)), flags);
  if (!done) return req.error(done.error());
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(*done);
  req.payload(out);
}

void flush(fuse_req_t r, fuse_ino_t ino, fuse_file_info* fi) {
  Request req(r);
  req.result(req.fs().flush(to_ino(ino), fi->fh, fi->lock_owner));
}

void release(fuse_req_t r, fuse_ino_t ino, fuse_file_info* fi) {
  Request req(r);
  const auto& in = req.arg<fuse_release_in>();
  const std::uint64_t flock_owner =
      (in.release_flags & FUSE_RELEASE_FLOCK_UNLOCK) ? in.lock_owner : 0;
  req.result(req.fs().release(to_ino(ino), fi->fh, flock_owner));
}

void fsync(fuse_req_t r, fuse_ino_t ino, int data_only, fuse_file_info* fi) {
  Request req(r);
  req.result(req.fs().fsync(to_ino(ino), fi->fh, data_only != 0));
}

void lseek(fuse_req_t r, fuse_ino_t ino, off_t offset, int whence, fuse_file_info* fi) {
  Request req(r);
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return req.error(EINVAL);
  const Result<std::uint64_t> at =
      req.fs().lseek(to_ino(ino), fi->fh, static_cast<std::uint64_t>(offset),
                     whence == SEEK_DATA ? fs::SeekWhat::kData : fs::SeekWhat::kHole);
  if (!at) return req.error(at.error());
  fuse_lseek_out out{};
  out.offset = *at;
  req.payload(out);
}

void fallocate(fuse_req_t r, fuse_ino_t ino, int mode, off_t offset, off_t length,
               fuse_file_info* fi) {
  Request req(r);
  req.result(req.fs().fallocate(to_ino(ino), fi->fh, mode, static_cast<std::uint64_t>(offset),
                                static_cast<std::uint64_t>(length)));
}

// FS_IOC_GETFLAGS and the like: there are no such flags.
void ioctl(fuse_req_t r, fuse_ino_t, unsigned int, void*, fuse_file_info*, unsigned, const void*,
           size_t, size_t) {
  fuse_reply_err(r, ENOTTY);
}

}  // namespace

// Without a handler libfuse answers ENOSYS, and the kernel does what it can by itself and asks no
// more: copy_file_range (it copies through the page cache), poll, bmap, access.
void add_file_ops(fuse_lowlevel_ops& ops) {
  ops.create = create;
  ops.open = open;
  ops.read = read;
  ops.write = write;
  ops.flush = flush;
  ops.release = release;
  ops.fsync = fsync;
  ops.lseek = lseek;
  ops.fallocate = fallocate;
  ops.ioctl = ioctl;
}

}  // namespace etcfs::fuse

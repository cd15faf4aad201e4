// Names: lookup, create and remove. (Opening files, also by CREATE: ops_file.)
#include <cerrno>
#include <string>

#include "fuse/ops.h"
#include "fuse/request.h"

namespace etcfs::fuse {
namespace {

void lookup(fuse_req_t r, fuse_ino_t parent, const char* name) {
  Request req(r);
  req.entry(req.fs().lookup(req.caller(), to_ino(parent), name));
}

// Node ids are inode numbers and stay valid by themselves: nothing is counted.
void forget(fuse_req_t r, fuse_ino_t, uint64_t) { fuse_reply_none(r); }
void forget_multi(fuse_req_t r, size_t, fuse_forget_data*) { fuse_reply_none(r); }

void readlink(fuse_req_t r, fuse_ino_t ino) {
  Request req(r);
  const Result<std::string> target = req.fs().readlink(to_ino(ino));
  if (!target) return req.error(target.error());
  req.bytes(std::as_bytes(std::span(*target)));
}

void mknod(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode, dev_t rdev) {
  Request req(r);
  req.entry(req.fs().mknod(req.caller(), to_ino(parent), name, mode, rdev));
}

void mkdir(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode) {
  Request req(r);
  req.entry(req.fs().mkdir(req.caller(), to_ino(parent), name, mode & 07777));
}

void symlink(fuse_req_t r, const char* target, fuse_ino_t parent, const char* name) {
  Request req(r);
  req.entry(req.fs().symlink(req.caller(), to_ino(parent), name, target));
}

void link(fuse_req_t r, fuse_ino_t ino, fuse_ino_t new_parent, const char* new_name) {
  Request req(r);
  req.entry(req.fs().link(req.caller(), to_ino(ino), to_ino(new_parent), new_name));
}

void unlink(fuse_req_t r, fuse_ino_t parent, const char* name) {
  Request req(r);
  req.result(req.fs().unlink(req.caller(), to_ino(parent), name));
}

void rmdir(fuse_req_t r, fuse_ino_t parent, const char* name) {
  Request req(r);
  req.result(req.fs().rmdir(req.caller(), to_ino(parent), name));
}

void rename(fuse_req_t r, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned int flags) {
  Request req(r);
  fs::RenameMode mode;
  switch (flags) {
    case 0:
      mode = fs::RenameMode::kReplace;
      break;
    case RENAME_NOREPLACE:
      mode = fs::RenameMode::kNoReplace;
      break;
    case RENAME_EXCHANGE:
      mode = fs::RenameMode::kExchange;
      break;
    default:
      return req.error(EINVAL);  // RENAME_WHITEOUT among them
  }
  req.result(
      req.fs().rename(req.caller(), to_ino(parent), name, to_ino(new_parent), new_name, mode));
}

}  // namespace

void add_namespace_ops(fuse_lowlevel_ops& ops) {
  ops.lookup = lookup;
  ops.forget = forget;
  ops.forget_multi = forget_multi;
  ops.readlink = readlink;
  ops.mknod = mknod;
  ops.mkdir = mkdir;
  ops.symlink = symlink;
  ops.link = link;
  ops.unlink = unlink;
  ops.rmdir = rmdir;
  ops.rename = rename;
}

}  // namespace etcfs::fuse

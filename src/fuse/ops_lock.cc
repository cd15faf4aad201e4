// Advisory locks: fcntl, OFD (which the kernel sends like fcntl's) and flock.
#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/request.h"

namespace etcfs::fuse {
namespace {

void getlk(fuse_req_t r, fuse_ino_t ino, fuse_file_info*, struct flock*) {
  Request req(r);
  const Result<fs::LockRequest> found =
      req.fs().getlk(to_ino(ino), to_lock_request(req.arg<fuse_lk_in>()));
  if (!found) return req.error(found.error());
  req.payload(to_lk_out(*found));
}

void set(fuse_req_t r, fuse_ino_t ino, bool wait) {
  Request req(r, /*lock_wait=*/wait);
  const fs::LockRequest lock = to_lock_request(req.arg<fuse_lk_in>());
  req.result(req.fs().setlk(req.caller(), to_ino(ino), lock, wait));
}

void setlk(fuse_req_t r, fuse_ino_t ino, fuse_file_info*, struct flock*, int sleep) {
  set(r, ino, sleep != 0);
}

void flock(fuse_req_t r, fuse_ino_t ino, fuse_file_info*, int op) {
  set(r, ino, (op & LOCK_NB) == 0);
}

}  // namespace

void add_lock_ops(fuse_lowlevel_ops& ops) {
  ops.getlk = getlk;
  ops.setlk = setlk;
  ops.flock = flock;
}

}  // namespace etcfs::fuse

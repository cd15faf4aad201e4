// Advisory locks, first form: whole within this node, refused across nodes. A node may lock a file
// while it holds X of it, or while plock/<ino> names it; the key is written when the family is
// given up with locks held, and goes when the last lock goes. Who finds another living node in the
// key answers ENOLCK.
#include "fs/impl.h"

namespace etcfs::fs {

// False: another node's. Blocks.
static Result<bool> may_lock(Core& c, Ino ino) {
  if (c.advisory.claimed(ino)) return true;
  ETCFS_CHECK(c.run(true, [&](Attempt& a) -> Result<void> {
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode) return inode.error();
    return {};
  }));
  FamilyState* fam = c.find_family(ino.family());
  if (!fam) return Reason::kRetry;
  if (c.advisory.any(ino) || fam->lockable.contains(ino)) return true;
  const auto generation = fam->generation;
  ETCFS_TRY(auto reply, c.must_range({.key = c.d.keys.plock(ino)}));
  if (!reply.kvs.empty()) {
    ETCFS_TRY(auto owner, meta::decode_advisory(reply.kvs[0].value));
    if (owner.first != c.d.guard.node() && c.d.membership.is_current(owner.first, owner.second))
      return false;
  }
  fam = c.find_family(ino.family());
  if (!fam || fam->generation != generation || fam->closed) return Reason::kRetry;
  fam->lockable.insert(ino);
  return true;
}

void Core::drop_locks(Ino ino, LockRequest::Kind kind, std::uint64_t owner) {
  if (!advisory.any(ino)) return;
  advisory.apply(ino, {.kind = kind, .type = LockRequest::Type::kUnlock, .owner = owner});
  unclaim(ino);
}

void Core::unclaim(Ino ino) {
  if (advisory.any(ino) || !advisory.claimed(ino)) return;
  advisory.set_claimed(ino, false);
  meta::Step step;
  step.erase(d.keys.plock(ino));
  append(std::move(step));
}

Result<LockRequest> Filesystem::getlk(Ino ino, const LockRequest& request) {
  Impl& c = *impl_;
  for (;;) {
    auto may = may_lock(c, ino);
    if (!may && may.error() == Reason::kRetry) continue;
    ETCFS_TRY(bool ours, std::move(may));
    if (!ours) return Reason::kNoLocks;
    if (auto held = c.advisory.conflict(ino, request)) return *held;
    LockRequest free = request;
    free.type = LockRequest::Type::kUnlock;
    return free;
  }
}

Result<void> Filesystem::setlk(const Caller& caller, Ino ino, const LockRequest& request,
                               bool wait) {
  Impl& c = *impl_;
  if (request.type == LockRequest::Type::kUnlock) {
    if (c.advisory.any(ino)) {
      c.advisory.apply(ino, request);
      c.unclaim(ino);
    }
    return {};
  }
  for (;;) {
    if (c.d.stream.fenced()) return Reason::kFenced;
    if (c.gate.closed()) return Reason::kShutdown;
    auto may = may_lock(c, ino);
    if (!may && may.error() == Reason::kRetry) continue;
    ETCFS_TRY(bool ours, std::move(may));
    if (!ours) return Reason::kNoLocks;
    if (!c.advisory.conflict(ino, request)) {
      c.advisory.apply(ino, request);
      return {};
    }
    if (!wait) return Reason::kWouldBlock;
    if (caller.interrupted && caller.interrupted()) return Reason::kInterrupted;
    c.advisory.changed().wait_until(c.now() + std::chrono::milliseconds(50));
    if (caller.interrupted && caller.interrupted()) return Reason::kInterrupted;
  }
}

}  // namespace etcfs::fs

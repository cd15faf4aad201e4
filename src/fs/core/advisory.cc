#include "fs/core/advisory.h"

namespace etcfs::fs {
namespace {

bool overlap(const LockRequest& a, const LockRequest& b) {
  return a.start <= b.end && b.start <= a.end;
}
bool same_owner(const LockRequest& a, const LockRequest& b) {
  return a.kind == b.kind && a.owner == b.owner;
}

}  // namespace

std::optional<LockRequest> AdvisoryTable::conflict(Ino ino, const LockRequest& request) const {
  auto it = files_.find(ino);
  if (it == files_.end() || request.type == LockRequest::Type::kUnlock) return std::nullopt;
  for (const LockRequest& held : it->second.locks) {
    if (held.kind != request.kind || same_owner(held, request) || !overlap(held, request)) continue;
    if (held.type == LockRequest::Type::kWrite || request.type == LockRequest::Type::kWrite)
      return held;
  }
  return std::nullopt;
}

void AdvisoryTable::apply(Ino ino, const LockRequest& request) {
  auto& locks = files_[ino].locks;
  for (auto it = locks.begin(); it != locks.end();) {
    if (!same_owner(*it, request) || !overlap(*it, request)) {
      ++it;
      continue;
    }
    LockRequest before = *it, after = *it;
    it = locks.erase(it);
    if (before.start < request.start) {
      before.end = request.start - 1;
      locks.insert(it, before);
    }
    if (after.end > request.end) {
      after.start = request.end + 1;
      locks.insert(it, after);
    }
  }
  if (request.type != LockRequest::Type::kUnlock) locks.push_back(request);
  if (locks.empty()) files_.erase(ino);
  changed_.notify_all();
}

bool AdvisoryTable::claimed(Ino ino) const { return claimed_.contains(ino); }
void AdvisoryTable::set_claimed(Ino ino, bool claimed) {
  if (claimed) {
    claimed_[ino] = true;
  } else {
    claimed_.erase(ino);
  }
}

}  // namespace etcfs::fs

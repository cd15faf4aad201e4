// Advisory locks of this node's processes: POSIX (and OFD) byte ranges and flock, per inode.
// POSIX rules: an owner's own locks never conflict; a new lock replaces what it overlaps; unlocking
// may split.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>

#include "base/ids.h"
#include "fs/types.h"
#include "rt/rt.h"

namespace etcfs::fs {

class AdvisoryTable {
 public:
  // The first lock that stands in the way of `request`, if any.
  std::optional<LockRequest> conflict(Ino ino, const LockRequest& request) const;
  // Takes (or drops) it; the caller has seen that nothing conflicts.
  void apply(Ino ino, const LockRequest& request);
  bool any(Ino ino) const { return files_.contains(ino); }
  rt::Condition& changed() { return changed_; }  // some lock was dropped

  // A node-wide claim on plock/<ino> (first form of sharing: no other node may lock the file).
  bool claimed(Ino ino) const;
  void set_claimed(Ino ino, bool claimed);

  template <class F>
  void for_family(Family family, F&& f) const {
    for (auto it = files_.lower_bound(Ino(family, 0)); it != files_.end(); ++it) {
      if (it->first.family() != family) break;
      f(it->first);
    }
  }

 private:
  struct File {
    std::list<LockRequest> locks;
  };
  std::map<Ino, File> files_;
  std::map<Ino, bool> claimed_;
  rt::Condition changed_;
};

}  // namespace etcfs::fs

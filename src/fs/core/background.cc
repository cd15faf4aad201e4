// Work nobody waits for: deleting what has no name and no user any more, walking ahead, the budget.
#include <algorithm>

#include "base/log.h"
#include "fs/core/core.h"

namespace etcfs::fs {
namespace {
constexpr Nanos kDeadline = std::chrono::seconds(30);
constexpr std::size_t kAheadBatch = 40;
constexpr std::size_t kAheadMost = 600;  // families got ahead and not used yet
constexpr std::size_t kWalkLooks = 10'000;  // entries looked at without a pause
}  // namespace

void Core::queue_reap(Ino ino) {
  reap_queue.push_back(ino);
  work.notify_all();
}

void Core::reap_loop() {
  for (;;) {
    work.wait([&] { return stopping || !reap_queue.empty(); });
    if (reap_queue.empty()) return;
    std::vector<Ino> batch;
    batch.swap(reap_queue);
    for (Ino ino : batch) {
      if (stopping) return;  // others walk over orphan/ when we have left
      auto r = reap(ino);
      if (!r && r.error() != Reason::kFenced && r.error() != Reason::kShutdown)
        ETCFS_LOG_WARN("an unused inode could not be deleted; it stays in orphan/",
                       log::field("ino", ino.v), log::field("reason", reason_name(r.error())));
    }
  }
}

// Deletes an inode without names if nobody has it open, here or elsewhere; checked under X of it.
Result<void> Core::reap(Ino ino) {
  ETCFS_CHECK(d.stream.wait_room());
  for (bool looked = false;;) {
    Attempt a(*this);
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode && inode.error() == Reason::kRetry) {
      ETCFS_CHECK(a.satisfy());
      continue;
    }
    if (!inode) {  // already gone: somebody else was faster; the key must not stay
      meta::Step step;
      step.erase(d.keys.orphan(ino));
      append(std::move(step));
      return {};
    }
    InodeRef ref = *inode;
    FamilyState& fam = family(ino.family());
    if (ref->rec.nlink > 0 || is_open(ino)) return {};
    if (fam.held_elsewhere(ino)) {
      // So it was when we got the lock. The orphan key is committed first: whoever closes the file
      // after our look finds it.
      if (looked) return {};
      looked = true;
      ETCFS_CHECK(look_at_holds(ino));
      continue;
    }
    Pin pin(*this, ref);
    // Nobody can open it any more: it has no name. (A handle by number finds it gone.)
    forget_file(*ref);
    meta::Step step;
    if (ref->is_regular()) {
      if (auto r = io.add_deletion(ref, step); !r) {
        ETCFS_LOG_ERROR("deletion failed; the inode stays in orphan/", log::field("ino", ino.v),
                        log::field("reason", reason_name(r.error())));
        return r;
      }
    } else {
      step.erase(d.keys.inode(ino));
    }
    step.erase(d.keys.orphan(ino));
    step.erase(d.keys.plock(ino));  // of a dead epoch, at most: nobody has it open
    append(std::move(step));
    return {};
  }
}

// Takes from memory what others no longer hold of the file. Under X nobody puts a hold.
Result<void> Core::look_at_holds(Ino ino) {
  ETCFS_CHECK(d.stream.wait_committed(d.stream.last_appended()));
  const std::string prefix = d.keys.holds(ino);
  const FamilyState* before = find_family(ino.family());
  if (!before) return {};
  const auto generation = before->generation;
  ETCFS_TRY(auto reply, must_range({.key = prefix, .end = meta::prefix_end(prefix)}));
  FamilyState* fam = find_family(ino.family());
  if (!fam || fam->generation != generation) return {};
  std::erase_if(fam->holds, [&](const auto& hold) {
    if (hold.first.first != ino) return false;
    for (const auto& kv : reply.kvs)
      if (auto key = d.keys.parse_hold(kv.key); key && key->node == hold.first.second) {
        auto epoch = meta::decode_hold(kv.value);
        return epoch && !d.membership.is_current(key->node, *epoch);
      }
    return true;
  });
  return {};
}

// The last handle of a file is closed whose family we had given up with it open. The hold goes with
// step `dropped`: commit first and look afterwards (design section 8).
void Core::look_for_orphan(Ino ino, StepNo dropped) {
  if (!d.stream.wait_committed(dropped)) return;
  auto orphan = d.kv.range({.key = d.keys.orphan(ino)}, Revision{}, now() + kDeadline);
  if (!orphan || orphan->kvs.empty()) return;  // unreadable: the walk over orphans finds it later
  queue_reap(ino);
}

Result<void> Core::walk_orphans() {
  const std::string prefix = d.keys.all("orphan");
  std::string key = prefix, end = meta::prefix_end(prefix);
  for (;;) {
    ETCFS_TRY(auto reply, d.kv.range({.key = key, .end = end, .limit = 1000, .keys_only = true},
                                     Revision{}, now() + kDeadline));
    for (const auto& kv : reply.kvs)
      if (auto ino = d.keys.parse_orphan(kv.key)) queue_reap(*ino);
    if (!reply.more || reply.kvs.empty()) return {};
    key = reply.kvs.back().key + '\0';
  }
}

// A listing was opened: its subdirectories are wanted soon, so that `find`, `du` and `ls -R` find
// them loaded. True: some of them may be on their way now.
bool Core::walk_from(FamilyState& fam) {
  if (fam.walked || !fam.names_loaded || !fam.dir || fam.dir->rec.nlink <= 2) return false;
  fam.walked = true;
  walk_stack.push_back({fam.family, 0});
  work.notify_all();
  return ahead_unused < kAheadMost;
}

// The next families in the order in which a walk of the tree comes to them.
std::vector<Family> Core::next_to_walk(std::size_t most) {
  std::vector<Family> batch;
  std::size_t looked_at = 0;
  while (!walk_stack.empty() && batch.size() < most) {
    WalkPlace& place = walk_stack.back();
    FamilyState* dir = find_family(place.directory);
    if (!dir || !dir->names_loaded) {
      walk_stack.pop_back();
      continue;
    }
    dir->keep_order();
    auto it = dir->order.upper_bound(place.cookie);
    for (; it != dir->order.end() && batch.size() < most && looked_at < kWalkLooks; ++it) {
      ++looked_at;
      place.cookie = it->first;
      const DirEntry& entry = it->second->second;
      if (entry.ino.is_directory() && !find_family(entry.ino.family()))
        batch.push_back(entry.ino.family());
    }
    if (it == dir->order.end()) walk_stack.pop_back();
    if (looked_at >= kWalkLooks) break;
  }
  return batch;
}

void Core::walk_loop() {
  for (;;) {
    work.wait([&] { return stopping || (!walk_stack.empty() && ahead_unused < kAheadMost); });
    if (stopping) return;
    const std::vector<Family> batch =
        next_to_walk(std::min(kAheadBatch, d.stream.limits().txn_ops / 3));
    if (batch.empty()) {
      rt::yield();
    } else {
      if (!acquire_free(batch, reading_mode())) return;
      for (auto f = batch.rbegin(); f != batch.rend(); ++f)  // the first one is to be on top
        if (FamilyState* fam = find_family(*f); fam && fam->names_loaded && !fam->ahead) {
          fam->ahead = true;
          ahead_unused++;
          walk_from(*fam);
        }
    }
    walk_progress.notify_all();
  }
}

// Keeps the number of cached inodes within the budget by giving up idle families, oldest first.
void Core::budget_loop() {
  while (!stopping) {
    work.wait_until(now() + std::chrono::milliseconds(200));
    if (stopping || cached_inodes <= options.cached_inodes) continue;
    std::vector<std::pair<Time, FamilyState*>> idle;
    for (auto& [f, fam] : families)
      if (fam->pins == 0 && !fam->closing) idle.emplace_back(fam->last_used, fam.get());
    std::sort(idle.begin(), idle.end());
    std::size_t excess = cached_inodes - options.cached_inodes * 9 / 10;
    std::vector<Family> victims;
    for (auto& [when, fam] : idle) {
      if (excess == 0) break;
      victims.push_back(fam->family);
      excess -= std::min(excess, fam->files.size() + 1);
    }
    d.locks.release_idle(victims);
    rt::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace etcfs::fs

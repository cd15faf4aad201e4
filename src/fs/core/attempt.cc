#include <algorithm>

#include "fs/core/core.h"

namespace etcfs::fs {

void Attempt::need(Family family, LockModes modes) {
  for (auto& n : needs_)
    if (n.family == family) {
      n.modes = merge(n.modes, modes);
      return;
    }
  needs_.push_back({family, modes});
}

FamilyState* Attempt::names(Family family, LockMode mode) {
  return both(family, mode, LockMode::kNone);
}
FamilyState* Attempt::files(Family family, LockMode mode) {
  return both(family, LockMode::kNone, mode);
}

FamilyState* Attempt::both(Family family, LockMode names, LockMode files) {
  const LockModes want{names, files};
  FamilyState* state = core_.find_family(family);
  const bool at_hand = state && core_.d.locks.usable(family).covers(want) &&
                       (names == LockMode::kNone || state->names_loaded) &&
                       (files == LockMode::kNone || state->files_loaded);
  if (!at_hand) {
    need(family, want);
    return nullptr;
  }
  if (std::find(used_.begin(), used_.end(), family) == used_.end()) used_.push_back(family);
  return state;
}

Attempt::Found Attempt::entry(FamilyState& family, std::string_view name, DirEntry** out) {
  if ((*out = family.find(name))) return Found::kYes;
  if (family.entries_complete || family.absent.contains(name)) return Found::kNo;
  entry_ = {Ino(family.family, 0), std::string(name)};
  return Found::kMissing;
}

Result<DirEntry*> Attempt::existing(FamilyState& family, std::string_view name) {
  DirEntry* found = nullptr;
  switch (entry(family, name, &found)) {
    case Found::kMissing:
      return Reason::kRetry;
    case Found::kNo:
      return Reason::kNotFound;
    case Found::kYes:
      break;
  }
  return found;
}

Result<InodeRef> Attempt::named_inode(const DirEntry& entry, LockMode mode) {
  auto found = inode(entry.ino, mode);
  if (!found && found.error() == Reason::kStale) return Reason::kCorrupt;
  return found;
}

Result<InodeRef> Attempt::inode(Ino ino, LockMode mode) {
  if (ino.is_directory()) {
    FamilyState* fam = names(ino.family(), mode);
    if (!fam) return Reason::kRetry;
    if (!fam->dir) return Reason::kStale;
    return fam->dir;
  }
  FamilyState* fam = files(ino.family(), mode);
  if (!fam) return Reason::kRetry;
  auto it = fam->files.find(ino.index());
  if (it != fam->files.end()) return it->second;
  if (fam->files_complete || fam->deleted.contains(ino.index())) return Reason::kStale;
  inode_ = ino;
  return Reason::kRetry;
}

bool Attempt::complete(FamilyState& family) {
  if (family.entries_complete) return true;
  complete_ = family.family;
  return false;
}

std::optional<Family> Attempt::new_family() {
  if (core_.family_next < core_.family_end) return Family(core_.family_next++);
  families_ = true;
  return std::nullopt;
}

Result<void> Attempt::satisfy() {
  if (!needs_.empty()) {
    if (core_.alone())
      for (auto& n : needs_) n.modes = {LockMode::kExclusive, LockMode::kExclusive};
    std::sort(needs_.begin(), needs_.end(),
              [](const auto& a, const auto& b) { return a.family < b.family; });
    ETCFS_CHECK(core_.d.locks.acquire(needs_));
  }
  if (commit_.v) ETCFS_CHECK(core_.d.stream.wait_committed(commit_));
  if (families_) ETCFS_CHECK(core_.load_families());
  if (entry_) ETCFS_CHECK(core_.load_entry(entry_->first, entry_->second));
  if (inode_) ETCFS_CHECK(core_.load_inode(*inode_));
  if (complete_) ETCFS_CHECK(core_.load_complete(*complete_));
  if (flush_ && !flush_->gone) {
    Pin pin(core_, flush_);
    ETCFS_CHECK(core_.io.flush(flush_));
  }
  return {};
}

void Attempt::served() {
  for (Family f : used_) {
    core_.d.locks.note_served(f);
    FamilyState* fam = core_.find_family(f);
    if (!fam) continue;
    fam->last_used = core_.now();
    if (fam->ahead) {
      fam->ahead = false;
      core_.ahead_unused--;
      core_.work.notify_all();
    }
  }
}

}  // namespace etcfs::fs

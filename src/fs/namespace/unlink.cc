#include <sys/stat.h>

#include "fs/impl.h"

namespace etcfs::fs {

// Takes one link from a file whose entry goes away, in the same step. The last one: the inode goes
// too, unless it is open somewhere or has blocks to be freed; then it becomes an orphan, and the
// reaper does the rest.
static void drop_link(Core& c, InodeRef inode, WallTime when, meta::Step& step) {
  InodeState& file = *inode;
  ETCFS_ASSERT(file.rec.nlink > 0);
  file.rec.nlink--;
  file.rec.ctime = when;
  if (file.rec.nlink > 0) {
    c.put_inode(step, file);
    return;
  }
  const Ino ino = file.ino;
  FamilyState& fam = c.family(ino.family());
  auto held = fam.holds.lower_bound({ino, NodeName()});
  const bool used_elsewhere = held != fam.holds.end() && held->first == ino;
  const bool simple = !file.is_regular() || !c.io.has_blocks_or_dirty(file);
  if (simple && !used_elsewhere && !c.is_open(ino) && file.pins == 0) {
    step.erase(c.d.keys.inode(ino));
    file.gone = true;
    if (file.is_regular()) c.io.drop(file);
    fam.files.erase(ino.index());
    if (!fam.files_complete) fam.deleted.insert(ino.index());
    c.cached_inodes--;
    return;
  }
  step.put(c.d.keys.orphan(ino), meta::encode_orphan());
  c.put_inode(step, file);
  if (!used_elsewhere && !c.is_open(ino)) c.queue_reap(ino);
}

void Core::drop_entry_target(InodeRef inode, WallTime when, meta::Step& step) {
  drop_link(*this, std::move(inode), when, step);
}

Result<void> Filesystem::unlink(const Caller&, Ino parent, std::string_view name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    if (c.dead_dirs.contains(parent)) return Reason::kNotFound;
    FamilyState* dir = a.both(parent.family(), LockMode::kExclusive, LockMode::kExclusive);
    if (!dir) return Reason::kRetry;
    if (!dir->dir) return Reason::kStale;
    DirEntry* entry = nullptr;
    switch (a.entry(*dir, name, &entry)) {
      case Attempt::Found::kMissing:
        return Reason::kRetry;
      case Attempt::Found::kNo:
        return Reason::kNotFound;
      case Attempt::Found::kYes:
        break;
    }
    if (entry->type == static_cast<std::uint8_t>(FileType::kDirectory)) return Reason::kIsDirectory;
    auto inode = a.inode(entry->ino, LockMode::kExclusive);
    if (!inode) return inode.error() == Reason::kStale ? Reason::kCorrupt : inode.error();
    const WallTime when = c.wall();
    meta::Step step;
    step.erase(c.d.keys.dirent(parent, name));
    dir->erase(name);
    drop_link(c, *inode, when, step);
    c.touch_dir(*dir->dir, when);
    c.put_inode(step, *dir->dir);
    return c.append(std::move(step));
  }));
  return c.finish(done);
}

// What a directory's removal means for its family, in memory and in the step. The lock record goes
// with it where nothing of the family can be left; else it is given up when idle.
void Core::drop_directory(FamilyState& fam, meta::Step& step) {
  InodeRef dir = fam.dir;
  step.erase(d.keys.inode(dir->ino));
  meta::Inode rec = dir->rec;
  rec.nlink = 0;
  if (dead_dirs.size() >= 8192) dead_dirs.erase(dead_dirs.begin());
  dead_dirs[dir->ino] = rec;
  dir->gone = true;
  fam.dir.reset();
  cached_inodes--;
  const LockModes all{LockMode::kExclusive, LockMode::kExclusive};
  auto open_here = opens.lower_bound(Ino(fam.family, 0));
  const bool open = open_here != opens.end() && open_here->first.family() == fam.family;
  if (fam.files_complete && fam.files.empty() && rec.birth_family == fam.family && !open &&
      fam.pins == 0 && fam.holds.empty() && !fam.closing && d.locks.usable(fam.family) == all) {
    const Family f = fam.family;
    if (fam.ahead && ahead_unused) ahead_unused--;
    d.locks.abandon(step, f);
    families.erase(f);
  }
}

Result<void> Filesystem::rmdir(const Caller&, Ino parent, std::string_view name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    if (c.dead_dirs.contains(parent)) return Reason::kNotFound;
    FamilyState* dir = a.names(parent.family(), LockMode::kExclusive);
    if (!dir) return Reason::kRetry;
    if (!dir->dir) return Reason::kStale;
    DirEntry* entry = nullptr;
    switch (a.entry(*dir, name, &entry)) {
      case Attempt::Found::kMissing:
        return Reason::kRetry;
      case Attempt::Found::kNo:
        return Reason::kNotFound;
      case Attempt::Found::kYes:
        break;
    }
    if (entry->type != static_cast<std::uint8_t>(FileType::kDirectory))
      return Reason::kNotDirectory;
    FamilyState* victim = a.names(entry->ino.family(), LockMode::kExclusive);
    if (!victim) return Reason::kRetry;
    if (!victim->dir) return Reason::kCorrupt;
    if (!victim->entries.empty()) return Reason::kNotEmpty;
    if (!a.complete(*victim)) return Reason::kRetry;
    const WallTime when = c.wall();
    meta::Step step;
    step.erase(c.d.keys.dirent(parent, name));
    dir->erase(name);
    c.drop_directory(*victim, step);
    dir->dir->rec.nlink--;
    c.touch_dir(*dir->dir, when);
    c.put_inode(step, *dir->dir);
    return c.append(std::move(step));
  }));
  return c.finish(done);
}

}  // namespace etcfs::fs

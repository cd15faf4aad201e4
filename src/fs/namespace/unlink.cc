#include <sys/stat.h>

#include "fs/impl.h"

namespace etcfs::fs {

// Takes one link from a file whose entry goes away, in the same step. The last one: the inode and
// its blocks go too, unless it is open somewhere, or busy, or has more to free than the step should
// carry; then it becomes an orphan, and the reaper does the rest. Does not block.
void Core::drop_entry_target(InodeRef inode, WallTime when, meta::Step& step) {
  InodeState& file = *inode;
  ETCFS_ASSERT(file.rec.nlink > 0);
  file.rec.nlink--;
  file.rec.ctime = when;
  if (file.rec.nlink > 0) {
    put_inode(step, file);
    return;
  }
  const Ino ino = file.ino;
  const bool used = is_open(ino) || family(ino.family()).held_elsewhere(ino);
  const bool simple = !file.is_regular() || !io.deletion_may_block(file);
  if (simple && !used && file.pins == 0) {
    if (file.is_regular()) {
      const StepNo before = d.stream.last_appended();
      ETCFS_ASSERT(io.add_deletion(inode, step));
      ETCFS_ASSERT(d.stream.last_appended() == before);  // nothing of it comes before the name goes
    } else {
      step.erase(d.keys.inode(ino));
    }
    forget_file(file);
    return;
  }
  step.put(d.keys.orphan(ino), meta::encode_orphan());
  put_inode(step, file);
  if (!is_open(ino)) queue_reap(ino);
}

Result<void> Filesystem::unlink(const Caller&, Ino parent, std::string_view name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    if (c.dead_dirs.contains(parent)) return Reason::kNotFound;
    FamilyState* dir = a.both(parent.family(), LockMode::kExclusive, LockMode::kExclusive);
    if (!dir) return Reason::kRetry;
    if (!dir->dir) return Reason::kStale;
    ETCFS_TRY(DirEntry * entry, a.existing(*dir, name));
    if (entry->type == static_cast<std::uint8_t>(FileType::kDirectory)) return Reason::kIsDirectory;
    ETCFS_TRY(InodeRef inode, a.named_inode(*entry, LockMode::kExclusive));
    const WallTime when = c.wall();
    meta::Step step;
    step.erase(c.d.keys.dirent(parent, name));
    dir->erase(name);
    c.drop_entry_target(inode, when, step);
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
    ETCFS_TRY(DirEntry * entry, a.existing(*dir, name));
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

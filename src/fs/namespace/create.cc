// Births: mknod, mkdir, symlink, create. One step: the inode, its entry, the directory (times,
// counts, bounds) and for a directory the lock record of its family, which is ours from birth.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "fs/impl.h"

namespace etcfs::fs {
namespace {

constexpr std::uint32_t kMaxSubdirectories = 0xfffffff0;
constexpr std::uint32_t kBirthAhead = 8192;

struct Birth {
  std::uint32_t mode = 0;
  std::uint64_t rdev = 0;
  std::string_view symlink;
};

}  // namespace

struct Born {
  Entry entry;
  InodeRef inode;
  StepNo step;
};

// Raises the birth bound in `step` (to which the caller adds the directory's inode). Indices below
// the new bound may be given once the step has committed.
static void raise_bound(Core& c, FamilyState& dir, FamilyState& birth, meta::Step& step) {
  const std::uint32_t bound = std::min(birth.birth_next + kBirthAhead, kMaxIndex + 1);
  dir.dir->rec.birth_bound = std::max(dir.dir->rec.birth_bound, bound);
  step.on_commit = [&c, home = dir.family, family = birth.family, bound] {
    FamilyState* parent = c.find_family(home);
    FamilyState* fam = c.find_family(family);
    // A release may have lowered it meanwhile.
    if (fam && parent && parent->dir && parent->dir->rec.birth_bound >= bound)
      fam->birth_safe = std::max(fam->birth_safe, bound);
  };
}

// The birth family of a directory with room for one more file; may take a fresh family in the step.
static Result<FamilyState*> birth_family(Core& c, Attempt& a, FamilyState& dir, meta::Step& step) {
  const Family f = dir.dir->rec.birth_family;
  FamilyState* birth = f == dir.family ? a.both(f, LockMode::kExclusive, LockMode::kExclusive)
                                       : a.files(f, LockMode::kExclusive);
  if (!birth) return Reason::kRetry;
  if (birth->birth_next == 0) birth->birth_next = birth->birth_safe = dir.dir->rec.birth_bound;
  if (birth->birth_next <= kMaxIndex && birth->birth_next >= birth->birth_safe) {
    // The bound comes first: an index above the committed one could be given again after a crash.
    meta::Step bound;
    raise_bound(c, dir, *birth, bound);
    c.put_inode(bound, *dir.dir);
    a.need_commit(c.append(std::move(bound)));
    return Reason::kRetry;
  }
  if (birth->birth_next <= kMaxIndex) return birth;
  auto fresh = a.new_family();
  if (!fresh) return Reason::kRetry;
  c.d.locks.adopt(step, *fresh);
  FamilyState& made = c.family(*fresh);
  made.names_loaded = made.files_loaded = made.files_complete = made.entries_complete = true;
  made.birth_next = 1;
  made.birth_safe = dir.dir->rec.birth_bound = 1 + kBirthAhead;
  dir.dir->rec.birth_family = *fresh;
  return &made;
}

static Ino next_ino(Core& c, FamilyState& dir, FamilyState& birth, meta::Step& step) {
  const std::uint32_t index = birth.birth_next++;
  if (index + kBirthAhead / 2 >= dir.dir->rec.birth_bound && dir.dir->rec.birth_bound <= kMaxIndex)
    raise_bound(c, dir, birth, step);
  return Ino(birth.family, index);
}

static Result<Born> give_birth(Core& c, Attempt& a, const Caller& caller, Ino parent,
                               std::string_view name, const Birth& what) {
  if (c.dead_dirs.contains(parent)) return Reason::kNotFound;
  FamilyState* dir = a.both(parent.family(), LockMode::kExclusive, LockMode::kExclusive);
  if (!dir) return Reason::kRetry;
  if (!dir->dir) return Reason::kStale;
  DirEntry* there = nullptr;
  switch (a.entry(*dir, name, &there)) {
    case Attempt::Found::kMissing:
      return Reason::kRetry;
    case Attempt::Found::kYes:
      return Reason::kExists;
    case Attempt::Found::kNo:
      break;
  }
  const bool is_dir = S_ISDIR(what.mode);
  InodeState& pdir = *dir->dir;
  if (is_dir && pdir.rec.nlink >= kMaxSubdirectories) return Reason::kTooManyLinks;

  // From here on nothing can be found missing except a fresh family number, asked for first.
  meta::Step step;
  FamilyState* home = nullptr;
  Ino ino;
  if (is_dir) {
    auto family = a.new_family();
    if (!family) return Reason::kRetry;
    c.d.locks.adopt(step, *family);
    home = &c.family(*family);
    home->names_loaded = home->entries_complete = home->files_loaded = home->files_complete = true;
    home->birth_next = 1;
    home->birth_safe = 1 + kBirthAhead;
    home->last_used = c.now();
    ino = Ino(*family, 0);
  } else {
    auto birth = birth_family(c, a, *dir, step);
    if (!birth) return birth.error();
    home = *birth;
    ino = next_ino(c, *dir, *home, step);
  }

  auto inode = std::make_shared<InodeState>();
  inode->ino = ino;
  meta::Inode& rec = inode->rec;
  rec.mode = what.mode;
  rec.uid = caller.uid;
  rec.gid = caller.gid;
  if (pdir.rec.mode & S_ISGID) {
    rec.gid = pdir.rec.gid;
    if (is_dir) rec.mode |= S_ISGID;
  }
  rec.nlink = is_dir ? 2 : 1;
  rec.atime = rec.mtime = rec.ctime = rec.btime = c.wall();
  rec.rdev = what.rdev;
  rec.symlink = what.symlink;
  if (is_dir) {
    rec.parent = parent;
    rec.birth_family = home->family;
    rec.birth_bound = 1 + kBirthAhead;
    rec.next_cookie = meta::kFirstCookie;
    home->dir = inode;
    pdir.rec.nlink++;
  } else {
    home->files.emplace(ino.index(), inode);
  }
  c.cached_inodes++;

  const auto type = static_cast<std::uint8_t>((what.mode & S_IFMT) >> 12);
  DirEntry entry{ino, pdir.rec.next_cookie++, type, Time{}};
  dir->insert(name, entry);
  c.touch_dir(pdir, rec.mtime);
  c.put_inode(step, *inode);
  step.put(c.d.keys.dirent(parent, name), meta::encode(meta::Dirent{ino, type, entry.cookie}));
  c.put_inode(step, pdir);
  Born born;
  born.step = c.append(std::move(step));
  born.inode = inode;
  born.entry = c.entry_of(*dir, *dir->find(name), inode);
  return born;
}

Result<Entry> Filesystem::mknod(const Caller& caller, Ino parent, std::string_view name,
                                std::uint32_t mode, std::uint64_t rdev) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  if (!S_ISREG(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode) && !S_ISCHR(mode) && !S_ISBLK(mode))
    return Reason::kInvalid;
  if (!S_ISCHR(mode) && !S_ISBLK(mode)) rdev = 0;
  ETCFS_TRY(Born born, c.run(true, [&](Attempt& a) {
    return give_birth(c, a, caller, parent, name, {.mode = mode, .rdev = rdev, .symlink = {}});
  }));
  return c.finish(born.step, born.entry);
}

Result<Entry> Filesystem::mkdir(const Caller& caller, Ino parent, std::string_view name,
                                std::uint32_t mode) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  mode = (mode & 07777) | S_IFDIR;
  ETCFS_TRY(Born born, c.run(true, [&](Attempt& a) {
    return give_birth(c, a, caller, parent, name, {.mode = mode, .rdev = 0, .symlink = {}});
  }));
  return c.finish(born.step, born.entry);
}

Result<Entry> Filesystem::symlink(const Caller& caller, Ino parent, std::string_view name,
                                  std::string_view target) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  if (target.empty()) return Reason::kNotFound;
  if (target.size() > 4095) return Reason::kNameTooLong;
  ETCFS_TRY(Born born, c.run(true, [&](Attempt& a) {
    return give_birth(c, a, caller, parent, name,
                      {.mode = S_IFLNK | 0777, .rdev = 0, .symlink = target});
  }));
  return c.finish(born.step, born.entry);
}

Result<Filesystem::Created> Filesystem::create(const Caller& caller, Ino parent,
                                               std::string_view name, std::uint32_t mode,
                                               int open_flags) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  mode = (mode & 07777) | S_IFREG;
  struct Outcome {
    Born born;
    OpenReply open;
    bool there = false;
  };
  ETCFS_TRY(Outcome out, c.run(true, [&](Attempt& a) -> Result<Outcome> {
    Outcome o;
    auto born = give_birth(c, a, caller, parent, name, {.mode = mode, .rdev = 0, .symlink = {}});
    if (!born && born.error() == Reason::kExists && !(open_flags & O_EXCL)) {
      o.there = true;
      return o;
    }
    if (!born) return born.error();
    o.born = std::move(*born);
    o.open = c.open_handle(o.born.inode->ino, open_flags, false);
    return o;
  }));
  if (!out.there) {
    auto entry = c.finish(out.born.step, out.born.entry);
    if (entry) return Created{*entry, out.open};
    (void)c.close_handle(out.open.handle);
    return entry.error();
  }
  // Another node was faster: what the kernel thought absent exists. Open that.
  ETCFS_TRY(Entry entry, lookup(caller, parent, name));
  if (entry.ino == Ino{}) return Reason::kStale;
  // Not for us to open: the kernel walks the path again, and does what is right for its kind.
  if ((entry.attr.mode & S_IFMT) != S_IFREG) return Reason::kStale;
  ETCFS_TRY(OpenReply opened, open(caller, entry.ino, open_flags));
  const auto attr_reply = getattr(entry.ino);
  if (!attr_reply) {
    (void)release(entry.ino, opened.handle, 0);
    return attr_reply.error();
  }
  const AttrReply& attr = *attr_reply;
  entry.attr = attr.attr;
  entry.attr_timeout = attr.attr_timeout;
  entry.entry_timeout = Nanos{0};
  return Created{entry, opened};
}

}  // namespace etcfs::fs

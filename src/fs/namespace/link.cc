#include "fs/impl.h"

namespace etcfs::fs {
namespace {
constexpr std::uint32_t kMaxLinks = 65000;
}

Result<Entry> Filesystem::link(const Caller&, Ino ino, Ino new_parent, std::string_view new_name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(new_name));
  if (ino.is_directory()) return Reason::kPermission;
  struct Out {
    Entry entry;
    StepNo step;
  };
  ETCFS_TRY(Out out, c.run(true, [&](Attempt& a) -> Result<Out> {
    if (c.dead_dirs.contains(new_parent)) return Reason::kNotFound;
    FamilyState* dir = a.names(new_parent.family(), LockMode::kExclusive);
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!dir) return Reason::kRetry;
    if (!inode) return inode.error();
    if (!dir->dir) return Reason::kStale;
    DirEntry* there = nullptr;
    switch (a.entry(*dir, new_name, &there)) {
      case Attempt::Found::kMissing:
        return Reason::kRetry;
      case Attempt::Found::kYes:
        return Reason::kExists;
      case Attempt::Found::kNo:
        break;
    }
    InodeState& file = **inode;
    if (file.rec.nlink == 0) return Reason::kNotFound;
    if (file.rec.nlink >= kMaxLinks) return Reason::kTooManyLinks;
    const WallTime when = c.wall();
    meta::Step step;
    file.rec.nlink++;
    file.rec.ctime = when;
    const auto type = static_cast<std::uint8_t>((file.rec.mode & 0170000) >> 12);
    DirEntry entry{ino, dir->dir->rec.next_cookie++, type, Time{}};
    dir->insert(new_name, entry);
    c.touch_dir(*dir->dir, when);
    c.put_inode(step, file);
    step.put(c.d.keys.dirent(new_parent, new_name),
             meta::encode(meta::Dirent{ino, type, entry.cookie}));
    c.put_inode(step, *dir->dir);
    Out o;
    o.step = c.append(std::move(step));
    o.entry = c.entry_of(*dir, *dir->find(new_name), *inode);
    return o;
  }));
  return c.finish(out.step, out.entry);
}

}  // namespace etcfs::fs

#include <sys/stat.h>

#include "fs/impl.h"

namespace etcfs::fs {

// A name of a locked directory. The target's attributes come along where its family is at hand
// or free; where another node holds it, number and type must do (zero timeout): GETATTR follows
// without the directory's kernel lock.
Result<Entry> Filesystem::lookup(const Caller&, Ino parent, std::string_view name) {
  Impl& c = *impl_;
  if (name.size() > 255) return Reason::kNameTooLong;
  bool tried = false;
  for (;;) {
    std::vector<Family> ahead;
    auto result = c.run(false, [&](Attempt& a) -> Result<Entry> {
      if (c.dead_dirs.contains(parent)) return Reason::kNotFound;
      FamilyState* dir = a.names(parent.family(), LockMode::kShared);
      if (!dir) {
        // The usual lookup is of a file born here: its inode comes in the same round trip.
        a.need(parent.family(), {LockMode::kShared, LockMode::kShared});
        return Reason::kRetry;
      }
      if (!dir->dir) return Reason::kStale;
      DirEntry* entry = nullptr;
      switch (a.entry(*dir, name, &entry)) {
        case Attempt::Found::kMissing:
          return Reason::kRetry;
        case Attempt::Found::kNo:
          return c.negative(*dir, name);
        case Attempt::Found::kYes:
          break;
      }
      // A directory that another node holds need not be waited for: number and type, zero timeout.
      // But in a sticky directory the kernel looks at the owner without asking again.
      if (entry->ino.is_directory() && !(dir->dir->rec.mode & S_ISVTX) &&
          c.d.locks.usable(entry->ino.family()).names == LockMode::kNone) {
        if (tried) return c.entry_of(*dir, *entry, nullptr);
        ahead.push_back(entry->ino.family());
        return Entry{};
      }
      ETCFS_TRY(InodeRef inode, a.named_inode(*entry, LockMode::kShared));
      return c.entry_of(*dir, *entry, inode);
    });
    if (ahead.empty()) return result;
    tried = true;
    ETCFS_CHECK(c.acquire_free(ahead, c.reading_mode()));
  }
}

}  // namespace etcfs::fs

// Listings. Offsets are cookies: unique in the directory, never reused, so a listing goes on at the
// right place whatever happened meanwhile. 1 and 2 stand behind "." and "..".
#include "fs/impl.h"

namespace etcfs::fs {

Result<OpenReply> Filesystem::opendir(Ino ino) {
  Impl& c = *impl_;
  return c.run(false, [&](Attempt& a) -> Result<OpenReply> {
    if (c.dead_dirs.contains(ino)) return c.open_handle(ino, 0, true);
    FamilyState* dir = a.names(ino.family(), LockMode::kShared);
    if (!dir) {
      a.need(ino.family(), {LockMode::kShared, LockMode::kShared});
      return Reason::kRetry;
    }
    if (!ino.is_directory()) return Reason::kNotDirectory;
    if (!dir->dir) return Reason::kStale;
    OpenReply reply = c.open_handle(ino, 0, true);
    reply.cache_readdir = !dir->closing;
    reply.keep_cache = reply.cache_readdir && dir->listing_cached;
    dir->listing_cached = reply.cache_readdir;
    return reply;
  });
}

Result<void> Filesystem::releasedir(Ino, Handle handle) { return impl_->close_handle(handle); }

// Fills entries of a complete directory; attributes where their inode is at hand.
static void fill_from(Core& c, FamilyState& dir, std::uint64_t offset, bool plus,
                      const DirFiller& fill) {
  const Ino self = dir.dir->ino;
  if (offset < 1 &&
      !fill({.name = ".", .ino = self, .type = FileType::kDirectory, .next_offset = 1}))
    return;
  if (offset < 2 && !fill({.name = "..",
                           .ino = dir.dir->rec.parent,
                           .type = FileType::kDirectory,
                           .next_offset = 2}))
    return;
  dir.keep_order();
  for (auto it = dir.order.upper_bound(offset); it != dir.order.end(); ++it) {
    auto& [name, entry] = *it->second;
    DirItem item{.name = name,
                 .ino = entry.ino,
                 .type = static_cast<FileType>(entry.type),
                 .next_offset = it->first};
    Entry full;
    if (plus) {
      InodeRef inode;
      const LockModes usable = c.d.locks.usable(entry.ino.family());
      if (FamilyState* fam = c.find_family(entry.ino.family())) {
        if (entry.ino.is_directory()) {
          if (usable.names != LockMode::kNone) inode = fam->dir;
        } else if (usable.files != LockMode::kNone) {
          auto found = fam->files.find(entry.ino.index());
          if (found != fam->files.end()) inode = found->second;
        }
      }
      if (inode) {
        full = c.entry_of(dir, entry, inode);
        item.entry = &full;
      }
    }
    if (!fill(item)) return;
  }
}

Result<void> Filesystem::readdir(Ino ino, Handle, std::uint64_t offset, bool plus,
                                 const DirFiller& fill) {
  Impl& c = *impl_;
  bool tried_files = false, waited_ahead = false;
  for (;;) {
    std::vector<Family> want;
    bool ahead = false;
    ETCFS_CHECK(c.run(false, [&](Attempt& a) -> Result<void> {
      if (c.dead_dirs.contains(ino)) return {};
      FamilyState* dir = a.names(ino.family(), LockMode::kShared);
      if (!dir) {
        if (!tried_files) a.need(ino.family(), {LockMode::kShared, LockMode::kShared});
        return Reason::kRetry;
      }
      if (!dir->dir) return Reason::kStale;
      if (!a.complete(*dir)) return Reason::kRetry;
      if (plus && !tried_files && c.d.locks.usable(ino.family()).files == LockMode::kNone) {
        want.push_back(ino.family());  // only if it disturbs nobody
        return {};
      }
      if (offset == 0 && c.walk_from(*dir) && plus && !waited_ahead) {
        ahead = true;
        return {};
      }
      fill_from(c, *dir, offset, plus, fill);
      return {};
    }));
    if (!want.empty()) {
      tried_files = true;
      ETCFS_CHECK(c.acquire_free(want, LockMode::kShared));
      continue;
    }
    if (!ahead) return {};
    waited_ahead = true;
    c.walk_progress.wait_until(c.now() + std::chrono::milliseconds(20));
  }
}

Result<void> Filesystem::fsyncdir(Ino) { return impl_->d.stream.sync(); }

}  // namespace etcfs::fs

// rename. Families, all taken before anything changes: both directories' names; the moved inode
// (its ctime, a directory's parent); what is replaced. A directory that gets another parent also
// takes the cluster-wide rename lock (family 0), under which the walk to the root that refuses a
// loop cannot be overtaken.
#include "fs/impl.h"

namespace etcfs::fs {
namespace {

constexpr auto kDir = static_cast<std::uint8_t>(FileType::kDirectory);

struct Side {
  Ino parent;
  std::string_view name;
  FamilyState* dir = nullptr;
  DirEntry* entry = nullptr;
  InodeRef inode;
};

// kNotFound where it does not exist.
Result<void> find(Attempt& a, Side& side) {
  ETCFS_TRY(side.entry, a.existing(*side.dir, side.name));
  ETCFS_TRY(side.inode, a.named_inode(*side.entry, LockMode::kExclusive));
  return {};
}

// kLoop if `moved` is `to` or one of its ancestors.
Result<void> check_loop(Attempt& a, Ino moved, Ino to) {
  for (Ino at = to;;) {
    if (at == moved) return Reason::kLoop;
    if (at == kRootIno) return {};
    FamilyState* fam = a.names(at.family(), LockMode::kShared);
    if (!fam) return Reason::kRetry;
    if (!fam->dir) return Reason::kStale;
    at = fam->dir->rec.parent;
  }
}

class Rename {
 public:
  Rename(Core& c, Attempt& a, Side from, Side to, RenameMode mode, bool& flushed)
      : c_(c), a_(a), from_(from), to_(to), mode_(mode), flushed_(flushed) {}

  Result<StepNo> run() {
    if (c_.dead_dirs.contains(from_.parent) || c_.dead_dirs.contains(to_.parent))
      return Reason::kNotFound;
    from_.dir = a_.names(from_.parent.family(), LockMode::kExclusive);
    to_.dir = a_.names(to_.parent.family(), LockMode::kExclusive);
    if (!from_.dir || !to_.dir) return Reason::kRetry;
    if (!from_.dir->dir || !to_.dir->dir) return Reason::kStale;
    auto found = find(a_, from_);
    auto target = find(a_, to_);
    for (auto* r : {&found, &target})
      if (!*r && r->error() == Reason::kRetry) return Reason::kRetry;
    ETCFS_CHECK(found);
    if (!target && target.error() != Reason::kNotFound) return target.error();
    if (!target) to_.entry = nullptr;
    ETCFS_CHECK(check());
    if (done_) return StepNo{};
    return mode_ == RenameMode::kExchange ? exchange() : replace();
  }

 private:
  bool cross() const { return from_.parent != to_.parent; }

  Result<void> check() {
    const bool dir = from_.entry->type == kDir;
    if (to_.entry) {
      if (mode_ == RenameMode::kNoReplace) return Reason::kExists;
      if (to_.entry->ino == from_.entry->ino) {
        done_ = true;  // the same file under both names: nothing happens
        return {};
      }
    } else if (mode_ == RenameMode::kExchange) {
      return Reason::kNotFound;
    }
    if (to_.entry && mode_ == RenameMode::kReplace) {
      const bool to_dir = to_.entry->type == kDir;
      if (dir && !to_dir) return Reason::kNotDirectory;
      if (!dir && to_dir) return Reason::kIsDirectory;
      if (to_dir) {
        FamilyState* victim = a_.names(to_.entry->ino.family(), LockMode::kExclusive);
        if (!victim) return Reason::kRetry;
        if (!victim->entries.empty()) return Reason::kNotEmpty;
        if (!a_.complete(*victim)) return Reason::kRetry;
      }
    }
    if (cross()) ETCFS_CHECK(check_parents(dir));
    // The new file's bytes go to the device before the step that drops the old one.
    if (to_.entry && mode_ == RenameMode::kReplace && from_.inode->is_regular() && !flushed_ &&
        c_.io.is_dirty(*from_.inode)) {
      flushed_ = true;
      a_.need_flush(from_.inode);
      return Reason::kRetry;
    }
    return {};
  }

  Result<void> check_parents(bool dir) {
    const bool to_dir = mode_ == RenameMode::kExchange && to_.entry->type == kDir;
    if (!dir && !to_dir) return {};
    if (!a_.names(kRenameFamily, LockMode::kExclusive)) return Reason::kRetry;
    if (dir) ETCFS_CHECK(check_loop(a_, from_.entry->ino, to_.parent));
    if (to_dir) ETCFS_CHECK(check_loop(a_, to_.entry->ino, from_.parent));
    return {};
  }

  // The kernel moves its own entry with what is left of its timeout.
  void put_entry(meta::Step& step, Side& side, const DirEntry& source, std::uint64_t cookie) {
    side.dir->insert(side.name, DirEntry{source.ino, cookie, source.type, source.kernel_until});
    side.dir->names_until = std::max(side.dir->names_until, source.kernel_until);
    step.put(c_.d.keys.dirent(side.parent, side.name),
             meta::encode(meta::Dirent{source.ino, source.type, cookie}));
  }

  void moved(meta::Step& step, InodeState& inode, Ino parent) {
    inode.rec.ctime = when_;
    if (inode.is_dir()) inode.rec.parent = parent;
    c_.put_inode(step, inode);
  }

  void finish_dirs(meta::Step& step) {
    c_.touch_dir(*from_.dir->dir, when_);
    c_.touch_dir(*to_.dir->dir, when_);
    c_.put_inode(step, *from_.dir->dir);
    if (cross()) c_.put_inode(step, *to_.dir->dir);
  }

  StepNo replace() {
    meta::Step step;
    const DirEntry source = *from_.entry;
    const bool dir = source.type == kDir;
    std::uint64_t cookie;
    if (to_.entry) {
      // The name keeps its place in listings, so that none of them misses it.
      cookie = to_.entry->cookie;
      if (to_.entry->type == kDir) {
        c_.drop_directory(*c_.find_family(to_.entry->ino.family()), step);
        to_.dir->dir->rec.nlink--;
      } else {
        c_.drop_entry_target(to_.inode, when_, step);
      }
    } else {
      cookie = to_.dir->dir->rec.next_cookie++;
    }
    from_.dir->erase(from_.name);
    step.erase(c_.d.keys.dirent(from_.parent, from_.name));
    put_entry(step, to_, source, cookie);
    if (dir && cross()) {
      from_.dir->dir->rec.nlink--;
      to_.dir->dir->rec.nlink++;
    }
    moved(step, *from_.inode, to_.parent);
    finish_dirs(step);
    return c_.append(std::move(step));
  }

  StepNo exchange() {
    meta::Step step;
    const DirEntry one = *from_.entry, two = *to_.entry;
    put_entry(step, from_, two, one.cookie);
    put_entry(step, to_, one, two.cookie);
    if (cross() && (one.type == kDir) != (two.type == kDir)) {
      const int shift = one.type == kDir ? 1 : -1;
      from_.dir->dir->rec.nlink -= shift;
      to_.dir->dir->rec.nlink += shift;
    }
    moved(step, *from_.inode, to_.parent);
    moved(step, *to_.inode, from_.parent);
    finish_dirs(step);
    return c_.append(std::move(step));
  }

  Core& c_;
  Attempt& a_;
  Side from_, to_;
  RenameMode mode_;
  bool& flushed_;
  bool done_ = false;
  WallTime when_ = c_.wall();
};

}  // namespace

Result<void> Filesystem::rename(const Caller&, Ino parent, std::string_view name, Ino new_parent,
                                std::string_view new_name, RenameMode mode) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_name(name));
  ETCFS_CHECK(check_name(new_name));
  bool flushed = false;
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    return Rename(c, a, {.parent = parent, .name = name}, {.parent = new_parent, .name = new_name},
                  mode, flushed)
        .run();
  }));
  return c.finish(done);
}

}  // namespace etcfs::fs

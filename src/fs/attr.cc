// Attributes: getattr, setattr, readlink.
#include <sys/stat.h>

#include "fs/impl.h"

namespace etcfs::fs {
namespace {

void apply(meta::Inode& rec, const SetAttr& set, WallTime now) {
  if (set.kill_suidgid) kill_suidgid(rec);
  if ((set.uid || set.gid) && !S_ISDIR(rec.mode) && !set.mode) kill_suidgid(rec);
  if (set.uid || set.gid || set.size) kill_capability(rec);
  if (set.mode) rec.mode = (rec.mode & S_IFMT) | (*set.mode & 07777);
  if (set.uid) rec.uid = *set.uid;
  if (set.gid) rec.gid = *set.gid;
  if (set.atime) rec.atime = set.atime->now ? now : set.atime->time;
  if (set.mtime) rec.mtime = set.mtime->now ? now : set.mtime->time;
  rec.ctime = set.ctime ? *set.ctime : now;
}

}  // namespace

Result<AttrReply> Filesystem::getattr(Ino ino) {
  Impl& c = *impl_;
  return c.run(false, [&](Attempt& a) -> Result<AttrReply> {
    if (auto dead = c.dead_dirs.find(ino); dead != c.dead_dirs.end()) {
      InodeState gone;
      gone.ino = ino;
      gone.rec = dead->second;
      return AttrReply{c.attr_of(gone), Nanos{0}};
    }
    auto inode = a.inode(ino, LockMode::kShared);
    if (!inode) {
      // A single inode of a family that nobody has touched: names come along (most walks want
      // both).
      if (inode.error() == Reason::kRetry && c.d.locks.usable(ino.family()).none())
        a.need(ino.family(), {LockMode::kShared, LockMode::kShared});
      return inode.error();
    }
    return c.reply_of(**inode);
  });
}

Result<AttrReply> Filesystem::setattr(const Caller&, Ino ino, const SetAttr& set) {
  Impl& c = *impl_;
  InodeRef resized;
  StepNo done;
  AttrReply reply;
  const auto change = [&](InodeState& file) {
    apply(file.rec, set, c.wall());
    meta::Step step;
    c.put_inode(step, file);
    done = c.append(std::move(step));
    reply = c.reply_of(file);
  };
  ETCFS_CHECK(c.run(true, [&](Attempt& a) -> Result<void> {
    if (c.dead_dirs.contains(ino)) return Reason::kNotFound;
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode) return inode.error();
    InodeState& file = **inode;
    if (set.size && !file.is_regular())
      return file.is_dir() ? Reason::kIsDirectory : Reason::kInvalid;
    if (set.size) {
      resized = *inode;
    } else {
      change(file);
    }
    return {};
  }));
  if (resized) {
    const Pin pin(c, resized);
    if (*set.size > resized->size) c.drop_last_page(*resized);
    ETCFS_CHECK(c.io.truncate(resized, *set.size));
    // Nothing blocks from the new size to the answer: others see all of the change or nothing.
    if (resized->gone) return Reason::kStale;
    change(*resized);
  }
  ETCFS_CHECK(c.finish(done));
  if (c.options.sync) reply.attr_timeout = Nanos{0};
  return reply;
}

Result<std::string> Filesystem::readlink(Ino ino) {
  Impl& c = *impl_;
  return c.run(false, [&](Attempt& a) -> Result<std::string> {
    auto inode = a.inode(ino, LockMode::kShared);
    if (!inode) return inode.error();
    if (!S_ISLNK((*inode)->rec.mode)) return Reason::kInvalid;
    return (*inode)->rec.symlink;
  });
}

}  // namespace etcfs::fs

#include "fs/core/core.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"

namespace etcfs::fs {

namespace {
constexpr Nanos kMostAttrTimeout = std::chrono::seconds(10);
// The kernel counts a timeout from when it takes the answer; the deadline must not be passed by
// that.
constexpr Nanos kAnswerSlack = std::chrono::milliseconds(100);
}  // namespace

bool valid_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool kill_suidgid(meta::Inode& rec) {
  const auto before = rec.mode;
  rec.mode &= ~static_cast<std::uint32_t>(S_ISUID);
  if (rec.mode & S_IXGRP) rec.mode &= ~static_cast<std::uint32_t>(S_ISGID);
  return rec.mode != before;
}

bool kill_capability(meta::Inode& rec) {
  return std::erase_if(rec.xattrs, [](const auto& x) { return x.first == "security.capability"; }) >
         0;
}

Result<void> check_name(std::string_view name) {
  if (name.size() > 255) return Reason::kNameTooLong;
  if (!valid_name(name)) return Reason::kInvalid;
  return {};
}

Core::Core(Filesystem::Deps deps, FsOptions opts)
    : d(deps),
      options(opts),
      device(deps.device, deps.space),
      io({.kv = deps.kv,
          .keys = deps.keys,
          .stream = deps.stream,
          .space = deps.space,
          .device = device,
          .overwrite = deps.super.overwrite,
          .dirty_bytes = opts.dirty_bytes,
          .dirty_age = opts.dirty_age,
          .deadline = [this] { return d.membership.deadline(); },
          .wall_now = [] { return rt::Runtime::current().wall_now(); }}),
      group(rt::Runtime::current(), "fs") {
  d.locks.set_client(*this);
  io.set_pin([this](InodeState& inode) { return pin(inode); },
             [this](InodeState& inode) { unpin(inode); });
}

Core::~Core() = default;

bool Core::alone() const { return d.membership.members().size() <= 1; }

OpenInfo* Core::open_info(Ino ino) {
  auto it = opens.find(ino);
  return it == opens.end() ? nullptr : &it->second;
}

Attr Core::attr_of(const InodeState& inode) const {
  const meta::Inode& rec = inode.rec;
  Attr a;
  a.ino = inode.ino;
  a.mode = rec.mode;
  a.uid = rec.uid;
  a.gid = rec.gid;
  a.nlink = rec.nlink;
  a.rdev = rec.rdev;
  a.atime = rec.atime;
  a.mtime = rec.mtime;
  a.ctime = rec.ctime;
  if (inode.is_regular()) {
    a.size = inode.size;
    a.blocks512 = io.blocks512(inode);
  } else {
    a.size = inode.is_dir() ? kBlockBytes : rec.symlink.size();
  }
  return a;
}

Nanos Core::attr_timeout(const FamilyState& fam) const {
  if (fam.closing || d.locks.contended(fam.family)) return Nanos{0};
  return std::clamp(d.membership.deadline() - now() - kAnswerSlack, Nanos{0}, kMostAttrTimeout);
}

Nanos Core::name_timeout(const FamilyState& fam) const {
  return std::min(attr_timeout(fam), options.name_timeout);
}

AttrReply Core::reply_of(InodeState& inode) {
  AttrReply r{attr_of(inode), Nanos{0}};
  FamilyState* fam = find_family(inode.ino.family());
  if (fam) r.attr_timeout = attr_timeout(*fam);
  if (r.attr_timeout.count()) {
    inode.kernel_attrs = true;
    fam->attrs_given = now();
  }
  return r;
}

Entry Core::entry_of(FamilyState& parent, DirEntry& entry, const InodeRef& inode) {
  Entry e;
  e.ino = entry.ino;
  if (inode) {
    AttrReply r = reply_of(*inode);
    e.attr = r.attr;
    e.attr_timeout = r.attr_timeout;
  } else {
    e.attr.ino = entry.ino;
    e.attr.mode = static_cast<std::uint32_t>(entry.type) << 12;
    e.attr.nlink = 1;
  }
  e.entry_timeout = name_timeout(parent);
  if (e.entry_timeout.count()) {
    entry.kernel_until = now() + e.entry_timeout + kAnswerSlack;
    parent.names_until = std::max(parent.names_until, entry.kernel_until);
  }
  return e;
}

Entry Core::negative(FamilyState& parent, std::string_view name) {
  Entry e;
  e.entry_timeout = name_timeout(parent);
  if (e.entry_timeout.count()) {
    const Time until = now() + e.entry_timeout + kAnswerSlack;
    if (parent.negatives.size() >= parent.negatives_sweep) {
      std::erase_if(parent.negatives, [t = now()](const auto& n) { return n.second <= t; });
      parent.negatives_sweep = std::max(kLeastSweep, 2 * parent.negatives.size());
    }
    parent.negatives.insert_or_assign(std::string(name), until);
    parent.names_until = std::max(parent.names_until, until);
  }
  return e;
}

void Core::put_inode(meta::Step& step, InodeState& inode) {
  std::string key = d.keys.inode(inode.ino);
  std::string value = inode.is_regular() ? io.encode_record(inode) : meta::encode(inode.rec);
  inode.attrs_dirty = inode.attrs_dirty && inode.is_regular() && io.is_dirty(inode);
  for (auto& m : step.mutations)
    if (m.key == key) {
      m.value = std::move(value);
      return;
    }
  step.put(std::move(key), std::move(value));
}

void Core::touch_dir(InodeState& dir, WallTime when) { dir.rec.mtime = dir.rec.ctime = when; }

StepNo Core::append(meta::Step step) { return d.stream.append(std::move(step)); }

Result<void> Core::finish(StepNo step) {
  if (!options.sync || step.v == 0) return {};
  return d.stream.wait_committed(step);
}

Result<Entry> Core::finish(StepNo step, Entry entry) {
  ETCFS_CHECK(finish(step));
  if (options.sync) entry.entry_timeout = entry.attr_timeout = Nanos{0};
  return entry;
}

Result<void> Core::acquire_free(const std::vector<Family>& families, LockMode mode) {
  auto r = d.locks.acquire_ahead(families, {mode, mode});
  if (!r && (r.error() == Reason::kFenced || r.error() == Reason::kShutdown)) return r;
  return {};
}

void Core::forget_file(InodeState& inode) {
  FamilyState& fam = family(inode.ino.family());
  inode.gone = true;
  cached_inodes--;
  if (!fam.files_complete) fam.deleted.insert(inode.ino.index());
  fam.files.erase(inode.ino.index());
}

static void add_pin(FamilyState& fam, InodeState& inode, Pin::For what) {
  fam.pins++;
  if (what == Pin::For::kChange) fam.writer_pins++;
  inode.pins++;
}

static void drop_pin(FamilyState& fam, InodeState& inode, Pin::For what) {
  ETCFS_ASSERT(fam.pins > 0 && inode.pins > 0);
  inode.pins--;
  fam.pins--;
  if (what == Pin::For::kChange) fam.writer_pins--;
  fam.unpinned.notify_all();
}

Pin::Pin(Core& core, InodeRef inode, For what)
    : inode_(std::move(inode)), family_(core.family(inode_->ino.family())), what_(what) {
  add_pin(family_, *inode_, what_);
}

Pin::~Pin() { drop_pin(family_, *inode_, what_); }

bool Core::pin(InodeState& inode) {
  if (inode.gone) return false;
  FamilyState* fam = find_family(inode.ino.family());
  if (!fam || fam->closed) return false;
  if (d.locks.usable(inode.ino.family()).files != LockMode::kExclusive) return false;
  add_pin(*fam, inode, Pin::For::kChange);
  return true;
}

void Core::unpin(InodeState& inode) {
  FamilyState* fam = find_family(inode.ino.family());
  ETCFS_ASSERT(fam);
  drop_pin(*fam, inode, Pin::For::kChange);
}

}  // namespace etcfs::fs

#include "sim/model_fs.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>

#include <algorithm>

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 1
#define FALLOC_FL_PUNCH_HOLE 2
#endif

namespace etcfs::sim {

bool operator==(const ModelInode& a, const ModelInode& b) {
  auto same = [](const Bytes& x, const Bytes& y) { return x == y || *x == *y; };
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.nlink == b.nlink &&
         a.rdev == b.rdev && a.parent == b.parent && a.entries == b.entries &&
         a.symlink == b.symlink && a.xattrs == b.xattrs && same(a.data, b.data) &&
         a.mtime == b.mtime && a.opens == b.opens && a.locks == b.locks &&
         std::equal(a.versions.begin(), a.versions.end(), b.versions.begin(), b.versions.end(),
                    same);
}

bool operator==(const ModelFs& a, const ModelFs& b) {
  return std::equal(a.inodes_.begin(), a.inodes_.end(), b.inodes_.begin(), b.inodes_.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && (x.second == y.second || *x.second == *y.second);
                    });
}

ModelFs::ModelFs() {
  ModelInode root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.parent = kRootIno;
  inodes_[kRootIno] = std::make_shared<ModelInode>(root);
}

const ModelInode* ModelFs::find(Ino ino) const {
  auto it = inodes_.find(ino);
  return it == inodes_.end() ? nullptr : it->second.get();
}

ModelInode& ModelFs::change(Ino ino) {
  auto& slot = inodes_.at(ino);
  auto copy = std::make_shared<ModelInode>(*slot);
  ModelInode& inode = *copy;
  slot = std::move(copy);
  return inode;
}

bool ModelFs::uncertain() const {
  return std::any_of(inodes_.begin(), inodes_.end(),
                     [](const auto& i) { return !i.second->versions.empty(); });
}

void ModelFs::drop_node(unsigned node) {
  std::vector<Ino> touched;
  for (auto& [ino, inode] : inodes_) {
    const bool locks = std::any_of(inode->locks.begin(), inode->locks.end(),
                                   [&](const auto& l) { return l.second == node; });
    if (inode->opens.contains(node) || locks) touched.push_back(ino);
  }
  for (Ino ino : touched) {
    ModelInode& inode = change(ino);
    inode.opens.erase(node);
    std::erase_if(inode.locks, [&](const auto& l) { return l.second == node; });
    if (inode.nlink == 0 && inode.opens.empty()) inodes_.erase(ino);
  }
}

std::string ModelFs::dump() const {
  std::string s;
  for (auto& [ino, i] : inodes_) {
    s += fmt::format("  {:x} mode={:o} nlink={} uid={}", ino.v, i->mode, i->nlink, i->uid);
    if (i->is_regular()) s += fmt::format(" size={}", i->data->size());
    if (!i->versions.empty()) s += fmt::format(" uncertain({})", i->versions.size());
    for (auto& [node, count] : i->opens) s += fmt::format(" open@{}:{}", node, count);
    for (auto& [name, child] : i->entries) s += fmt::format(" {}={:x}", name, child.v);
    s += '\n';
  }
  return s;
}

bool ModelFs::changes_data(const Op& op) {
  switch (op.kind) {
    case OpKind::kWrite:
    case OpKind::kFallocate:
      return true;
    case OpKind::kSetattr:
      return op.set.size.has_value();
    case OpKind::kOpen:
      return op.flags & O_TRUNC;
    default:
      return false;
  }
}

bool ModelFs::changes_tree(const Op& op) {
  switch (op.kind) {
    case OpKind::kMknod:
    case OpKind::kMkdir:
    case OpKind::kSymlink:
    case OpKind::kLink:
    case OpKind::kUnlink:
    case OpKind::kRmdir:
    case OpKind::kRename:
    case OpKind::kCreate:
    case OpKind::kSetxattr:
    case OpKind::kRemovexattr:
      return true;
    case OpKind::kSetattr:
      return op.set.mode || op.set.uid || op.set.gid || op.set.mtime;
    default:
      return false;
  }
}

// One apply(): works on a copy of the state.
class Applier {
 public:
  Applier(ModelFs state, const Op& op, const Outcome* out)
      : s_(std::move(state)), op_(op), out_(out) {}

  bool run();
  ModelFs take() { return std::move(s_); }
  std::string why() const { return why_; }

 private:
  using Errors = std::set<Reason>;
  enum class Verdict { kGo, kDone };  // go on with the effect; or all is said (see ok_)

  // Compares errors that must be reported with the outcome. kGo: none, and it succeeded.
  Verdict judge(const Errors& errors, const Errors& tolerated = {});
  bool wrong(std::string expected) {
    ok_ = false;
    why_ = std::move(expected);
    return false;
  }
  bool known() const { return out_ != nullptr; }
  const ModelInode* target() const { return s_.find(op_.ino); }
  Ino fresh_ino() const { return known() ? out_->ino : Ino{1ull << 63 | op_.number}; }
  static bool placeholder(Ino ino) { return ino.v >> 63; }
  // Learns that the inode which is known under `from` is called `to`.
  void bind(Ino from, Ino to);
  bool same_ino(Ino model, Ino observed);
  void check_attr(Ino ino, const fs::Attr& attr);
  void check_name(const std::string& name, Errors& errors) const;
  const ModelInode* directory(Ino ino, Errors& errors) const;
  void lose_link(Ino ino, bool dir_moves_from_parent = false);
  void touch(Ino ino) { s_.change(ino).mtime.reset(); }
  bool ancestor_or_self(Ino maybe_ancestor, Ino of) const;
  template <class F>
  void edit_data(ModelInode& inode, F f);

  void lookup();
  void getattr();
  void setattr();
  void birth();
  void link();
  void remove();
  void rename();
  void rename_errors(const ModelInode* from_dir, const ModelInode* to_dir, Errors& errors) const;
  void open();
  void read();
  void check_uncertain_read(const ModelInode& inode);
  void write();
  void fallocate();
  void lseek();
  void readdir();
  void xattr();
  void locking();
  void handles();

  ModelFs s_;
  const Op& op_;
  const Outcome* out_;
  bool ok_ = true;
  std::string why_;
};

Applier::Verdict Applier::judge(const Errors& errors, const Errors& tolerated) {
  if (!known()) {
    if (!errors.empty()) wrong("cannot have had an effect");
    return errors.empty() ? Verdict::kGo : Verdict::kDone;
  }
  if (out_->error && (errors.contains(*out_->error) || tolerated.contains(*out_->error)))
    return Verdict::kDone;
  if (errors.empty() && !out_->error) return Verdict::kGo;
  std::string expected;
  for (Reason r : errors) expected += std::string(reason_name(r)) + " ";
  wrong(errors.empty() ? "success" : expected);
  return Verdict::kDone;
}

void Applier::bind(Ino from, Ino to) {
  auto node = s_.inodes_.extract(from);
  node.key() = to;
  s_.inodes_.insert(std::move(node));
  std::vector<Ino> all;
  for (auto& [ino, inode] : s_.inodes_) all.push_back(ino);
  for (Ino ino : all) {
    const ModelInode& inode = *s_.find(ino);
    const bool child = std::any_of(inode.entries.begin(), inode.entries.end(),
                                   [&](const auto& e) { return e.second == from; });
    if (!child && inode.parent != from) continue;
    ModelInode& changed = s_.change(ino);
    if (changed.parent == from) changed.parent = to;
    for (auto& [name, target] : changed.entries)
      if (target == from) target = to;
  }
}

bool Applier::same_ino(Ino model, Ino observed) {
  if (model == observed) return true;
  if (!placeholder(model) || s_.find(observed)) return false;
  bind(model, observed);
  return true;
}

void Applier::check_attr(Ino ino, const fs::Attr& attr) {
  const ModelInode* i = s_.find(ino);
  if (!i) return;
  std::uint64_t size = attr.size;  // of a directory: anything
  if (i->is_symlink()) size = i->symlink.size();
  if (i->is_regular()) size = i->data->size();
  bool size_right = attr.size == size;
  if (!i->versions.empty()) {
    auto [least, most] =
        std::minmax_element(i->versions.begin(), i->versions.end(),
                            [](const Bytes& a, const Bytes& b) { return a->size() < b->size(); });
    size_right = attr.size >= (*least)->size() && attr.size <= (*most)->size();
  }
  if (attr.ino != ino || attr.mode != i->mode || attr.uid != i->uid || attr.gid != i->gid ||
      attr.nlink != i->nlink || !size_right || attr.rdev != i->rdev) {
    wrong(fmt::format(
        "ino={:x} mode={:o} uid={} gid={} nlink={} size={} rdev={}; got mode={:o} uid={} "
        "gid={} nlink={} size={} rdev={}",
        ino.v, i->mode, i->uid, i->gid, i->nlink, size, i->rdev, attr.mode, attr.uid, attr.gid,
        attr.nlink, attr.size, attr.rdev));
  } else if (i->mtime && attr.mtime != *i->mtime) {
    wrong(fmt::format("mtime {}.{:09}", i->mtime->sec, i->mtime->nsec));
  }
}

void Applier::check_name(const std::string& name, Errors& errors) const {
  if (name.size() > 255) errors.insert(Reason::kNameTooLong);
}

const ModelInode* Applier::directory(Ino ino, Errors& errors) const {
  const ModelInode* dir = s_.find(ino);
  if (!dir) {
    errors.insert(Reason::kStale);
    errors.insert(Reason::kNotFound);
  } else if (!dir->is_dir()) {
    errors.insert(Reason::kNotDirectory);
    return nullptr;
  }
  return dir;
}

void Applier::lookup() {
  Errors errors;
  check_name(op_.name, errors);
  const ModelInode* dir = directory(op_.ino, errors);
  if (!known()) return;
  const bool absent = dir && !dir->entries.contains(op_.name);
  if (absent && errors.empty()) {
    if (out_->error ? *out_->error != Reason::kNotFound : out_->ino != Ino{}) wrong("no such name");
    return;
  }
  if (judge(errors) == Verdict::kDone) return;
  const Ino child = dir->entries.at(op_.name);
  if (!same_ino(child, out_->ino)) {
    wrong(fmt::format("ino {:x}", child.v));
    return;
  }
  if (out_->attr) check_attr(out_->ino, *out_->attr);
}

void Applier::getattr() {
  if (!known()) return;
  const ModelInode* inode = target();
  if (!inode) {
    if (out_->error && *out_->error != Reason::kStale && *out_->error != Reason::kNotFound)
      wrong("kStale, kNotFound or success on a dead inode");
    return;
  }
  Errors tolerated;
  if (inode->nlink == 0 && !inode->opens.contains(op_.node))
    tolerated = {Reason::kStale, Reason::kNotFound};
  if (judge({}, tolerated) == Verdict::kDone) return;
  check_attr(op_.ino, *out_->attr);
}

// Applies f to the data, in each version that it may have.
template <class F>
void Applier::edit_data(ModelInode& inode, F f) {
  auto edited = [&](const Bytes& before) {
    auto after = std::make_shared<std::string>(*before);
    f(*after);
    return after;
  };
  inode.data = edited(inode.data);
  for (Bytes& version : inode.versions) version = edited(version);
  inode.mtime.reset();
}

void Applier::setattr() {
  const ModelInode* inode = target();
  if (!inode) {
    if (known() && out_->error && *out_->error != Reason::kStale &&
        *out_->error != Reason::kNotFound)
      wrong("kStale, kNotFound or success on a dead inode");
    return;
  }
  Errors errors, tolerated;
  if (op_.set.size && inode->is_dir()) errors.insert(Reason::kIsDirectory);
  if (op_.set.size && !inode->is_regular() && !inode->is_dir()) errors.insert(Reason::kInvalid);
  if (inode->nlink == 0 && !inode->opens.contains(op_.node))
    tolerated = {Reason::kStale, Reason::kNotFound};
  if (judge(errors, tolerated) == Verdict::kDone) return;
  ModelInode& i = s_.change(op_.ino);
  if (op_.set.mode) i.mode = (i.mode & S_IFMT) | (*op_.set.mode & 07777);
  if (op_.set.uid) i.uid = *op_.set.uid;
  if (op_.set.gid) i.gid = *op_.set.gid;
  if (op_.set.size) edit_data(i, [&](std::string& d) { d.resize(*op_.set.size, '\0'); });
  if (op_.set.mtime) i.mtime = op_.set.mtime->time;
  if (known() && out_->attr) check_attr(op_.ino, *out_->attr);
}

// mknod, mkdir, symlink, create.
void Applier::birth() {
  Errors errors;
  check_name(op_.name, errors);
  const ModelInode* dir = directory(op_.ino, errors);
  const bool exists = dir && dir->entries.contains(op_.name);
  if (exists && op_.kind == OpKind::kCreate && !(op_.flags & O_EXCL)) {
    // Somebody was faster. It is opened if it is a file; on the way it may go away again.
    const Ino there = dir->entries.at(op_.name);
    if (!s_.find(there)->is_regular())
      errors = {Reason::kExists, Reason::kIsDirectory, Reason::kInvalid};
    if (judge(errors, {Reason::kStale, Reason::kNotFound}) == Verdict::kDone) return;
    if (!known()) return;
    if (!same_ino(there, out_->ino)) {
      wrong(fmt::format("opens ino {:x}", there.v));
      return;
    }
    s_.change(out_->ino).opens[op_.node]++;
    return;
  }
  if (exists) errors.insert(Reason::kExists);
  if (judge(errors) == Verdict::kDone) return;
  const Ino ino = fresh_ino();
  if (s_.find(ino)) {
    wrong(fmt::format("a new number, not {:x}", ino.v));
    return;
  }
  ModelInode i;
  i.uid = i.gid = 0;
  i.mode = op_.mode;
  if (op_.kind == OpKind::kMkdir) i.mode = S_IFDIR | (op_.mode & 07777);
  if (op_.kind == OpKind::kCreate) i.mode = S_IFREG | (op_.mode & 07777);
  if (op_.kind == OpKind::kSymlink) i.mode = S_IFLNK | 0777;
  if (dir->mode & S_ISGID) {
    i.gid = dir->gid;
    if (i.is_dir()) i.mode |= S_ISGID;
  }
  i.nlink = i.is_dir() ? 2 : 1;
  if (i.is_dir()) i.parent = op_.ino;
  if (op_.kind == OpKind::kSymlink) i.symlink = op_.name2;
  if (op_.kind == OpKind::kCreate && known()) i.opens[op_.node] = 1;
  const bool is_dir = i.is_dir();
  s_.inodes_[ino] = std::make_shared<ModelInode>(std::move(i));
  ModelInode& parent = s_.change(op_.ino);
  parent.entries[op_.name] = ino;
  parent.mtime.reset();
  if (is_dir) parent.nlink++;
  if (known() && out_->attr) check_attr(ino, *out_->attr);
}

void Applier::link() {
  Errors errors;
  check_name(op_.name2, errors);
  const ModelInode* dir = directory(op_.ino2, errors);
  const ModelInode* inode = target();
  if (!inode || inode->nlink == 0) {
    errors.insert(Reason::kStale);
    errors.insert(Reason::kNotFound);
  } else if (inode->is_dir()) {
    errors.insert(Reason::kPermission);
  }
  if (dir && dir->entries.contains(op_.name2)) errors.insert(Reason::kExists);
  if (judge(errors) == Verdict::kDone) return;
  s_.change(op_.ino).nlink++;
  s_.change(op_.ino2).entries[op_.name2] = op_.ino;
  touch(op_.ino2);
  if (known() && out_->attr) check_attr(op_.ino, *out_->attr);
}

// A name of `ino` went away.
void Applier::lose_link(Ino ino, bool) {
  ModelInode& i = s_.change(ino);
  if (i.is_dir()) {
    s_.inodes_.erase(ino);
    return;
  }
  i.nlink--;
  if (i.nlink == 0 && i.opens.empty()) s_.inodes_.erase(ino);
}

// unlink, rmdir.
void Applier::remove() {
  const bool rmdir = op_.kind == OpKind::kRmdir;
  Errors errors;
  check_name(op_.name, errors);
  const ModelInode* dir = directory(op_.ino, errors);
  Ino child;
  if (dir) {
    auto it = dir->entries.find(op_.name);
    if (it == dir->entries.end()) {
      errors.insert(Reason::kNotFound);
    } else {
      child = it->second;
      const ModelInode& c = *s_.find(child);
      if (rmdir && !c.is_dir()) errors.insert(Reason::kNotDirectory);
      if (!rmdir && c.is_dir()) errors.insert({Reason::kIsDirectory, Reason::kPermission});
      if (rmdir && !c.entries.empty()) errors.insert(Reason::kNotEmpty);
    }
  }
  if (judge(errors) == Verdict::kDone) return;
  ModelInode& parent = s_.change(op_.ino);
  parent.entries.erase(op_.name);
  parent.mtime.reset();
  if (rmdir) parent.nlink--;
  lose_link(child);
}

bool Applier::ancestor_or_self(Ino maybe_ancestor, Ino of) const {
  for (Ino at = of;; at = s_.find(at)->parent) {
    if (at == maybe_ancestor) return true;
    if (at == kRootIno) return false;
  }
}

void Applier::rename_errors(const ModelInode* from_dir, const ModelInode* to_dir,
                            Errors& errors) const {
  if (!from_dir || !to_dir) return;
  auto from = from_dir->entries.find(op_.name);
  auto to = to_dir->entries.find(op_.name2);
  const bool have_from = from != from_dir->entries.end(), have_to = to != to_dir->entries.end();
  if (!have_from) errors.insert(Reason::kNotFound);
  if (op_.rename == fs::RenameMode::kNoReplace && have_to) errors.insert(Reason::kExists);
  if (op_.rename == fs::RenameMode::kExchange && !have_to) errors.insert(Reason::kNotFound);
  if (have_from && have_to && from->second == to->second &&
      op_.rename != fs::RenameMode::kNoReplace)
    return;  // nothing happens
  const ModelInode* moved = have_from ? s_.find(from->second) : nullptr;
  const ModelInode* victim = have_to ? s_.find(to->second) : nullptr;
  if (moved && moved->is_dir() && ancestor_or_self(from->second, op_.ino2))
    errors.insert({Reason::kLoop, Reason::kInvalid});
  if (victim && victim->is_dir() && ancestor_or_self(to->second, op_.ino)) {
    // The target is an ancestor of what moves: not empty, or a loop the other way.
    if (op_.rename == fs::RenameMode::kExchange)
      errors.insert({Reason::kLoop, Reason::kInvalid});
    else
      errors.insert(Reason::kNotEmpty);
  }
  if (!moved || !victim || op_.rename != fs::RenameMode::kReplace) return;
  if (moved->is_dir() && !victim->is_dir()) errors.insert(Reason::kNotDirectory);
  if (!moved->is_dir() && victim->is_dir()) errors.insert(Reason::kIsDirectory);
  if (victim->is_dir() && !victim->entries.empty()) errors.insert(Reason::kNotEmpty);
}

void Applier::rename() {
  Errors errors;
  check_name(op_.name, errors);
  check_name(op_.name2, errors);
  const ModelInode* from_dir = directory(op_.ino, errors);
  const ModelInode* to_dir = directory(op_.ino2, errors);
  rename_errors(from_dir, to_dir, errors);
  if (judge(errors) == Verdict::kDone) return;
  const Ino moved = from_dir->entries.at(op_.name);
  auto to = to_dir->entries.find(op_.name2);
  const Ino other = to == to_dir->entries.end() ? Ino{} : to->second;
  if (other == moved) return;
  const bool moved_dir = s_.find(moved)->is_dir();
  const bool other_dir = other != Ino{} && s_.find(other)->is_dir();
  auto move_to = [&](Ino ino, bool dir, Ino from, Ino into, const std::string& name) {
    s_.change(into).entries[name] = ino;
    if (!dir) return;
    s_.change(ino).parent = into;
    s_.change(from).nlink--;
    s_.change(into).nlink++;
  };
  if (op_.rename == fs::RenameMode::kExchange) {
    move_to(moved, moved_dir, op_.ino, op_.ino2, op_.name2);
    move_to(other, other_dir, op_.ino2, op_.ino, op_.name);
  } else {
    s_.change(op_.ino).entries.erase(op_.name);
    if (other != Ino{}) {
      if (other_dir) s_.change(op_.ino2).nlink--;
      lose_link(other);
    }
    move_to(moved, moved_dir, op_.ino, op_.ino2, op_.name2);
  }
  touch(op_.ino);
  touch(op_.ino2);
}

void Applier::open() {
  const ModelInode* inode = target();
  if (!inode) {
    // Reaped, or just about to be: a handle that is got all the same is worth nothing to the model.
    if (known() && out_->error && *out_->error != Reason::kStale &&
        *out_->error != Reason::kNotFound)
      wrong("kStale or kNotFound");
    return;
  }
  Errors errors, tolerated;
  if (inode->is_dir()) errors.insert(Reason::kIsDirectory);
  if (inode->nlink == 0 && !inode->opens.contains(op_.node))
    tolerated = {Reason::kStale, Reason::kNotFound};
  if (judge(errors, tolerated) == Verdict::kDone) return;
  ModelInode& i = s_.change(op_.ino);
  if (known()) i.opens[op_.node]++;
  if (op_.flags & O_TRUNC) edit_data(i, [](std::string& d) { d.clear(); });
}

// flush, release, fsync, fsyncdir, syncfs, statfs.
void Applier::handles() {
  if (!known()) return;
  const ModelInode* inode = target();
  const bool whole_fs = op_.kind == OpKind::kStatfs || op_.kind == OpKind::kSyncfs;
  if (judge({}, inode || whole_fs ? Errors{} : Errors{Reason::kStale, Reason::kNotFound}) ==
          Verdict::kDone ||
      !inode)
    return;
  if (op_.kind == OpKind::kFlush && inode->locks.contains(op_.owner))
    s_.change(op_.ino).locks.erase(op_.owner);
  if (op_.kind != OpKind::kRelease || !inode->opens.contains(op_.node)) return;
  ModelInode& i = s_.change(op_.ino);
  if (--i.opens[op_.node] == 0) i.opens.erase(op_.node);
  if (i.nlink == 0 && i.opens.empty()) s_.inodes_.erase(op_.ino);
}

void Applier::check_uncertain_read(const ModelInode& inode) {
  const std::string& got = out_->bytes;
  auto [least, most] =
      std::minmax_element(inode.versions.begin(), inode.versions.end(),
                          [](const Bytes& a, const Bytes& b) { return a->size() < b->size(); });
  const bool at_end = got.size() < op_.size;
  const bool whole = op_.offset == 0 && at_end;
  const std::uint64_t end = op_.offset + got.size();
  const bool too_long = !got.empty() && end > (*most)->size();
  const bool too_short = at_end && end < (*least)->size();
  if (too_long || too_short) {
    wrong(fmt::format("a size in [{}, {}]", (*least)->size(), (*most)->size()));
    return;
  }
  for (std::size_t i = 0; i < got.size(); i++) {
    const std::size_t at = op_.offset + i;
    const bool explained = std::any_of(
        inode.versions.begin(), inode.versions.end(),
        [&](const Bytes& v) { return at < v->size() ? (*v)[at] == got[i] : got[i] == '\0'; });
    if (explained) continue;
    wrong(fmt::format("at {} the byte of one of {} versions, not {}", at, inode.versions.size(),
                      static_cast<unsigned char>(got[i])));
    return;
  }
  if (!whole) return;
  ModelInode& i = s_.change(op_.ino);
  i.data = std::make_shared<std::string>(got);
  i.versions.clear();
}

void Applier::read() {
  if (!known()) return;
  const ModelInode* inode = target();
  if (!inode) {
    if (out_->error && *out_->error != Reason::kStale && *out_->error != Reason::kNotFound)
      wrong("kStale, kNotFound or success on a dead inode");
    return;
  }
  if (op_.kind == OpKind::kReadlink) {
    if (judge(inode->is_symlink() ? Errors{} : Errors{Reason::kInvalid}) == Verdict::kDone) return;
    if (out_->bytes != inode->symlink) wrong("the target " + inode->symlink);
    return;
  }
  if (judge({}) == Verdict::kDone) return;
  if (!inode->versions.empty()) return check_uncertain_read(*inode);
  const std::string& data = *inode->data;
  const std::string right =
      op_.offset < data.size() ? data.substr(op_.offset, op_.size) : std::string();
  if (out_->bytes == right) return;
  std::size_t at = 0;
  while (at < right.size() && at < out_->bytes.size() && right[at] == out_->bytes[at]) at++;
  wrong(fmt::format("{} bytes, got {}; first difference at {}: {} not {}", right.size(),
                    out_->bytes.size(), op_.offset + at,
                    at < right.size() ? static_cast<unsigned char>(right[at]) : -1,
                    at < out_->bytes.size() ? static_cast<unsigned char>(out_->bytes[at]) : -1));
}

void Applier::write() {
  const ModelInode* inode = target();
  if (!inode) return getattr();
  Errors tolerated{Reason::kNoSpace};
  if (judge({}, tolerated) == Verdict::kDone) return;
  if (known() && out_->number != op_.size) {
    wrong(fmt::format("{} bytes taken", op_.size));
    return;
  }
  edit_data(s_.change(op_.ino), [&](std::string& d) {
    const std::uint64_t at = op_.append ? d.size() : op_.offset;
    if (d.size() < at + op_.size) d.resize(at + op_.size, '\0');
    // The bytes depend on where the caller meant them to go, not on where an append puts them.
    for (std::uint64_t i = 0; i < op_.size; i++) d[at + i] = data_byte(op_.number, op_.offset + i);
  });
}

void Applier::fallocate() {
  const ModelInode* inode = target();
  if (!inode) return getattr();
  if (judge({}, {Reason::kNotSupported, Reason::kNoSpace}) == Verdict::kDone) return;
  const std::uint64_t end = op_.offset + op_.size;
  edit_data(s_.change(op_.ino), [&](std::string& d) {
    if (op_.flags & FALLOC_FL_PUNCH_HOLE) {
      for (std::uint64_t i = op_.offset; i < std::min<std::uint64_t>(end, d.size()); i++)
        d[i] = '\0';
    } else if (!(op_.flags & FALLOC_FL_KEEP_SIZE) && d.size() < end) {
      d.resize(end, '\0');
    }
  });
}

void Applier::lseek() {
  const ModelInode* inode = target();
  if (!known() || !inode || !inode->versions.empty()) return;
  const std::string& data = *inode->data;
  const bool beyond = op_.offset >= data.size();
  const bool is_data = op_.seek == fs::SeekWhat::kData;
  auto zeros = [&](std::size_t from, std::size_t to) {
    return std::all_of(data.begin() + static_cast<std::ptrdiff_t>(from),
                       data.begin() + static_cast<std::ptrdiff_t>(to),
                       [](char c) { return c == 0; });
  };
  if (beyond) {
    judge({Reason::kNoSuchOffset});
  } else if (out_->error) {
    // No data behind it: a hole to the end.
    if (!is_data || *out_->error != Reason::kNoSuchOffset || !zeros(op_.offset, data.size()))
      wrong("an offset");
  } else if (out_->number < op_.offset || out_->number > data.size()) {
    wrong("an offset inside the file");
  } else if (is_data && !zeros(op_.offset, out_->number)) {
    wrong("data earlier");
  } else if (!is_data && out_->number < data.size() && data[out_->number] != 0) {
    wrong("no hole where there is data");
  }
}

void Applier::readdir() {
  if (!known()) return;
  Errors errors;
  const ModelInode* dir = directory(op_.ino, errors);
  if (!dir) {
    const bool empty = !out_->error && out_->listing.empty();
    if (!empty) judge(errors);
    return;
  }
  if (judge(errors) == Verdict::kDone) return;
  std::string expected;
  for (auto& [name, ino] : dir->entries) expected += fmt::format("{}={:x} ", name, ino.v);
  const auto entries = dir->entries;  // binding a number replaces the directory
  bool same = entries.size() == out_->listing.size();
  for (auto& [name, ino] : entries) {
    auto it = out_->listing.find(name);
    same = same && it != out_->listing.end() && same_ino(ino, it->second.first) &&
           static_cast<std::uint32_t>(it->second.second) ==
               (s_.find(it->second.first)->mode & S_IFMT) >> 12;
  }
  if (!same) wrong("listing " + expected);
}

void Applier::xattr() {
  const ModelInode* inode = target();
  if (!inode) return getattr();
  const bool exists = inode->xattrs.contains(op_.name);
  Errors errors, tolerated;
  if (inode->nlink == 0 && !inode->opens.contains(op_.node))
    tolerated = {Reason::kStale, Reason::kNotFound};
  switch (op_.kind) {
    case OpKind::kGetxattr:
    case OpKind::kRemovexattr:
      if (!exists) errors.insert(Reason::kNoAttribute);
      break;
    case OpKind::kSetxattr:
      if (exists && op_.xattr == fs::XattrMode::kCreate) errors.insert(Reason::kExists);
      if (!exists && op_.xattr == fs::XattrMode::kReplace) errors.insert(Reason::kNoAttribute);
      break;
    default:
      break;
  }
  if (judge(errors, tolerated) == Verdict::kDone) return;
  if (op_.kind == OpKind::kSetxattr) s_.change(op_.ino).xattrs[op_.name] = op_.name2;
  if (op_.kind == OpKind::kRemovexattr) s_.change(op_.ino).xattrs.erase(op_.name);
  if (!known()) return;
  if (op_.kind == OpKind::kGetxattr && out_->bytes != inode->xattrs.at(op_.name))
    wrong("value " + inode->xattrs.at(op_.name));
  if (op_.kind == OpKind::kListxattr) {
    std::multiset<std::string> got;
    for (std::size_t at = 0, end; (end = out_->bytes.find('\0', at)) != std::string::npos;
         at = end + 1)
      got.insert(out_->bytes.substr(at, end - at));
    std::multiset<std::string> right;
    for (auto& [name, value] : inode->xattrs) right.insert(name);
    if (got != right) wrong(fmt::format("{} names", right.size()));
  }
}

// Whole-file exclusive locks that do not wait. Only a wrong grant is wrong: across nodes this form
// of the filesystem may refuse.
void Applier::locking() {
  const ModelInode* inode = target();
  if (!inode || !known()) return;
  if (op_.kind == OpKind::kUnlock) {
    if (judge({}) == Verdict::kGo) s_.change(op_.ino).locks.erase(op_.owner);
    return;
  }
  const bool held = std::any_of(inode->locks.begin(), inode->locks.end(),
                                [&](const auto& l) { return l.first != op_.owner; });
  Errors errors;
  if (held) errors = {Reason::kWouldBlock, Reason::kNoLocks};
  if (judge(errors, {Reason::kWouldBlock, Reason::kNoLocks}) == Verdict::kDone) return;
  s_.change(op_.ino).locks[op_.owner] = op_.node;
}

bool Applier::run() {
  switch (op_.kind) {
    case OpKind::kLookup:
      lookup();
      break;
    case OpKind::kGetattr:
      getattr();
      break;
    case OpKind::kSetattr:
      setattr();
      break;
    case OpKind::kMknod:
    case OpKind::kMkdir:
    case OpKind::kSymlink:
    case OpKind::kCreate:
      birth();
      break;
    case OpKind::kLink:
      link();
      break;
    case OpKind::kUnlink:
    case OpKind::kRmdir:
      remove();
      break;
    case OpKind::kRename:
      rename();
      break;
    case OpKind::kOpen:
      open();
      break;
    case OpKind::kReadlink:
    case OpKind::kRead:
      read();
      break;
    case OpKind::kWrite:
      write();
      break;
    case OpKind::kFallocate:
      fallocate();
      break;
    case OpKind::kLseek:
      lseek();
      break;
    case OpKind::kReaddir:
      readdir();
      break;
    case OpKind::kGetxattr:
    case OpKind::kListxattr:
    case OpKind::kSetxattr:
    case OpKind::kRemovexattr:
      xattr();
      break;
    case OpKind::kLock:
    case OpKind::kUnlock:
      locking();
      break;
    case OpKind::kFlush:
    case OpKind::kRelease:
    case OpKind::kFsync:
    case OpKind::kFsyncdir:
    case OpKind::kStatfs:
    case OpKind::kSyncfs:
      handles();
      break;
  }
  return ok_;
}

std::optional<ModelFs> ModelFs::apply(const Op& op, const Outcome* outcome,
                                      std::string* why) const {
  Applier applier(*this, op, outcome);
  if (applier.run()) return applier.take();
  if (why) *why = applier.why();
  return std::nullopt;
}

}  // namespace etcfs::sim

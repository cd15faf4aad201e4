// The random part of Client: few names, so that everything collides with everything.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "sim/client.h"

namespace etcfs::sim {
namespace {

constexpr const char* kNames[] = {"a", "b", "c", "d"};
constexpr std::uint64_t kMostOffset = 12 * 1024;
constexpr std::uint64_t kMostSize = 6 * 1024;
constexpr std::size_t kMostOpen = 3;

}  // namespace

Op Client::make(OpKind kind, Ino ino, std::string name) const {
  Op op;
  op.kind = kind;
  op.ino = ino;
  op.name = std::move(name);
  return op;
}

std::string Client::random_name() {
  if (random_.below(200) == 0) return std::string(255 + random_.below(2), 'n');
  return kNames[random_.below(std::size(kNames))];
}

std::optional<Ino> Client::find_child(Ino parent, const std::string& name) {
  auto out = run(make(OpKind::kLookup, parent, name));
  if (!out || out->error) return std::nullopt;
  return out->ino;
}

// Walks down a random path; nullopt where it ends at something that is not there.
std::optional<Ino> Client::random_directory() {
  Ino at = kRootIno;
  for (std::uint64_t depth = random_.below(3); depth > 0; depth--) {
    auto child = find_child(at, kNames[random_.below(std::size(kNames))]);
    if (!child || *child == Ino{}) return at;
    if (!child->is_directory()) return at;
    at = *child;
  }
  return at;
}

std::optional<Client::Place> Client::random_place() {
  auto parent = random_directory();
  if (!parent) return std::nullopt;
  return Place{*parent, random_name()};
}

std::optional<Ino> Client::random_child() {
  auto place = random_place();
  if (!place) return std::nullopt;
  auto child = find_child(place->parent, place->name);
  if (!child || *child == Ino{}) return std::nullopt;
  return child;
}

// As the kernel does: every close flushes, which drops the process's locks, and the last one
// releases.
bool Client::close_file(Ino ino) {
  Op flush = make(OpKind::kFlush, ino);
  flush.owner = owner_;
  return run(flush) && run(make(OpKind::kRelease, ino));
}

bool Client::births() {
  auto place = random_place();
  if (!place) return alive_;
  // As the kernel does: a birth follows a lookup that found nothing, mostly.
  if (pick(80)) {
    auto there = find_child(place->parent, place->name);
    if (!there || *there != Ino{}) return alive_;
  }
  Op op = make(OpKind::kMkdir, place->parent, place->name);
  op.mode = 0700 + static_cast<std::uint32_t>(random_.below(64));
  switch (random_.below(8)) {
    case 0:
    case 1:
    case 2:
      op.kind = OpKind::kCreate;
      op.flags = O_RDWR | (pick(50) ? O_EXCL : 0);
      break;
    case 3:
      op.kind = OpKind::kMknod;
      op.mode |= pick(50) ? S_IFREG : S_IFIFO;
      break;
    case 4:
      op.kind = OpKind::kSymlink;
      op.mode = 0;
      op.name2 = "target-" + std::to_string(random_.below(100));
      break;
    case 5:
      if (pick(30)) op.mode |= S_ISGID;
      break;
    default:
      break;
  }
  auto out = run(op);
  if (out && !out->error && op.kind == OpKind::kCreate && open_.size() > kMostOpen)
    return close_file(out->ino);
  return alive_;
}

bool Client::removals() {
  auto place = random_place();
  if (!place) return alive_;
  auto child = find_child(place->parent, place->name);
  if (!child || (*child == Ino{} && pick(90))) return alive_;
  const bool dir = *child != Ino{} && child->is_directory();
  victims_ = {*child};
  const bool other_call = pick(3);
  return alive(
      run(make(dir != other_call ? OpKind::kRmdir : OpKind::kUnlink, place->parent, place->name)));
}

bool Client::renames() {
  auto from = random_place();
  if (!from) return alive_;
  auto moved = find_child(from->parent, from->name);
  if (!moved || (*moved == Ino{} && pick(90))) return alive_;
  auto to = pick(40) ? std::optional(Place{from->parent, random_name()}) : random_place();
  if (!to) return alive_;
  auto there = find_child(to->parent, to->name);
  if (!there) return alive_;
  if (pick(25) && *moved != Ino{} && !moved->is_directory()) {
    Op op = make(OpKind::kLink, *moved);
    op.ino2 = to->parent;
    op.name2 = to->name;
    return alive(run(op));
  }
  Op op = make(OpKind::kRename, from->parent, from->name);
  op.ino2 = to->parent;
  op.name2 = to->name;
  const std::uint64_t how = random_.below(10);
  if (how == 0) op.rename = fs::RenameMode::kNoReplace;
  if (how <= 2 && how > 0) op.rename = fs::RenameMode::kExchange;
  victims_ = {*moved, *there};
  return alive(run(op));
}

bool Client::attributes() {
  auto ino = pick(10) ? random_directory() : random_child();
  if (!ino) return alive_;
  Op op = make(OpKind::kGetattr, *ino);
  switch (random_.below(8)) {
    case 0:
      op.kind = OpKind::kSetattr;
      op.set.mode = 0600 + static_cast<std::uint32_t>(random_.below(64));
      break;
    case 1:
      op.kind = OpKind::kSetattr;
      op.set.uid = static_cast<std::uint32_t>(random_.below(3));
      op.set.gid = static_cast<std::uint32_t>(random_.below(3));
      break;
    case 2:
      op.kind = OpKind::kSetattr;
      op.set.mtime = fs::SetAttr::When{
          false, {1'000'000 + static_cast<std::int64_t>(random_.below(1000)), 123'456'789}};
      break;
    case 3:
      op.kind = ino->is_directory() ? OpKind::kReaddir : OpKind::kReadlink;
      break;
    case 4:
      op.kind = OpKind::kStatfs;
      break;
    default:
      break;
  }
  if (op.kind == OpKind::kStatfs) op.ino = Ino{};
  return alive(run(op));
}

bool Client::xattrs() {
  auto ino = random_child();
  if (!ino) return alive_;
  Op op = make(OpKind::kGetxattr, *ino, pick(50) ? "user.one" : "user.two");
  switch (random_.below(6)) {
    case 0:
    case 1:
      op.kind = OpKind::kSetxattr;
      op.name2 = std::string(1 + random_.below(40), static_cast<char>('A' + random_.below(26)));
      op.xattr = static_cast<fs::XattrMode>(random_.below(3));
      break;
    case 2:
      op.kind = OpKind::kRemovexattr;
      break;
    case 3:
      op.kind = OpKind::kListxattr;
      op.name.clear();
      break;
    default:
      break;
  }
  return alive(run(op));
}

bool Client::opens() {
  auto ino = random_child();
  if (!ino || ino->is_directory()) return alive_;
  auto attr = run(make(OpKind::kGetattr, *ino));
  if (!attr) return false;
  if (attr->error || !S_ISREG(attr->attr->mode)) return alive_;
  Op op = make(OpKind::kOpen, *ino);
  op.flags = O_RDWR;
  if (pick(15)) op.flags |= O_TRUNC;
  if (!run(op)) return false;
  return open_.empty() || with_open_file();
}

bool Client::with_open_file() {
  if (open_.empty()) return alive_;
  auto it = open_.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(random_.below(open_.size())));
  const Ino ino = it->second.ino;
  Op op = make(OpKind::kWrite, ino);
  op.offset = random_.below(kMostOffset);
  op.size = 1 + random_.below(kMostSize);
  if (pick(30)) op.offset &= ~(kBlockBytes - 1);
  if (pick(30)) op.size = kBlockBytes * (1 + random_.below(2));
  switch (open_.size() > kMostOpen ? 13 : random_.below(18)) {
    case 0:
    case 1:
    case 2:
    case 3:
      break;
    case 4:
      op.append = true;
      break;
    case 5:
      op = make(OpKind::kSetattr, ino);
      op.set.size = random_.below(kMostOffset);
      break;
    case 6:
      op.kind = OpKind::kFallocate;
      op.flags = pick(50) ? 0 : 3;  // allocate; punch a hole, keeping the size
      break;
    case 7:
      op.kind = OpKind::kLseek;
      op.size = 0;
      op.seek = pick(50) ? fs::SeekWhat::kData : fs::SeekWhat::kHole;
      break;
    case 8:
      op = make(OpKind::kFsync, ino);
      break;
    case 9:
      op = make(pick(50) ? OpKind::kLock : OpKind::kUnlock, ino);
      op.owner = owner_;
      break;
    case 10:
    case 11:
    case 12:
    case 13:
      if (!close_file(ino)) return false;
      return true;
    default:
      op.kind = OpKind::kRead;
      op.size = pick(50) ? 64 * 1024 : op.size;
      if (op.size == 64 * 1024) op.offset = 0;
  }
  return alive(run(op));
}

bool Client::listings() {
  auto ino = random_directory();
  if (!ino) return alive_;
  Op op = make(OpKind::kReaddir, *ino);
  op.flags = pick(50);
  if (pick(10)) op = make(OpKind::kFsyncdir, *ino);
  return alive(run(op));
}

bool Client::step() {
  const std::uint64_t n = random_.below(100);
  if (n < 22) return births();
  if (n < 34) return removals();
  if (n < 48) return renames();
  if (n < 58) return attributes();
  if (n < 65) return xattrs();
  if (n < 72) return listings();
  if (n < 73) return syncfs();
  if (n < 84 || open_.empty()) return opens();
  return with_open_file();
}

bool Client::walk() {
  std::vector<Ino> directories{kRootIno};
  for (std::size_t i = 0; i < directories.size(); i++)
    if (!walk_directory(directories[i], directories)) return false;
  return alive_;
}

bool Client::walk_directory(Ino dir, std::vector<Ino>& directories) {
  if (!run(make(OpKind::kGetattr, dir))) return false;
  auto listed = run(make(OpKind::kReaddir, dir));
  if (!listed) return false;
  for (auto& [name, item] : listed->listing) {
    if (!run(make(OpKind::kLookup, dir, name))) return false;
    if (item.second == fs::FileType::kDirectory) {
      directories.push_back(item.first);
    } else if (!walk_file(item.first, item.second)) {
      return false;
    }
  }
  return true;
}

bool Client::walk_file(Ino ino, fs::FileType type) {
  auto attr = run(make(OpKind::kGetattr, ino));
  if (!attr) return false;
  if (type == fs::FileType::kSymlink) return alive(run(make(OpKind::kReadlink, ino)));
  if (type != fs::FileType::kRegular) return true;
  Op open = make(OpKind::kOpen, ino);
  open.flags = O_RDONLY;
  auto opened = run(open);
  if (!opened) return false;
  if (opened->error) return true;
  Op read = make(OpKind::kRead, ino);
  read.size = 64 * 1024;
  if (!run(read)) return false;
  auto names = run(make(OpKind::kListxattr, ino));
  if (!names) return false;
  for (const char* name : {"user.one", "user.two"})
    if (!run(make(OpKind::kGetxattr, ino, name))) return false;
  return close_file(ino);
}

}  // namespace etcfs::sim

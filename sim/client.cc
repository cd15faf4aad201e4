#include "sim/client.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

namespace etcfs::sim {
namespace {

template <class T>
Outcome failed(const Result<T>& r) {
  Outcome out;
  out.error = r.error();
  return out;
}
template <class T>
Outcome plain(const Result<T>& r) {
  return r ? Outcome{} : failed(r);
}

bool serves_no_more(const Outcome& out) {
  return out.error && (*out.error == Reason::kFenced || *out.error == Reason::kShutdown);
}

}  // namespace

Client::Client(Deps deps, std::uint64_t seed)
    : d_(deps), random_(seed), owner_(random_.next() | 1) {
  caller_.pid = 1;
}

std::optional<Outcome> Client::run(Op op) {
  if (!alive_) return std::nullopt;
  op.node = d_.node;
  std::optional<Outcome> out = d_.use_cache ? from_cache(op) : std::nullopt;
  Record& record = d_.history.call(op);
  if (!out) {
    struct Changing {
      Changing(SimKernelCache& k, const Op& op) : k(k), ino(op.ino), on(ModelFs::changes_data(op)) {
        if (on) k.begin_change(ino);
      }
      ~Changing() {
        if (on) k.end_change(ino);
      }
      SimKernelCache& k;
      const Ino ino;
      const bool on;
    };
    {
      Changing changing(d_.kernel, record.op);
      out = ask(record.op);
    }
    if (serves_no_more(*out)) {
      alive_ = false;
      return std::nullopt;
    }
    learn(record.op, *out);
  }
  d_.history.returned(record, *out, d_.daemon.stream().last_appended());
  if (closing_dir_) {
    const auto [ino, handle] = *std::exchange(closing_dir_, std::nullopt);
    (void)d_.daemon.fs().releasedir(ino, handle);
  }
  return out;
}

// What the kernel would answer by itself.
std::optional<Outcome> Client::from_cache(Op& op) {
  Outcome out;
  switch (op.kind) {
    case OpKind::kLookup: {
      auto ino = d_.kernel.find_name(op.ino, op.name);
      if (!ino) return std::nullopt;
      out.ino = *ino;
      break;
    }
    case OpKind::kGetattr: {
      out.attr = d_.kernel.find_attr(op.ino);
      if (!out.attr) return std::nullopt;
      break;
    }
    case OpKind::kRead: {
      auto bytes = d_.kernel.find_bytes(op.ino, op.offset, op.size);
      if (!bytes) return std::nullopt;
      out.bytes = std::move(*bytes);
      break;
    }
    default:
      return std::nullopt;
  }
  op.cached = true;
  return out;
}

fs::Handle Client::handle_of(Ino ino) const {
  for (auto& [handle, open] : open_)
    if (open.ino == ino) return handle;
  return 0;
}

Outcome Client::ask(const Op& op) {
  fs::Filesystem& fs = d_.daemon.fs();
  entry_ = {};
  attr_timeout_ = {};
  auto entry = [&](Result<fs::Entry> r) {
    if (!r) return failed(r);
    entry_ = *r;
    Outcome out;
    out.ino = r->ino;
    if (r->ino != Ino{} && r->attr_timeout > Nanos::zero()) out.attr = r->attr;
    return out;
  };
  auto attributes = [&](Result<fs::AttrReply> r) {
    if (!r) return failed(r);
    Outcome out;
    out.attr = r->attr;
    attr_timeout_ = r->attr_timeout;
    return out;
  };
  switch (op.kind) {
    case OpKind::kLookup:
      return entry(fs.lookup(caller_, op.ino, op.name));
    case OpKind::kGetattr:
      return attributes(fs.getattr(op.ino));
    case OpKind::kSetattr:
      return attributes(fs.setattr(caller_, op.ino, op.set));
    case OpKind::kMknod:
      return entry(fs.mknod(caller_, op.ino, op.name, op.mode, 0));
    case OpKind::kMkdir:
      return entry(fs.mkdir(caller_, op.ino, op.name, op.mode));
    case OpKind::kSymlink:
      return entry(fs.symlink(caller_, op.ino, op.name, op.name2));
    case OpKind::kLink:
      return entry(fs.link(caller_, op.ino, op.ino2, op.name2));
    case OpKind::kUnlink:
      return plain(fs.unlink(caller_, op.ino, op.name));
    case OpKind::kRmdir:
      return plain(fs.rmdir(caller_, op.ino, op.name));
    case OpKind::kRename:
      return plain(fs.rename(caller_, op.ino, op.name, op.ino2, op.name2, op.rename));
    case OpKind::kReadlink: {
      auto r = fs.readlink(op.ino);
      if (!r) return failed(r);
      Outcome out;
      out.bytes = *r;
      return out;
    }
    case OpKind::kCreate:
    case OpKind::kOpen:
    case OpKind::kFlush:
    case OpKind::kRelease:
    case OpKind::kFsync:
      return ask_open(op);
    case OpKind::kRead:
    case OpKind::kWrite:
    case OpKind::kLseek:
    case OpKind::kFallocate:
      return ask_data(op);
    case OpKind::kReaddir:
      return ask_readdir(op);
    case OpKind::kFsyncdir:
      return plain(fs.fsyncdir(op.ino));
    case OpKind::kStatfs:
      return plain(fs.statfs());
    case OpKind::kSyncfs:
      return plain(fs.syncfs());
    default:
      return ask_xattr(op);
  }
}

Outcome Client::ask_open(const Op& op) {
  fs::Filesystem& fs = d_.daemon.fs();
  Outcome out;
  switch (op.kind) {
    case OpKind::kCreate: {
      auto r = fs.create(caller_, op.ino, op.name, op.mode, op.flags);
      if (!r) return failed(r);
      entry_ = r->entry;
      out.ino = r->entry.ino;
      if (r->entry.attr_timeout > Nanos::zero()) out.attr = r->entry.attr;
      open_reply_ = r->open;
      open_[r->open.handle] = {r->entry.ino, r->open.handle, op.flags};
      return out;
    }
    case OpKind::kOpen: {
      auto r = fs.open(caller_, op.ino, op.flags);
      if (!r) return failed(r);
      open_reply_ = *r;
      open_[r->handle] = {op.ino, r->handle, op.flags};
      return out;
    }
    case OpKind::kFlush:
      return plain(fs.flush(op.ino, handle_of(op.ino), op.owner));
    case OpKind::kFsync:
      return plain(fs.fsync(op.ino, handle_of(op.ino), false));
    default: {
      const fs::Handle handle = handle_of(op.ino);
      open_.erase(handle);
      return plain(fs.release(op.ino, handle, 0));
    }
  }
}

Outcome Client::ask_data(const Op& op) {
  fs::Filesystem& fs = d_.daemon.fs();
  const fs::Handle handle = handle_of(op.ino);
  Outcome out;
  switch (op.kind) {
    case OpKind::kRead: {
      auto r = fs.read(op.ino, handle, op.offset, op.size);
      if (!r) return failed(r);
      for (auto piece : r->pieces)
        out.bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return out;
    }
    case OpKind::kWrite: {
      std::string bytes(op.size, '\0');
      for (std::uint64_t i = 0; i < op.size; i++) bytes[i] = data_byte(op.number, op.offset + i);
      fs::WriteFlags flags;
      flags.append = op.append;
      auto r = fs.write(caller_, op.ino, handle, op.offset,
                        std::as_bytes(std::span(bytes.data(), bytes.size())), flags);
      if (!r) return failed(r);
      out.number = *r;
      return out;
    }
    case OpKind::kLseek: {
      auto r = fs.lseek(op.ino, handle, op.offset, op.seek);
      if (!r) return failed(r);
      out.number = *r;
      return out;
    }
    default:
      return plain(fs.fallocate(op.ino, handle, op.flags, op.offset, op.size));
  }
}

Outcome Client::ask_xattr(const Op& op) {
  fs::Filesystem& fs = d_.daemon.fs();
  Outcome out;
  auto bytes = [&](const Result<std::string>& r) {
    if (!r) return failed(r);
    out.bytes = *r;
    return out;
  };
  fs::LockRequest lock;
  lock.kind = fs::LockRequest::Kind::kPosix;
  lock.type =
      op.kind == OpKind::kLock ? fs::LockRequest::Type::kWrite : fs::LockRequest::Type::kUnlock;
  lock.owner = op.owner;
  lock.pid = caller_.pid;
  switch (op.kind) {
    case OpKind::kGetxattr:
      return bytes(fs.getxattr(op.ino, op.name));
    case OpKind::kListxattr:
      return bytes(fs.listxattr(op.ino));
    case OpKind::kSetxattr:
      return plain(fs.setxattr(caller_, op.ino, op.name, op.name2, op.xattr));
    case OpKind::kRemovexattr:
      return plain(fs.removexattr(caller_, op.ino, op.name));
    default:
      return plain(fs.setlk(caller_, op.ino, lock, false));
  }
}

// opendir, one readdir to the end, releasedir. Only the middle one is judged.
Outcome Client::ask_readdir(const Op& op) {
  fs::Filesystem& fs = d_.daemon.fs();
  auto opened = fs.opendir(op.ino);
  if (!opened) return failed(opened);
  closing_dir_ = {op.ino, opened->handle};
  Outcome out;
  const SimKernelCache::Listing* cached = d_.kernel.find_listing(op.ino);
  if (cached && opened->keep_cache && d_.use_cache) {
    out.listing = *cached;
    return out;
  }
  d_.kernel.forget_listing(op.ino);
  auto filled = fs.readdir(op.ino, opened->handle, 0, op.flags != 0, [&](const fs::DirItem& item) {
    if (item.name != "." && item.name != "..")
      out.listing[std::string(item.name)] = {item.ino, item.type};
    return true;
  });
  if (filled && opened->cache_readdir) d_.kernel.took_listing(op.ino, out.listing);
  return filled ? out : failed(filled);
}

// What the kernel keeps of an answer, and what it drops after a change of its own.
void Client::learn(const Op& op, const Outcome& out) {
  SimKernelCache& k = d_.kernel;
  auto changed_dir = [&](Ino dir) {
    k.forget_attr(dir);
    k.forget_listing(dir);
  };
  switch (op.kind) {
    case OpKind::kLookup:
      if (!out.error) k.took_entry(op.ino, op.name, entry_);
      return;
    case OpKind::kGetattr:
    case OpKind::kSetattr:
      if (op.set.size) k.forget_pages(op.ino);
      if (!out.error) k.took_attr(*out.attr, attr_timeout_);
      return;
    case OpKind::kMknod:
    case OpKind::kMkdir:
    case OpKind::kSymlink:
    case OpKind::kCreate:
      changed_dir(op.ino);
      if (!out.error)
        k.took_entry(op.ino, op.name, entry_);
      else
        k.forget_name(op.ino, op.name);
      if (!out.error && op.kind == OpKind::kCreate && !open_reply_.keep_cache)
        k.forget_pages(out.ino);
      return;
    case OpKind::kLink:
      changed_dir(op.ino2);
      k.forget_attr(op.ino);
      if (!out.error)
        k.took_entry(op.ino2, op.name2, entry_);
      else
        k.forget_name(op.ino2, op.name2);
      return;
    case OpKind::kUnlink:
    case OpKind::kRmdir:
      changed_dir(op.ino);
      for (Ino ino : std::exchange(victims_, {})) k.forget_attr(ino);
      k.forget_name(op.ino, op.name);
      return;
    case OpKind::kRename:
      changed_dir(op.ino);
      changed_dir(op.ino2);
      for (Ino ino : std::exchange(victims_, {})) k.forget_attr(ino);
      k.forget_name(op.ino, op.name);
      k.forget_name(op.ino2, op.name2);
      return;
    case OpKind::kOpen:
      if (!out.error && (!open_reply_.keep_cache || (op.flags & O_TRUNC))) k.forget_pages(op.ino);
      if (op.flags & O_TRUNC) k.forget_attr(op.ino);
      return;
    case OpKind::kRead:
      if (!out.error) k.took_pages(op.ino, op.offset, out.bytes, out.bytes.size() < op.size);
      return;
    case OpKind::kWrite: {
      k.forget_attr(op.ino);
      if (out.error) return k.forget_pages(op.ino);
      if (op.append) return k.forget_pages(op.ino);
      std::string bytes(out.number, '\0');
      for (std::uint64_t i = 0; i < out.number; i++) bytes[i] = data_byte(op.number, op.offset + i);
      return k.wrote_pages(op.ino, op.offset, bytes);
    }
    case OpKind::kFallocate:
      k.forget_attr(op.ino);
      return k.forget_pages(op.ino);
    case OpKind::kSetxattr:
    case OpKind::kRemovexattr:
      return k.forget_attr(op.ino);
    default:
      return;
  }
}

bool Client::syncfs() {
  Op op;
  op.kind = OpKind::kSyncfs;
  auto out = run(op);
  return out.has_value();
}

}  // namespace etcfs::sim

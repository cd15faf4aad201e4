// memory_fuse MOUNTPOINT: a filesystem in this process's memory, the floor for bench/compare.py:
// what the kernel's FUSE alone costs on this machine, without etcd, locks or a device. It stays in
// the foreground and unmounts on SIGTERM and SIGINT. One thread serves.
//
// What the kernel may keep, and for how long, is as EtcFS has it, or the two could not be compared:
// names and attributes (also that a name is absent) for a second; pages, listings and symlink
// targets until they change; write-through, transfers of up to 1 MiB.
//
// Left out, as nothing that is measured needs it: durability, extended attributes, access times,
// limits of any kind, fallocate, SEEK_HOLE, RENAME_EXCHANGE, O_TMPFILE. Without killpriv v2, which
// libfuse 3.14 lacks, the kernel asks for security.capability before every write(2). A reply that
// fails is not looked at: only an aborted connection makes it fail.
#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace etcfs {
namespace {

constexpr double kValidSeconds = 1.0;  // of names and attributes
constexpr std::size_t kMaxTransferBytes = 1 << 20, kChunkBytes = 1 << 20, kBlockBytes = 4096;
constexpr unsigned kMaxBackground = 64;

struct Inode;

struct Entry {
  std::string name;
  Inode* inode;
};

// Lives as long as a name (st_nlink) or the kernel (lookups) refers to it. The kernel's node id is
// the address, but for the root.
struct Inode {
  struct stat attr {};
  std::uint64_t lookups = 0;
  std::string target;  // of a symlink
  // Of a file, by offset / kChunkBytes; bytes that no chunk has are zero. Chunks grow up to
  // kChunkBytes, so small files are small.
  std::map<std::uint64_t, std::string> chunks;
  // Of a directory. Entries keep their position, so that a listing goes on after removals; 1 and 2
  // are "." and "..".
  Inode* parent = nullptr;
  std::map<off_t, Entry> entries;
  std::unordered_map<std::string_view, off_t> positions;  // the names are those in `entries`
  off_t next_position = 3;
};

Inode g_root;  // a process serves one filesystem
ino_t g_next_ino = FUSE_ROOT_ID;
const char g_zeros[kMaxTransferBytes] = {};

Inode& at(fuse_ino_t node) {
  return node == FUSE_ROOT_ID ? g_root : *reinterpret_cast<Inode*>(node);
}

fuse_ino_t node_of(const Inode& inode) {
  return &inode == &g_root ? FUSE_ROOT_ID : reinterpret_cast<fuse_ino_t>(&inode);
}

void attr_changed(Inode& inode) { ::clock_gettime(CLOCK_REALTIME, &inode.attr.st_ctim); }

void content_changed(Inode& inode) {
  attr_changed(inode);
  inode.attr.st_mtim = inode.attr.st_ctim;
}

void free_if_unused(Inode& inode) {
  if (inode.attr.st_nlink == 0 && inode.lookups == 0) delete &inode;
}

Inode* find(const Inode& dir, std::string_view name) {
  const auto found = dir.positions.find(name);
  return found == dir.positions.end() ? nullptr : dir.entries.at(found->second).inode;
}

void add_name(Inode& dir, const char* name, Inode& inode) {
  const off_t position = dir.next_position++;
  const auto added = dir.entries.emplace_hint(dir.entries.end(), position, Entry{name, &inode});
  dir.positions.emplace(added->second.name, position);
  inode.attr.st_nlink++;
  if (S_ISDIR(inode.attr.st_mode)) {
    inode.parent = &dir;
    dir.attr.st_nlink++;
  }
  content_changed(dir);
  inode.attr.st_ctim = dir.attr.st_ctim;
}

// The inode stays, also without a name: free_if_unused() is the caller's.
Inode& remove_name(Inode& dir, std::string_view name) {
  const auto found = dir.positions.find(name);
  const auto entry = dir.entries.find(found->second);
  Inode& inode = *entry->second.inode;
  dir.positions.erase(found);  // first: its key is the entry's
  dir.entries.erase(entry);
  inode.attr.st_nlink--;
  if (S_ISDIR(inode.attr.st_mode)) dir.attr.st_nlink--;
  content_changed(dir);
  inode.attr.st_ctim = dir.attr.st_ctim;
  return inode;
}

// For good: a directory loses its "." too.
void discard(Inode& dir, std::string_view name) {
  Inode& inode = remove_name(dir, name);
  if (S_ISDIR(inode.attr.st_mode)) inode.attr.st_nlink = 0;
  free_if_unused(inode);
}

// What the kernel gets to know of an inode; the caller counts it as a lookup. Null: absent.
fuse_entry_param entry_of(const Inode* inode) {
  fuse_entry_param entry{};
  entry.entry_timeout = entry.attr_timeout = kValidSeconds;
  if (!inode) return entry;
  entry.ino = node_of(*inode);
  entry.attr = inode->attr;
  return entry;
}

void reply_entry(fuse_req_t r, Inode* inode) {
  const fuse_entry_param entry = entry_of(inode);
  if (inode) inode->lookups++;
  fuse_reply_entry(r, &entry);
}

void set_up(Inode& inode, mode_t mode, uid_t uid, gid_t gid) {
  inode.attr.st_ino = g_next_ino++;
  inode.attr.st_mode = mode;
  inode.attr.st_nlink = S_ISDIR(mode) ? 1 : 0;  // "."
  inode.attr.st_uid = uid;
  inode.attr.st_gid = gid;
  inode.attr.st_blksize = kBlockBytes;
  content_changed(inode);
  inode.attr.st_atim = inode.attr.st_mtim;
}

// Null if the name exists; the request is then answered.
Inode* make(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode, dev_t rdev = 0) {
  Inode& dir = at(parent);
  if (find(dir, name)) {
    fuse_reply_err(r, EEXIST);
    return nullptr;
  }
  auto* inode = new Inode;
  const bool inherit = (dir.attr.st_mode & S_ISGID) != 0;
  if (inherit && S_ISDIR(mode)) mode |= S_ISGID;
  const fuse_ctx& caller = *fuse_req_ctx(r);
  set_up(*inode, mode, caller.uid, inherit ? dir.attr.st_gid : caller.gid);
  inode->attr.st_rdev = rdev;
  add_name(dir, name, *inode);
  return inode;
}

void lookup(fuse_req_t r, fuse_ino_t parent, const char* name) {
  reply_entry(r, find(at(parent), name));
}

void forget(fuse_req_t r, fuse_ino_t node, std::uint64_t count) {
  Inode& inode = at(node);
  inode.lookups -= std::min(count, inode.lookups);  // the root's are not counted
  free_if_unused(inode);
  fuse_reply_none(r);
}

void mknod(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode, dev_t rdev) {
  if (Inode* made = make(r, parent, name, mode, rdev)) reply_entry(r, made);
}

void mkdir(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode) {
  if (Inode* made = make(r, parent, name, (mode & 07777) | S_IFDIR)) reply_entry(r, made);
}

void symlink(fuse_req_t r, const char* target, fuse_ino_t parent, const char* name) {
  Inode* made = make(r, parent, name, S_IFLNK | 0777);
  if (!made) return;
  made->target = target;
  made->attr.st_size = static_cast<off_t>(made->target.size());
  reply_entry(r, made);
}

void readlink(fuse_req_t r, fuse_ino_t node) { fuse_reply_readlink(r, at(node).target.c_str()); }

void link(fuse_req_t r, fuse_ino_t node, fuse_ino_t parent, const char* name) {
  if (find(at(parent), name)) return (void)fuse_reply_err(r, EEXIST);
  add_name(at(parent), name, at(node));
  reply_entry(r, &at(node));
}

// Also rmdir: the kernel has checked the kind.
void unlink(fuse_req_t r, fuse_ino_t parent, const char* name) {
  const Inode* inode = find(at(parent), name);
  if (!inode) return (void)fuse_reply_err(r, ENOENT);
  if (!inode->entries.empty()) return (void)fuse_reply_err(r, ENOTEMPTY);
  discard(at(parent), name);
  fuse_reply_err(r, 0);
}

// The kernel has checked the kinds, and that no directory moves below itself.
void rename(fuse_req_t r, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
            const char* new_name, unsigned flags) {
  Inode &from = at(parent), &to = at(new_parent);
  const Inode *inode = find(from, name), *old = find(to, new_name);
  if (flags & ~static_cast<unsigned>(RENAME_NOREPLACE)) return (void)fuse_reply_err(r, EINVAL);
  if (!inode) return (void)fuse_reply_err(r, ENOENT);
  if (old && (flags & RENAME_NOREPLACE)) return (void)fuse_reply_err(r, EEXIST);
  if (old && !old->entries.empty()) return (void)fuse_reply_err(r, ENOTEMPTY);
  if (old != inode) {
    if (old) discard(to, new_name);
    add_name(to, new_name, remove_name(from, name));
  }
  fuse_reply_err(r, 0);
}

void opendir(fuse_req_t r, fuse_ino_t, fuse_file_info* fi) {
  fi->cache_readdir = fi->keep_cache = 1;
  fuse_reply_open(r, fi);
}

// A removed directory has no entries, not even dots.
template <bool plus>
void list(fuse_req_t r, fuse_ino_t node, std::size_t size, off_t offset, fuse_file_info*) {
  Inode& dir = at(node);
  std::vector<char> buffer(std::min(size, kMaxTransferBytes));
  std::size_t used = 0;
  auto add = [&](const char* name, Inode& inode, off_t position) {
    const fuse_entry_param entry = entry_of(&inode);
    char* to = buffer.data() + used;
    const std::size_t left = buffer.size() - used;
    const std::size_t need = plus ? fuse_add_direntry_plus(r, to, left, name, &entry, position)
                                  : fuse_add_direntry(r, to, left, name, &entry.attr, position);
    if (need > left) return false;
    used += need;
    if (plus && position > 2) inode.lookups++;  // the kernel does not count the dots
    return true;
  };
  bool room = dir.attr.st_nlink > 0;
  if (room && offset < 1) room = add(".", dir, 1);
  if (room && offset < 2) room = add("..", *dir.parent, 2);
  for (auto e = dir.entries.upper_bound(offset); room && e != dir.entries.end(); ++e)
    room = add(e->second.name.c_str(), *e->second.inode, e->first);
  fuse_reply_buf(r, buffer.data(), used);
}

// Holes count as blocks.
void set_size(Inode& inode, std::uint64_t size) {
  inode.attr.st_size = static_cast<off_t>(size);
  inode.attr.st_blocks = (size + kBlockBytes - 1) / kBlockBytes * (kBlockBytes / 512);
  content_changed(inode);
}

void truncate(Inode& inode, std::uint64_t size) {
  auto chunk = inode.chunks.lower_bound(size / kChunkBytes);
  if (chunk != inode.chunks.end() && chunk->first == size / kChunkBytes) {
    chunk->second.resize(std::min<std::size_t>(chunk->second.size(), size % kChunkBytes));
    ++chunk;
  }
  inode.chunks.erase(chunk, inode.chunks.end());
  set_size(inode, size);
}

void getattr(fuse_req_t r, fuse_ino_t node, fuse_file_info*) {
  fuse_reply_attr(r, &at(node).attr, kValidSeconds);
}

void setattr(fuse_req_t r, fuse_ino_t node, struct stat* to, int set, fuse_file_info*) {
  Inode& inode = at(node);
  struct stat& a = inode.attr;
  attr_changed(inode);
  if (set & FUSE_SET_ATTR_SIZE) truncate(inode, static_cast<std::uint64_t>(to->st_size));
  if (set & FUSE_SET_ATTR_MODE) a.st_mode = (a.st_mode & S_IFMT) | (to->st_mode & 07777);
  if (set & FUSE_SET_ATTR_UID) a.st_uid = to->st_uid;
  if (set & FUSE_SET_ATTR_GID) a.st_gid = to->st_gid;
  if (set & FUSE_SET_ATTR_ATIME) a.st_atim = to->st_atim;
  if (set & FUSE_SET_ATTR_MTIME) a.st_mtim = to->st_mtim;
  if (set & FUSE_SET_ATTR_ATIME_NOW) a.st_atim = a.st_ctim;
  if (set & FUSE_SET_ATTR_MTIME_NOW) a.st_mtim = a.st_ctim;
  fuse_reply_attr(r, &a, kValidSeconds);
}

void getxattr(fuse_req_t r, fuse_ino_t, const char*, std::size_t) { fuse_reply_err(r, ENODATA); }

void statfs(fuse_req_t r, fuse_ino_t) {
  struct statvfs out {};
  out.f_bsize = out.f_frsize = kBlockBytes;
  out.f_blocks = out.f_bfree = out.f_bavail = 1 << 24;  // a claim
  out.f_files = out.f_ffree = out.f_favail = 1 << 24;
  out.f_namemax = 255;
  fuse_reply_statfs(r, &out);
}

void create(fuse_req_t r, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* fi) {
  Inode* made = make(r, parent, name, S_IFREG | (mode & 07777));
  if (!made) return;
  fi->keep_cache = 1;
  made->lookups++;
  const fuse_entry_param entry = entry_of(made);
  fuse_reply_create(r, &entry, fi);
}

void open(fuse_req_t r, fuse_ino_t node, fuse_file_info* fi) {
  if (fi->flags & O_TRUNC) truncate(at(node), 0);
  fi->keep_cache = 1;
  fuse_reply_open(r, fi);
}

void read(fuse_req_t r, fuse_ino_t node, std::size_t size, off_t offset, fuse_file_info*) {
  const Inode& inode = at(node);
  auto position = static_cast<std::uint64_t>(offset);
  const std::uint64_t end = std::min<std::uint64_t>(position + size, inode.attr.st_size);
  std::vector<iovec> pieces;
  while (position < end) {
    const auto chunk = inode.chunks.find(position / kChunkBytes);
    const std::size_t within = position % kChunkBytes;
    std::size_t bytes = std::min<std::uint64_t>(kChunkBytes - within, end - position);
    const char* from = g_zeros;
    if (chunk != inode.chunks.end() && chunk->second.size() > within) {
      from = chunk->second.data() + within;
      bytes = std::min(bytes, chunk->second.size() - within);
    }
    pieces.push_back({const_cast<char*>(from), bytes});
    position += bytes;
  }
  fuse_reply_iov(r, pieces.data(), static_cast<int>(pieces.size()));
}

void write(fuse_req_t r, fuse_ino_t node, const char* data, std::size_t size, off_t offset,
           fuse_file_info*) {
  Inode& inode = at(node);
  for (std::size_t done = 0; done < size;) {
    const std::uint64_t position = static_cast<std::uint64_t>(offset) + done;
    const std::size_t within = position % kChunkBytes;
    const std::size_t bytes = std::min(kChunkBytes - within, size - done);
    std::string& chunk = inode.chunks[position / kChunkBytes];
    if (chunk.size() < within) chunk.resize(within);
    chunk.replace(within, bytes, data + done, bytes);  // and appends what is beyond the end
    done += bytes;
  }
  set_size(inode, std::max<std::uint64_t>(inode.attr.st_size, offset + size));
  fuse_reply_write(r, size);
}

// flush, release, releasedir, fsync and fsyncdir: nothing to do, but the kernel is to ask.
void done(fuse_req_t r, fuse_ino_t, fuse_file_info*) { fuse_reply_err(r, 0); }
void synced(fuse_req_t r, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(r, 0); }

void init(void*, fuse_conn_info* conn) {
  conn->max_write = kMaxTransferBytes;
  conn->max_background = kMaxBackground;
  conn->congestion_threshold = kMaxBackground * 3 / 4;
  conn->want |= conn->capable & FUSE_CAP_CACHE_SYMLINKS;
  // Pages stay over our own changes of mtime; the kernel drops setuid and setgid for us.
  conn->want &= ~(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_HANDLE_KILLPRIV |
                  FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
}

// clang-format off
const fuse_lowlevel_ops kOperations = {
    .init = init, .lookup = lookup, .forget = forget, .getattr = getattr, .setattr = setattr,
    .readlink = readlink, .mknod = mknod, .mkdir = mkdir, .unlink = unlink, .rmdir = unlink,
    .symlink = symlink, .rename = rename, .link = link, .open = open, .read = read, .write = write,
    .flush = done, .release = done, .fsync = synced, .opendir = opendir, .readdir = list<false>,
    .releasedir = done, .fsyncdir = synced, .statfs = statfs, .getxattr = getxattr,
    .create = create, .readdirplus = list<true>};
// clang-format on

int serve(char* program, const char* mountpoint) {
  set_up(g_root, S_IFDIR | 0755, ::getuid(), ::getgid());
  g_root.attr.st_nlink = 2;
  g_root.parent = &g_root;
  char option[] = "-odefault_permissions,allow_other,fsname=memory_fuse";
  char* argv[] = {program, option, nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, argv);
  fuse_session* session = fuse_session_new(&args, &kOperations, sizeof kOperations, nullptr);
  fuse_opt_free_args(&args);
  if (!session) return 1;
  int result = -1;
  if (fuse_set_signal_handlers(session) == 0) {
    if (fuse_session_mount(session, mountpoint) == 0) {
      result = fuse_session_loop(session);  // > 0: the signal that ended it
      fuse_session_unmount(session);
    }
    fuse_remove_signal_handlers(session);
  }
  fuse_session_destroy(session);
  return result < 0 ? 1 : 0;
}

}  // namespace
}  // namespace etcfs

int main(int argc, char** argv) {
  if (argc == 2) return etcfs::serve(argv[0], argv[1]);
  std::fprintf(stderr, "usage: memory_fuse MOUNTPOINT\n");
  return 2;
}

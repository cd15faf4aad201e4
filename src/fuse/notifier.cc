#include "fuse/notifier.h"

#include <sys/uio.h>

#include <cerrno>
#include <vector>

#include "fuse/protocol.h"

namespace etcfs::fuse {
namespace {

int send(int fd, int code, std::initializer_list<iovec> parts) {
  fuse_out_header header{};
  header.error = code;
  header.len = sizeof header;
  iovec iov[4];
  iov[0] = {&header, sizeof header};
  int count = 1;
  for (const iovec& part : parts) {
    iov[count++] = part;
    header.len += static_cast<std::uint32_t>(part.iov_len);
  }
  for (;;) {
    if (::writev(fd, iov, count) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

iovec bytes_of(const void* data, std::size_t size) { return {const_cast<void*>(data), size}; }

}  // namespace

int notify_expire_entry(int fd, Ino parent, std::string_view name) {
  fuse_notify_inval_entry_out out{};
  out.parent = to_node(parent);
  out.namelen = static_cast<std::uint32_t>(name.size());
  out.flags = FUSE_EXPIRE_ONLY;
  const char end = 0;
  return send(fd, FUSE_NOTIFY_INVAL_ENTRY,
              {bytes_of(&out, sizeof out), bytes_of(name.data(), name.size()), bytes_of(&end, 1)});
}

int notify_inval_inode(int fd, Ino ino, std::int64_t offset, std::int64_t length) {
  fuse_notify_inval_inode_out out{};
  out.ino = to_node(ino);
  out.off = offset;
  out.len = length;
  return send(fd, FUSE_NOTIFY_INVAL_INODE, {bytes_of(&out, sizeof out)});
}

int notify_store(int fd, Ino ino, std::uint64_t offset, std::span<const std::byte> bytes) {
  fuse_notify_store_out out{};
  out.nodeid = to_node(ino);
  out.offset = offset;
  out.size = static_cast<std::uint32_t>(bytes.size());
  return send(fd, FUSE_NOTIFY_STORE,
              {bytes_of(&out, sizeof out), bytes_of(bytes.data(), bytes.size())});
}

int notify_prune(int fd, std::span<const Ino> inodes) {
  std::vector<std::uint64_t> nodes;
  nodes.reserve(inodes.size());
  for (Ino ino : inodes) nodes.push_back(to_node(ino));
  NotifyPruneOut out;
  out.count = static_cast<std::uint32_t>(nodes.size());
  return send(fd, kNotifyPrune,
              {bytes_of(&out, sizeof out), bytes_of(nodes.data(), nodes.size() * sizeof nodes[0])});
}

bool means_nothing_cached(int error) {
  switch (error) {
    case ENOENT:  // inode or name not in the caches
    case ENOTDIR:
    case ENODEV:  // the mount is gone
    case ENOTCONN:
    case ECONNABORTED:
    case EPERM:
      return true;  // no mount behind this descriptor
    default:
      return false;
  }
}

}  // namespace etcfs::fuse

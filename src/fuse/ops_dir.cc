// Listings.
#include <algorithm>
#include <vector>

#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/request.h"

namespace etcfs::fuse {
namespace {

void opendir(fuse_req_t r, fuse_ino_t ino, fuse_file_info*) {
  Request req(r);
  const Result<fs::OpenReply> open = req.fs().opendir(to_ino(ino));
  if (!open) return req.error(open.error());
  if (!req.payload(to_open_out(*open))) (void)req.fs().releasedir(to_ino(ino), open->handle);
}

void list(fuse_req_t r, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* fi, bool plus) {
  Request req(r);
  const fs::Handle handle = fi->fh;
  std::vector<std::byte> buffer(std::min<std::size_t>(size, kMaxTransfer));
  DirPacker packer(buffer.data(), buffer.size(), plus);
  const Result<void> done =
      req.fs().readdir(to_ino(ino), handle, static_cast<std::uint64_t>(offset), plus,
                       [&packer](const fs::DirItem& item) { return packer.add(item); });
  if (!done) return req.error(done.error());
  req.bytes(std::span<const std::byte>(buffer.data(), packer.bytes()));
}

void readdir(fuse_req_t r, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* fi) {
  list(r, ino, size, offset, fi, false);
}

void readdirplus(fuse_req_t r, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* fi) {
  list(r, ino, size, offset, fi, true);
}

void releasedir(fuse_req_t r, fuse_ino_t ino, fuse_file_info* fi) {
  Request req(r);
  req.result(req.fs().releasedir(to_ino(ino), fi->fh));
}

void fsyncdir(fuse_req_t r, fuse_ino_t ino, int, fuse_file_info*) {
  Request req(r);
  req.result(req.fs().fsyncdir(to_ino(ino)));
}

}  // namespace

void add_dir_ops(fuse_lowlevel_ops& ops) {
  ops.opendir = opendir;
  ops.readdir = readdir;
  ops.readdirplus = readdirplus;
  ops.releasedir = releasedir;
  ops.fsyncdir = fsyncdir;
}

}  // namespace etcfs::fuse

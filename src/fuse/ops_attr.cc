// Attributes: stat, chmod/chown/truncate/utimens, extended attributes, statfs.
#include <sys/xattr.h>

#include <cerrno>
#include <string>

#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/request.h"

namespace etcfs::fuse {
namespace {

void getattr(fuse_req_t r, fuse_ino_t ino, fuse_file_info*) {
  Request req(r);
  req.attr(req.fs().getattr(to_ino(ino)));
}

void setattr(fuse_req_t r, fuse_ino_t ino, struct stat*, int, fuse_file_info*) {
  Request req(r);
  req.attr(req.fs().setattr(req.caller(), to_ino(ino), to_set_attr(req.arg<fuse_setattr_in>())));
}

// Size 0 asks for the length; a buffer that is too small is ERANGE.
void reply_value(Request& req, const Result<std::string>& value, std::size_t size) {
  if (!value) return req.error(value.error());
  if (size == 0) {
    fuse_getxattr_out out{};
    out.size = static_cast<std::uint32_t>(value->size());
    req.payload(out);
    return;
  }
  if (value->size() > size) return req.error(ERANGE);
  req.bytes(std::as_bytes(std::span(*value)));
}

void getxattr(fuse_req_t r, fuse_ino_t ino, const char* name, size_t size) {
  Request req(r);
  reply_value(req, req.fs().getxattr(to_ino(ino), name), size);
}

void listxattr(fuse_req_t r, fuse_ino_t ino, size_t size) {
  Request req(r);
  reply_value(req, req.fs().listxattr(to_ino(ino)), size);
}

void setxattr(fuse_req_t r, fuse_ino_t ino, const char* name, const char* value, size_t size,
              int flags) {
  Request req(r);
  fs::XattrMode mode;
  switch (flags) {
    case 0:
      mode = fs::XattrMode::kAny;
      break;
    case XATTR_CREATE:
      mode = fs::XattrMode::kCreate;
      break;
    case XATTR_REPLACE:
      mode = fs::XattrMode::kReplace;
      break;
    default:
      return req.error(EINVAL);
  }
  req.result(req.fs().setxattr(req.caller(), to_ino(ino), name, {value, size}, mode));
}

void removexattr(fuse_req_t r, fuse_ino_t ino, const char* name) {
  Request req(r);
  req.result(req.fs().removexattr(req.caller(), to_ino(ino), name));
}

void statfs(fuse_req_t r, fuse_ino_t) {
  Request req(r);
  const Result<fs::StatFs> stat = req.fs().statfs();
  if (!stat) return req.error(stat.error());
  fuse_statfs_out out{};
  out.st = to_statfs(*stat);
  req.payload(out);
}

}  // namespace

void add_attr_ops(fuse_lowlevel_ops& ops) {
  ops.getattr = getattr;
  ops.setattr = setattr;
  ops.getxattr = getxattr;
  ops.listxattr = listxattr;
  ops.setxattr = setxattr;
  ops.removexattr = removexattr;
  ops.statfs = statfs;
}

}  // namespace etcfs::fuse

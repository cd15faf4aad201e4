#include "fuse/request.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fuse/ops.h"
#include "fuse/reply.h"

namespace etcfs::fuse {

bool is_dying(std::int32_t tid) {
  char text[4096];
  const std::string path = "/proc/" + std::to_string(tid) + "/status";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;  // another pid namespace, or gone: it completes like any other
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  const char* line = std::strstr(text, "\nSigPnd:");
  unsigned long long pending = 0;
  if (!line || std::sscanf(line, "\nSigPnd: %llx", &pending) != 1) return false;
  constexpr unsigned long long kSigkillBit = 1ull << (9 - 1);  // set for every fatal signal
  return (pending & kSigkillBit) != 0;
}

Request::Request(fuse_req_t req, bool lock_wait) : req_(req) {
  Context& context = *static_cast<Context*>(fuse_req_userdata(req));
  fs_ = &context.fs;
  header_ = static_cast<const fuse_in_header*>(context.raw);
  caller_.uid = header_->uid;
  caller_.gid = header_->gid;
  caller_.pid = static_cast<std::int32_t>(header_->pid);
  caller_.umask = fuse_req_ctx(req)->umask;  // already applied by the kernel
  if (lock_wait) {
    caller_.interrupted = [req] { return fuse_req_interrupted(req) != 0; };
  } else {
    caller_.interrupted = [this] {
      return fuse_req_interrupted(req_) != 0 && is_dying(caller_.pid);
    };
  }
}

// A killed fiber (the crash of a simulated node, never of a daemon) leaves without an answer.
Request::~Request() = default;

void Request::error(int err) {
  ETCFS_ASSERT(req_);
  fuse_reply_err(std::exchange(req_, nullptr), err);
}

void Request::error(Reason reason) { error(errno_of(reason)); }

void Request::result(const Result<void>& result) {
  if (result) {
    error(0);
  } else {
    error(result.error());
  }
}

bool Request::bytes(std::span<const std::byte> bytes) {
  ETCFS_ASSERT(req_);
  return fuse_reply_buf(std::exchange(req_, nullptr), reinterpret_cast<const char*>(bytes.data()),
                        bytes.size()) == 0;
}

void Request::pieces(const fs::ReadReply& reply) {
  ETCFS_ASSERT(req_);
  if (reply.pieces.empty()) {
    bytes({});
    return;
  }
  std::vector<iovec> iov;
  iov.reserve(reply.pieces.size());
  for (auto piece : reply.pieces)
    iov.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  fuse_reply_iov(std::exchange(req_, nullptr), iov.data(), static_cast<int>(iov.size()));
}

void Request::none() { fuse_reply_none(std::exchange(req_, nullptr)); }

void Request::entry(const Result<fs::Entry>& entry) {
  if (!entry) return error(entry.error());
  // Absence without a time to keep it: plain ENOENT, which the kernel forgets at once.
  if (entry->ino.v == 0 && entry->entry_timeout <= Nanos{0}) return error(ENOENT);
  payload(to_entry_out(*entry));
}

void Request::attr(const Result<fs::AttrReply>& attr) {
  if (!attr) return error(attr.error());
  payload(to_attr_out(*attr));
}

}  // namespace etcfs::fuse

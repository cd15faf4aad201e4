// Request: one FUSE request while its handler runs. Made first thing in a handler, before any
// blocking call; it ends with exactly one reply, which is sent in the moment that fs returned.
//
// A reply that the kernel no longer wants (the caller was killed, the mount is gone) is not an
// error, except where it carried an open handle: the RELEASE will not come then. Those replies say
// so.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/result.h"
#include "fs/filesystem.h"
#include "fs/types.h"
#include "fuse/protocol.h"

namespace etcfs::fuse {

// True when the thread has a SIGKILL (or another fatal signal) waiting.
bool is_dying(std::int32_t tid);

class Request {
 public:
  // lock_wait: a signal alone ends it; anything else completes unless its caller is dying.
  explicit Request(fuse_req_t req, bool lock_wait = false);
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request();

  fs::Filesystem& fs() const { return *fs_; }
  const fs::Caller& caller() const { return caller_; }
  Ino ino() const { return to_ino(header_->nodeid); }
  // The argument as the kernel sent it. libfuse has checked nothing: see fits().
  template <class T>
  const T& arg() const {
    return *reinterpret_cast<const T*>(header_ + 1);
  }

  void error(int err);
  void error(Reason reason);
  void result(const Result<void>& result);       // 0 or the error
  bool bytes(std::span<const std::byte> bytes);  // false: the kernel did not take it
  template <class T>
  bool payload(const T& pod) {
    return bytes(std::as_bytes(std::span<const T, 1>(&pod, 1)));
  }
  void pieces(const fs::ReadReply& reply);
  void none();

  void entry(const Result<fs::Entry>& entry);
  void attr(const Result<fs::AttrReply>& attr);

 private:
  fuse_req_t req_;  // null once replied
  fs::Filesystem* fs_;
  const fuse_in_header* header_;
  fs::Caller caller_;
};

}  // namespace etcfs::fuse

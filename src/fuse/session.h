// Session: serves one FUSE mount. Requests are read by fibers that also run them: a fiber takes one
// request from the descriptor and handles it at once, so a request that need not wait costs no
// switch; when it must wait, another fiber goes on reading. Reading never waits for the cluster
// (design section 7).
//
// The descriptor is not cloned and not shared with a thread. The answer goes out in the moment in
// which fs returned, since the session's handlers do nothing in between.
//
// libfuse 3.14 parses requests; what it does not know of the protocol (killpriv v2, nanosecond
// validity, parallel direct writes, flags of opens) is read from and written to the raw messages.
// Its INIT reply is completed on its way out.
//
// sync(2) and syncfs(2) make the kernel write its dirty mapped pages back, but the protocol has no
// request for a user's mount that reaches us with them: what the daemon keeps goes out with its
// age.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "fs/filesystem.h"
#include "rt/rt.h"

namespace etcfs::fuse {

enum class ReaddirPlus { kAlways, kAuto, kNever };

struct SessionOptions {
  ReaddirPlus readdirplus = ReaddirPlus::kAlways;
  unsigned max_background = 64;
  std::size_t idle_fibers = 32;  // more of them end instead of waiting for work
};

// What the kernel of this mount can do, known from its INIT request.
struct KernelFeatures {
  unsigned minor = 0;           // of protocol 7
  bool expire_entries = false;  // names can be expired without unmounting what is below
  bool killpriv_v2 = false;
};

class Session {
 public:
  struct Counters {
    std::uint64_t requests = 0, reads = 0, empty_reads = 0, fibers = 0;
  };

  Session(rt::Runtime& runtime, fs::Filesystem& fs, SessionOptions options = {});
  ~Session();  // after stop(), or without start()

  // Serves the mount behind `fd`, an O_NONBLOCK descriptor of /dev/fuse, which it owns from here on
  // also when this fails. `gone` runs once, on the runtime thread, when the kernel has ended the
  // connection (umount, abort); it must not block. kNoMemory.
  Result<void> start(int fd, std::function<void()> gone);
  // Blocks until the kernel's INIT has been answered; false: the deadline came, or the mount is
  // gone.
  bool wait_ready(Time deadline);
  const KernelFeatures& kernel() const;
  // From now on requests that have not begun are answered with this error.
  void refuse(Reason reason);
  // Reads no more, waits for the running handlers, closes the descriptor. Blocks.
  void stop();

  const Counters& counters() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::fuse

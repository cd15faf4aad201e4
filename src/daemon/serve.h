// The life of one mount: builds what a node needs of the real world (device, etcd, kernel cache,
// FUSE session) around the Node, serves until the mount is taken away, a signal comes or the node
// is fenced, and takes all down in reverse.
#pragma once

#include "daemon/background.h"
#include "daemon/config.h"

namespace etcfs::daemon {

enum ExitStatus {
  kClean = 0,
  kFailedToStart = 1,
  kMountFailed = 32,  // kFailedToStart as a helper of mount(8)
  kWasFenced = 3,
  kDataLost = 5,     // the last write-back failed
  kLeftInHaste = 4,  // a second signal while stopping: what was not yet in etcd is lost
};

// Blocks the OS thread until the end. Signals must be blocked by the caller.
int serve(Config config, Startup& startup);

}  // namespace etcfs::daemon

// The kernel's FUSE protocol and libfuse's low-level API, as far as used here. Only src/fuse/*.cc
// include this.
//
// Debian 12's headers know protocol 7.38; what is newer, or missing in libfuse 3.14, is named here.
#pragma once

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 314
#endif
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>

#include <cstdint>

#include "base/ids.h"

namespace etcfs::fuse {

inline constexpr std::uint64_t kInitDirectIoAllowMmap = 1ull
                                                        << 36;  // FUSE_DIRECT_IO_ALLOW_MMAP, 7.39
inline constexpr int kNotifyPrune = 9;                          // FUSE_NOTIFY_PRUNE, 7.45
inline constexpr std::uint32_t kMaxTransfer = 1024 * 1024;      // of one READ or WRITE
inline constexpr std::size_t kRequestBufferBytes = kMaxTransfer + 4096;

struct NotifyPruneOut {  // followed by `count` node ids
  std::uint32_t count = 0;
  std::uint32_t padding = 0;
  std::uint64_t spare = 0;
};

// The root of the mount is node 1 for the kernel; every other node id is the inode number.
constexpr Ino to_ino(std::uint64_t node) { return node == FUSE_ROOT_ID ? kRootIno : Ino{node}; }
constexpr std::uint64_t to_node(Ino ino) { return ino == kRootIno ? FUSE_ROOT_ID : ino.v; }

}  // namespace etcfs::fuse

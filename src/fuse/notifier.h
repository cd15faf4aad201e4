// Notifications to the kernel in the raw protocol; each call may block (see kernel_cache.h). No
// state but the descriptor: callable from any thread. Only src/fuse/*.cc include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace etcfs::fuse {

// 0, or the errno: ENOENT: the kernel has no such inode or name,
// ENODEV/ECONNABORTED/ENOTCONN/EPERM: no mount any more.
int notify_expire_entry(int fd, Ino parent, std::string_view name);
// offset < 0: attributes only; length 0: to the end.
int notify_inval_inode(int fd, Ino ino, std::int64_t offset, std::int64_t length);
int notify_store(int fd, Ino ino, std::uint64_t offset, std::span<const std::byte> bytes);
int notify_prune(int fd, std::span<const Ino> inodes);

// Whether the errno says that the kernel has nothing of what was to be dropped.
bool means_nothing_cached(int error);

}  // namespace etcfs::fuse

// KernelCache: the seam to the kernel's caches of this mount. Real: fuse/kernel_cache (notifications
// from threads that read no requests); simulated: sim/fakes/sim_kernel_cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/units.h"

namespace etcfs::fs {

class KernelCache {
 public:
  virtual ~KernelCache() = default;
  // Expires the entries (never invalidates: a mount point would be unmounted). Blocks until done or
  // until the deadline; false: some may not have been expired (the directory's kernel lock is held by
  // a parked request). Late completions do no harm.
  virtual bool expire_names(Ino directory, std::vector<std::string> names, Time deadline) = 0;
  // Drops attributes and the pages of [offset, offset + length); length 0 = to the end. Blocks: may
  // cause WRITE requests and wait for their answers. Also drops a directory's cached listing.
  virtual void invalidate(Ino ino, std::uint64_t offset, std::uint64_t length) = 0;
  // invalidate() of whole inodes, many at once.
  virtual void invalidate_all(std::vector<Ino> inodes) = 0;
  virtual void invalidate_attributes(Ino ino) = 0;
  // Pushes the kernel's idea of the size up: stores the true last byte at size - 1. Does not block.
  virtual void store_last_byte(Ino ino, std::uint64_t size, std::byte last) = 0;
  // Asks the kernel to forget idle inodes (FORGETs follow), where it can. Does not block.
  virtual void prune(std::vector<Ino> inodes) = 0;
};

}  // namespace etcfs::fs

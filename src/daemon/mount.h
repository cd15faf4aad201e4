// The mount itself: mount(2), umount2(2), the bdi. Nothing here may wait for a request to our own
// mount while on the runtime thread: unmounting and syncing happen on a thread of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rt/rt.h"

namespace etcfs::daemon {

// Absolute path of an existing directory, or the plain reason why not.
struct Resolved {
  std::string path, why;
};
Resolved resolve_mountpoint(const std::string& path);

struct Mounted {
  int fd = -1;      // of /dev/fuse, O_NONBLOCK
  std::string why;  // plain reason when fd < 0
};
Mounted mount_fuse(const std::string& mountpoint, const std::string& source, unsigned long flags);

// "major:minor" of the topmost mount at this path when it is one of ours; empty otherwise. Reads
// /proc/self/mountinfo, so it asks nothing of the mount.
std::string mounted_device(const std::string& mountpoint);

// Lets the kernel read ahead further than the protocol's negotiation allows. Failure costs speed
// only.
void set_read_ahead(const std::string& device, unsigned kib);

// Takes the mount away if it is still the one of `device`: in the ordinary way, and where it is
// busy lazily, after which mapped dirty pages have been written back. force: lazily at once,
// without that. Blocks the fiber; requests are served meanwhile. Returns whether it was not busy.
bool unmount(rt::Runtime& runtime, const std::string& mountpoint, const std::string& device,
             bool force);

}  // namespace etcfs::daemon

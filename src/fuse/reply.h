// What goes back to the kernel: results of fs in the protocol's form. Pure functions; the only
// place that turns a Reason into an errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "fs/types.h"
#include "fuse/protocol.h"

namespace etcfs::fuse {

// The errno (positive) that the caller of the system call sees.
int errno_of(Reason reason);

// Time for which the kernel may keep something; never negative, at most about ten years.
struct Validity {
  std::uint64_t sec = 0;
  std::uint32_t nsec = 0;
};
Validity validity_of(Nanos timeout);

fuse_attr to_attr(const fs::Attr& attr);
fuse_attr_out to_attr_out(const fs::AttrReply& reply);
// Of an entry that exists, or (ino 0) of the name's absence.
fuse_entry_out to_entry_out(const fs::Entry& entry);
fuse_open_out to_open_out(const fs::OpenReply& reply);
fuse_kstatfs to_statfs(const fs::StatFs& stat);
// Offsets and owner of a byte-range lock; the kernel's "to the end" is OFFSET_MAX.
fs::LockRequest to_lock_request(const fuse_lk_in& in);
fuse_lk_out to_lk_out(const fs::LockRequest& lock);
fs::SetAttr to_set_attr(const fuse_setattr_in& in);
fs::WriteFlags to_write_flags(const fuse_write_in& in);

// Packs a listing into the buffer of one READDIR or READDIRPLUS.
class DirPacker {
 public:
  DirPacker(std::byte* buffer, std::size_t size, bool plus)
      : buffer_(buffer), size_(size), plus_(plus) {}
  bool add(const fs::DirItem& item);  // false: no room
  std::size_t bytes() const { return used_; }

 private:
  std::byte* buffer_;
  std::size_t size_;
  std::size_t used_ = 0;
  bool plus_;
};

}  // namespace etcfs::fuse

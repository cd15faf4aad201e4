// What operations take and give, free of any FUSE type.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "block/device.h"

namespace etcfs::fs {

// Who asks. Permission bits are checked by the kernel (default_permissions); what is left for us is
// ownership of new inodes and the clearing of setuid/setgid.
struct Caller {
  std::uint32_t uid = 0, gid = 0;
  std::int32_t pid = 0;
  std::uint32_t umask = 0;
  std::function<bool()> interrupted;  // polled where a wait may be broken off; may be empty
};

struct Attr {
  Ino ino;
  std::uint32_t mode = 0, uid = 0, gid = 0, nlink = 0;
  std::uint64_t size = 0, blocks512 = 0, rdev = 0;
  WallTime atime, mtime, ctime;
};
struct AttrReply {
  Attr attr;
  Nanos attr_timeout{0};
};
// ino 0: the name does not exist, and that may be cached for entry_timeout.
struct Entry {
  Ino ino;
  Attr attr;
  Nanos attr_timeout{0}, entry_timeout{0};
};

// Fields of chmod/chown/truncate/utimens; set ones only.
struct SetAttr {
  std::optional<std::uint32_t> mode, uid, gid;
  std::optional<std::uint64_t> size;
  struct When {
    bool now = false;                 // UTIME_NOW: the server's clock
    WallTime time;
  };
  std::optional<When> atime, mtime;
  std::optional<WallTime> ctime;
  bool kill_suidgid = false;          // FATTR_KILL_SUIDGID (killpriv v2)
};

enum class FileType : std::uint8_t { kFifo = 1, kChar = 2, kDirectory = 4, kBlock = 6, kRegular = 8,
                                     kSymlink = 10, kSocket = 12 };  // as DT_*

using Handle = std::uint64_t;         // of an open file or directory; never 0
struct OpenReply {
  Handle handle = 0;
  bool keep_cache = false;            // pages (or the listing) the kernel has are still right
  bool direct_io = false;
  bool cache_readdir = false;
};

// Bytes to be answered: pieces stay valid until the next blocking call or the end of this object.
struct ReadReply {
  std::vector<std::span<const std::byte>> pieces;
  std::vector<block::Buffer> owned;
  std::size_t bytes() const {
    std::size_t n = 0;
    for (auto p : pieces) n += p.size();
    return n;
  }
};

struct WriteFlags {
  bool append = false;                // O_APPEND in the descriptor's flags
  bool sync = false;                  // O_SYNC
  bool dsync = false;                 // O_DSYNC
  bool writeback = false;             // FUSE_WRITE_CACHE: pages of a mapping, no descriptor's write
  bool kill_suidgid = false;          // FUSE_WRITE_KILL_SUIDGID
};

struct DirItem {
  std::string_view name;
  Ino ino;
  FileType type = FileType::kRegular;
  std::uint64_t next_offset = 0;      // where a listing goes on behind this item
  const Entry* entry = nullptr;       // readdirplus: null = by name only
};
// False: no room, the item was not taken.
using DirFiller = std::function<bool(const DirItem&)>;

struct StatFs {
  std::uint64_t block_bytes = kBlockBytes, blocks = 0, free_blocks = 0, files = 0, free_files = 0;
  std::uint32_t name_max = 255;
};

enum class XattrMode { kAny, kCreate, kReplace };
enum class RenameMode { kReplace, kNoReplace, kExchange };
enum class SeekWhat { kData, kHole };

// An advisory lock request (fcntl, OFD and flock; flock covers everything).
struct LockRequest {
  enum class Kind { kPosix, kFlock } kind = Kind::kPosix;  // the kernel gives OFD locks as kPosix
  enum class Type { kRead, kWrite, kUnlock } type = Type::kUnlock;
  std::uint64_t start = 0, end = UINT64_MAX;               // inclusive
  std::uint64_t owner = 0;
  std::int32_t pid = 0;
};

}  // namespace etcfs::fs

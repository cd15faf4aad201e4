// Op: one call of a Filesystem method as the simulator issues, records and judges it; Outcome: what
// came back. Data of a write is not stored but derived from the number of the operation, so every
// byte tells who wrote it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "fs/types.h"

namespace etcfs::sim {

// clang-format off
#define ETCFS_SIM_OPS                                                                        \
  ETCFS_SIM_OP(kLookup) ETCFS_SIM_OP(kGetattr) ETCFS_SIM_OP(kSetattr) ETCFS_SIM_OP(kReadlink) \
  ETCFS_SIM_OP(kMknod) ETCFS_SIM_OP(kMkdir) ETCFS_SIM_OP(kSymlink) ETCFS_SIM_OP(kLink)        \
  ETCFS_SIM_OP(kUnlink) ETCFS_SIM_OP(kRmdir) ETCFS_SIM_OP(kRename) ETCFS_SIM_OP(kCreate)      \
  ETCFS_SIM_OP(kOpen) ETCFS_SIM_OP(kRead) ETCFS_SIM_OP(kWrite) ETCFS_SIM_OP(kFlush)           \
  ETCFS_SIM_OP(kRelease) ETCFS_SIM_OP(kFsync) ETCFS_SIM_OP(kLseek) ETCFS_SIM_OP(kFallocate)   \
  ETCFS_SIM_OP(kReaddir) ETCFS_SIM_OP(kFsyncdir) ETCFS_SIM_OP(kStatfs) ETCFS_SIM_OP(kGetxattr) \
  ETCFS_SIM_OP(kListxattr) ETCFS_SIM_OP(kSetxattr) ETCFS_SIM_OP(kRemovexattr)                 \
  ETCFS_SIM_OP(kLock) ETCFS_SIM_OP(kUnlock) ETCFS_SIM_OP(kSyncfs)
// clang-format on

enum class OpKind : std::uint8_t {
#define ETCFS_SIM_OP(name) name,
  ETCFS_SIM_OPS
#undef ETCFS_SIM_OP
};
std::string_view op_name(OpKind kind);

struct Op {
  std::uint64_t number = 0;  // from 1, in order of issue
  unsigned node = 0;
  OpKind kind = OpKind::kStatfs;
  Ino ino;                  // target, or the parent of `name`
  Ino ino2;                 // rename: new parent; link: new parent
  std::string name, name2;  // name2: rename, link: new name; symlink: target; xattr: value
  std::uint64_t offset = 0, size = 0;
  std::uint32_t mode = 0;
  int flags = 0;  // open and create flags, fallocate mode
  bool append = false;
  fs::SetAttr set;
  fs::RenameMode rename = fs::RenameMode::kReplace;
  fs::XattrMode xattr = fs::XattrMode::kAny;
  fs::SeekWhat seek = fs::SeekWhat::kData;
  std::uint64_t owner = 0;  // of an advisory lock
  bool cached = false;      // answered out of the kernel's cache, the filesystem was not asked
};

struct Outcome {
  std::optional<Reason> error;  // nullopt: success
  Ino ino;                      // lookup (0: absent), births, link
  std::optional<fs::Attr> attr;
  std::string bytes;         // read, readlink, getxattr, listxattr
  std::uint64_t number = 0;  // write: bytes taken; lseek: offset
  std::map<std::string, std::pair<Ino, fs::FileType>> listing;  // without "." and ".."
};

// The byte that operation `number` writes at `offset` of a file: never zero, differs from operation
// to operation and from block to block.
inline char data_byte(std::uint64_t number, std::uint64_t offset) {
  std::uint64_t x = number * 0x9e3779b97f4a7c15ull ^ (offset >> 9) * 0xc2b2ae3d27d4eb4full;
  x ^= x >> 29;
  return static_cast<char>(1 + x % 255);
}

std::string to_string(const Op& op);
std::string to_string(const Op& op, const Outcome& outcome);

}  // namespace etcfs::sim

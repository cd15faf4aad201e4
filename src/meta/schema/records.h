// The records in etcd as plain structures, with their encoding (proto/etcfs.proto). decode_* answers
// kCorrupt for bytes that are not such a record; encode and decode are inverse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"

namespace etcfs::meta {

struct DeviceRange {  // blocks of the device
  std::uint64_t block = 0, blocks = 0;
  std::uint64_t end() const { return block + blocks; }
  friend bool operator==(const DeviceRange&, const DeviceRange&) = default;
};

struct Extent {
  std::uint64_t file_block = 0, device_block = 0, blocks = 0;
  std::uint32_t flags = 0;
  std::uint64_t birth = 0;
  static constexpr std::uint32_t kUnwritten = 1;
  bool unwritten() const { return flags & kUnwritten; }
  std::uint64_t file_end() const { return file_block + blocks; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

enum class Overwrite { kInPlace = 1, kRedirect = 2 };

struct Super {
  std::uint32_t format_version = 1;
  std::string uuid;
  std::uint64_t arena_blocks = 0, device_blocks = 0;
  std::string identity_hash;
  std::uint64_t incompatible_features = 0, compatible_features = 0;
  Overwrite overwrite = Overwrite::kRedirect;
  WallTime created;
  std::uint32_t arenas() const {  // a last partial arena counts
    return static_cast<std::uint32_t>((device_blocks + arena_blocks - 1) / arena_blocks);
  }
};

struct Beat {
  Epoch epoch;
  std::string boot_id, machine_id;
  std::uint64_t device_dev = 0, device_ino = 0;
  Epoch proven_from;  // epochs [proven_from, epoch) have provably ended; epoch: none is known to have
};
struct Live {
  Epoch epoch;
  std::string host, address, version, mountpoint;
  WallTime started;
};

// Inode numbers' records. For regular files `extents` is complete unless external_extents.
struct Inode {
  std::uint32_t mode = 0, uid = 0, gid = 0, nlink = 0;
  std::uint64_t size = 0;
  WallTime atime, mtime, ctime, btime;
  std::uint64_t rdev = 0;
  std::string symlink;
  std::vector<std::pair<std::string, std::string>> xattrs;  // sorted by name
  std::vector<Extent> extents;                              // sorted, not overlapping
  bool external_extents = false;
  Ino parent;                      // directories only, from here
  Family birth_family;
  std::uint32_t birth_bound = 0;
  std::uint64_t next_cookie = 0;
};
inline constexpr std::size_t kInlineExtents = 64;          // more go to x/<ino>/<chunk>
inline constexpr unsigned kExtentChunkShift = 14;          // file blocks per chunk: 64 MiB
// The chunk whose record holds an extent that begins at file_block; the last one takes all the rest
// (chunk numbers have 32 bits, file blocks 51).
constexpr std::uint32_t extent_chunk(std::uint64_t file_block) {
  const std::uint64_t chunk = file_block >> kExtentChunkShift;
  return chunk < UINT32_MAX ? static_cast<std::uint32_t>(chunk) : UINT32_MAX;
}
inline constexpr std::uint64_t kFirstCookie = 16;          // below: ".", "..", reserved

struct Dirent {
  Ino ino;
  std::uint32_t type = 0;          // S_IFMT >> 12, as DT_*
  std::uint64_t cookie = 0;
};

enum class LockMode : std::uint8_t { kNone = 0, kShared = 1, kExclusive = 2 };
constexpr bool covers(LockMode held, LockMode asked) { return held >= asked; }
constexpr bool compatible(LockMode a, LockMode b) {
  return a == LockMode::kNone || b == LockMode::kNone ||
         (a == LockMode::kShared && b == LockMode::kShared);
}
struct FileRange {
  std::uint32_t first = 0, last = kMaxIndex;
  LockMode mode = LockMode::kNone;
  friend bool operator==(const FileRange&, const FileRange&) = default;
};
struct LockRecord {                // also the value of a want
  LockMode names = LockMode::kNone;
  std::vector<FileRange> files;
  std::vector<FileRange> in_place;
  bool empty() const { return names == LockMode::kNone && files.empty(); }
};

struct Arena {
  NodeName owner;
  Epoch owner_epoch;
  std::uint64_t free_blocks = 0;
};
inline constexpr unsigned kArenaChunkShift = 12;           // blocks per amap chunk: 16 MiB
inline constexpr std::uint64_t kArenaChunkBlocks = 1u << kArenaChunkShift;

std::string encode(const Super& v);
std::string encode(const Beat& v);
std::string encode(const Live& v);
std::string encode(const Inode& v);
std::string encode(const Dirent& v);
std::string encode(const LockRecord& v);
std::string encode(const Arena& v);
std::string encode_epoch(Epoch v);
std::string encode_sequence(StepNo v);
std::string encode_extents(const std::vector<Extent>& v);        // ExtentChunk
std::string encode_amap(std::string_view bits);                  // kArenaChunkBlocks / 8 bytes
std::string encode_freed(const std::vector<DeviceRange>& v);
std::string encode_family_counter(Family next);
std::string encode_hold(Epoch v);
std::string encode_advisory(const NodeName& node, Epoch epoch);
inline std::string encode_orphan() { return {}; }

Result<Super> decode_super(std::string_view bytes);
Result<Beat> decode_beat(std::string_view bytes);
Result<Live> decode_live(std::string_view bytes);
Result<Inode> decode_inode(std::string_view bytes);
Result<Dirent> decode_dirent(std::string_view bytes);
Result<LockRecord> decode_lock(std::string_view bytes);
Result<Arena> decode_arena(std::string_view bytes);
Result<Epoch> decode_epoch(std::string_view bytes);
Result<StepNo> decode_sequence(std::string_view bytes);
Result<std::vector<Extent>> decode_extents(std::string_view bytes);
Result<std::string> decode_amap(std::string_view bytes);         // exactly kArenaChunkBlocks / 8 bytes
Result<std::vector<DeviceRange>> decode_freed(std::string_view bytes);
Result<Family> decode_family_counter(std::string_view bytes);
Result<Epoch> decode_hold(std::string_view bytes);
Result<std::pair<NodeName, Epoch>> decode_advisory(std::string_view bytes);

}  // namespace etcfs::meta

// FileData: the bytes of one regular file that are in memory, and how far their write-back is.
//
// Bytes live in segments of whole blocks. A block stands in at most one segment of `dirty`;
// write-back moves segments into a WriteSet, where they are stable until they are published: a
// writer who comes meanwhile makes a new segment that hides the old one. Looking up a block goes
// from new to old: dirty, the write sets from the youngest to the oldest, the published extents
// below a pending cut, else zeros.
//
// The block that holds the end of the file has zeros behind the end as long as it is in `dirty`;
// anywhere else (a write set, the device) anything may stand there. So whatever makes the file
// longer takes that block into `dirty` first.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "block/device.h"
#include "fs/cache/inode_state.h"
#include "fs/file/extent_map.h"
#include "fs/file/rw_lock.h"
#include "rt/rt.h"

namespace etcfs::fs {

// Where a part of a segment is written to.
struct Piece {
  std::uint32_t offset = 0, blocks = 0;  // within the segment
  std::uint64_t device_block = 0;
  bool in_place = false;  // over published blocks; else allocated for this write
  bool failed = false;
  std::uint32_t end() const { return offset + blocks; }
};

struct Segment {
  std::uint64_t first = 0;   // file block
  std::uint32_t blocks = 0;  // in use; a cut shortens it
  std::uint32_t fresh = 0;   // blocks that have no other place yet, for st_blocks
  bool reserved = false;     // holds one reserved block of Space for each of its blocks
  bool moves = false;        // in a write set: some piece is not in place
  block::Buffer buffer;
  std::vector<Piece> pieces;  // in a write set: all that is written, cut or not

  std::uint64_t end() const { return first + blocks; }
  std::uint32_t capacity() const {
    return static_cast<std::uint32_t>(buffer.size() >> kBlockShift);
  }
  std::byte* at(std::uint64_t block) { return buffer.data() + ((block - first) << kBlockShift); }
  const std::byte* at(std::uint64_t block) const {
    return buffer.data() + ((block - first) << kBlockShift);
  }
};
using SegmentMap = std::map<std::uint64_t, Segment>;  // by first block
inline constexpr std::uint32_t kSegmentBlocks = 256;  // at most

Segment* find_segment(SegmentMap& map, std::uint64_t block);
// Where the next segment behind `block` begins, at most `end`.
std::uint64_t next_segment(const SegmentMap& map, std::uint64_t block, std::uint64_t end);

// What one write-back took of the file.
struct WriteSet {
  std::uint64_t round = 0;
  std::uint64_t size = 0;  // to be published with it; a cut lowers it
  std::uint64_t limit_block =
      UINT64_MAX;  // an older set failed: nothing from here on goes out before it
  std::uint64_t most_size = UINT64_MAX;  // an older set could not rewrite the block with the end
  SegmentMap segments;
};

inline constexpr std::uint64_t kNoCut = UINT64_MAX;

struct FileData {
  SegmentMap dirty;
  std::vector<std::unique_ptr<WriteSet>> sets;  // oldest first
  std::uint64_t dirty_blocks = 0;               // in `dirty`
  std::uint64_t fresh_blocks = 0;               // sum of `fresh` over all segments

  // A truncate that is not published yet: published extents behind it are void. Rounds below
  // cut_round were taken before the cut and must not carry it, since data written after it would be
  // missing from the file that it leaves.
  std::uint64_t cut = kNoCut;
  std::uint64_t cut_round = 0;
  std::uint64_t rounds = 0;

  Extents external;  // with rec.external_extents, once loaded
  std::optional<std::uint64_t> external_mapped;

  RwLock lock;             // readers, writers and truncate
  rt::Mutex load_turn;     // loading external extents
  rt::Mutex write_turn;    // one write-back fills and writes its set …
  rt::Mutex publish_turn;  // … and goes on, in the same order, to flush and publish

  std::optional<Reason> error;  // of a write-back, not reported yet
  std::uint32_t failures = 0;   // write-backs in a row that failed
  std::uint64_t failed_total = 0;  // write-backs that failed
  Time retry_at{};

  std::uint64_t tail_block = 0;  // clean copy of the partial last block, for appends
  block::Buffer tail;

  bool streaming = false;  // in the list of files whose write-back should begin
  bool listed = false;  // in the list of files with something to flush
  std::list<InodeRef>::iterator place;
  Time since{};
  std::uint32_t users = 0;  // fibers that are using this object

  bool idle() const {
    return users == 0 && !listed && !streaming && dirty.empty() && sets.empty() && cut == kNoCut &&
           external.empty() && !tail && !error;
  }
  // Bytes of `block` in memory and for how many blocks from there, or null and for how many blocks
  // there are none; at most up to `end`. with_dirty = false: write sets only.
  struct MemoryRun {
    const std::byte* data = nullptr;
    std::uint64_t blocks = 0;
  };
  MemoryRun memory_at(std::uint64_t block, std::uint64_t end, bool with_dirty = true) const;
  // True if a write set on its way gives `block` a new place; `end` is lowered to where that
  // changes.
  bool moving(std::uint64_t block, std::uint64_t& end) const;
};

// Keeps the FileData of an inode in being; frees it at the end if nothing is left in it.
class DataUse {
 public:
  explicit DataUse(InodeRef inode) : inode_(std::move(inode)) {
    if (!inode_->data) inode_->data = std::make_unique<FileData>();
    ++inode_->data->users;
  }
  ~DataUse() {
    if (!inode_) return;
    --inode_->data->users;
    if (inode_->data->idle()) inode_->data.reset();
  }
  DataUse(DataUse&&) = default;
  DataUse& operator=(DataUse&& other) noexcept {
    std::swap(inode_, other.inode_);
    return *this;
  }
  FileData& operator*() const { return *inode_->data; }
  FileData* operator->() const { return inode_->data.get(); }

 private:
  InodeRef inode_;
};

// The published extents of a regular file, wherever they are kept.
inline const Extents& published(const InodeState& inode) {
  static const Extents kNone;
  if (!inode.rec.external_extents) return inode.rec.extents;
  return inode.data ? inode.data->external : kNone;
}
// The first block that a pending cut makes void.
inline std::uint64_t void_block(const InodeState& inode) {
  return inode.data && inode.data->cut != kNoCut ? blocks_of(inode.data->cut) : UINT64_MAX;
}
// map_at() of the published extents, less what is cut.
MapRun published_at(const InodeState& inode, std::uint64_t block, std::uint64_t end);

}  // namespace etcfs::fs

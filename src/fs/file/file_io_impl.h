// What the parts of FileIo share. See file_io.h for the contract and file_data.h for where bytes
// are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fs/file/fanout.h"
#include "fs/file/file_data.h"
#include "fs/file/file_io.h"

namespace etcfs::fs {

// From here (256 PiB) on all extents of a file share the last chunk of x/, and a chunk must fit a
// transaction: so only few may stand there.
inline constexpr std::uint64_t kFarBlock = std::uint64_t{UINT32_MAX} << meta::kExtentChunkShift;
inline constexpr std::size_t kMostFarExtents = 4096;
inline constexpr std::uint64_t kRoundBytes = 64 * kMiB;  // of one background write-back, at most
inline constexpr std::size_t kRoundFiles = 2000;
// A file with this much to write is being streamed: its write-back begins at once, so that it keeps
// pace with the writer and few buffers, lately used, carry it.
inline constexpr std::uint64_t kStreamBytes = 32 * kMiB;
inline constexpr std::uint64_t kRequestBlocks = 256;  // of one device request
inline constexpr std::size_t kRequestsInFlight = 32;
inline constexpr unsigned kWriterFibers = 2;  // one writes while the other flushes
inline constexpr unsigned kDeviceTries = 3;
inline constexpr unsigned kFailuresUntilRefusal = 5;  // then write() no longer waits for room
inline constexpr std::size_t kTailCopies = 1024;
inline constexpr Nanos kNoSpaceRetry = std::chrono::milliseconds(200);

struct FileIo::Impl {
  explicit Impl(Deps deps) : d(std::move(deps)) {}
  ~Impl();

  // --- files with something to flush (file_io.cc)
  void list(const InodeRef& inode);
  void unlist(InodeState& inode);
  void touch_times(InodeState& inode);
  Result<void> wait_for_dirty_room(const InodeRef& inode, std::size_t bytes);
  void add_dirty(FileData& data, std::uint64_t blocks);
  void sub_dirty(FileData& data, std::uint64_t blocks, bool in_dirty);
  void discard(InodeState& inode);  // all dirty data; no write-back may be under way
  Result<meta::RangeReply> must_range(const meta::RangeOp& op, Revision at);
  Result<void> load_extents(const InodeRef& inode);
  static bool needs_flush(const InodeState& inode);
  rt::Group& fibers();

  // --- reading (read.cc)
  Result<ReadReply> read(const InodeRef& inode, std::uint64_t offset, std::size_t size);
  Result<void> read_published(const InodeState& inode, std::uint64_t block, std::uint64_t end,
                              std::byte* into);

  // --- writing (write.cc)
  struct Edge {  // a block that is written in part, as it was before
    std::uint64_t block = 0;
    block::Buffer content;
  };
  struct WritePlan {
    std::uint64_t at = 0, end = 0;           // bytes
    std::uint64_t first = 0, last = 0;       // blocks [first, last)
    std::optional<std::uint64_t> gap_block;  // holds the old end and is not written otherwise
    std::vector<Edge> edges;
    std::uint64_t held = 0;  // reserved so far
    bool has_edge(std::uint64_t block) const;
  };
  Result<std::uint64_t> write(const InodeRef& inode, std::uint64_t offset,
                              std::span<const std::byte> data, bool append);
  std::size_t far_extents(const InodeState& inode) const;
  Result<void> prepare_write(const InodeRef& inode, WritePlan& plan);
  std::optional<std::uint64_t> missing_edge(InodeState& inode, const WritePlan& plan);
  std::optional<std::uint64_t> gap_block(const InodeState& inode, std::uint64_t new_size) const;
  std::uint64_t to_reserve(const InodeState& inode, std::uint64_t first, std::uint64_t end) const;
  // For how many blocks from `block` on the answer to "is written where it is" stays the same.
  MapRun in_place_at(const InodeState& inode, std::uint64_t block, std::uint64_t end) const;
  Result<void> reserve(const InodeRef& inode, std::uint64_t blocks);
  Segment& segment_for(InodeState& inode, std::uint64_t block, std::uint64_t blocks, bool reserved,
                       WritePlan& plan);
  void fill_old(InodeState& inode, const WritePlan& plan, std::uint64_t block, std::byte* into);
  void take_bytes(InodeState& inode, WritePlan& plan, std::span<const std::byte> data);
  void take_gap(InodeState& inode, WritePlan& plan);

  // --- truncate (truncate.cc)
  Result<void> truncate(const InodeRef& inode, std::uint64_t new_size);
  Result<void> grow(const InodeRef& inode, std::uint64_t new_size);
  void shrink(InodeState& inode, std::uint64_t new_size);
  void cut_segments(FileData& data, SegmentMap& map, std::uint64_t block, bool in_dirty);

  // --- write-back (write_back.cc)
  struct Part {  // one file in one write-back; its turns are given up in reverse order
    explicit Part(const InodeRef& ref) : inode(ref), data(ref) {}
    InodeRef inode;
    DataUse data;
    std::unique_lock<rt::Mutex> write_turn, publish_turn;
    WriteSet* set = nullptr;
    Result<void> result;
    bool pinned = false;
  };
  struct RoundOptions {
    std::uint64_t most_bytes = UINT64_MAX;  // of one file
    bool data_only = false;
  };
  // The parts hold their write turns. Results are in the parts.
  void write_back(std::vector<Part>& parts, RoundOptions options);
  Result<void> reserve_missing(Part& part);
  void take_dirty(Part& part, std::uint64_t most_bytes);
  void place_pieces(Part& part);
  void allocate_run(InodeState& inode, WriteSet& set, std::span<Segment*> segments,
                    std::uint64_t blocks);
  struct Io {
    std::uint64_t device_block;
    std::span<const std::byte> bytes;
    Piece* piece;
  };
  bool write_pieces(std::vector<Io> ios);  // true: something was written
  Result<void> flush(const InodeRef& inode, bool data_only);
  Result<void> flush_many(std::span<const InodeRef> inodes, bool data_only);
  Result<void> flush_once(const InodeRef& inode, bool data_only);

  // --- publication (publish.cc): after the flush, in the publish turn
  void publish(Part& part, bool data_only);
  void give_up(Part& part, Reason reason);
  void finish_set(Part& part);
  void restore(InodeState& inode, WriteSet& set, Segment& segment, std::uint32_t from,
               std::uint32_t to);
  void keep_tail(const InodeRef& inode, const WriteSet& set);

  // --- background (background.cc)
  void start();
  void stop();
  void background();
  // What one background write-back takes of one file, and in all.
  std::uint64_t round_bytes() const { return std::min(kRoundBytes, d.dirty_bytes / 4); }
  bool over_half() const { return dirty_blocks * kBlockBytes * 2 > d.dirty_bytes; }
  // Parts in their write turn, pinned; of that family only (and not pinned) when given.
  std::vector<Part> pick(bool urgent, const Family* family);
  // Takes the file's write turn, and its pin unless it is of `family`; false: not now.
  bool pick_one(const InodeRef& inode, const Family* family, std::vector<Part>& parts);
  std::vector<Part> pick_stream();
  void run_background(std::vector<Part> parts);
  Result<void> sync_all();
  Result<void> sync_listed(const std::function<bool(const FileData&)>& wanted);

  // --- deletion (delete.cc)
  Result<void> add_deletion(const InodeRef& inode, meta::Step& step);
  struct DeletionCost {
    std::size_t ops = 1;
    std::uint64_t fits_up_to = 0;  // file blocks
    bool one_step = false;
  };
  DeletionCost deletion_cost(const InodeState& inode) const;
  bool deletion_may_block(const InodeState& inode) const;
  Result<std::uint64_t> seek(const InodeRef& inode, std::uint64_t offset, SeekWhat what);
  std::uint64_t blocks512(const InodeState& inode) const;

  // set once
  Deps d;
  std::function<bool(InodeState&)> pin;
  std::function<void(InodeState&)> unpin;
  std::optional<rt::Group> group;

  std::list<InodeRef> dirty_files;  // in order of `since`
  std::deque<InodeRef> streams;     // with more than kStreamBytes in `dirty`; data->streaming
  std::uint64_t dirty_blocks = 0;   // over all files, write sets included
  std::uint64_t cursor = 0;         // where the data of the next new file goes
  std::set<std::uint64_t> rounds;   // background write-backs under way
  std::uint64_t next_round = 1;
  std::uint64_t flush_errors = 0;
  unsigned space_failures = 0;  // reservations of write-backs in a row that failed
  unsigned failures = 0;  // write-backs in a row in which the device failed
  std::deque<std::weak_ptr<InodeState>> tails;
  bool stopping = false;
  rt::Condition wake, room, round_ended;
};

}  // namespace etcfs::fs

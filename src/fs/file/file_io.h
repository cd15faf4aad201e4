// FileIo: the bytes of regular files (design section 6): delayed allocation, write-behind,
// publication after write and flush, truncate, holes, reads.
//
// The caller holds `files` of the inode's family (X for anything that changes, S to read) and keeps
// the family from being released (a pin) for the length of the call; FileIo never deals with family
// locks. All members block unless it says otherwise. Calls on one inode may overlap: FileIo orders
// them with a lock per inode of its own (writers and truncate exclusive, readers see whole writes).
//
// Order (I4): write blocks, flush the device, then append the step that publishes the extents and
// the size together with the map chunks. A crash between leaves free blocks, nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "block/device.h"
#include "block/space.h"
#include "fs/cache/inode_state.h"
#include "fs/types.h"
#include "meta/commit_stream.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"
#include "rt/rt.h"

namespace etcfs::fs {

class FileIo {
 public:
  struct Deps {
    meta::Kv& kv;
    const meta::Keys& keys;
    meta::CommitStream& stream;
    block::Space& space;
    block::GuardedDevice& device;
    meta::Overwrite overwrite;
    std::uint64_t dirty_bytes;  // bound over all files
    Nanos dirty_age;            // background write-back begins at this age
    std::function<Time()> deadline;  // of membership: until then nobody can have fenced this node
    std::function<WallTime()> wall_now;
  };
  explicit FileIo(Deps deps);
  ~FileIo();
  void start();  // the background write-back fiber
  void stop();   // after sync_all(); blocks

  // Bytes of [offset, offset + size) up to the logical end; dirty data, device, zeros for holes.
  Result<ReadReply> read(const InodeRef& inode, std::uint64_t offset, std::size_t size);
  // Takes the bytes into memory; reserves space (kNoSpace), waits where too much is dirty. append:
  // at the logical end as it is when the data is taken. Sets mtime/ctime in rec, attrs_dirty.
  // Returns the offset at which the data was placed.
  Result<std::uint64_t> write(const InodeRef& inode, std::uint64_t offset,
                              std::span<const std::byte> data, bool append);
  // Shrinks or grows. Bytes behind the new end are gone at once for readers; what that means in
  // etcd goes out with the next publication of the file, at the latest after dirty_age or by
  // flush() (so that truncate-then-write never leaves an empty file after a crash). Growing makes
  // the tail of the last block zero. Sets mtime/ctime.
  Result<void> truncate(const InodeRef& inode, std::uint64_t new_size);
  // Everything of the file that is dirty, cut or attrs_dirty is on the device and in appended steps
  // on return; the caller waits for the stream. data_only: times alone need not be published.
  // Reports a write-back error of this file (to be handed out once per handle by the caller).
  Result<void> flush(const InodeRef& inode, bool data_only = false);
  // flush() of many files with one flush of the device; an error of one does not keep the others.
  Result<void> flush_many(std::span<const InodeRef> inodes);
  Result<void> sync_all();  // flush() of every file that has something to flush
  // What could not be written, and no longer may be: the file is what is published. No write-back
  // is under way. Does not block.
  void discard_unwritten(InodeState& inode);
  // Clean file: drops cached blocks. Asserts that nothing is dirty. Does not block.
  void drop(InodeState& inode);
  // The file is being deleted (no reader or writer can come any more): dirty data is discarded
  // after write-backs under way have ended, and the step gets the deletion of the inode's record,
  // x/ keys and what frees its blocks. More steps than one where it does not fit: then the earlier
  // ones are appended inside (a smaller file that is still legal) and `step` gets the rest.
  Result<void> add_deletion(const InodeRef& inode, meta::Step& step);
  // False: add_deletion() would not block now, and would need no step of its own.
  bool deletion_may_block(const InodeState& inode) const;
  Result<std::uint64_t> seek(const InodeRef& inode, std::uint64_t offset, SeekWhat what);
  // st_blocks, counting dirty blocks that have no place yet.
  std::uint64_t blocks512(const InodeState& inode) const;
  // Anything to flush (dirty blocks, pending cut, attrs_dirty)? Does not block.
  bool is_dirty(const InodeState& inode) const;
  // The record as it is to stand in etcd now: rec with published size and extents (inline or not).
  // Used by every step about attributes. Does not block.
  std::string encode_record(const InodeState& inode) const;
  std::uint64_t dirty_bytes() const;
  // Called before background write-back touches a file, to pin its family; false = leave it alone
  // (it is being released, which flushes it itself). Set once by the filesystem.
  void set_pin(std::function<bool(InodeState&)> pin, std::function<void(InodeState&)> unpin);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::fs

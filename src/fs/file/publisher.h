// Publisher: turns a file's new map and size into steps of the commit stream that each leave a
// legal file and fit a transaction. What is cut goes first, from the end backwards, then what is
// added, upwards; the size follows the extents. Nothing here blocks, so the record in memory, the
// map of the arenas and the appended steps always agree.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "fs/file/file_io_impl.h"

namespace etcfs::fs {

class Publisher {
 public:
  // The caller keeps inode.data in being.
  Publisher(FileIo::Impl& io, InodeState& inode);
  // Drops everything behind new_size.
  void cut(std::uint64_t new_size);
  // Sorted, not overlapping, allocated and written. final_size: what the file will have at the end.
  void add(const std::vector<MapChange>& changes, std::uint64_t final_size);
  // Appends what is left. must: a step even if only attributes changed.
  void finish(std::uint64_t final_size, bool must);

 private:
  struct Cost {
    std::size_t ops = 0, bytes = 0;
  };
  Extents& extents();
  void begin();
  // The cost of the step with `changes` changes and these device ranges and chunks of x/ added.
  bool fits(const block::DeviceRange* a, const block::DeviceRange* b,
            const std::set<std::uint32_t>& chunks, std::size_t changes) const;
  void count(block::DeviceRange range);
  void count(const std::set<std::uint32_t>& chunks);
  void close(std::uint64_t size, bool last);
  void put_extents(meta::Step& step, bool last);

  FileIo::Impl& io_;
  InodeState& inode_;
  const std::size_t most_ops_, most_bytes_;
  // of the step being filled
  bool any_ = false;
  std::vector<MapChange> changes_;
  std::vector<block::DeviceRange> published_, released_;
  std::set<std::uint64_t> device_chunks_;
  std::set<std::uint32_t> chunks_;
  std::size_t record_bytes_ = 0, chunk_bytes_ = 0;
};

}  // namespace etcfs::fs

// InodeState: what this node knows of one inode, under the files lock of its family (directories:
// the names lock). `rec` is the record as the last appended step left it in etcd, with one
// exception: times and, for regular files, nothing else may run ahead (attrs_dirty). The logical size of a
// regular file is `size`; rec.size never runs ahead of published extents (I4).
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/units.h"
#include "meta/schema/records.h"

namespace etcfs::fs {

struct FileData;                 // fs/file: dirty blocks, write-back state; absent while there is none

struct InodeState {
  InodeState();
  ~InodeState();
  Ino ino;
  meta::Inode rec;
  std::uint64_t size = 0;        // logical size: includes data that is not published yet
  bool attrs_dirty = false;      // times in rec not yet appended to the commit stream
  bool extents_loaded = true;    // false: rec.external_extents and x/ not read yet
  bool gone = false;             // deleted, or no longer covered by our lock: operations start again
  bool kernel_pages = false;     // a READ or WRITE was answered: the kernel may have pages
  bool kernel_attrs = false;     // attributes were handed out with a timeout
  std::uint32_t opens = 0;       // open handles on this node
  std::uint32_t pins = 0;        // operations under way which use this object across a blocking call
  std::unique_ptr<FileData> data;

  bool is_dir() const { return (rec.mode & 0170000) == 0040000; }
  bool is_regular() const { return (rec.mode & 0170000) == 0100000; }
};
using InodeRef = std::shared_ptr<InodeState>;

}  // namespace etcfs::fs

// The handlers of the session, one file per subject. Each calls one method of Filesystem and
// answers at once. Only src/fuse/*.cc include this.
#pragma once

#include "fs/filesystem.h"
#include "fuse/protocol.h"

namespace etcfs::fuse {

// libfuse's userdata. `raw` is the request being started: libfuse drops fields that we need. Valid
// from the start of a handler to its first blocking call; Request keeps the pointer.
struct Context {
  fs::Filesystem& fs;
  const void* raw = nullptr;
};

void add_namespace_ops(fuse_lowlevel_ops& ops);
void add_attr_ops(fuse_lowlevel_ops& ops);
void add_dir_ops(fuse_lowlevel_ops& ops);
void add_file_ops(fuse_lowlevel_ops& ops);
void add_lock_ops(fuse_lowlevel_ops& ops);

}  // namespace etcfs::fuse

#include "fs/cache/inode_state.h"

#include "fs/file/file_data.h"

namespace etcfs::fs {

InodeState::InodeState() = default;
InodeState::~InodeState() = default;

}  // namespace etcfs::fs

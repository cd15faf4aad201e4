// Private to fs: how Filesystem's operations reach the core.
#pragma once

#include "fs/core/core.h"

namespace etcfs::fs {

struct Filesystem::Impl : Core {
  using Core::Core;
};

}  // namespace etcfs::fs

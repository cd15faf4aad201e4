// Completes libfuse 3.14's INIT reply with what it does not know. Pure; see session.h.
#pragma once

#include <cstdint>

#include "fuse/protocol.h"
#include "fuse/session.h"

namespace etcfs::fuse {

// The 64 feature bits of an INIT message.
std::uint64_t init_flags(const fuse_init_in& in);
KernelFeatures features_of(const fuse_init_in& in);
// Sets in `out` the features that we want and the kernel offered, and takes away those that we must
// not have. `out` comes from libfuse.
void complete_init(const fuse_init_in& in, const SessionOptions& options, fuse_init_out& out);

}  // namespace etcfs::fuse

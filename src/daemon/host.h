// What the host says about itself and lets us do.
#pragma once

#include "cluster/membership.h"

namespace etcfs::daemon {

// boot id and machine id; where one cannot be read it stays empty, and proves nothing then.
cluster::HostIdentity host_identity();
std::string host_name();

// What a process in the path of other people's I/O wants: more descriptors, a little more of the
// CPU, to be the last one killed for memory, and never to wait for its own write-back when it
// allocates. Each as far as it is allowed. Before any thread is started.
void set_process_limits();

}  // namespace etcfs::daemon

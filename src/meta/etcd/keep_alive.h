// One renewal of a lease: etcd has it only as a stream, of which this uses one message each way.
#pragma once

#include <cstdint>

#include "meta/etcd/connection.h"

namespace etcfs::meta::etcd {

// Blocks. With an OK status `ttl` is the lease's new time to live in seconds, 0 when there is no
// such lease.
grpc::Status keep_alive(Connection& connection, std::int64_t lease, Time until, std::int64_t& ttl);

}  // namespace etcfs::meta::etcd

// The real Kv: etcd 3.4 to 3.6 over gRPC. The only folder that knows grpc and the generated
// messages.
//
// A call is serialised and sent on the runtime thread; one OS thread waits on the completion queue,
// unpacks replies and posts them. Endpoints are tried in turn: whoever fails is left for the next,
// and the watches follow. Whatever is not a definite refusal by etcd itself is reported as unknown
// (txn) or tried again with jitter until the deadline (everything else).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "meta/kv.h"

namespace etcfs::meta {

struct EtcdOptions {
  std::vector<std::string> endpoints;        // "host:port", also with http:// or https:// before it
  std::string ca_file, cert_file, key_file;  // PEM; any of them, or https://, means TLS
  std::string user, password;                // empty user: no authentication
  Nanos attempt = 2s;                        // how long one try of a repeatable call may take
};

// Does not block and sends nothing yet: whether etcd answers is seen at the first call. Belongs to
// the current Runtime and must be destroyed on its thread, when no fiber is inside a call (killed
// ones are not). kInvalid: no endpoint, or one that is malformed; kNotFound: a file that cannot be
// read (both are logged).
Result<std::unique_ptr<Kv>> connect(const EtcdOptions& options);

}  // namespace etcfs::meta

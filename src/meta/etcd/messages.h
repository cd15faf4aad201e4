// Between the types of the seam and etcd's messages, and what a gRPC status means. Only for this
// folder.
#pragma once

#include <grpcpp/support/status.h>

#include "etcd_rpc.pb.h"
#include "meta/kv.h"

namespace etcfs::meta::etcd {

namespace pb = etcdserverpb;

void to_proto(const RangeOp& op, Revision at, pb::RangeRequest* out);
void to_proto(const Txn& txn, pb::TxnRequest* out);

// Take keys and values out of the message.
RangeReply from_proto(pb::RangeResponse& in);
TxnReply from_proto(pb::TxnResponse& in);
WatchEvent from_proto(pb::Event& in);

// What a call that did not succeed has come to.
struct Verdict {
  enum class Kind {
    kUnknown,     // may or may not have been done
    kRefused,     // certainly not done and no use to repeat
    kStaleToken,  // certainly not done; log in again and repeat
  } kind = Kind::kUnknown;
  Reason reason = Reason::kUnavailable;
};
Verdict judge(const grpc::Status& status);

}  // namespace etcfs::meta::etcd

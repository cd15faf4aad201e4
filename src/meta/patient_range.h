// Reads for those who cannot do without the answer.
#pragma once

#include <utility>

#include "meta/kv.h"
#include "rt/rt.h"

namespace etcfs::meta {

// Kv::range(), again and again while etcd is out of reach: operations wait for it as long as it takes.
// go_on() says with which reason to give up, if any. Other errors, kCompacted for one, come back at
// once. Blocks.
template <class F>
Result<RangeReply> patient_range(Kv& kv, const RangeOp& op, Revision at, F&& go_on) {
  constexpr Nanos kOneTry = std::chrono::seconds(10), kPause = std::chrono::milliseconds(50);
  while (true) {
    ETCFS_CHECK(go_on());
    auto reply = kv.range(op, at, rt::now() + kOneTry);
    if (reply || (reply.error() != Reason::kTimeout && reply.error() != Reason::kUnavailable))
      return reply;
    rt::sleep_for(kPause);
  }
}

}  // namespace etcfs::meta

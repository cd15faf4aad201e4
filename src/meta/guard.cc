#include "meta/guard.h"

#include <utility>

#include "meta/schema/records.h"

namespace etcfs::meta {

Guard::Guard(const Keys& keys, NodeName node, Epoch epoch)
    : node_(std::move(node)), epoch_(epoch), key_(keys.epoch(node_)), value_(encode_epoch(epoch)) {}

Compare Guard::compare() const {
  Compare c;
  c.target = Compare::Target::kValue;
  c.key = key_;
  c.value = value_;
  return c;
}

RangeOp Guard::read() const { return RangeOp{key_, {}}; }

}  // namespace etcfs::meta

// The guard: every transaction of a node compares its epoch, so that raising the epoch voids all that
// the node may still send (design section 2, I7). Nobody builds such a compare elsewhere.
#pragma once

#include "base/ids.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"

namespace etcfs::meta {

class Guard {
 public:
  Guard(const Keys& keys, NodeName node, Epoch epoch);
  const NodeName& node() const { return node_; }
  Epoch epoch() const { return epoch_; }
  Compare compare() const;        // epoch/<node> == epoch
  RangeOp read() const;           // for the failure branch

 private:
  NodeName node_;
  Epoch epoch_;
  std::string key_, value_;
};

}  // namespace etcfs::meta

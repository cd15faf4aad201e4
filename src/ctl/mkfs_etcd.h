// mkfs's part in etcd: what stands under a name, whether it lives, taking it away, and creating it
// in one transaction that is guarded by absence.
//
// epoch/ keys outlive their filesystem and only grow, raised once more when the old one is removed:
// a paused node of the old filesystem must not find its epoch again in the new one.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::ctl {

// Does anything but epoch/ keys stand under the prefix? Blocks.
Result<bool> name_taken(meta::Kv& kv, const meta::Keys& keys, Time deadline);

struct Liveness {
  std::vector<NodeName> alive;  // their beats moved within the TTL
  Revision beats;               // no beat that is not in `alive` has moved up to here
};
// Watches the beats for a TTL, or until one has moved. Blocks.
Result<Liveness> look_for_life(meta::Kv& kv, const meta::Keys& keys, Nanos ttl, Time deadline);

// Removes everything but epoch/ keys, which are raised. First, and atomically: super goes and every
// epoch is raised, provided that no beat has come after `beats` (kBusy otherwise: somebody lives).
// Then the rest, in pieces. Can be repeated. Blocks.
Result<void> remove_filesystem(meta::Kv& kv, const meta::Keys& keys, Revision beats,
                               Nanos call_timeout);

// super, the root directory and counter/family. kExists: the name was taken meanwhile. An unknown
// outcome is resolved by looking for our uuid. Blocks.
Result<void> create_filesystem(meta::Kv& kv, const meta::Keys& keys, const meta::Super& super,
                               Nanos call_timeout);

}  // namespace etcfs::ctl

// What etcd knows of a filesystem without reading its tree: super, nodes, arenas, and how many
// inodes there are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::ctl {

struct NodeInfo {
  NodeName name;
  // alive: its beat moved while we looked. silent: it holds its epoch, but did not beat.
  // fenced: its epoch was raised. left: it went in order (or was fenced and cleaned up).
  enum class State { kAlive, kSilent, kFenced, kLeft } state = State::kLeft;
  Epoch epoch;
  std::optional<meta::Beat> beat;
  std::optional<meta::Live> live;
  std::uint64_t arenas = 0;  // owned under the present epoch
};
std::string_view state_name(NodeInfo::State state);

struct SpaceInfo {
  std::uint64_t total_blocks = 0;  // that can hold file data
  std::uint64_t free_blocks = 0;
  std::uint64_t arenas = 0, owned_arenas = 0;
  std::uint64_t freed_keys =
      0;  // lists of freed blocks that their arena's owner has not merged yet
};

struct Overview {
  Revision revision;
  meta::Super super;
  std::vector<NodeInfo> nodes;  // by name
  SpaceInfo space;
  std::uint64_t inodes = 0;
};

// kNotFound: no such filesystem. kCorrupt: a record does not decode. Blocks for `look` to see whose
// beat moves; zero: everybody with a beat of the present epoch counts as silent.
Result<Overview> load_overview(meta::Kv& kv, const meta::Keys& keys, Nanos look, Time deadline);

}  // namespace etcfs::ctl

#include "ctl/overview.h"

#include <algorithm>

#include "rt/rt.h"

namespace etcfs::ctl {
namespace {

class Loader {
 public:
  Loader(meta::Kv& kv, const meta::Keys& keys, Time deadline)
      : kv_(kv), keys_(keys), deadline_(deadline) {}

  // Everything at the revision of the first read.
  Result<meta::RangeReply> read(std::string key, std::string end, bool count_only = false) {
    meta::RangeOp op;
    op.key = std::move(key);
    op.end = std::move(end);
    op.count_only = count_only;
    ETCFS_TRY(meta::RangeReply reply, kv_.range(op, revision_, deadline_));
    if (revision_ == Revision{}) revision_ = reply.revision;
    return reply;
  }
  Result<meta::RangeReply> read_all(std::string_view kind, bool count_only = false) {
    const std::string prefix = keys_.all(kind);
    return read(prefix, meta::prefix_end(prefix), count_only);
  }
  Revision revision() const { return revision_; }

  Result<void> load_nodes(std::map<NodeName, NodeInfo>& nodes,
                          std::map<NodeName, Revision>& beats) {
    ETCFS_TRY(const meta::RangeReply epochs, read_all("epoch"));
    for (const meta::KeyValue& kv : epochs.kvs)
      if (auto node = keys_.parse_node("epoch", kv.key)) {
        ETCFS_TRY(nodes[*node].epoch, meta::decode_epoch(kv.value));
      }
    ETCFS_TRY(const meta::RangeReply beat, read_all("beat"));
    for (const meta::KeyValue& kv : beat.kvs)
      if (auto node = keys_.parse_node("beat", kv.key)) {
        beats[*node] = kv.mod_revision;
        ETCFS_TRY(nodes[*node].beat, meta::decode_beat(kv.value));
      }
    ETCFS_TRY(const meta::RangeReply live, read_all("live"));
    for (const meta::KeyValue& kv : live.kvs)
      if (auto node = keys_.parse_node("live", kv.key)) {
        ETCFS_TRY(nodes[*node].live, meta::decode_live(kv.value));
      }
    for (auto& [name, node] : nodes) node.name = name;
    return {};
  }

  Result<void> load_space(const meta::Super& super, std::map<NodeName, NodeInfo>& nodes,
                          SpaceInfo& space) {
    space.arenas = super.arenas();
    space.total_blocks = super.device_blocks - 1;  // block 0 is the identity
    space.free_blocks = space.total_blocks;
    ETCFS_TRY(const meta::RangeReply arenas, read_all("arena"));
    for (const meta::KeyValue& kv : arenas.kvs) {
      auto n = keys_.parse_arena(kv.key);
      if (!n || n->v >= super.arenas()) continue;  // check reports it
      ETCFS_TRY(const meta::Arena arena, meta::decode_arena(kv.value));
      const std::uint64_t first = n->v * super.arena_blocks;
      const std::uint64_t capacity =
          std::min(super.arena_blocks, super.device_blocks - first) - (n->v == 0 ? 1 : 0);
      space.free_blocks -= capacity - std::min(capacity, arena.free_blocks);
      if (arena.owner.empty()) continue;
      ++space.owned_arenas;
      auto owner = nodes.find(arena.owner);
      if (owner != nodes.end() && owner->second.epoch == arena.owner_epoch) ++owner->second.arenas;
    }
    ETCFS_TRY(const meta::RangeReply freed, read_all("freed", true));
    space.freed_keys = static_cast<std::uint64_t>(freed.count);
    return {};
  }

 private:
  meta::Kv& kv_;
  const meta::Keys& keys_;
  const Time deadline_;
  Revision revision_;
};

}  // namespace

std::string_view state_name(NodeInfo::State state) {
  switch (state) {
    case NodeInfo::State::kAlive:
      return "alive";
    case NodeInfo::State::kSilent:
      return "silent";
    case NodeInfo::State::kFenced:
      return "fenced";
    case NodeInfo::State::kLeft:
      return "left";
  }
  return "?";
}

Result<Overview> load_overview(meta::Kv& kv, const meta::Keys& keys, Nanos look, Time deadline) {
  Overview out;
  Loader loader(kv, keys, deadline);
  ETCFS_TRY(const meta::RangeReply super, loader.read(keys.super(), {}));
  if (super.kvs.empty()) return Reason::kNotFound;
  ETCFS_TRY(out.super, meta::decode_super(super.kvs[0].value));
  std::map<NodeName, NodeInfo> nodes;
  std::map<NodeName, Revision> beats, later;
  ETCFS_CHECK(loader.load_nodes(nodes, beats));
  ETCFS_CHECK(loader.load_space(out.super, nodes, out.space));
  ETCFS_TRY(const meta::RangeReply inodes, loader.read_all("i", true));
  out.inodes = static_cast<std::uint64_t>(inodes.count);
  out.revision = loader.revision();

  if (look > Nanos{} && !beats.empty()) {
    rt::sleep_for(look);
    meta::RangeOp op;
    op.key = keys.all("beat");
    op.end = meta::prefix_end(op.key);
    op.keys_only = true;
    ETCFS_TRY(const meta::RangeReply again, kv.range(op, Revision{}, deadline + look));
    for (const meta::KeyValue& item : again.kvs)
      if (auto node = keys.parse_node("beat", item.key)) later[*node] = item.mod_revision;
  }
  for (auto& [name, node] : nodes) {
    if (!node.beat) {
      node.state = NodeInfo::State::kLeft;
    } else if (node.beat->epoch < node.epoch) {
      node.state = NodeInfo::State::kFenced;
    } else {
      auto it = later.find(name);
      node.state = it != later.end() && it->second > beats[name] ? NodeInfo::State::kAlive
                                                                 : NodeInfo::State::kSilent;
    }
    out.nodes.push_back(std::move(node));
  }
  return out;
}

}  // namespace etcfs::ctl

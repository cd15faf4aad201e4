// nodes: every node name that etcd knows, and what it is doing.
#include "ctl/commands.h"
#include "ctl/output.h"
#include "ctl/overview.h"

namespace etcfs::ctl {
namespace {

constexpr Nanos kLook = 1200ms;  // nodes beat twice a second

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string nodes_json(const Context& context, const Overview& o) {
  Json json;
  json.begin_object().field("fs", context.common.fs_name).begin_array("nodes");
  for (const NodeInfo& node : o.nodes) {
    json.begin_object()
        .field("name", node.name)
        .field("state", state_name(node.state))
        .field("epoch", node.epoch.v)
        .field("arenas", node.arenas);
    if (node.live)
      json.field("host", node.live->host)
          .field("address", node.live->address)
          .field("version", node.live->version)
          .field("mountpoint", node.live->mountpoint)
          .field("started", utc(node.live->started));
    json.end();
  }
  return json.end().end().text();
}

}  // namespace

int nodes(const Context& context) {
  auto overview = load_overview(context.kv, context.keys, kLook, context.deadline());
  if (!overview && overview.error() == Reason::kNotFound) return context.fail_absent();
  if (!overview) return context.fail_etcd(overview.error());
  if (context.common.json) {
    context.out << nodes_json(context, *overview);
    return 0;
  }
  Table table(
      {"NODE", "STATE", "EPOCH", "ARENAS", "HOST", "ADDRESS", "VERSION", "STARTED", "MOUNTPOINT"});
  for (const NodeInfo& node : overview->nodes) {
    const meta::Live live = node.live.value_or(meta::Live{});
    table.row({node.name, std::string(state_name(node.state)), std::to_string(node.epoch.v),
               std::to_string(node.arenas), or_dash(live.host), or_dash(live.address),
               or_dash(live.version), node.live ? utc(live.started) : "-",
               or_dash(live.mountpoint)});
  }
  context.out << table.text();
  return 0;
}

}  // namespace etcfs::ctl

// status: one look at a filesystem: its etcd, its device, its nodes.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "ctl/commands.h"
#include "ctl/output.h"
#include "ctl/overview.h"

namespace etcfs::ctl {
namespace {

constexpr Nanos kLook = 1200ms;  // nodes beat twice a second

std::string_view overwrite_name(meta::Overwrite overwrite) {
  return overwrite == meta::Overwrite::kInPlace ? "in-place" : "redirect";
}

std::string status_json(const Context& context, const Overview& o, const meta::Kv::Status& etcd) {
  Json json;
  json.begin_object()
      .field("fs", context.common.fs_name)
      .field("uuid", uuid_text(o.super.uuid))
      .field("format_version", std::uint64_t{o.super.format_version})
      .field("created", utc(o.super.created))
      .field("overwrite", overwrite_name(o.super.overwrite))
      .field("device_bytes", o.super.device_blocks * kBlockBytes)
      .field("arena_bytes", o.super.arena_blocks * kBlockBytes)
      .field("arenas", o.space.arenas)
      .field("owned_arenas", o.space.owned_arenas)
      .field("total_bytes", o.space.total_blocks * kBlockBytes)
      .field("free_bytes", o.space.free_blocks * kBlockBytes)
      .field("inodes", o.inodes)
      .field("revision", static_cast<std::uint64_t>(o.revision.v));
  json.begin_object("etcd").field("version", etcd.version);
  json.field("db_bytes", static_cast<std::uint64_t>(etcd.db_bytes)).begin_array("endpoints");
  for (const std::string& endpoint : context.common.endpoints) json.item(endpoint);
  json.end().begin_array("alarms");
  for (const std::string& alarm : etcd.alarms) json.item(alarm);
  json.end().end().begin_array("nodes");
  for (const NodeInfo& node : o.nodes)
    json.begin_object()
        .field("name", node.name)
        .field("state", state_name(node.state))
        .field("epoch", node.epoch.v)
        .end();
  return json.end().end().text();
}

}  // namespace

int status(const Context& context) {
  auto overview = load_overview(context.kv, context.keys, kLook, context.deadline());
  if (!overview && overview.error() == Reason::kNotFound) return context.fail_absent();
  if (!overview) return context.fail_etcd(overview.error());
  auto etcd = context.kv.status(context.deadline());
  if (!etcd) return context.fail_etcd(etcd.error());
  if (context.common.json) {
    context.out << status_json(context, *overview, *etcd);
    return 0;
  }
  const Overview& o = *overview;
  std::string endpoints, alarms;
  for (const std::string& e : context.common.endpoints)
    endpoints += (endpoints.empty() ? "" : ",") + e;
  for (const std::string& a : etcd->alarms) alarms += (alarms.empty() ? "" : ", ") + a;
  std::uint64_t counts[4] = {};
  for (const NodeInfo& node : o.nodes) ++counts[static_cast<int>(node.state)];
  context.out << fmt::format("filesystem  {} ({}), made {}\n", context.common.fs_name,
                             uuid_text(o.super.uuid), utc(o.super.created))
              << fmt::format("etcd        {} at {}, database {}{}\n", etcd->version, endpoints,
                             human_bytes(static_cast<std::uint64_t>(etcd->db_bytes)),
                             alarms.empty() ? "" : ", ALARMS: " + alarms)
              << fmt::format("device      {} in {} arenas of {}, {} owned; overwrite {}\n",
                             human_bytes(o.super.device_blocks * kBlockBytes), o.space.arenas,
                             human_bytes(o.super.arena_blocks * kBlockBytes), o.space.owned_arenas,
                             overwrite_name(o.super.overwrite))
              << fmt::format("space       {} free of {}, {} inodes\n",
                             human_bytes(o.space.free_blocks * kBlockBytes),
                             human_bytes(o.space.total_blocks * kBlockBytes), o.inodes)
              << fmt::format("nodes       {} alive, {} silent, {} fenced, {} left\n", counts[0],
                             counts[1], counts[2], counts[3]);
  for (const NodeInfo& node : o.nodes)
    if (node.state != NodeInfo::State::kLeft)
      context.out << fmt::format(
          "  {} {}, epoch {}{}\n", node.name, state_name(node.state), node.epoch.v,
          node.live ? fmt::format(", on {} at {}", node.live->host, node.live->mountpoint) : "");
  return 0;
}

}  // namespace etcfs::ctl

// df: space by the summaries of the arenas, as statfs on a mount has it, without a mount.
#include <spdlog/fmt/fmt.h>

#include "ctl/commands.h"
#include "ctl/output.h"
#include "ctl/overview.h"

namespace etcfs::ctl {

int df(const Context& context) {
  auto overview = load_overview(context.kv, context.keys, Nanos{}, context.deadline());
  if (!overview && overview.error() == Reason::kNotFound) return context.fail_absent();
  if (!overview) return context.fail_etcd(overview.error());
  const SpaceInfo& s = overview->space;
  const std::uint64_t used = s.total_blocks - s.free_blocks;
  if (context.common.json) {
    Json json;
    context.out << json.begin_object()
                       .field("fs", context.common.fs_name)
                       .field("total_bytes", s.total_blocks * kBlockBytes)
                       .field("used_bytes", used * kBlockBytes)
                       .field("free_bytes", s.free_blocks * kBlockBytes)
                       .field("inodes", overview->inodes)
                       .field("arenas", s.arenas)
                       .field("owned_arenas", s.owned_arenas)
                       .field("unmerged_freed_lists", s.freed_keys)
                       .end()
                       .text();
    return 0;
  }
  const std::uint64_t percent =
      s.total_blocks == 0 ? 0 : (used * 100 + s.total_blocks - 1) / s.total_blocks;  // as df rounds
  Table table({"FILESYSTEM", "SIZE", "USED", "FREE", "USE%", "INODES", "ARENAS", "OWNED"});
  table.row({context.common.fs_name, human_bytes(s.total_blocks * kBlockBytes),
             human_bytes(used * kBlockBytes), human_bytes(s.free_blocks * kBlockBytes),
             fmt::format("{}%", percent), std::to_string(overview->inodes),
             std::to_string(s.arenas), std::to_string(s.owned_arenas)});
  context.out << table.text();
  return 0;
}

}  // namespace etcfs::ctl

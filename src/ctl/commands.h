// The commands. Each prints to context.out, one plain line to context.err when it fails, and
// returns the exit status. All block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ctl/session.h"
#include "meta/schema/records.h"

namespace etcfs::ctl {

struct MkfsOptions {
  std::string device;
  std::optional<std::uint64_t> arena_bytes;
  meta::Overwrite overwrite = meta::Overwrite::kRedirect;
  bool force = false;
  Nanos ttl = std::chrono::seconds(3);  // of the nodes: so long a living one may seem dead
};
int mkfs(const Context& context, const MkfsOptions& options);

struct CheckOptions {
  std::string device;          // to compare its size; empty: not looked at
  std::uint64_t most = 1'000;  // findings printed; JSON has them all
};
// 0 clean, 1 findings, 2 could not read.
int check(const Context& context, const CheckOptions& options);
inline constexpr int kCheckFindings = 1, kCheckUnreadable = 2;

int status(const Context& context);
int nodes(const Context& context);
int df(const Context& context);

// The whole program: parses, runs, returns the exit status.
int run(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace etcfs::ctl

// check: reads the whole image at one revision and holds it against its invariants. Read-only; an
// image that cannot be read whole is a failure, never "clean".
#include <spdlog/fmt/fmt.h>

#include "check/check.h"
#include "ctl/commands.h"
#include "ctl/mkfs_device.h"
#include "ctl/output.h"

namespace etcfs::ctl {
namespace {

std::uint64_t entry_count(const check::Image& image) {
  std::uint64_t count = 0;
  for (const auto& [directory, list] : image.entries) count += list.size();
  return count;
}

std::string check_json(const Context& context, const check::Image& image,
                       const check::Findings& findings) {
  Json json;
  json.begin_object()
      .field("fs", context.common.fs_name)
      .field("revision", static_cast<std::uint64_t>(image.revision.v))
      .field("keys", image.key_count)
      .field("inodes", std::uint64_t{image.inodes.size()})
      .field("entries", entry_count(image))
      .field("clean", findings.empty())
      .begin_array("findings");
  for (const check::Finding& f : findings)
    json.begin_object()
        .field("code", check::code_name(f.code))
        .field("key", check::printable(f.key))
        .field("message", f.message)
        .end();
  return json.end().end().text();
}

}  // namespace

int check(const Context& context, const CheckOptions& options) {
  std::optional<std::uint64_t> device_blocks;
  if (!options.device.empty()) {
    std::string why;
    auto bytes = device_bytes(options.device, why);
    if (!bytes) return context.fail(why, kCheckUnreadable);
    device_blocks = *bytes / kBlockBytes;
  }
  auto image = check::load_image(context.kv, context.keys, context.deadline() - rt::now());
  if (!image) return context.fail_etcd(image.error(), kCheckUnreadable);
  if (image->key_count == 0) return context.fail_absent(kCheckUnreadable);
  image->device_blocks = device_blocks;
  const check::Findings findings = check::check_all(*image);
  if (context.common.json) {
    context.out << check_json(context, *image, findings);
    return findings.empty() ? 0 : kCheckFindings;
  }
  for (std::size_t i = 0; i < findings.size() && i < options.most; ++i)
    context.out << check::to_string(findings[i]) << '\n';
  if (findings.size() > options.most)
    context.out << fmt::format("... and {} more (--most, --json)\n",
                               findings.size() - options.most);
  context.out << fmt::format(
      "{}: {} keys at revision {}, {} inodes, {} entries: {}\n", context.common.fs_name,
      image->key_count, image->revision.v, image->inodes.size(), entry_count(*image),
      findings.empty() ? std::string("clean") : fmt::format("{} findings", findings.size()));
  return findings.empty() ? 0 : kCheckFindings;
}

}  // namespace etcfs::ctl

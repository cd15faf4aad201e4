#include "check/check.h"

#include <spdlog/fmt/fmt.h>

namespace etcfs::check {

void check_super(const Image& image, Findings& out) {
  const std::string key = image.keys.super();
  if (!image.super) {
    if (image.broken.contains(key)) return;  // has its finding already
    out.push_back(
        {Code::kSuperMissing, key, "no such key: not a filesystem, or its super was lost"});
    return;
  }
  const meta::Super& s = *image.super;
  if (s.format_version != 1)
    out.push_back(
        {Code::kSuperUnsupported, key, fmt::format("format version {}", s.format_version)});
  if (s.incompatible_features != 0)
    out.push_back({Code::kSuperUnsupported, key,
                   fmt::format("incompatible features {:#x}", s.incompatible_features)});
  if (image.device_blocks && *image.device_blocks < s.device_blocks)
    out.push_back({Code::kDeviceTooSmall, key,
                   fmt::format("super says {} blocks, the device has {}", s.device_blocks,
                               *image.device_blocks)});
}

Findings check_all(const Image& image) {
  Findings out = image.findings;
  check_super(image, out);
  check_tree(image, out);
  check_files(image, out);
  check_space(image, out);
  check_holders(image, out);
  return out;
}

}  // namespace etcfs::check

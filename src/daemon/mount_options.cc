// The -o list: what mount(8), fstab and people put there.
#include <sys/mount.h>

#include <array>
#include <cmath>
#include <string>

#include "daemon/config.h"

namespace etcfs::daemon {
namespace {

struct Flag {
  std::string_view name;
  unsigned long set, clear;
};
constexpr std::array kFlags{
    Flag{"ro", MS_RDONLY, 0},
    Flag{"rw", 0, MS_RDONLY},
    Flag{"noatime", MS_NOATIME, MS_RELATIME | MS_STRICTATIME},
    Flag{"atime", 0, MS_NOATIME},
    Flag{"relatime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME},
    Flag{"norelatime", 0, MS_RELATIME},
    Flag{"strictatime", MS_STRICTATIME, MS_NOATIME | MS_RELATIME},
    Flag{"nodiratime", MS_NODIRATIME, 0},
    Flag{"diratime", 0, MS_NODIRATIME},
    Flag{"nosuid", MS_NOSUID, 0},
    Flag{"suid", 0, MS_NOSUID},
    Flag{"nodev", MS_NODEV, 0},
    Flag{"dev", 0, MS_NODEV},
    Flag{"noexec", MS_NOEXEC, 0},
    Flag{"exec", 0, MS_NOEXEC},
    Flag{"dirsync", MS_DIRSYNC, 0},
    Flag{"nosymfollow", 256 /* MS_NOSYMFOLLOW */, 0},
};

// For mount(8), systemd and people, or what is so anyway.
constexpr std::array<std::string_view, 15> kIgnored{
    "defaults", "_netdev", "auto",  "noauto", "nofail", "user",        "nouser",
    "users",    "nousers", "owner", "group",  "async",  "allow_other", "default_permissions",
    "_rnetdev"};

bool is_ignored(std::string_view name, bool has_value) {
  if (name.starts_with("x-") || name.starts_with("X-") || (has_value && name == "comment"))
    return true;
  for (std::string_view ignored : kIgnored)
    if (!has_value && ignored == name) return true;
  return false;
}

std::string apply_value(std::string_view name, const std::string& value, Config& c, bool& known) {
  known = true;
  if (name == "device") return c.device = value, std::string{};
  if (name == "node") return c.node = value, std::string{};
  if (name == "ca") return c.ca_file = value, std::string{};
  if (name == "cert") return c.cert_file = value, std::string{};
  if (name == "key") return c.key_file = value, std::string{};
  if (name == "username") return c.user = value, std::string{};
  if (name == "password-file") return c.password_file = value, std::string{};
  if (name == "log-file") return c.log_file = value, std::string{};
  if (name == "fsname") return c.source = value, std::string{};
  if (name == "readdirplus") {
    if (value == "always")
      c.mount.readdirplus = fuse::ReaddirPlus::kAlways;
    else if (value == "auto")
      c.mount.readdirplus = fuse::ReaddirPlus::kAuto;
    else if (value == "never")
      c.mount.readdirplus = fuse::ReaddirPlus::kNever;
    else
      return "readdirplus is always, auto or never";
    return {};
  }
  known = false;
  return {};
}

std::string apply_one(std::string_view option, Config& c) {
  const std::size_t equals = option.find('=');
  const bool has_value = equals != std::string_view::npos;
  const std::string_view name = option.substr(0, equals);
  if (is_ignored(name, has_value)) return {};
  if (!has_value) {
    if (name == "sync") {
      c.mount.sync = true;
      c.mount.flags |= MS_SYNCHRONOUS;  // the kernel follows each write with an FSYNC
      return {};
    }
    if (name == "dirsync") c.mount.sync = true;
    for (const Flag& flag : kFlags) {
      if (flag.name != name) continue;
      c.mount.flags = (c.mount.flags & ~flag.clear) | flag.set;
      return {};
    }
  } else {
    bool known = false;
    std::string why = apply_value(name, std::string(option.substr(equals + 1)), c, known);
    if (known) return why;
  }
  return "unknown mount option '" + std::string(option) + "'";
}

}  // namespace

std::string apply_mount_options(std::string_view list, Config& config) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0)
      if (std::string why = apply_one(list.substr(0, comma), config); !why.empty()) return why;
    list.remove_prefix(std::min(list.size(), comma + 1));
  }
  return {};
}

}  // namespace etcfs::daemon

// What one daemon is told: the command line of `etcfs`, of `mount.etcfs`, and a configuration file.
// Parsing touches nothing but the file it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/units.h"
#include "fuse/session.h"

namespace etcfs::daemon {

// The -o options that are not a part of the mount itself.
struct MountOptions {
  unsigned long flags = 0;  // MS_RDONLY, MS_NOATIME, …
  bool sync = false;        // every operation waits for its commit
  fuse::ReaddirPlus readdirplus = fuse::ReaddirPlus::kAlways;
};

struct Config {
  std::vector<std::string> endpoints;
  std::string ca_file, cert_file, key_file, user, password_file;
  std::string fs_name, device, mountpoint;
  std::string source;  // as mount and df show it
  NodeName node;
  MountOptions mount;
  bool foreground = false;
  bool helper = false;  // called by mount(8), which gives the exit status its own meaning
  log::Level log_level = log::Level::kInfo;
  std::string log_file;  // empty: standard error in the foreground, /var/log/etcfs-NODE.log else
  Nanos ttl = std::chrono::seconds(3);
  Nanos start_timeout = std::chrono::seconds(30);
  std::uint64_t dirty_bytes = 256 * kMiB;
  std::size_t cached_inodes = 400'000;

  void make_paths_absolute();  // of the files and the device, by the present directory
};

// Either a configuration, or what to print and the exit status (0 for --help and --version).
struct Parsed {
  std::optional<Config> config;
  std::string text;
  int status = 0;
};

// argv[0] ending in "mount.etcfs" selects the manner of mount(8)'s helpers.
Parsed parse_command_line(int argc, const char* const* argv);

// Applies a comma-separated -o list. Returns the plain reason why not, or an empty string.
std::string apply_mount_options(std::string_view list, Config& config);

// "E[,E…]/NAME", the source in fstab: nullopt when it has no such form.
struct MountSource {
  std::vector<std::string> endpoints;
  std::string fs_name;
};
std::optional<MountSource> parse_mount_source(std::string_view source);

// 4096, 64K, 256M, 1.5G (binary units); nullopt when it is none.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace etcfs::daemon

#include "daemon/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "daemon/version.h"
#include "meta/schema/keys.h"

namespace etcfs::daemon {
namespace {

constexpr double kShortestTtlS = 0.5, kLongestTtlS = 600;
constexpr int kUsage = 2;        // exit status of etcfs
constexpr int kHelperUsage = 1;  // and of a mount helper, see mount(8)

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) out.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(list.size(), comma + 1));
  }
  return out;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return {};
  return std::string(name).substr(0, 63);
}

std::optional<log::Level> parse_level(std::string_view text) {
  if (text == "debug") return log::Level::kDebug;
  if (text == "info") return log::Level::kInfo;
  if (text == "warn") return log::Level::kWarn;
  if (text == "error") return log::Level::kError;
  return std::nullopt;
}

// The options as text, before they mean anything.
struct Raw {
  std::vector<std::string> endpoints, mount_options;
  std::string log_level = "info", dirty_bytes = "256M";
  double ttl_s = 3, start_timeout_s = 30;
};

void add_options(CLI::App& app, Config& c, Raw& raw) {
  app.add_option("--etcd", raw.endpoints, "etcd endpoints, host:port, separated by commas")
      ->delimiter(',')
      ->type_name("E[,E...]");
  app.add_option("--fs", c.fs_name, "Name of the filesystem, as given to etcfsctl mkfs");
  app.add_option("--device", c.device,
                 "The shared block device (a regular file is taken too, for this node alone)");
  app.add_option("--node", c.node, "Name of this node; no two live processes may share it")
      ->default_str("host name");
  app.add_option("mountpoint", c.mountpoint, "Directory to mount on");
  app.add_option("-o,--options", raw.mount_options,
                 "Mount options, separated by commas: ro, sync, noatime, nosuid, nodev, noexec, "
                 "readdirplus=always|auto|never, ...")
      ->delimiter(',');
  app.add_flag("-f,--foreground", c.foreground, "Stay in the foreground and log to standard error");
  app.add_option("--ca", c.ca_file, "PEM file with the CA of etcd's certificate (means TLS)");
  app.add_option("--cert", c.cert_file, "PEM file with this client's certificate");
  app.add_option("--key", c.key_file, "PEM file with this client's key");
  app.add_option("--user", c.user, "etcd user");
  app.add_option("--password-file", c.password_file, "File with the etcd user's password");
  app.add_option("--ttl", raw.ttl_s, "Seconds after which a silent node is fenced")
      ->capture_default_str();
  app.add_option("--start-timeout", raw.start_timeout_s, "Seconds to wait for etcd at the start")
      ->capture_default_str();
  app.add_option("--dirty-bytes", raw.dirty_bytes, "Written data kept in memory at most")
      ->capture_default_str();
  app.add_option("--cached-inodes", c.cached_inodes, "Inodes kept in memory at most")
      ->capture_default_str();
  app.add_option("--log-level", raw.log_level, "debug, info, warn or error")->capture_default_str();
  app.add_option("--log-file", c.log_file,
                 "Log file; without it standard error in the foreground, else "
                 "/var/log/etcfs-NODE.log");
  app.set_config("--config", "", "TOML file with any of the long options above");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.set_version_flag("--version", std::string("etcfs ") + kVersion);
}

// The reason why the options together are not a configuration; empty: they are.
std::string complete(Config& c, const Raw& raw) {
  for (const std::string& option : raw.mount_options)
    if (std::string why = apply_mount_options(option, c); !why.empty()) return why;
  if (!raw.endpoints.empty()) c.endpoints = raw.endpoints;
  if (c.endpoints.empty()) return "--etcd is missing: where does etcd listen (host:port)?";
  if (c.fs_name.empty()) return "--fs is missing: which filesystem is to be mounted?";
  if (!meta::valid_fs_name(c.fs_name)) return "'" + c.fs_name + "' is no filesystem name";
  if (c.device.empty()) return "--device is missing: which block device holds the data?";
  if (c.mountpoint.empty()) return "the directory to mount on is missing";
  if (c.node.empty()) c.node = host_name();
  if (!meta::valid_node_name(c.node))
    return "'" + c.node + "' is no node name (letters, digits, '.', '_', '-', at most 63)";
  if (!(raw.ttl_s >= kShortestTtlS && raw.ttl_s <= kLongestTtlS))
    return "--ttl must be between 0.5 and 600 seconds";
  c.ttl = std::chrono::milliseconds(std::llround(raw.ttl_s * 1000));
  if (!(raw.start_timeout_s > 0 && raw.start_timeout_s <= 86400))
    return "--start-timeout must be a positive number of seconds";
  c.start_timeout = std::chrono::milliseconds(std::llround(raw.start_timeout_s * 1000));
  const auto dirty = parse_bytes(raw.dirty_bytes);
  if (!dirty || *dirty < kMiB) return "--dirty-bytes must be a size of at least 1M, such as 256M";
  c.dirty_bytes = *dirty;
  const auto level = parse_level(raw.log_level);
  if (!level) return "--log-level is one of debug, info, warn, error";
  c.log_level = *level;
  if (c.source.empty()) c.source = "etcfs#" + c.fs_name;
  return {};
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

Parsed refuse(const char* program, std::string why, int status) {
  return {std::nullopt, std::string(program) + ": " + one_line(std::move(why)) + "\n", status};
}

Parsed parse_etcfs(int argc, const char* const* argv) {
  CLI::App app("Mounts an EtcFS filesystem. Comes back when the mount is ready.", "etcfs");
  Config config;
  Raw raw;
  add_options(app, config, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& e) {
    return {std::nullopt, std::string(e.what()) + "\n", 0};
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help(), 0};
  } catch (const CLI::ParseError& e) {
    return refuse("etcfs", std::string(e.what()) + "; see etcfs --help", kUsage);
  }
  if (std::string why = complete(config, raw); !why.empty())
    return refuse("etcfs", why + "; see etcfs --help", kUsage);
  return {std::move(config), {}, 0};
}

// mount.etcfs SOURCE DIR [-sfnv] [-N namespace] [-t type] [-o options]
Parsed parse_helper(int argc, const char* const* argv) {
  constexpr const char* kName = "mount.etcfs";
  Config config;
  Raw raw;
  std::vector<std::string> places;
  bool fake = false;
  for (int i = 1; i < argc; i++) {
    const std::string_view arg = argv[i];
    if (!arg.starts_with('-') || arg.size() < 2) {
      places.emplace_back(arg);
      continue;
    }
    for (std::size_t k = 1; k < arg.size(); k++) {
      const char letter = arg[k];
      if (letter == 'f') fake = true;
      if (std::string_view("sfnv").find(letter) != std::string_view::npos) continue;
      if (std::string_view("oNt").find(letter) == std::string_view::npos)
        return refuse(kName, std::string("unknown option -") + letter, kHelperUsage);
      const bool here = k + 1 < arg.size();
      if (!here && i + 1 >= argc)
        return refuse(kName, std::string("option -") + letter + " needs a value", kHelperUsage);
      const std::string value(here ? arg.substr(k + 1) : std::string_view(argv[++i]));
      if (letter == 'o')
        for (std::string& option : split(value)) raw.mount_options.push_back(std::move(option));
      break;
    }
  }
  if (places.size() != 2)
    return refuse(kName, "usage: mount.etcfs E[,E...]/NAME DIR -o device=PATH[,node=NAME,...]",
                  kHelperUsage);
  const auto source = parse_mount_source(places[0]);
  if (!source)
    return refuse(kName,
                  "'" + places[0] + "' is no source; it has the form host:port[,host:port...]/NAME",
                  kHelperUsage);
  config.endpoints = source->endpoints;
  config.fs_name = source->fs_name;
  config.source = places[0];
  config.mountpoint = places[1];
  config.helper = true;
  if (std::string why = complete(config, raw); !why.empty()) {
    if (config.device.empty())
      why = "option device=PATH is missing: which block device holds the data?";
    return refuse(kName, why, kHelperUsage);
  }
  if (fake) return {std::nullopt, {}, 0};
  return {std::move(config), {}, 0};
}

}  // namespace

void Config::make_paths_absolute() {
  for (std::string* path : {&ca_file, &cert_file, &key_file, &password_file, &device, &log_file}) {
    std::error_code ignored;
    if (path->empty()) continue;
    const auto absolute = std::filesystem::absolute(*path, ignored);
    if (!ignored) *path = absolute.string();
  }
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  std::size_t used = 0;
  double number = 0;
  try {
    number = std::stod(std::string(text), &used);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  std::string_view unit = text.substr(used);
  double scale = 1;
  if (!unit.empty()) {
    const std::size_t power =
        std::string_view("KMGT").find(static_cast<char>(std::toupper(unit[0])));
    if (power == std::string_view::npos) return std::nullopt;
    scale = std::pow(1024.0, static_cast<double>(power + 1));
    unit.remove_prefix(1);
    if (unit != "" && unit != "iB" && unit != "B") return std::nullopt;
  }
  const double bytes = number * scale;
  if (!(bytes >= 0 && bytes < 9e18)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::optional<MountSource> parse_mount_source(std::string_view source) {
  const std::size_t slash = source.rfind('/');
  if (slash == std::string_view::npos || slash == 0 || source[slash - 1] == '/')
    return std::nullopt;
  MountSource out;
  out.endpoints = split(source.substr(0, slash));
  out.fs_name = source.substr(slash + 1);
  if (out.endpoints.empty() || !meta::valid_fs_name(out.fs_name)) return std::nullopt;
  return out;
}

Parsed parse_command_line(int argc, const char* const* argv) {
  const std::string_view program = argc > 0 ? argv[0] : "etcfs";
  if (program.substr(program.rfind('/') + 1) == "mount.etcfs") return parse_helper(argc, argv);
  return parse_etcfs(argc, argv);
}

}  // namespace etcfs::daemon

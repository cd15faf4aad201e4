// The command line of etcfsctl.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "ctl/commands.h"
#include "ctl/output.h"

namespace etcfs::ctl {
namespace {

constexpr const char* kVersion = "0.1.0";
constexpr const char* kExitStatus =
    "Exit status: 0 done, 1 failed (one line on standard error says why), 2 wrong usage.";
constexpr const char* kCheckExitStatus =
    "Exit status: 0 clean, 1 findings, 2 the image could not be read (or wrong usage).";

std::string valid_name(const std::string& name) {
  return meta::valid_fs_name(name) ? std::string()
                                   : "a name has 1 to 63 of the characters a-z A-Z 0-9 . _ -";
}

void add_common(CLI::App& app, Common& common, bool json) {
  app.add_option("--etcd", common.endpoints,
                 "etcd endpoints, separated by commas; or in the environment")
      ->delimiter(',')
      ->type_name("HOST:PORT[,...]")
      ->envname("ETCFS_ETCD")
      ->required();
  app.add_option("--fs", common.fs_name, "Name of the filesystem")
      ->type_name("NAME")
      ->check(valid_name)
      ->required();
  app.add_option("--cacert,--ca", common.ca_file,
                 "PEM file with the CA of etcd's certificate (means TLS)")
      ->type_name("FILE");
  app.add_option("--cert", common.cert_file, "PEM file with this client's certificate")
      ->type_name("FILE");
  app.add_option("--key", common.key_file, "PEM file with this client's key")->type_name("FILE");
  app.add_option("--user", common.user, "etcd user")->type_name("NAME[:PASSWORD]");
  app.add_option("--password-file", common.password_file, "File with the etcd user's password")
      ->type_name("FILE");
  app.add_option("--timeout", common.timeout_s, "Seconds to wait for an answer of etcd")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  if (json) app.add_flag("--json", common.json, "Print JSON");
}

// A command line once it is parsed.
struct Parsed {
  Common common;
  MkfsOptions mkfs;
  CheckOptions check;
  std::string arena_size, overwrite = "redirect";
  double ttl_s = 3;
  std::function<int(const Context&)> command;
  int failed = kFailed;
};

void add_mkfs(CLI::App& app, Parsed& p) {
  CLI::App* sub =
      app.add_subcommand("mkfs", "Make a filesystem: an identity on the device, a root in etcd");
  add_common(*sub, p.common, true);
  sub->add_option("--device", p.mkfs.device,
                  "The shared block device (or an image file, for one node alone)")
      ->type_name("PATH")
      ->required();
  sub->add_option("--arena-size", p.arena_size,
                  "Unit in which nodes own space: a power of two from 16M to 64G "
                  "(default: 1/1024 of the device, within 16M to 1G)")
      ->type_name("SIZE");
  sub->add_option(
         "--overwrite", p.overwrite,
         "Where overwritten data goes: 'redirect' to new blocks, which needs no assumption; or "
         "'in-place', only where hosts are never paused with writes under way")
      ->check(CLI::IsMember({"in-place", "redirect"}))
      ->capture_default_str();
  sub->add_flag(
      "--force", p.mkfs.force,
      "Destroy what is on the device or under the name (never what is mounted or in use)");
  sub->add_option("--ttl", p.ttl_s,
                  "With --force: seconds after which a silent node counts as dead")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  sub->footer(kExitStatus);
  sub->callback([&p] { p.command = [&p](const Context& c) { return mkfs(c, p.mkfs); }; });
}

void add_check(CLI::App& app, Parsed& p) {
  CLI::App* sub = app.add_subcommand(
      "check", "Read the whole filesystem at one moment and check its invariants; changes nothing");
  add_common(*sub, p.common, true);
  sub->add_option("--device", p.check.device, "Compare the size of this device, too")
      ->type_name("PATH");
  sub->add_option("--most", p.check.most, "Print at most so many findings")->capture_default_str();
  sub->footer(kCheckExitStatus);
  sub->callback([&p] {
    p.failed = kCheckUnreadable;
    p.command = [&p](const Context& c) { return check(c, p.check); };
  });
}

void add_plain(CLI::App& app, Parsed& p, const char* name, const char* description,
               int (*command)(const Context&)) {
  CLI::App* sub = app.add_subcommand(name, description);
  add_common(*sub, p.common, true);
  sub->footer(kExitStatus);
  sub->callback([&p, command] { p.command = command; });
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App app("etcfsctl: makes, watches and checks EtcFS filesystems");
  app.set_version_flag("--version", std::string("etcfsctl ") + kVersion);
  app.require_subcommand(1);
  app.footer("etcfsctl COMMAND --help tells the options of a command.");
  Parsed p;
  add_mkfs(app, p);
  add_plain(app, p, "status", "One look: etcd, device, space, nodes", &status);
  add_plain(app, p, "nodes", "All nodes and what they are doing", &nodes);
  add_check(app, p);
  add_plain(app, p, "df", "Space and inodes, without a mount", &df);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e, out, err);
    return 0;
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    err << "etcfsctl: " << e.what() << " (see etcfsctl"
        << (chosen.empty() ? "" : " " + chosen[0]->get_name()) << " --help)\n";
    return kUsage;
  }
  if (!p.arena_size.empty()) {
    p.mkfs.arena_bytes = parse_bytes(p.arena_size);
    if (!p.mkfs.arena_bytes) {
      err << "etcfsctl: --arena-size: '" << p.arena_size << "' is not a size like 64M\n";
      return kUsage;
    }
  }
  p.mkfs.overwrite =
      p.overwrite == "in-place" ? meta::Overwrite::kInPlace : meta::Overwrite::kRedirect;
  p.mkfs.ttl = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(p.ttl_s));
  return run_session(p.common, out, err, p.command, p.failed);
}

}  // namespace etcfs::ctl

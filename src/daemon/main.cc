// etcfs: one node of an EtcFS filesystem, mounted. Also mount.etcfs, by the name it is called.
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "daemon/background.h"
#include "daemon/config.h"
#include "daemon/host.h"
#include "daemon/mount.h"
#include "daemon/serve.h"

using etcfs::daemon::Startup;

int main(int argc, char** argv) {
  etcfs::daemon::Parsed parsed = etcfs::daemon::parse_command_line(argc, argv);
  if (!parsed.config) {
    std::fputs(parsed.text.c_str(), parsed.status == 0 ? stdout : stderr);
    return parsed.status;
  }
  etcfs::daemon::Config config = std::move(*parsed.config);
  const int failed = config.helper ? etcfs::daemon::kMountFailed : etcfs::daemon::kFailedToStart;

  // Before the fork: paths may be relative, and these refusals need no daemon.
  if (::geteuid() != 0) Startup().fail("mounting needs root", failed);
  auto point = etcfs::daemon::resolve_mountpoint(config.mountpoint);
  if (!point.why.empty()) Startup().fail(point.why, failed);
  config.mountpoint = point.path;
  config.make_paths_absolute();

  Startup startup;
  if (!config.foreground) {
    if (config.log_file.empty()) config.log_file = "/var/log/etcfs-" + config.node + ".log";
    startup = Startup::in_background(config.log_file);
  } else if (!config.log_file.empty() && !etcfs::daemon::redirect_to_log(config.log_file)) {
    startup.fail("cannot write the log file " + config.log_file, failed);
  }
  etcfs::log::set_level(config.log_level);
  etcfs::daemon::set_process_limits();

  // All threads inherit this mask; the runtime reads the signals from a descriptor.
  sigset_t signals;
  sigemptyset(&signals);
  for (int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, s);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  const int status = etcfs::daemon::serve(std::move(config), startup);
  std::fflush(nullptr);
  ::_exit(status);  // no destructors of what other threads may still use
}

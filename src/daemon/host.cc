#include "daemon/host.h"

#include <linux/prctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace etcfs::daemon {
namespace {

constexpr int kNice = -5;
constexpr const char* kOomScoreAdjust = "-800";

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

cluster::HostIdentity host_identity() {
  cluster::HostIdentity host;
  host.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  host.machine_id = first_line("/sys/class/dmi/id/product_uuid");
  if (host.machine_id.empty()) host.machine_id = first_line("/etc/machine-id");
  return host;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

void set_process_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ::setpriority(PRIO_PROCESS, 0, kNice);
  std::ofstream("/proc/self/oom_score_adj") << kOomScoreAdjust;
  ::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
}

}  // namespace etcfs::daemon

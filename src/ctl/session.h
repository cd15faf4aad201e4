// What every command has: the common options, a connection to etcd inside a runtime of its own, and
// one way to fail: a plain line that says what to do, and an exit status.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/result.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "rt/rt.h"

namespace etcfs::ctl {

struct Common {
  std::vector<std::string> endpoints;
  std::string fs_name;
  std::string ca_file, cert_file, key_file;
  std::string user;           // NAME or NAME:PASSWORD
  std::string password_file;  // instead of a password on the command line
  double timeout_s = 10;      // for one answer of etcd
  bool json = false;
};

// Where a command runs: in a fiber.
struct Context {
  meta::Kv& kv;
  const meta::Keys& keys;
  const Common& common;
  std::ostream& out;
  std::ostream& err;
  Time deadline() const {
    return rt::now() +
           std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(common.timeout_s));
  }
  // Prints "etcfsctl: <line>" and returns `status`.
  int fail(std::string_view line, int status = 1) const;
  // The same for an error of etcd's: what failed, and what to do.
  int fail_etcd(Reason reason, int status = 1) const;
  // There is no filesystem of that name: says so, and which there are.
  int fail_absent(int status = 1) const;
};

inline constexpr int kFailed = 1, kUsage = 2;

// Connects and runs the command in a fiber; its exit status. `failed`: the status when there is no
// connection to be had at all.
int run_session(const Common& common, std::ostream& out, std::ostream& err,
                const std::function<int(const Context&)>& command, int failed = kFailed);

// Names of all filesystems in this etcd. Blocks.
Result<std::vector<std::string>> list_filesystems(meta::Kv& kv, Time deadline);

}  // namespace etcfs::ctl

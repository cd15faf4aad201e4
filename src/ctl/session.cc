#include "ctl/session.h"

#include <spdlog/fmt/fmt.h>

#include <fstream>
#include <sstream>

#include "base/log.h"
#include "meta/etcd/etcd_kv.h"

namespace etcfs::ctl {
namespace {

std::string join(const std::vector<std::string>& list, std::string_view separator) {
  std::string out;
  for (const std::string& item : list) {
    if (!out.empty()) out += separator;
    out += item;
  }
  return out;
}

// The line for an error of etcd's: what it is, and what to do about it.
std::string explain(Reason reason, const Common& common) {
  const std::string where = join(common.endpoints, ",");
  switch (reason) {
    case Reason::kTimeout:
    case Reason::kUnavailable:
      return fmt::format(
          "no answer from etcd at {} within {} s: check that it runs, and --etcd and the TLS "
          "options",
          where, common.timeout_s);
    case Reason::kAccess:
      return fmt::format("etcd at {} refuses the access: check --user and the user's role", where);
    case Reason::kMetadataFull:
      return fmt::format(
          "etcd at {} is out of space (NOSPACE alarm): compact and defragment it, "
          "then disarm the alarm",
          where);
    case Reason::kCorrupt:
      return fmt::format("{}: {}; 'etcfsctl check' tells which", common.fs_name,
                         reason_text(reason));
    default:
      return fmt::format("etcd at {}: {}", where, reason_text(reason));
  }
}

Result<meta::EtcdOptions> etcd_options(const Common& common, std::string& why) {
  meta::EtcdOptions options;
  options.endpoints = common.endpoints;
  options.ca_file = common.ca_file;
  options.cert_file = common.cert_file;
  options.key_file = common.key_file;
  for (const std::string* path : {&common.ca_file, &common.cert_file, &common.key_file})
    if (!path->empty() && !std::ifstream(*path).is_open()) {
      why = fmt::format("cannot read {}: check the path and its permissions", *path);
      return Reason::kNotFound;
    }
  const std::size_t colon = common.user.find(':');
  options.user = common.user.substr(0, colon);
  if (colon != std::string::npos) options.password = common.user.substr(colon + 1);
  if (!common.password_file.empty()) {
    std::ifstream in(common.password_file);
    if (!in.is_open() || !std::getline(in, options.password)) {
      why = fmt::format("cannot read a password from {}: check the path and its permissions",
                        common.password_file);
      return Reason::kNotFound;
    }
  }
  return options;
}

}  // namespace

int Context::fail(std::string_view line, int status) const {
  err << "etcfsctl: " << line << '\n';
  return status;
}
int Context::fail_etcd(Reason reason, int status) const {
  return fail(explain(reason, common), status);
}
int Context::fail_absent(int status) const {
  auto names = list_filesystems(kv, deadline());
  if (!names) return fail_etcd(names.error(), status);
  return fail(fmt::format("etcd at {} has no filesystem '{}' ({}): check --fs, or make it with "
                          "'etcfsctl mkfs'",
                          join(common.endpoints, ","), common.fs_name,
                          names->empty() ? "nor any other" : "it has: " + join(*names, ", ")),
              status);
}

int run_session(const Common& common, std::ostream& out, std::ostream& err,
                const std::function<int(const Context&)>& command, int failed) {
  // What goes wrong is said in one line of our own.
  log::set_sink([](log::Level, const std::string&) {});
  std::string why;
  auto options = etcd_options(common, why);
  if (!options) {
    err << "etcfsctl: " << why << '\n';
    return failed;
  }
  int status = failed;
  rt::Runtime runtime({.stack_bytes = 1024 * 1024});
  rt::Group group(runtime, "etcfsctl");
  group.spawn([&] {
    auto kv = meta::connect(*options);
    if (!kv) {
      err << "etcfsctl: " << join(common.endpoints, ",")
          << " is not a list of etcd endpoints: --etcd takes HOST:PORT[,HOST:PORT...]\n";
    } else {
      const meta::Keys keys(common.fs_name);
      status = command(Context{**kv, keys, common, out, err});
    }
    runtime.stop();
  });
  runtime.run();
  return status;
}

Result<std::vector<std::string>> list_filesystems(meta::Kv& kv, Time deadline) {
  constexpr std::string_view kRoot = "/etcfs/";
  std::vector<std::string> names;
  meta::RangeOp op;
  op.key = kRoot;
  op.end = meta::prefix_end(op.key);
  op.limit = 1;
  op.keys_only = true;
  for (;;) {  // one hop per filesystem, however many keys it has
    ETCFS_TRY(meta::RangeReply reply, kv.range(op, Revision{}, deadline));
    if (reply.kvs.empty()) return names;
    const std::string& key = reply.kvs[0].key;
    const std::size_t slash = key.find('/', kRoot.size());
    if (slash == std::string::npos) {  // not ours
      op.key = key + '\0';
      continue;
    }
    const std::string name = key.substr(kRoot.size(), slash - kRoot.size());
    if (meta::valid_fs_name(name)) names.push_back(name);
    op.key = meta::prefix_end(std::string(kRoot) + name + "/");
  }
}

}  // namespace etcfs::ctl

#include "daemon/serve.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "base/log.h"
#include "block/identity.h"
#include "block/uring_device.h"
#include "daemon/host.h"
#include "daemon/mount.h"
#include "daemon/node.h"
#include "daemon/version.h"
#include "fuse/kernel_cache.h"
#include "fuse/session.h"
#include "meta/etcd/etcd_kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"
#include "rt/rt.h"

namespace etcfs::daemon {
namespace {

constexpr unsigned kReadAheadKib = 4096;
constexpr auto kReadyTimeout = 10s;
constexpr auto kLockRetry = 50ms;

std::string endpoints_text(const Config& config) {
  std::string out;
  for (const std::string& e : config.endpoints) out += (out.empty() ? "" : ",") + e;
  return out;
}

class Daemon {
 public:
  Daemon(rt::Runtime& runtime, Config config, Startup& startup)
      : runtime_(runtime), config_(std::move(config)), startup_(startup), kernel_(runtime) {}

  int run();                   // in a fiber
  void on_signal(int signal);  // outside any fiber

 private:
  // Each returns the plain reason why not, or an empty string.
  std::string open_device();
  std::string lock_node_name();
  std::string connect();
  std::string load_super();
  std::string start_node();
  std::string start_session();
  std::string start();
  NodeConfig node_config();
  std::string etcd_failed(Reason reason) const;
  void stop();

  rt::Runtime& runtime_;
  const Config config_;
  Startup& startup_;
  std::unique_ptr<block::UringDevice> device_;
  std::unique_ptr<meta::Kv> kv_;
  fuse::KernelCache kernel_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<fuse::Session> session_;
  std::string mounted_;  // "major:minor" of our mount
  rt::Condition changed_;
  int signals_while_stopping_ = 0;
  bool started_ = false, signalled_ = false, gone_ = false, fenced_ = false, stopping_ = false;
  bool data_lost_ = false;
};

std::string Daemon::etcd_failed(Reason reason) const {
  return "etcd at " + endpoints_text(config_) +
         " cannot be used: " + std::string(reason_text(reason));
}

std::string Daemon::open_device() {
  auto device = block::UringDevice::open(config_.device, {.allow_file = true});
  if (!device) {
    std::string why = "device " + config_.device + ": ";
    switch (device.error()) {
      case Reason::kInvalid:
        return why + "neither a block device nor a regular file, or empty";
      case Reason::kNotSupported:
        return why + "no direct I/O, or this kernel has no io_uring";
      default:
        return why + std::string(reason_text(device.error()));
    }
  }
  device_ = std::move(*device);
  if (!device_->is_block_device()) {
    ETCFS_LOG_WARN("the device is a regular file, which no other host shares",
                   log::field("path", config_.device));
  }
  return {};
}

// Without the lock nothing starts: it is what a successor takes for the proof that we have ended. A
// predecessor that has just been killed may still have requests on the device.
std::string Daemon::lock_node_name() {
  const Time deadline = runtime_.now() + config_.ttl + 1s;
  for (;;) {
    const Result<bool> taken = device_->try_lock_node(config_.node);
    if (!taken)
      return "device " + config_.device +
             ": cannot be locked: " + std::string(reason_text(taken.error()));
    if (*taken) return {};
    if (runtime_.now() >= deadline) {
      return "node name '" + config_.node +
             "' is in use: another process on this host has device " + config_.device +
             " open under it; end that one, or choose another --node";
    }
    rt::sleep_for(kLockRetry);
  }
}

std::string Daemon::connect() {
  meta::EtcdOptions options;
  options.endpoints = config_.endpoints;
  options.ca_file = config_.ca_file;
  options.cert_file = config_.cert_file;
  options.key_file = config_.key_file;
  options.user = config_.user;
  if (!config_.password_file.empty()) {
    std::ifstream file(config_.password_file);
    if (!std::getline(file, options.password))
      return "password file " + config_.password_file + " cannot be read";
  }
  auto kv = meta::connect(options);
  if (!kv) {
    if (kv.error() == Reason::kNotFound) return "a TLS file (--ca, --cert, --key) cannot be read";
    return "--etcd " + endpoints_text(config_) + ": " + std::string(reason_text(kv.error()));
  }
  kv_ = std::move(*kv);
  return {};
}

// Before anything else is asked of etcd or written anywhere: is this the right device?
std::string Daemon::load_super() {
  const meta::Keys keys(config_.fs_name);
  const auto reply =
      kv_->range({.key = keys.super()}, Revision{}, runtime_.now() + config_.start_timeout);
  if (!reply) return etcd_failed(reply.error());
  if (reply->kvs.empty()) {
    return "etcd at " + endpoints_text(config_) + " has no filesystem '" + config_.fs_name +
           "'; make it with etcfsctl mkfs";
  }
  const auto super = meta::decode_super(reply->kvs[0].value);
  if (!super) return "the record of filesystem '" + config_.fs_name + "' is damaged";
  if (const Result<void> right = block::verify_device(*device_, *super); !right) {
    return "device " + config_.device + " is not the one of filesystem '" + config_.fs_name +
           "': " + std::string(reason_text(right.error()));
  }
  return {};
}

NodeConfig Daemon::node_config() {
  NodeConfig node;
  node.fs_name = config_.fs_name;
  node.name = config_.node;
  node.host = host_identity();
  node.host.device_dev = device_->node_dev();
  node.host.device_ino = device_->node_ino();
  node.host.device_lock_taken = true;
  node.membership.ttl = config_.ttl;
  node.membership.beat_interval = std::min<Nanos>(500ms, config_.ttl / 6);
  node.membership.version = kVersion;
  node.membership.host = host_name();
  node.membership.mountpoint = config_.mountpoint;
  node.fs.sync = config_.mount.sync;
  node.fs.dirty_bytes = config_.dirty_bytes;
  node.fs.cached_inodes = config_.cached_inodes;
  node.start_timeout = config_.start_timeout;
  return node;
}

std::string Daemon::start_node() {
  node_ = std::make_unique<Node>(*kv_, *device_, kernel_, node_config());
  node_->on_fenced([this] {
    fenced_ = true;
    changed_.notify_all();
  });
  const Result<void> started = node_->start();
  if (started) return {};
  node_.reset();  // it has taken itself down
  switch (started.error()) {
    case Reason::kBusy:
      return "node name '" + config_.node + "' is in use by a live process; choose another --node";
    case Reason::kNotSupported:
      return "filesystem '" + config_.fs_name + "' has features that this version does not know";
    case Reason::kTimeout:
    case Reason::kUnavailable:
      return etcd_failed(started.error());
    default:
      return "node '" + config_.node +
             "' does not start: " + std::string(reason_text(started.error())) + " (" +
             std::string(reason_name(started.error())) + ")";
  }
}

std::string Daemon::start_session() {
  const Mounted mount = mount_fuse(config_.mountpoint, config_.source, config_.mount.flags);
  if (mount.fd < 0) return "mount point " + config_.mountpoint + ": " + mount.why;
  mounted_ = mounted_device(config_.mountpoint);
  kernel_.attach(mount.fd);  // before the first answer that the kernel may keep
  session_ = std::make_unique<fuse::Session>(
      runtime_, node_->fs(), fuse::SessionOptions{.readdirplus = config_.mount.readdirplus});
  const Result<void> started = session_->start(mount.fd, [this] {
    gone_ = true;
    changed_.notify_all();
  });
  if (!started) return std::string("FUSE session: ") + std::string(reason_text(started.error()));
  if (!session_->wait_ready(runtime_.now() + kReadyTimeout))
    return "the kernel did not finish the mount";
  kernel_.set_expire_entries(session_->kernel().expire_entries);
  if (!session_->kernel().expire_entries || !session_->kernel().killpriv_v2) {
    ETCFS_LOG_WARN("an old kernel: sharing directories and writing will be slower",
                   log::field("fuse", session_->kernel().minor));
  }
  set_read_ahead(mounted_, kReadAheadKib);
  return {};
}

std::string Daemon::start() {
  using Step = std::string (Daemon::*)();
  for (Step step : {&Daemon::open_device, &Daemon::connect, &Daemon::load_super,
                    &Daemon::lock_node_name, &Daemon::start_node, &Daemon::start_session}) {
    if (std::string why = (this->*step)(); !why.empty()) return why;
  }
  return {};
}

// In reverse. With the mount gone nobody asks any more; where it was busy or the node was fenced,
// what still comes is refused.
void Daemon::stop() {
  stopping_ = true;
  if (fenced_ && session_) session_->refuse(Reason::kFenced);
  if (!mounted_.empty() && !gone_) {
    if (!unmount(runtime_, config_.mountpoint, mounted_, /*force=*/fenced_))
      ETCFS_LOG_WARN("the mount was busy: open files end with an error");
  }
  if (session_ && !fenced_) session_->refuse(Reason::kShutdown);
  if (node_ && !node_->stop()) data_lost_ = true;
  if (session_) session_->stop();
  kernel_.detach();
}

int Daemon::run() {
  const std::string why = start();
  if (!why.empty()) {
    stop();
    ETCFS_LOG_WARN("the node does not start", log::field("why", why));
    startup_.fail(why, config_.helper ? kMountFailed : kFailedToStart);
  }
  ETCFS_LOG_INFO("mounted", log::field("mountpoint", config_.mountpoint),
                 log::field("fs", config_.fs_name), log::field("node", config_.node),
                 log::field("device", config_.device), log::field("version", kVersion));
  startup_.ready();
  started_ = true;
  changed_.wait([this] { return signalled_ || gone_ || fenced_; });
  if (fenced_) {
    ETCFS_LOG_ERROR(
        "this node was fenced: it serves no more, acknowledged writes that were not "
        "synced are lost; mount it again",
        log::field("node", config_.node));
  }
  stop();
  const auto& n = session_->counters();
  ETCFS_LOG_INFO("ended", log::field("node", config_.node), log::field("requests", n.requests),
                 log::field("reads", n.reads), log::field("fibers", n.fibers));
  session_.reset();
  node_.reset();
  kv_.reset();
  device_.reset();
  if (fenced_) return kWasFenced;
  return data_lost_ ? kDataLost : kClean;
}

void Daemon::on_signal(int signal) {
  if (signal == SIGHUP) {
    if (startup_.background() && !config_.log_file.empty()) redirect_to_log(config_.log_file);
    return;
  }
  if (stopping_ && ++signals_while_stopping_ + (signalled_ ? 1 : 0) >= 2) {
    ETCFS_LOG_WARN("ends in haste, without leaving the cluster: what is not in etcd is lost");
    ::_exit(kLeftInHaste);
  }
  if (stopping_) {  // after umount: systemd, for one, sends SIGTERM then
    ETCFS_LOG_INFO("is leaving already; another signal ends it at once",
                   log::field("signal", signal));
    return;
  }
  ETCFS_LOG_INFO("ends by signal", log::field("signal", signal));
  // Nothing has been acknowledged yet, and whatever of the mount stands ends with the process.
  if (!started_) startup_.fail("ended by a signal while starting", kFailedToStart);
  signalled_ = true;
  changed_.notify_all();
}

}  // namespace

int serve(Config config, Startup& startup) {
  rt::Runtime runtime;
  int status = 0;
  {
    rt::Group group(runtime, "daemon");
    Daemon daemon(runtime, std::move(config), startup);
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, s);
    const int fd = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    ETCFS_ASSERT(fd >= 0);
    runtime.add_poll(fd, [&daemon, fd] {
      signalfd_siginfo info{};
      while (::read(fd, &info, sizeof info) == sizeof info)
        daemon.on_signal(static_cast<int>(info.ssi_signo));
    });
    group.spawn([&] {
      status = daemon.run();
      runtime.stop();
    });
    runtime.run();
    runtime.remove_poll(fd);
    ::close(fd);
  }
  return status;
}

}  // namespace etcfs::daemon

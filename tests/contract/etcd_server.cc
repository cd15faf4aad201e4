#include "tests/contract/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace etcfs::testing {
namespace {

constexpr const char* kProgram = "/usr/bin/etcd";

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// GET /health of the metrics port, which speaks plain HTTP in every configuration.
bool healthy(int port) {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  timeval patience{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in address = loopback(port);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /health HTTP/1.0\r\n\r\n";
    if (::write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[512];
      for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
        answer.append(buffer, static_cast<std::size_t>(n));
    }
  }
  ::close(fd);
  return answer.find("\"health\":\"true\"") != std::string::npos;
}

std::string make_directory() {
  // In memory where possible: these tests are not about the disk's flushes.
  std::string base = ::access("/dev/shm", W_OK) == 0
                         ? "/dev/shm"
                         : std::filesystem::temp_directory_path().string();
  std::string path = base + "/etcfs-etcd-XXXXXX";
  if (!::mkdtemp(path.data())) throw std::runtime_error("mkdtemp " + path);
  return path;
}

}  // namespace

int free_port() {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no free port");
  ::close(fd);
  return ntohs(address.sin_port);
}

bool EtcdServer::installed() { return ::access(kProgram, X_OK) == 0; }

EtcdServer::EtcdServer(EtcdServerOptions options)
    : options_(std::move(options)), metrics_port_(free_port()), directory_(make_directory()) {
  if (options_.client_port == 0) options_.client_port = free_port();
  if (options_.peer_port == 0) options_.peer_port = free_port();
}

EtcdServer::~EtcdServer() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string EtcdServer::endpoint() const {
  return "127.0.0.1:" + std::to_string(options_.client_port);
}
std::string EtcdServer::peer_url() const {
  return "http://127.0.0.1:" + std::to_string(options_.peer_port);
}

void EtcdServer::launch() {
  if (running()) return;
  std::string url = (options_.tls ? "https://" : "http://") + endpoint();
  std::string cluster = options_.initial_cluster.empty() ? options_.name + "=" + peer_url()
                                                         : options_.initial_cluster;
  std::vector<std::string> arguments = {kProgram,
                                        "--name",
                                        options_.name,
                                        "--data-dir",
                                        directory_ + "/data",
                                        "--listen-client-urls",
                                        url,
                                        "--advertise-client-urls",
                                        url,
                                        "--listen-peer-urls",
                                        peer_url(),
                                        "--initial-advertise-peer-urls",
                                        peer_url(),
                                        "--initial-cluster",
                                        cluster,
                                        "--initial-cluster-state",
                                        "new",
                                        "--listen-metrics-urls",
                                        "http://127.0.0.1:" + std::to_string(metrics_port_),
                                        "--logger",
                                        "zap",
                                        "--log-level",
                                        "warn"};
  if (options_.tls)
    for (const char* argument :
         {"--cert-file", "server.crt", "--key-file", "server.key", "--trusted-ca-file", "ca.crt"}) {
      std::string text = argument;
      arguments.push_back(text.starts_with("--") ? text : directory_ + "/" + text);
    }
  if (options_.tls) arguments.push_back("--client-cert-auth");
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::string log_path = directory_ + "/log";

  pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ > 0) return;
  // Nothing but system calls from here: other threads may have held locks.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  int log = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log >= 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  }
  ::execv(kProgram, argv.data());
  ::_exit(127);
}

bool EtcdServer::wait_ready() {
  for (int i = 0; i < 3000; i++) {
    if (healthy(metrics_port_)) return true;
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return false;
    }
    timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return false;
}

void EtcdServer::kill() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::pause() {
  if (running()) ::kill(pid_, SIGSTOP);
}
void EtcdServer::resume() {
  if (running()) ::kill(pid_, SIGCONT);
}

std::string EtcdServer::log() const {
  std::ifstream in(directory_ + "/log");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

EtcdCluster::EtcdCluster(std::size_t members) {
  std::string cluster;
  std::vector<EtcdServerOptions> options(members);
  for (std::size_t i = 0; i < members; i++) {
    options[i].name = "m" + std::to_string(i);
    options[i].peer_port = free_port();
    if (i > 0) cluster += ",";
    cluster += options[i].name + "=http://127.0.0.1:" + std::to_string(options[i].peer_port);
  }
  for (EtcdServerOptions& option : options) {
    option.initial_cluster = cluster;
    members_.push_back(std::make_unique<EtcdServer>(option));
  }
}

bool EtcdCluster::start() {
  for (auto& member : members_) member->launch();
  for (auto& member : members_)
    if (!member->wait_ready()) return false;
  return true;
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> all;
  for (const auto& member : members_) all.push_back(member->endpoint());
  return all;
}

}  // namespace etcfs::testing

// An etcd of the test's own: the `etcd` program on free loopback ports with a temporary data
// directory, which survives kill() and start() and goes away with the object. Nothing else is
// touched.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace etcfs::testing {

struct EtcdServerOptions {
  std::string name = "test";
  std::string initial_cluster;         // empty: alone
  int client_port = 0, peer_port = 0;  // 0: a free one
  bool tls = false;                    // client side; the certificates stand in directory()
  std::vector<std::string> arguments;  // further ones
};

int free_port();  // of 127.0.0.1, at the moment

class EtcdServer {
 public:
  static bool installed();
  explicit EtcdServer(EtcdServerOptions options = {});  // does not start it
  ~EtcdServer();                                        // kills it, removes the directory
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  void launch();      // returns at once
  bool wait_ready();  // until it has a leader and answers; false after half a minute
  bool start() { return launch(), wait_ready(); }
  void kill();   // SIGKILL, and waits for its end
  void pause();  // SIGSTOP
  void resume();
  bool running() const { return pid_ > 0; }

  int client_port() const { return options_.client_port; }
  std::string endpoint() const;  // "127.0.0.1:port"
  std::string peer_url() const;
  const std::string& directory() const { return directory_; }
  std::string log() const;  // what it has written

 private:
  EtcdServerOptions options_;
  int metrics_port_ = 0;
  std::string directory_;
  pid_t pid_ = -1;
};

class EtcdCluster {
 public:
  explicit EtcdCluster(std::size_t members);
  bool start();
  EtcdServer& member(std::size_t i) { return *members_[i]; }
  std::size_t size() const { return members_.size(); }
  std::vector<std::string> endpoints() const;

 private:
  std::vector<std::unique_ptr<EtcdServer>> members_;
};

}  // namespace etcfs::testing

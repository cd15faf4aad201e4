// A relay between a client and a server on loopback that the test can cut or make swallow
// everything.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace etcfs::testing {

class TcpProxy {
 public:
  explicit TcpProxy(int target_port);
  ~TcpProxy();

  int port() const { return port_; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

  void cut();                     // ends all connections and refuses new ones
  void restore();                 // lets everything pass again
  void swallow_replies(bool on);  // what the server sends is thrown away; connections stay

 private:
  struct Pair {
    int client = -1, server = -1;
    bool dead = false;
  };
  void run();
  bool relay(int from, int to, bool throw_away);

  const int target_port_;
  int listener_ = -1, port_ = 0, wake_[2] = {-1, -1};
  std::atomic<bool> stop_{false}, cut_{false}, swallow_{false};
  std::vector<Pair> pairs_;  // of the thread
  std::thread thread_;
  void wake();
};

}  // namespace etcfs::testing

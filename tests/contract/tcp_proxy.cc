#include "tests/contract/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace etcfs::testing {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

}  // namespace

TcpProxy::TcpProxy(int target_port) : target_port_(target_port) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::pipe(wake_) != 0)
    throw std::runtime_error("proxy");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  stop_ = true;
  wake();
  thread_.join();
  for (int fd : {listener_, wake_[0], wake_[1]}) ::close(fd);
}

void TcpProxy::wake() {
  char byte = 0;
  if (::write(wake_[1], &byte, 1) != 1) throw std::runtime_error("proxy pipe");
}

void TcpProxy::cut() {
  cut_ = true;
  wake();
}

void TcpProxy::restore() {
  cut_ = swallow_ = false;
  wake();
}

void TcpProxy::swallow_replies(bool on) {
  swallow_ = on;
  wake();
}

// What is read while the connection is swallowing is lost for good, so it breaks when that ends.
bool TcpProxy::relay(int from, int to, bool throw_away) {
  char buffer[65536];
  ssize_t n = ::recv(from, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  if (throw_away) return true;
  for (ssize_t done = 0; done < n;) {
    ssize_t m = ::send(to, buffer + done, static_cast<std::size_t>(n - done), MSG_NOSIGNAL);
    if (m <= 0) return false;
    done += m;
  }
  return true;
}

void TcpProxy::run() {
  bool swallowed = false;
  while (!stop_) {
    std::vector<pollfd> polls = {{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      polls.push_back({pair.client, POLLIN, 0});
      polls.push_back({pair.server, POLLIN, 0});
    }
    if (::poll(polls.data(), polls.size(), -1) < 0) continue;
    if (polls[0].revents) {
      char byte;
      if (::read(wake_[0], &byte, 1) != 1) return;
    }
    std::size_t known = pairs_.size();
    bool end_all = cut_ || (swallowed && !swallow_);
    swallowed = swallow_;
    for (std::size_t i = 0; i < known; i++) {
      Pair& pair = pairs_[i];
      if (polls[2 + 2 * i].revents)
        pair.dead = pair.dead || !relay(pair.client, pair.server, false);
      if (!pair.dead && polls[3 + 2 * i].revents)
        pair.dead = !relay(pair.server, pair.client, swallow_);
      if (end_all) pair.dead = true;
    }
    if (polls[1].revents) {
      int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = loopback(target_port_);
      if (client >= 0 && server >= 0 && !cut_ &&
          ::connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
        pairs_.push_back({client, server});
      } else {
        ::close(client);
        ::close(server);
      }
    }
    for (Pair& pair : pairs_)
      if (pair.dead) {
        ::close(pair.client);
        ::close(pair.server);
      }
    std::erase_if(pairs_, [](const Pair& pair) { return pair.dead; });
  }
  for (Pair& pair : pairs_) {
    ::close(pair.client);
    ::close(pair.server);
  }
}

}  // namespace etcfs::testing

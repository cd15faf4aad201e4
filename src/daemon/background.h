// Start-up in the background: the command comes back when the mount is ready, or with the reason
// why not in one line. The process forks before it has any thread, so that gRPC and io_uring live
// in the child alone.
#pragma once

#include <string>

namespace etcfs::daemon {

class Startup {
 public:
  // Foreground: everything is said on standard error.
  Startup() = default;
  // Forks. In the parent this does not return: it waits for the child's word, prints the line if it
  // is a bad one, and exits with the child's status. The child gets a session of its own, "/" as
  // working directory, and the log file as standard output and error.
  static Startup in_background(const std::string& log_file);

  void ready();                                                // the parent exits with 0
  [[noreturn]] void fail(const std::string& why, int status);  // "etcfs: <why>", then exits
  bool background() const { return pipe_ >= 0; }

 private:
  int pipe_ = -1;  // to the waiting parent
  bool told_ = false;
};

// Makes standard output and error the log file, appending. False: it cannot be opened (errno).
bool redirect_to_log(const std::string& path);

}  // namespace etcfs::daemon

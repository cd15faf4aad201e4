#include "daemon/background.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace etcfs::daemon {
namespace {

constexpr int kStartFailed = 1;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// The child says one byte, its exit status, and then a line; ready is status 0 and no line. An end
// without a word means that it died.
[[noreturn]] void wait_for_child(int pipe, pid_t child, const std::string& log_file) {
  std::string said;
  char chunk[512];
  for (;;) {
    const ssize_t n = ::read(pipe, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    said.append(chunk, static_cast<std::size_t>(n));
  }
  if (!said.empty()) {
    write_all(STDERR_FILENO, std::string_view(said).substr(1));
    ::_exit(static_cast<unsigned char>(said[0]));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  write_all(STDERR_FILENO, "etcfs: the daemon ended while it started; see " + log_file + "\n");
  ::_exit(kStartFailed);
}

}  // namespace

bool redirect_to_log(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd < 0) return false;
  const bool done = ::dup2(fd, STDOUT_FILENO) >= 0 && ::dup2(fd, STDERR_FILENO) >= 0;
  ::close(fd);
  return done;
}

Startup Startup::in_background(const std::string& log_file) {
  Startup startup;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    startup.fail("no pipe: " + std::string(std::strerror(errno)), 1);
  const pid_t child = ::fork();
  if (child < 0) startup.fail("cannot fork: " + std::string(std::strerror(errno)), 1);
  if (child > 0) {
    ::close(ends[1]);
    wait_for_child(ends[0], child, log_file);
  }
  ::close(ends[0]);
  startup.pipe_ = ends[1];
  ::setsid();
  if (::chdir("/") != 0) startup.fail("cannot enter /", kStartFailed);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0)
    startup.fail("cannot open /dev/null", kStartFailed);
  ::close(null);
  if (!redirect_to_log(log_file))
    startup.fail("cannot write the log file " + log_file + ": " + std::strerror(errno),
                 kStartFailed);
  return startup;
}

void Startup::ready() {
  if (told_ || pipe_ < 0) return;
  told_ = true;
  write_all(pipe_, std::string(1, '\0'));
  ::close(pipe_);
}

void Startup::fail(const std::string& why, int status) {
  const std::string line = "etcfs: " + why + "\n";
  if (pipe_ >= 0 && !told_) {
    write_all(pipe_, std::string(1, static_cast<char>(status)) + line);
    ::close(pipe_);
  }
  write_all(STDERR_FILENO, line);
  ::_exit(status);
}

}  // namespace etcfs::daemon

#include "fuse/session.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fuse/init.h"
#include "fuse/ops.h"
#include "fuse/reply.h"

namespace etcfs::fuse {
namespace {

constexpr unsigned kSlicesBetweenYields = 4;  // requests that a fiber serves before others run
constexpr unsigned kProbeEvery = 32;          // served requests between looks for a second one
constexpr int kHintAfterHit = 8, kHintPerMiss = 8;
constexpr std::size_t kKeptBuffers = 64;

// A page-aligned request buffer, mapped lazily: a request that is small touches a page or two.
class RequestBuffer {
 public:
  RequestBuffer() : bytes_(static_cast<std::byte*>(std::aligned_alloc(4096, kRequestBufferBytes))) {
    ETCFS_ASSERT(bytes_);
  }
  ~RequestBuffer() { std::free(bytes_); }
  RequestBuffer(const RequestBuffer&) = delete;
  std::byte* data() { return bytes_; }

 private:
  std::byte* bytes_;
};

void log_libfuse(fuse_log_level level, const char* format, va_list args) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, args);
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (level <= FUSE_LOG_WARNING) {
    ETCFS_LOG_WARN("libfuse", log::field("says", line));
  } else {
    ETCFS_LOG_DEBUG("libfuse", log::field("says", line));
  }
}

}  // namespace

struct Session::Impl : Context {
  Impl(rt::Runtime& rt, fs::Filesystem& filesystem, SessionOptions opts)
      : Context{filesystem, nullptr}, runtime(rt), options(opts), group(rt, "fuse") {}

  // A fiber that reads and serves.
  struct Worker {
    rt::Fiber* fiber = nullptr;
    bool woken = false;
  };

  Result<void> make_session();
  void wake_reader();
  void work();
  bool wait_for_work(Worker& self);
  enum class Got { kRequest, kNothing, kGone };
  Got read_request(std::byte* buffer, std::size_t& bytes);
  void serve(std::byte* buffer, std::size_t bytes);
  bool answer_refusal(const fuse_in_header& header);
  void end_connection(std::string_view why);
  static ssize_t write_reply(int fd, iovec* iov, int count, void* userdata);

  std::unique_ptr<RequestBuffer> take_buffer();
  void give_buffer(std::unique_ptr<RequestBuffer> buffer);

  rt::Runtime& runtime;
  const SessionOptions options;
  rt::Group group;
  fuse_session* session = nullptr;
  int fd = -1;
  std::function<void()> on_gone;
  bool gone = false;
  bool stopping = false;
  std::optional<Reason> refusal;
  Counters counters;

  std::vector<Worker*> idle;  // the last to come is the first to go: its stack is warm
  unsigned readers = 0;       // fibers that are about to read
  int more_hint = 0;          // > 0: a second read after a request has paid lately
  std::vector<std::unique_ptr<RequestBuffer>> buffers;

  KernelFeatures kernel;
  std::optional<fuse_init_in> init;  // while INIT is being answered
  bool ready = false;
  rt::Condition ready_changed;
};

ssize_t Session::Impl::write_reply(int fd, iovec* iov, int count, void* userdata) {
  // libfuse gives what fuse_session_new() got: the Context.
  auto& self = *static_cast<Impl*>(static_cast<Context*>(userdata));
  if (self.init && count == 2 && static_cast<fuse_out_header*>(iov[0].iov_base)->error == 0) {
    auto& out = *static_cast<fuse_init_out*>(iov[1].iov_base);
    complete_init(*self.init, self.options, out);
  }
  return ::writev(fd, iov, count);
}

Result<void> Session::Impl::make_session() {
  fuse_lowlevel_ops ops{};
  add_namespace_ops(ops);
  add_attr_ops(ops);
  add_dir_ops(ops);
  add_file_ops(ops);
  add_lock_ops(ops);
  fuse_set_log_func(log_libfuse);
  char name[] = "etcfs";
  char* argv[] = {name, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, argv);
  session = fuse_session_new(&args, &ops, sizeof ops, static_cast<Context*>(this));
  fuse_opt_free_args(&args);
  if (!session) return Reason::kNoMemory;
  fuse_custom_io io{};
  io.writev = &Impl::write_reply;
  io.read = [](int from, void* into, size_t n, void*) { return ::read(from, into, n); };
  if (fuse_session_custom_io(session, &io, fd) != 0) {
    fuse_session_destroy(std::exchange(session, nullptr));
    return Reason::kNoMemory;
  }
  return {};
}

std::unique_ptr<RequestBuffer> Session::Impl::take_buffer() {
  if (buffers.empty()) return std::make_unique<RequestBuffer>();
  auto buffer = std::move(buffers.back());
  buffers.pop_back();
  return buffer;
}

void Session::Impl::give_buffer(std::unique_ptr<RequestBuffer> buffer) {
  if (buffers.size() < kKeptBuffers) buffers.push_back(std::move(buffer));
}

// The descriptor is readable (level-triggered: called again as long as nobody reads).
void Session::Impl::wake_reader() {
  if (readers > 0 || stopping || gone) return;
  readers++;
  if (!idle.empty()) {
    Worker* worker = idle.back();
    idle.pop_back();
    worker->woken = true;
    runtime.unpark(worker->fiber);
    return;
  }
  counters.fibers++;
  group.spawn([this] { work(); });
}

// Called as one of the readers, which it leaves; true: it is one again.
bool Session::Impl::wait_for_work(Worker& self) {
  readers--;
  if (stopping || gone || idle.size() >= options.idle_fibers) return false;
  self.woken = false;
  idle.push_back(&self);
  while (!self.woken) runtime.park();
  return !stopping && !gone;
}

Session::Impl::Got Session::Impl::read_request(std::byte* buffer, std::size_t& bytes) {
  for (;;) {
    counters.reads++;
    const ssize_t n = ::read(fd, buffer, kRequestBufferBytes);
    if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      bytes = static_cast<std::size_t>(n);
      return Got::kRequest;
    }
    if (n == 0) {
      end_connection("closed");
      return Got::kGone;
    }
    if (n > 0) {
      ETCFS_LOG_ERROR("FUSE request is too short", log::field("bytes", n));
      end_connection("short request");
      return Got::kGone;
    }
    switch (errno) {
      case EAGAIN:
        counters.empty_reads++;
        return Got::kNothing;
      case EINTR:
      case ENOENT:
        continue;  // the request was taken back before we had it
      case ENODEV:
        end_connection("unmounted");
        return Got::kGone;
      case ECONNABORTED:
        end_connection("aborted");
        return Got::kGone;
      default:
        ETCFS_LOG_ERROR("reading the FUSE device failed",
                        log::field("error", std::strerror(errno)));
        end_connection("error");
        return Got::kGone;
    }
  }
}

void Session::Impl::work() {
  Worker self{runtime.self()};
  std::unique_ptr<RequestBuffer> buffer = take_buffer();
  for (unsigned served = 0;;) {
    std::size_t bytes = 0;
    const Got got = stopping || gone ? Got::kGone : read_request(buffer->data(), bytes);
    if (got == Got::kGone) {
      readers--;
      break;
    }
    if (got == Got::kNothing) {
      more_hint = std::max(0, more_hint - kHintPerMiss);
      if (!wait_for_work(self)) break;
      served = 0;  // what comes now was not found by looking
      continue;
    }
    if (served > 0) more_hint = kHintAfterHit;
    readers--;
    serve(buffer->data(), bytes);
    readers++;
    served++;
    // Another fiber may have become the reader while this one waited. And where requests come one
    // by one, the second read that finds nothing is a wasted system call.
    const bool look = readers == 1 && (more_hint > 0 || counters.requests % kProbeEvery == 0);
    if (!look) {
      if (!wait_for_work(self)) break;
      served = 0;
    } else if (served % kSlicesBetweenYields == 0) {
      runtime.yield();
    }
  }
  give_buffer(std::move(buffer));
}

// Answers in place of fs where that is what it is for; true if so.
bool Session::Impl::answer_refusal(const fuse_in_header& header) {
  if (!refusal) return false;
  switch (header.opcode) {
    case FUSE_INIT:
    case FUSE_DESTROY:
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
      return false;
    default:
      break;
  }
  fuse_out_header out{};
  out.len = sizeof out;
  out.error = -errno_of(*refusal);
  out.unique = header.unique;
  if (::write(fd, &out, sizeof out) < 0 && errno != ENOENT && errno != ENODEV)
    ETCFS_LOG_WARN("FUSE reply failed", log::field("error", std::strerror(errno)));
  return true;
}

void Session::Impl::serve(std::byte* buffer, std::size_t bytes) {
  const auto& header = *reinterpret_cast<const fuse_in_header*>(buffer);
  counters.requests++;
  if (answer_refusal(header)) return;
  const bool is_init = header.opcode == FUSE_INIT;
  if (is_init) {
    fuse_init_in in{};
    std::memcpy(&in, buffer + sizeof header, std::min(sizeof in, bytes - sizeof header));
    init = in;
    kernel = features_of(in);
  }
  fuse_buf buf{};
  buf.mem = buffer;
  buf.size = bytes;
  raw = buffer;
  fuse_session_process_buf(session, &buf);
  if (!is_init) return;
  init.reset();
  if (fuse_session_exited(session))
    return end_connection("the kernel's FUSE protocol does not fit");
  ready = true;
  ready_changed.notify_all();
}

void Session::Impl::end_connection(std::string_view why) {
  if (gone) return;
  gone = true;
  runtime.remove_poll(fd);
  ETCFS_LOG_INFO("FUSE connection ended", log::field("why", why));
  for (Worker* worker : std::exchange(idle, {})) {
    worker->woken = true;
    runtime.unpark(worker->fiber);
    readers++;  // wait_for_work() made it none; its fiber ends without reading
  }
  ready_changed.notify_all();
  if (on_gone) on_gone();
}

Session::Session(rt::Runtime& runtime, fs::Filesystem& fs, SessionOptions options)
    : impl_(std::make_unique<Impl>(runtime, fs, options)) {}

Session::~Session() {
  if (impl_->session) fuse_session_destroy(impl_->session);
}

Result<void> Session::start(int fd, std::function<void()> gone) {
  ETCFS_ASSERT(impl_->fd < 0);
  impl_->fd = fd;
  impl_->on_gone = std::move(gone);
  if (Result<void> made = impl_->make_session(); !made) {
    ::close(fd);
    return made;
  }
  impl_->runtime.add_poll(fd, [impl = impl_.get()] { impl->wake_reader(); });
  return {};
}

bool Session::wait_ready(Time deadline) {
  return impl_->ready_changed.wait_until(deadline, [&] { return impl_->ready || impl_->gone; }) &&
         !impl_->gone;
}

const KernelFeatures& Session::kernel() const { return impl_->kernel; }
const Session::Counters& Session::counters() const { return impl_->counters; }
void Session::refuse(Reason reason) { impl_->refusal = reason; }

void Session::stop() {
  Impl& s = *impl_;
  s.stopping = true;
  if (!s.session) return;
  if (!s.gone) s.runtime.remove_poll(s.fd);
  for (Impl::Worker* worker : std::exchange(s.idle, {})) {
    worker->woken = true;
    s.runtime.unpark(worker->fiber);
    s.readers++;
  }
  s.group.wait();
  fuse_session_destroy(std::exchange(s.session, nullptr));  // closes the descriptor
}

}  // namespace etcfs::fuse

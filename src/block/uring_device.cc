// A request is cut into transfers of at most 1 MiB; each is one submission at a time (short ones
// are continued where they stopped). At most kDepth submissions are under way, so the submission
// ring, as large as that, never lacks a place. Further fibers wait for one in order of arrival.
#include "block/uring_device.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "block/identity.h"
#include "block/uring_files.h"
#include "rt/rt.h"

namespace etcfs::block {
namespace {

using log::field;
constexpr unsigned kDepth = 128;
constexpr std::size_t kTransferBytes = kMiB;
constexpr std::size_t kMaxPieces = 1024;  // UIO_MAXIOV
constexpr unsigned kSubmitAt = 16;  // queued submissions that wait for the turn's end no longer

bool aligned(std::uint64_t n) { return n % kBlockBytes == 0; }
bool aligned(const void* p) { return aligned(reinterpret_cast<std::uintptr_t>(p)); }

}  // namespace

struct UringDevice::Impl {
  struct Request;
  // One submission. Lives in the frame of the fiber that waits for it.
  struct Transfer {
    Request* request = nullptr;
    int opcode = IORING_OP_NOP;
    std::uint64_t offset = 0, length = 0;
    iovec* pieces = nullptr;  // read and write; consumed as the transfer goes on
    unsigned count = 0;
  };
  struct Request {
    rt::Fiber* fiber = nullptr;  // while it is parked here
    std::size_t pending = 0;
    int error = 0;  // the first one
  };

  Impl(rt::Runtime& rt_in, DeviceFile file_in)
      : runtime(rt_in), file(std::move(file_in)), alive(std::make_shared<char>()) {}
  ~Impl();
  Result<void> open_ring();
  void queue(Transfer& t);  // has a slot; does not block
  void submit();
  void reap();  // completions that have come; never blocks
  void complete(Transfer& t, int res);
  bool advance(Transfer& t, std::uint64_t done);
  Result<void> run(std::span<Transfer> transfers);                                     // blocks
  Result<void> transfer(int opcode, std::uint64_t offset, std::vector<iovec> pieces);  // blocks
  Result<void> sync();                                                                 // blocks
  bool inside(std::uint64_t offset, std::uint64_t length) const {
    return length <= file.size_bytes && offset <= file.size_bytes - length;
  }

  // set once
  rt::Runtime& runtime;
  DeviceFile file;
  Fd event;
  bool polled = false, ring_open = false;
  const std::shared_ptr<char> alive;

  io_uring ring{};
  unsigned queued = 0;     // in the ring, not yet submitted
  unsigned in_flight = 0;  // transfers that have a slot
  std::size_t requests = 0;
  bool turn_submits = false;  // somebody submits at the end of this turn
  bool retry_posted = false;
  rt::Condition slot_free;

  // flush: generations; a caller needs one that starts after its call
  std::uint64_t syncs_started = 0, syncs_ended = 0;
  std::uint64_t sync_failed = 0;  // the last generation that failed
  rt::Condition sync_ended;
};

UringDevice::Impl::~Impl() {
  ETCFS_ASSERT(in_flight == 0 && requests == 0);
  if (polled) runtime.remove_poll(event.get());
  if (ring_open) ::io_uring_queue_exit(&ring);
}

Result<void> UringDevice::Impl::open_ring() {
  // Completions are run when this thread enters the kernel anyway, rather than interrupting it.
  int rc = ::io_uring_queue_init(kDepth, &ring, IORING_SETUP_COOP_TASKRUN);
  if (rc == -EINVAL) rc = ::io_uring_queue_init(kDepth, &ring, 0);
  if (rc < 0) {
    ETCFS_LOG_WARN("io_uring is not available", field("error", std::strerror(-rc)));
    return Reason::kNotSupported;
  }
  ring_open = true;
  event = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.get() < 0) return reason_of(errno);
  rc = ::io_uring_register_eventfd(&ring, event.get());
  if (rc < 0) return reason_of(-rc);
  runtime.add_poll(event.get(), [this] {
    std::uint64_t n;
    [[maybe_unused]] const ssize_t got = ::read(event.get(), &n, sizeof n);
    reap();
  });
  polled = true;
  return {};
}

void UringDevice::Impl::queue(Transfer& t) {
  io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
  if (!sqe) {
    submit();
    sqe = ::io_uring_get_sqe(&ring);
  }
  ETCFS_ASSERT(sqe != nullptr);  // the ring has as many places as there are slots
  switch (t.opcode) {
    case IORING_OP_READV:
      if (t.count == 1)
        ::io_uring_prep_read(sqe, file.fd.get(), t.pieces->iov_base,
                             static_cast<unsigned>(t.pieces->iov_len), t.offset);
      else
        ::io_uring_prep_readv(sqe, file.fd.get(), t.pieces, t.count, t.offset);
      break;
    case IORING_OP_WRITEV:
      if (t.count == 1)
        ::io_uring_prep_write(sqe, file.fd.get(), t.pieces->iov_base,
                              static_cast<unsigned>(t.pieces->iov_len), t.offset);
      else
        ::io_uring_prep_writev(sqe, file.fd.get(), t.pieces, t.count, t.offset);
      break;
    case IORING_OP_FSYNC:
      ::io_uring_prep_fsync(sqe, file.fd.get(), IORING_FSYNC_DATASYNC);
      break;
    case IORING_OP_FALLOCATE:
      ::io_uring_prep_fallocate(sqe, file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(t.offset), static_cast<off_t>(t.length));
      break;
    default:
      ETCFS_ASSERT(false);
  }
  ::io_uring_sqe_set_data(sqe, &t);
  ++queued;
}

void UringDevice::Impl::submit() {
  while (queued > 0) {
    const int rc = ::io_uring_submit(&ring);
    if (rc > 0) {
      queued -= std::min(queued, static_cast<unsigned>(rc));
      continue;
    }
    if (rc == -EINTR) continue;
    // Out of memory, or completions must be taken first: once more in the next turn.
    ETCFS_ASSERT(rc == 0 || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM);
    if (!std::exchange(retry_posted, true))
      runtime.post([this, token = std::weak_ptr<char>(alive)] {
        if (token.expired()) return;
        retry_posted = false;
        submit();
        reap();
      });
    return;
  }
}

void UringDevice::Impl::reap() {
  io_uring_cqe* cqes[32];
  while (const unsigned n = ::io_uring_peek_batch_cqe(&ring, cqes, 32)) {
    struct Done {
      Transfer* t;
      int res;
    } done[32];
    for (unsigned i = 0; i < n; ++i)
      done[i] = {static_cast<Transfer*>(::io_uring_cqe_get_data(cqes[i])), cqes[i]->res};
    ::io_uring_cq_advance(&ring, n);
    for (unsigned i = 0; i < n; ++i) complete(*done[i].t, done[i].res);
  }
  if (queued > 0 && !turn_submits) submit();  // continued transfers
}

// Moves the transfer on by `done` bytes; false: there is nothing left of it.
bool UringDevice::Impl::advance(Transfer& t, std::uint64_t done) {
  t.offset += done;
  t.length -= done;
  while (t.count > 0 && done >= t.pieces->iov_len) {
    done -= t.pieces->iov_len;
    ++t.pieces;
    --t.count;
  }
  if (done > 0) {
    t.pieces->iov_base = static_cast<std::byte*>(t.pieces->iov_base) + done;
    t.pieces->iov_len -= done;
  }
  return t.length > 0;
}

void UringDevice::Impl::complete(Transfer& t, int res) {
  Request& request = *t.request;
  if (res == -EAGAIN || res == -EINTR) return queue(t);
  if (res < 0) {
    if (request.error == 0) request.error = -res;
  } else if (t.opcode == IORING_OP_READV || t.opcode == IORING_OP_WRITEV) {
    // Direct I/O goes on at a whole block.
    const std::uint64_t done = static_cast<std::uint64_t>(res) & ~(kBlockBytes - 1);
    if (done == 0) {
      if (request.error == 0) request.error = EIO;  // no progress: the end of the device
    } else if (advance(t, done) && request.error == 0) {
      return queue(t);
    }
  }
  --in_flight;
  slot_free.notify_one();
  if (--request.pending == 0 && request.fiber) runtime.unpark(request.fiber);
}

// Submits the transfers and waits for all of them.
Result<void> UringDevice::Impl::run(std::span<Transfer> transfers) {
  Request request;
  struct Under {  // way; whoever unwinds this fiber waits until the kernel has done with its memory
    Impl& impl;
    Request& request;
    ~Under() {
      --impl.requests;
      while (request.pending > 0) {
        impl.turn_submits = false;
        impl.submit();
        io_uring_cqe* cqe = nullptr;
        ::io_uring_wait_cqe(&impl.ring, &cqe);
        impl.reap();
      }
    }
  } under{*this, request};
  ++requests;
  for (Transfer& t : transfers) {
    while (in_flight >= kDepth) {
      submit();
      reap();
      if (in_flight >= kDepth) slot_free.wait();
    }
    if (request.error != 0) break;
    t.request = &request;
    ++in_flight;
    ++request.pending;
    queue(t);
  }
  // Alone: now. In company: together, when everybody who is ready has had a turn.
  if (in_flight > queued && queued < kSubmitAt) {
    if (!turn_submits) {
      turn_submits = true;
      struct Reset {
        bool& flag;
        ~Reset() { flag = false; }
      } reset{turn_submits};
      runtime.yield();
      submit();
    }
  } else {
    submit();
  }
  reap();
  while (request.pending > 0) {
    request.fiber = runtime.self();
    runtime.park();
  }
  if (request.error == 0) return {};
  const Reason reason = request.error == EOPNOTSUPP ? Reason::kNotSupported : Reason::kIo;
  if (reason == Reason::kIo)
    ETCFS_LOG_WARN("device request failed", field("offset", transfers.front().offset),
                   field("error", std::strerror(request.error)));
  return reason;
}

Result<void> UringDevice::Impl::transfer(int opcode, std::uint64_t offset,
                                         std::vector<iovec> pieces) {
  // Pieces are cut where transfers are.
  std::vector<iovec> cut;
  std::vector<Transfer> transfers;
  cut.reserve(pieces.size() + 1);
  std::vector<std::size_t> first;  // of each transfer in `cut`
  Transfer t;
  t.opcode = opcode;
  t.offset = offset;
  std::size_t begin = 0;
  const auto end_transfer = [&] {
    if (t.length == 0) return;
    t.count = static_cast<unsigned>(cut.size() - begin);
    first.push_back(begin);
    transfers.push_back(t);
    begin = cut.size();
    t.offset += t.length;
    t.length = 0;
  };
  for (iovec piece : pieces) {
    while (piece.iov_len > 0) {
      const std::size_t n = std::min<std::size_t>(piece.iov_len, kTransferBytes - t.length);
      cut.push_back({piece.iov_base, n});
      t.length += n;
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + n;
      piece.iov_len -= n;
      if (t.length == kTransferBytes || cut.size() - begin == kMaxPieces) end_transfer();
    }
  }
  end_transfer();
  for (std::size_t i = 0; i < transfers.size(); ++i) transfers[i].pieces = cut.data() + first[i];
  return run(transfers);
}

Result<void> UringDevice::Impl::sync() {
  Transfer t;
  t.opcode = IORING_OP_FSYNC;
  return run({&t, 1});
}

// --- the interface

UringDevice::UringDevice(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UringDevice::~UringDevice() = default;

Result<std::unique_ptr<UringDevice>> UringDevice::open(const std::string& path, Options options) {
  ETCFS_TRY(DeviceFile file,
            open_device_file(path, options.allow_file, options.read_only, options.exclusive));
  auto impl = std::make_unique<Impl>(rt::Runtime::current(), std::move(file));
  ETCFS_CHECK(impl->open_ring());
  return std::unique_ptr<UringDevice>(new UringDevice(std::move(impl)));
}

Result<void> UringDevice::read(std::uint64_t offset, std::span<std::byte> into) {
  ETCFS_ASSERT(aligned(offset) && aligned(into.size()) && aligned(into.data()));
  if (!impl_->inside(offset, into.size())) return Reason::kInvalid;
  if (into.empty()) return {};
  return impl_->transfer(IORING_OP_READV, offset, {{into.data(), into.size()}});
}

Result<void> UringDevice::write(std::uint64_t offset,
                                std::span<const std::span<const std::byte>> pieces) {
  std::vector<iovec> iov;
  iov.reserve(pieces.size());
  std::uint64_t total = 0;
  for (const auto& p : pieces) {
    ETCFS_ASSERT(aligned(p.size()) && aligned(p.data()));
    if (p.empty()) continue;
    iov.push_back({const_cast<std::byte*>(p.data()), p.size()});
    total += p.size();
  }
  ETCFS_ASSERT(aligned(offset));
  if (!impl_->inside(offset, total)) return Reason::kInvalid;
  if (total == 0) return {};
  return impl_->transfer(IORING_OP_WRITEV, offset, std::move(iov));
}

Result<void> UringDevice::flush() {
  Impl& d = *impl_;
  if (!d.file.volatile_cache) return {};
  const std::uint64_t needed = d.syncs_started + 1;  // the one under way started too early
  while (d.syncs_ended < needed) {
    if (d.syncs_started > d.syncs_ended) {
      d.sync_ended.wait();
      continue;
    }
    const std::uint64_t mine = ++d.syncs_started;
    struct End {  // also when this fiber is unwound
      Impl& d;
      std::uint64_t mine;
      bool ok = false;
      ~End() {
        d.syncs_ended = mine;
        if (!ok) d.sync_failed = mine;
        d.sync_ended.notify_all();
      }
    } end{d, mine};
    const Result<void> result = d.sync();
    end.ok = result.has_value();
    return result;
  }
  // Somebody else's. A later one may have failed as well: that is no worse to report.
  if (d.sync_failed >= needed) return Reason::kIo;
  return {};
}

Result<void> UringDevice::discard(std::uint64_t offset, std::uint64_t length) {
  ETCFS_ASSERT(aligned(offset) && aligned(length));
  if (!impl_->inside(offset, length)) return Reason::kInvalid;
  if (length == 0) return {};
  Impl::Transfer t;
  t.opcode = IORING_OP_FALLOCATE;
  t.offset = offset;
  t.length = length;
  return impl_->run({&t, 1});
}

std::uint64_t UringDevice::size_bytes() const { return impl_->file.size_bytes; }

Result<std::uint64_t> UringDevice::poll_size() {
  ETCFS_TRY(impl_->file.size_bytes, load_size(impl_->file.fd.get(), impl_->file.block_device));
  return impl_->file.size_bytes;
}

std::size_t UringDevice::requests_in_flight() const { return impl_->requests; }
bool UringDevice::is_block_device() const { return impl_->file.block_device; }
bool UringDevice::has_volatile_cache() const { return impl_->file.volatile_cache; }
std::uint64_t UringDevice::node_dev() const { return impl_->file.dev; }
std::uint64_t UringDevice::node_ino() const { return impl_->file.ino; }

Result<bool> UringDevice::try_lock_node(std::string_view node) {
  const std::string hash = sha256(node);
  std::uint64_t offset = 0;
  for (int i = 0; i < 8; ++i)
    offset = offset << 8 | static_cast<unsigned char>(hash[static_cast<std::size_t>(i)]);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>((1ull << 62) + (offset >> 3));
  lock.l_len = 1;
  if (::fcntl(impl_->file.fd.get(), F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return reason_of(errno);
}

}  // namespace etcfs::block

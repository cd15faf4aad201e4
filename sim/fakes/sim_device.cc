#include "sim/fakes/sim_device.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace etcfs::sim {
namespace {

constexpr std::size_t kSectorBytes = 512;
constexpr unsigned kOdds = 10'000;

bool aligned(std::uint64_t n) { return n % kBlockBytes == 0; }

Nanos between(Nanos low, Nanos high) {
  if (high <= low) return low;
  return low + Nanos(static_cast<std::int64_t>(rt::Runtime::current().random_below(
                   static_cast<std::uint64_t>((high - low).count()) + 1)));
}

}  // namespace

// --- SimDisk

SimDisk::SimDisk(rt::Runtime& runtime, std::uint64_t size_bytes, SimDiskOptions options)
    : runtime_(runtime), size_bytes_(size_bytes), options_(options), group_(runtime, "disk") {
  ETCFS_ASSERT(aligned(size_bytes));
}

SimDisk::~SimDisk() { group_.kill(); }

void SimDisk::grow(std::uint64_t size_bytes) {
  ETCFS_ASSERT(size_bytes >= size_bytes_ && aligned(size_bytes));
  size_bytes_ = size_bytes;
}

SimDisk::Block SimDisk::peek_stable(std::uint64_t block) const {
  const auto it = stable_.find(block);
  return it == stable_.end() ? Block{} : it->second;
}

SimDisk::Block SimDisk::peek(std::uint64_t block) const {
  const auto it = cache_.find(block);
  return it == cache_.end() ? peek_stable(block) : it->second.back().bytes;
}

void SimDisk::write_block(std::uint64_t block, const std::byte* bytes) {
  Version v;
  v.seq = ++seq_;
  std::memcpy(v.bytes.data(), bytes, kBlockBytes);
  if (options_.volatile_cache) {
    cache_[block].push_back(v);
  } else {
    stable_[block] = v.bytes;
  }
}

void SimDisk::flush_up_to(std::uint64_t seq) {
  for (auto it = cache_.begin(); it != cache_.end();) {
    auto& versions = it->second;
    const auto newer = std::find_if(versions.begin(), versions.end(),
                                    [&](const Version& v) { return v.seq > seq; });
    if (newer != versions.begin()) stable_[it->first] = std::prev(newer)->bytes;
    versions.erase(versions.begin(), newer);
    it = versions.empty() ? cache_.erase(it) : std::next(it);
  }
}

void SimDisk::power_cut() {
  ++power_cycles_;
  for (const auto& [block, versions] : cache_) {
    Block result = peek_stable(block);
    // Mostly whole blocks; sometimes each sector for itself.
    const bool torn = runtime_.random_below(4) == 0;
    const std::size_t unit = torn ? kSectorBytes : kBlockBytes;
    for (std::size_t at = 0; at < kBlockBytes; at += unit) {
      const std::uint64_t pick = runtime_.random_below(versions.size() + 1);
      if (pick > 0) std::memcpy(&result[at], &versions[pick - 1].bytes[at], unit);
    }
    stable_[block] = result;
  }
  cache_.clear();
}

void SimDisk::observe(const std::string& node, std::uint64_t block, std::uint64_t blocks) {
  if (observer_) observer_(node, block, blocks);
}

// --- SimDevice

// What requests need of their device after it is gone.
struct SimDevice::Shared {
  bool cut_off = false;
  std::size_t unfinished = 0;
};

struct SimDevice::Request {
  enum class Kind { kRead, kWrite, kFlush } kind = Kind::kRead;
  std::uint64_t block = 0, blocks = 0;
  std::vector<std::byte> bytes;
  bool fails = false;
  std::uint64_t power_cycle = 0;
  SimDeviceOptions options;
  // set by the sender when it is unwound; by the disk's fiber when it has finished
  bool abandoned = false;
  bool finished = false;
  Result<void> result;
  rt::Fiber* waiter = nullptr;
};

SimDevice::SimDevice(SimDisk& disk, std::string node, SimDeviceOptions options)
    : disk_(disk),
      node_(std::move(node)),
      options_(options),
      size_bytes_(disk.size_bytes()),
      shared_(std::make_shared<Shared>()) {}

SimDevice::~SimDevice() { ETCFS_ASSERT(in_flight_ == 0); }

void SimDevice::cut_off() { shared_->cut_off = true; }
std::size_t SimDevice::unfinished() const { return shared_->unfinished; }

bool SimDevice::draw(unsigned odds, unsigned& planned) {
  if (planned > 0) {
    --planned;
    return true;
  }
  return odds > 0 && rt::Runtime::current().random_below(kOdds) < odds;
}

// Sends the request to the disk and waits for it. The disk's side refers to nothing of ours.
Result<void> SimDevice::run(std::shared_ptr<Request> request) {
  if (shared_->cut_off) return Reason::kIo;
  rt::Runtime& runtime = rt::Runtime::current();
  request->power_cycle = disk_.power_cycles_;
  request->options = options_;
  request->waiter = runtime.self();
  struct Sent {
    SimDevice& device;
    Request& request;
    Sent(SimDevice& d, Request& r) : device(d), request(r) { ++device.in_flight_; }
    ~Sent() {
      --device.in_flight_;
      request.abandoned = !request.finished;
    }
  } sent(*this, *request);

  disk_.group_.spawn([disk = &disk_, node = node_, r = request, shared = shared_] {
    struct Counted {
      Shared& s;
      explicit Counted(Shared& to) : s(to) { ++s.unfinished; }
      ~Counted() { --s.unfinished; }
    } counted(*shared);
    const auto gone = [&] { return shared->cut_off || r->power_cycle != disk->power_cycles_; };
    const auto wait = [&] {
      rt::sleep_for(between(r->options.latency_min / 2, r->options.latency_max / 2));
    };
    const std::uint64_t flush_seq = disk->seq_;
    std::uint64_t part = r->blocks;  // of a write that is carried out in two goes, or in part
    if (r->blocks > 1) part = disk->runtime_.random_below(r->blocks + 1);
    wait();
    if (r->abandoned && r->kind == Request::Kind::kWrite) {
      if (disk->runtime_.random_below(kOdds) >= r->options.late_writes) {
        r->fails = true;  // what was not yet under way is not done
        part = disk->runtime_.random_below(part + 1);
      } else {
        rt::sleep_for(between(Nanos::zero(), r->options.late_max));
      }
    }
    const auto write = [&](std::uint64_t from, std::uint64_t to) {
      if (gone() || from == to) return;
      for (std::uint64_t i = from; i < to; ++i)
        disk->write_block(r->block + i, r->bytes.data() + i * kBlockBytes);
      disk->observe(node, r->block + from, to - from);
    };
    switch (r->kind) {
      case Request::Kind::kRead:
        for (std::uint64_t i = 0; i < r->blocks; ++i) {
          const SimDisk::Block block = disk->peek(r->block + i);
          std::memcpy(r->bytes.data() + i * kBlockBytes, block.data(), kBlockBytes);
        }
        wait();
        break;
      case Request::Kind::kWrite:
        write(0, part);
        wait();
        if (!r->fails) write(part, r->blocks);
        break;
      case Request::Kind::kFlush:
        wait();
        if (!r->fails && !gone()) disk->flush_up_to(flush_seq);
        break;
    }
    if (r->fails || gone()) r->result = Reason::kIo;
    r->finished = true;
    if (!r->abandoned) disk->runtime_.unpark(r->waiter);
  });
  while (!request->finished) runtime.park();
  return request->result;
}

Result<void> SimDevice::read(std::uint64_t offset, std::span<std::byte> into) {
  ETCFS_ASSERT(aligned(offset) && aligned(into.size()) &&
               aligned(reinterpret_cast<std::uintptr_t>(into.data())));
  if (into.size() > size_bytes_ || offset > size_bytes_ - into.size()) return Reason::kInvalid;
  if (into.empty()) return {};
  auto request = std::make_shared<Request>();
  request->kind = Request::Kind::kRead;
  request->block = offset >> kBlockShift;
  request->blocks = into.size() >> kBlockShift;
  request->bytes.resize(into.size());
  request->fails = draw(options_.read_errors, fail_reads_);
  ETCFS_CHECK(run(request));
  std::memcpy(into.data(), request->bytes.data(), into.size());
  return {};
}

Result<void> SimDevice::write(std::uint64_t offset,
                              std::span<const std::span<const std::byte>> pieces) {
  auto request = std::make_shared<Request>();
  for (const auto& p : pieces) {
    ETCFS_ASSERT(aligned(p.size()) && aligned(reinterpret_cast<std::uintptr_t>(p.data())));
    request->bytes.insert(request->bytes.end(), p.begin(), p.end());
  }
  const std::uint64_t total = request->bytes.size();
  ETCFS_ASSERT(aligned(offset));
  if (total > size_bytes_ || offset > size_bytes_ - total) return Reason::kInvalid;
  if (total == 0) return {};
  request->kind = Request::Kind::kWrite;
  request->block = offset >> kBlockShift;
  request->blocks = total >> kBlockShift;
  request->fails = draw(options_.write_errors, fail_writes_);
  return run(std::move(request));
}

Result<void> SimDevice::flush() {
  if (!disk_.volatile_cache()) return {};
  auto request = std::make_shared<Request>();
  request->kind = Request::Kind::kFlush;
  request->fails = draw(options_.flush_errors, fail_flushes_);
  return run(std::move(request));
}

Result<void> SimDevice::discard(std::uint64_t, std::uint64_t) { return Reason::kNotSupported; }

Result<std::uint64_t> SimDevice::poll_size() {
  size_bytes_ = disk_.size_bytes();
  return size_bytes_;
}

}  // namespace etcfs::sim

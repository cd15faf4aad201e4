// Reading: what is in memory is answered from there, the rest by one device request per contiguous
// range, all at once. A read that needs the device holds the file's lock shared meanwhile, so that
// it sees each write whole; background write-back does not take that lock.
#include <array>
#include <cstring>

#include "fs/file/file_io_impl.h"

namespace etcfs::fs {
namespace {

constexpr std::size_t kZeroBytes = 128 * kKiB;
alignas(64) constexpr std::array<std::byte, kZeroBytes> kZeros{};

// Holds the lock shared; unlike std::shared_lock it needs no try_lock.
class SharedLock {
 public:
  explicit SharedLock(RwLock& lock) : lock_(lock) { lock_.lock_shared(); }
  ~SharedLock() { lock_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;

 private:
  RwLock& lock_;
};

struct DeviceRead {
  std::uint64_t device_block;
  std::span<std::byte> into;
};

// Adds [from, to) of the file to the pieces, as far as it lies in the run that begins at block.
void add_piece(ReadReply& reply, const std::byte* data, std::size_t bytes) {
  while (data == nullptr && bytes > 0) {
    const std::size_t n = std::min(bytes, kZeroBytes);
    reply.pieces.emplace_back(kZeros.data(), n);
    bytes -= n;
  }
  if (bytes > 0) reply.pieces.emplace_back(data, bytes);
}

}  // namespace

Result<ReadReply> FileIo::Impl::read(const InodeRef& inode, std::uint64_t offset,
                                     std::size_t size) {
  ReadReply reply;
  if (offset >= inode->size || size == 0) return reply;
  ETCFS_CHECK(load_extents(inode));
  DataUse data(inode);
  SharedLock lock(data->lock);
  if (offset >= inode->size) return reply;
  size = static_cast<std::size_t>(std::min<std::uint64_t>(size, inode->size - offset));
  const std::uint64_t first = offset >> kBlockShift, end = blocks_of(offset + size);

  // Without the device nothing blocks: the pieces may point at what is in memory.
  bool device = false;
  for (std::uint64_t b = first; b < end && !device;) {
    const auto memory = data->memory_at(b, end);
    std::uint64_t blocks = memory.blocks;
    if (!memory.data) {
      const MapRun run = published_at(*inode, b, b + blocks);
      device = run.kind == MapRun::Kind::kData;
      blocks = run.blocks;
    }
    const std::uint64_t from = std::max(offset, b << kBlockShift);
    const std::uint64_t to = std::min(offset + size, (b + blocks) << kBlockShift);
    if (!device)
      add_piece(reply, memory.data ? memory.data + (from - (b << kBlockShift)) : nullptr,
                to - from);
    b += blocks;
  }
  if (!device) return reply;

  reply.pieces.clear();
  block::Buffer buffer = block::Buffer::allocate((end - first) << kBlockShift);
  ETCFS_CHECK(read_published(*inode, first, end, buffer.data()));
  reply.pieces.emplace_back(buffer.data() + (offset - (first << kBlockShift)), size);
  reply.owned.push_back(std::move(buffer));
  return reply;
}

// Blocks [block, end) into memory, wherever they are. The caller holds the file's lock.
Result<void> FileIo::Impl::read_published(const InodeState& inode, std::uint64_t block,
                                          std::uint64_t end, std::byte* into) {
  block::Space::ReadGuard guard(d.space);
  std::vector<DeviceRead> reads;
  for (std::uint64_t b = block; b < end;) {
    std::byte* to = into + ((b - block) << kBlockShift);
    const auto memory =
        inode.data ? inode.data->memory_at(b, end) : FileData::MemoryRun{nullptr, end - b};
    if (memory.data) {
      std::memcpy(to, memory.data, memory.blocks << kBlockShift);
      b += memory.blocks;
      continue;
    }
    const MapRun run = published_at(inode, b, b + memory.blocks);
    if (run.kind != MapRun::Kind::kData) {
      std::memset(to, 0, run.blocks << kBlockShift);
    } else if (!reads.empty() &&
               reads.back().device_block + (reads.back().into.size() >> kBlockShift) ==
                   run.device_block &&
               reads.back().into.data() + reads.back().into.size() == to) {
      reads.back().into = {reads.back().into.data(),
                           reads.back().into.size() + (run.blocks << kBlockShift)};
    } else {
      reads.push_back({run.device_block, {to, run.blocks << kBlockShift}});
    }
    b += run.blocks;
  }
  if (reads.size() == 1) return d.device.read(reads[0].device_block, reads[0].into);
  struct Shared {
    std::vector<DeviceRead> reads;
    Result<void> result;
  };
  auto shared = std::make_shared<Shared>();
  shared->reads = std::move(reads);
  fan_out(fibers(), shared->reads.size(), kRequestsInFlight, [this, shared](std::size_t i) {
    auto r = d.device.read(shared->reads[i].device_block, shared->reads[i].into);
    if (!r) shared->result = r;
  });
  return shared->result;
}

}  // namespace etcfs::fs

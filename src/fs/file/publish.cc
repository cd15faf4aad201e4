// What follows the flush: the part of a write set that is safely on the device becomes the file,
// the rest goes back to be written again.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "fs/file/publisher.h"

namespace etcfs::fs {

using log::field;

namespace {

constexpr Nanos kFirstRetry = 100ms, kLastRetry = 10s;

// The first block of the set that is still wanted and was not written.
std::optional<std::uint64_t> first_failed(const WriteSet& set) {
  for (const auto& [first, s] : set.segments) {
    std::optional<std::uint64_t> lowest;
    for (const Piece& p : s.pieces)
      if (p.failed && p.offset < s.blocks)
        lowest = std::min(lowest.value_or(UINT64_MAX), first + p.offset);
    if (lowest) return lowest;
  }
  return std::nullopt;
}

bool piece_failed(const WriteSet& set, std::uint64_t block) {
  auto it = set.segments.upper_bound(block);
  if (it == set.segments.begin()) return false;
  const Segment& s = std::prev(it)->second;
  if (block >= s.end()) return false;
  const auto at = static_cast<std::uint32_t>(block - s.first);
  return std::any_of(s.pieces.begin(), s.pieces.end(), [&](const Piece& p) {
    return p.failed && p.offset <= at && at < p.end();
  });
}

}  // namespace

void FileIo::Impl::publish(Part& part, bool data_only) {
  if (!part.set) return;
  if (auto r = d.stream.wait_room(); !r) return give_up(part, r.error());
  // Nothing below blocks.
  InodeState& inode = *part.inode;
  FileData& data = *part.data;
  WriteSet& set = *part.set;
  const auto failed = first_failed(set);
  const bool carries_cut = data.cut != kNoCut && set.round >= data.cut_round && !failed;
  // Blocks from `limit` on must wait for others that have failed, or for a cut.
  std::uint64_t limit = set.limit_block, size = set.size;
  if (data.cut != kNoCut && !carries_cut) {
    limit = std::min(limit, blocks_of(data.cut));
    size = inode.rec.size;
    part.result = Reason::kRetry;
  }
  const std::uint64_t base = carries_cut ? std::min(inode.rec.size, data.cut) : inode.rec.size;
  // A set that took only a part was given its size by what was published then; a set before it may
  // have made the file longer since.
  size = std::max(size, base);
  if (failed) limit = std::min(limit, std::max(blocks_of(base), *failed));
  if (limit < blocks_of(size)) size = std::max(base, std::min(size, limit << kBlockShift));
  // Where the block with the present end is not rewritten, what stands behind the end on the device
  // is nobody's: the file must not grow over it.
  const bool tail_failed =
      (base & (kBlockBytes - 1)) && piece_failed(set, base >> kBlockShift);
  size = std::max(base, std::min(size, set.most_size));
  if (tail_failed) size = base;

  bool withheld = false;
  std::vector<MapChange> changes;
  std::vector<block::DeviceRange> unused;
  for (auto& [first, s] : set.segments) {
    const auto wanted = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(s.blocks, limit > first ? limit - first : 0));
    for (const Piece& p : s.pieces) {
      const std::uint32_t good = p.failed ? p.offset : std::clamp(wanted, p.offset, p.end());
      const std::uint32_t live = std::clamp(s.blocks, p.offset, p.end());
      if (!p.in_place && good > p.offset)
        changes.push_back({first + p.offset, good - p.offset, p.device_block, false});
      if (!p.in_place && good < p.end())
        unused.push_back({p.device_block + (good - p.offset), p.end() - good});
      if (good < live && (p.failed || !p.in_place)) {
        restore(inode, set, s, good, live);
        withheld = true;
      }
    }
  }
  if (withheld) {  // what comes after it in the file must not go out before it, nor a cut without
                   // it
    for (auto& later : data.sets) {
      if (later.get() == &set) continue;
      later->limit_block = std::min(later->limit_block, limit);
      if (tail_failed) later->most_size = std::min(later->most_size, base);
    }
    data.cut_round = data.rounds;
    part.result = Reason::kRetry;
  }
  Publisher publisher(*this, inode);
  if (carries_cut) {
    publisher.cut(data.cut);
    data.cut = kNoCut;
  }
  publisher.add(changes, size);
  publisher.finish(size, carries_cut || (inode.attrs_dirty && !data_only));
  if (!unused.empty()) d.space.abandon(unused);

  if (failed) {
    ++data.failures;
    ++data.failed_total;
    data.error = Reason::kIo;
    part.result = Reason::kIo;
    data.cut_round = data.rounds;
    data.retry_at =
        rt::now() + std::min<Nanos>(kLastRetry, kFirstRetry * (1 << std::min(data.failures, 7u)));
    ETCFS_LOG_WARN("write-back of a file failed; it is tried again", field("ino", inode.ino.v),
                   field("failures", data.failures));
  } else if (!set.segments.empty()) {
    data.failures = 0;
  }
  finish_set(part);
}

// The stream takes nothing any more: all stays dirty.
void FileIo::Impl::give_up(Part& part, Reason reason) {
  std::vector<block::DeviceRange> unused;
  for (auto& [first, s] : part.set->segments)
    for (const Piece& p : s.pieces) {
      if (!p.in_place) unused.push_back({p.device_block, p.blocks});
      const std::uint32_t live = std::clamp(s.blocks, p.offset, p.end());
      if (p.offset < live) restore(*part.inode, *part.set, s, p.offset, live);
    }
  if (!unused.empty()) d.space.abandon(unused);
  if (part.data->cut != kNoCut) part.data->cut_round = part.data->rounds;
  part.result = reason;
  finish_set(part);
}

// Blocks [from, to) of the segment become dirty again, where nothing newer hides them. They hold no
// reservation: the next write-back gets one.
void FileIo::Impl::restore(InodeState& inode, WriteSet& set, Segment& segment, std::uint32_t from,
                           std::uint32_t to) {
  FileData& data = *inode.data;
  const auto hidden = [&](std::uint64_t block) {
    if (find_segment(data.dirty, block)) return true;
    for (auto it = data.sets.rbegin(); it != data.sets.rend() && it->get() != &set; ++it)
      if (find_segment((*it)->segments, block)) return true;
    return false;
  };
  for (std::uint64_t b = segment.first + from; b < segment.first + to;) {
    std::uint64_t end = b;
    while (end < segment.first + to && !hidden(end)) ++end;
    if (end == b) {
      ++b;
      continue;
    }
    Segment& s = data.dirty[b];
    s.first = b;
    s.blocks = static_cast<std::uint32_t>(end - b);
    s.buffer = block::Buffer::allocate((end - b) << kBlockShift);
    std::memcpy(s.buffer.data(), segment.at(b), (end - b) << kBlockShift);
    if (published_at(inode, b, b + 1).kind == MapRun::Kind::kHole) s.fresh = s.blocks;
    data.fresh_blocks += s.fresh;
    // Like every dirty block: zeros behind the end of the file.
    if (inode.size < end << kBlockShift && inode.size > (end - 1) << kBlockShift) {
      const std::size_t in_block = inode.size & (kBlockBytes - 1);
      std::memset(s.at(end - 1) + in_block, 0, kBlockBytes - in_block);
    }
    add_dirty(data, s.blocks);
    b = end;
  }
}

void FileIo::Impl::finish_set(Part& part) {
  FileData& data = *part.data;
  ETCFS_ASSERT(!data.sets.empty() && data.sets.front().get() == part.set);
  for (const auto& [first, s] : part.set->segments) {
    data.fresh_blocks -= s.fresh;
    sub_dirty(data, s.blocks, false);
  }
  keep_tail(part.inode, *part.set);
  data.sets.erase(data.sets.begin());
  part.set = nullptr;
  if (needs_flush(*part.inode))
    list(part.inode);
  else
    unlist(*part.inode);
}

// A file that is open and ends within a block is likely to be appended to.
void FileIo::Impl::keep_tail(const InodeRef& inode, const WriteSet& set) {
  FileData& data = *inode->data;
  if (inode->opens == 0 || (inode->size & (kBlockBytes - 1)) == 0) return;
  const std::uint64_t block = inode->size >> kBlockShift;
  if (data.sets.back().get() != &set || find_segment(data.dirty, block)) return;
  const auto it = set.segments.upper_bound(block);
  if (it == set.segments.begin()) return;
  const Segment& s = std::prev(it)->second;
  if (block >= s.end()) return;
  if (!data.tail) {
    data.tail = block::Buffer::allocate(kBlockBytes);
    tails.push_back(inode);
    while (tails.size() > kTailCopies) {
      if (const InodeRef old = tails.front().lock(); old && old != inode && old->data) {
        old->data->tail = {};
        if (old->data->idle()) old->data.reset();
      }
      tails.pop_front();
    }
  }
  data.tail_block = block;
  std::memcpy(data.tail.data(), s.at(block), kBlockBytes);
}

}  // namespace etcfs::fs

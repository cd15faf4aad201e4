// Write-back of one or many files: take what is dirty, find places, write, flush the device once,
// then publish file by file (I4).
//
// A file's write-backs go through two turns, write and publish, in the same order. The second is
// taken before the first is given up, so the next write-back may write while this one flushes, and
// yet publications keep their order. Nobody who holds a publish turn waits for a write turn.
#include <algorithm>

#include "base/log.h"
#include "fs/file/file_io_impl.h"

namespace etcfs::fs {

using log::field;

void FileIo::Impl::write_back(std::vector<Part>& parts, RoundOptions options) {
  struct Registered {
    Impl& io;
    std::uint64_t round;
    ~Registered() {
      io.rounds.erase(round);
      io.round_ended.notify_all();
    }
  } registered{*this, next_round++};
  rounds.insert(registered.round);

  for (Part& part : parts) part.result = reserve_missing(part);
  // From here to the start of the writes nothing blocks.
  std::vector<Io> ios;
  std::optional<block::Space::ReadGuard> guard;  // also keeps the arenas of in-place writes ours
  guard.emplace(d.space);
  for (Part& part : parts) {
    if (!part.result || part.inode->gone) continue;
    take_dirty(part, options.most_bytes);
    if (!part.set) continue;
    for (auto& [first, s] : part.set->segments)
      for (Piece& p : s.pieces)
        ios.push_back(
            {p.device_block, {s.at(first + p.offset), std::size_t{p.blocks} << kBlockShift}, &p});
  }
  const std::uint64_t errors_before = flush_errors;
  const bool wrote = write_pieces(std::move(ios));
  guard.reset();
  for (Part& part : parts) {
    part.publish_turn = std::unique_lock(part.data->publish_turn);
    part.write_turn.unlock();
  }
  if (wrote) {
    // Also a flush that succeeds says nothing about what one that failed meanwhile has lost.
    if (auto r = d.device.flush(); !r) {
      ++flush_errors;
      ETCFS_LOG_WARN("the device did not flush; what was written is written again",
                     field("reason", reason_name(r.error())));
    }
    if (flush_errors != errors_before) {
      for (Part& part : parts)
        if (part.set)
          for (auto& [first, s] : part.set->segments)
            for (Piece& p : s.pieces) p.failed = true;
    }
  }
  std::size_t n = 0;
  for (Part& part : parts) {
    publish(part, options.data_only);
    part.publish_turn.unlock();
    if (++n % 64 == 0) rt::yield();
  }
}

// Segments that were to be written in place and no longer can be get a reservation now. Blocks.
Result<void> FileIo::Impl::reserve_missing(Part& part) {
  ETCFS_CHECK(load_extents(part.inode));
  InodeState& inode = *part.inode;
  const auto movable = [&](const Segment& s) {
    for (std::uint64_t b = s.first; b < s.end();) {
      const MapRun run = in_place_at(inode, b, s.end());
      if (run.kind == MapRun::Kind::kHole) return true;
      b += run.blocks;
    }
    return false;
  };
  FileData& data = *part.data;
  for (auto it = data.dirty.begin(); it != data.dirty.end();) {
    if (it->second.reserved || !movable(it->second)) {
      ++it;
      continue;
    }
    const std::uint64_t first = it->first;
    const std::uint32_t blocks = it->second.blocks;
    if (auto r = d.space.reserve(blocks); !r) {
      data.error = r.error();
      ++data.failures;
      ++data.failed_total;
      ++space_failures;
      data.retry_at = rt::now() + kNoSpaceRetry;
      return r;
    }
    space_failures = 0;
    it = data.dirty.find(first);  // it may have been cut, or extended, or be gone
    if (it != data.dirty.end() && !it->second.reserved && it->second.blocks <= blocks) {
      it->second.reserved = true;
      if (it->second.blocks < blocks) d.space.unreserve(blocks - it->second.blocks);
    } else {
      d.space.unreserve(blocks);
    }
    it = data.dirty.begin();
  }
  return {};
}

// Moves dirty segments into a new write set, from the lowest on, and gives each block its place.
void FileIo::Impl::take_dirty(Part& part, std::uint64_t most_bytes) {
  InodeState& inode = *part.inode;
  FileData& data = *part.data;
  if (!needs_flush(inode)) return;
  for (const auto& [first, s] : data.dirty) {  // reserve_missing() may have blocked for other parts
    if (s.reserved) continue;
    for (std::uint64_t b = s.first; b < s.end();) {
      const MapRun run = in_place_at(inode, b, s.end());
      if (run.kind == MapRun::Kind::kHole) {
        part.result = Reason::kRetry;
        return;
      }
      b += run.blocks;
    }
  }
  auto set = std::make_unique<WriteSet>();
  set->round = data.rounds++;
  set->size = inode.size;
  if (data.dirty_blocks * kBlockBytes <= most_bytes) {
    set->segments.swap(data.dirty);
    data.dirty_blocks = 0;
  } else {
    std::uint64_t taken = 0;
    while (!data.dirty.empty() && taken * kBlockBytes < most_bytes) {
      auto node = data.dirty.extract(data.dirty.begin());
      taken += node.mapped().blocks;
      set->segments.insert(set->segments.end(), std::move(node));
    }
    data.dirty_blocks -= taken;
    if (!data.dirty.empty()) {
      // The size may not run ahead of the data that is left.
      const std::uint64_t base = std::min(inode.rec.size, data.cut);
      set->size = std::max(base, std::min(inode.size, data.dirty.begin()->first << kBlockShift));
    }
  }
  unlist(inode);
  if (!data.dirty.empty()) list(part.inode);
  part.set = set.get();
  place_pieces(part);
  data.sets.push_back(std::move(set));
}

void FileIo::Impl::place_pieces(Part& part) {
  InodeState& inode = *part.inode;
  WriteSet& set = *part.set;
  std::vector<Segment*> run;  // segments that are adjacent and wholly new
  std::uint64_t run_blocks = 0;
  const auto end_run = [&] {
    if (!run.empty()) allocate_run(inode, set, run, run_blocks);
    run.clear();
    run_blocks = 0;
  };
  for (auto& [first, s] : set.segments) {
    s.pieces.clear();
    s.moves = false;
    std::uint32_t in_place = 0;
    for (std::uint64_t b = first; b < s.end();) {
      const MapRun map = in_place_at(inode, b, s.end());
      const auto blocks = static_cast<std::uint32_t>(map.blocks);
      const bool stays = map.kind == MapRun::Kind::kData;
      const auto offset = static_cast<std::uint32_t>(b - first);
      if (!stays && !s.pieces.empty() && !s.pieces.back().in_place)
        s.pieces.back().blocks += blocks;
      else
        s.pieces.push_back({offset, blocks, map.device_block, stays, false});
      if (stays) in_place += blocks;
      s.moves = s.moves || !stays;
      b += map.blocks;
    }
    if (s.reserved && in_place > 0) d.space.unreserve(in_place);
    ETCFS_ASSERT(s.reserved || !s.moves);
    s.reserved = false;
    if (!s.moves) {
      end_run();
      continue;
    }
    if (in_place > 0 || (!run.empty() && run.back()->end() != first)) end_run();
    run.push_back(&s);
    run_blocks += s.blocks;
    if (in_place > 0) {
      run_blocks -= in_place;
      end_run();
    }
  }
  end_run();
}

// Places for all pieces of these segments that are not in place: `blocks` of them.
void FileIo::Impl::allocate_run(InodeState& inode, WriteSet& set, std::span<Segment*> segments,
                                std::uint64_t blocks) {
  // Behind the block before, which may stand in a set that is on its way; else behind the last
  // file.
  const std::uint64_t first = segments.front()->first;
  std::uint64_t near = 0;
  const auto behind = [&](WriteSet& in) {
    Segment* s = first > 0 ? find_segment(in.segments, first - 1) : nullptr;
    if (!s) return;
    const auto offset = static_cast<std::uint32_t>(first - 1 - s->first);
    for (const Piece& p : s->pieces)
      if (p.offset <= offset && offset < p.end()) near = p.device_block + (offset - p.offset) + 1;
  };
  behind(set);
  for (auto it = inode.data->sets.rbegin(); near == 0 && it != inode.data->sets.rend(); ++it)
    behind(**it);
  if (near == 0 && first > 0) {
    const MapRun run = published_at(inode, first - 1, first);
    if (run.kind == MapRun::Kind::kData) near = run.device_block + 1;
  }
  const bool new_place = near == 0;
  if (new_place) near = cursor;
  const std::vector<block::DeviceRange> ranges = d.space.allocate(blocks, near);
  if (new_place) cursor = ranges.back().end();

  auto range = ranges.begin();
  std::uint64_t used = 0;
  for (Segment* s : segments) {
    std::vector<Piece> pieces;
    for (Piece p : s->pieces) {
      while (!p.in_place && p.blocks > 0) {
        ETCFS_ASSERT(range != ranges.end());
        const auto n =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(p.blocks, range->blocks - used));
        pieces.push_back({p.offset, n, range->block + used, false, false});
        p.offset += n;
        p.blocks -= n;
        used += n;
        if (used == range->blocks) {
          ++range;
          used = 0;
        }
      }
      if (p.in_place) pieces.push_back(p);
    }
    s->pieces = std::move(pieces);
  }
  ETCFS_ASSERT(range == ranges.end());
}

// Writes all pieces, adjacent ones in one request, many requests at once; a piece whose request
// failed is marked. Blocks.
bool FileIo::Impl::write_pieces(std::vector<Io> ios) {
  if (ios.empty()) return false;
  struct Request {
    std::size_t first = 0, count = 0;
    std::uint64_t blocks = 0;
  };
  struct Shared {
    std::vector<Io> ios;
    std::vector<Request> requests;
    bool failed = false;
  };
  auto shared = std::make_shared<Shared>();
  std::sort(ios.begin(), ios.end(),
            [](const Io& a, const Io& b) { return a.device_block < b.device_block; });
  for (std::size_t i = 0; i < ios.size(); ++i) {
    const std::uint64_t blocks = ios[i].bytes.size() >> kBlockShift;
    auto& requests = shared->requests;
    if (requests.empty() ||
        ios[requests.back().first].device_block + requests.back().blocks != ios[i].device_block ||
        requests.back().blocks + blocks > kRequestBlocks) {
      ETCFS_ASSERT(i == 0 ||
                   ios[i - 1].device_block + ios[i - 1].piece->blocks <= ios[i].device_block);
      requests.push_back({i, 0, 0});
    }
    requests.back().count++;
    requests.back().blocks += blocks;
  }
  shared->ios = std::move(ios);
  fan_out(fibers(), shared->requests.size(), kRequestsInFlight, [this, shared](std::size_t i) {
    const Request& r = shared->requests[i];
    std::vector<std::span<const std::byte>> pieces;
    pieces.reserve(r.count);
    for (std::size_t k = 0; k < r.count; ++k) pieces.push_back(shared->ios[r.first + k].bytes);
    const std::uint64_t at = shared->ios[r.first].device_block;
    const bool in_place = std::any_of(
        shared->ios.begin() + static_cast<std::ptrdiff_t>(r.first),
        shared->ios.begin() + static_cast<std::ptrdiff_t>(r.first + r.count),
        [](const Io& io) { return io.piece->in_place; });
    // Past the deadline others may have taken the file over. New places are nobody else's.
    while (in_place && d.deadline && rt::now() >= d.deadline() && !d.stream.fenced())
      rt::sleep_for(10ms);
    for (unsigned tries = 1;; ++tries) {
      const auto result = d.device.write(at, pieces);
      if (result) return;
      ETCFS_LOG_WARN("device write failed", field("block", at), field("blocks", r.blocks),
                     field("try", tries), field("reason", reason_name(result.error())));
      if (tries == kDeviceTries) break;
      rt::sleep_for(2ms * tries);
    }
    shared->failed = true;
    for (std::size_t k = 0; k < r.count; ++k) shared->ios[r.first + k].piece->failed = true;
  });
  failures = shared->failed ? failures + 1 : 0;
  return true;
}

Result<void> FileIo::Impl::flush_once(const InodeRef& inode, bool data_only) {
  std::vector<Part> parts;
  parts.emplace_back(inode);
  Part& part = parts.front();
  part.write_turn = std::unique_lock(part.data->write_turn);
  write_back(parts, {.most_bytes = UINT64_MAX, .data_only = data_only});
  return part.result;
}

// A truncate that comes in between takes away what is being written, and what that would have
// replaced must not stay: then all is done again, with the truncates kept out if need be.
Result<void> FileIo::Impl::flush(const InodeRef& inode, bool data_only) {
  constexpr unsigned kFreeTries = 16;
  const FileData* data = inode->data.get();
  if (!(data && data->error)) {
    if (!needs_flush(*inode)) return {};
    if (data_only && inode->size == inode->rec.size &&
        (!data || (data->dirty.empty() && data->sets.empty() && data->cut == kNoCut)))
      return {};
  }
  DataUse use(inode);
  const std::uint64_t failed_before = use->failed_total;
  Result<void> result = flush_once(inode, data_only);
  for (unsigned tries = 1; !result && result.error() == Reason::kRetry; ++tries) {
    std::unique_lock<RwLock> lock;
    if (tries >= kFreeTries) lock = std::unique_lock(use->lock);
    result = flush_once(inode, data_only);
  }
  // Another caller may have taken the error of what this one waited for.
  if (!use->error && result && use->failed_total != failed_before) return Reason::kIo;
  if (!use->error) return result;
  const Reason error = *use->error;
  use->error.reset();
  return error;
}

Result<void> FileIo::Impl::flush_many(std::span<const InodeRef> inodes, bool data_only) {
  Result<void> result;
  std::vector<InodeRef> todo;
  for (const InodeRef& inode : inodes)
    if (needs_flush(*inode)) todo.push_back(inode);
  // All take their turns in the same order.
  std::sort(todo.begin(), todo.end(),
            [](const InodeRef& a, const InodeRef& b) { return a->ino < b->ino; });
  todo.erase(std::unique(todo.begin(), todo.end()), todo.end());
  for (std::size_t i = 0; i < todo.size(); i += kRoundFiles) {
    std::vector<Part> parts;
    for (std::size_t k = i; k < std::min(todo.size(), i + kRoundFiles); ++k) {
      parts.emplace_back(todo[k]);
      parts.back().write_turn = std::unique_lock(parts.back().data->write_turn);
    }
    write_back(parts, {.most_bytes = UINT64_MAX, .data_only = data_only});
    for (Part& part : parts) {
      if (!part.result && part.result.error() == Reason::kRetry)
        part.result = flush(part.inode, data_only);
      if (!part.result && result) result = part.result;
    }
  }
  return result;
}

}  // namespace etcfs::fs

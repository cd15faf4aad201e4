#include "fs/file/publisher.h"

#include <algorithm>

#include "base/assert.h"

namespace etcfs::fs {
namespace {

constexpr std::size_t kFixedOps = 4;  // compares and sequence number that the stream adds, and one
constexpr std::size_t kExtentBytes = 40;   // encoded, at most
constexpr std::size_t kMapKeyBytes = 640;  // a map chunk with its key
constexpr std::size_t kKeyBytes = 128;

std::uint64_t chunk_of(std::uint64_t device_block) {
  return device_block >> meta::kArenaChunkShift;
}
std::uint64_t to_chunk_end(std::uint64_t device_block) {
  return ((chunk_of(device_block) + 1) << meta::kArenaChunkShift) - device_block;
}
void append_range(std::vector<block::DeviceRange>& ranges, block::DeviceRange r) {
  if (!ranges.empty() && ranges.back().end() == r.block)
    ranges.back().blocks += r.blocks;
  else
    ranges.push_back(r);
}

}  // namespace

Publisher::Publisher(FileIo::Impl& io, InodeState& inode)
    : io_(io),
      inode_(inode),
      most_ops_(io.d.stream.limits().txn_ops - kFixedOps),
      most_bytes_(io.d.stream.limits().txn_bytes / 10 * 9) {
  begin();
}

Extents& Publisher::extents() {
  return inode_.rec.external_extents ? inode_.data->external : inode_.rec.extents;
}

void Publisher::begin() {
  any_ = false;
  changes_.clear();
  published_.clear();
  released_.clear();
  device_chunks_.clear();
  chunks_.clear();
  chunk_bytes_ = 0;
  record_bytes_ = 512 + inode_.rec.symlink.size();
  for (const auto& [name, value] : inode_.rec.xattrs)
    record_bytes_ += name.size() + value.size() + 16;
}

// Each map chunk may bring the summary of its arena with it; each change adds two extents at most.
bool Publisher::fits(const block::DeviceRange* a, const block::DeviceRange* b,
                     const std::set<std::uint32_t>& chunks, std::size_t changes) const {
  std::size_t maps = device_chunks_.size();
  if (a && !device_chunks_.contains(chunk_of(a->block))) ++maps;
  if (b && !device_chunks_.contains(chunk_of(b->block))) ++maps;
  const auto& file = inode_;
  Cost cost{1 + 2 * maps, record_bytes_ + maps * kMapKeyBytes};
  const std::size_t added = 2 * (changes_.size() + changes);
  if (file.rec.external_extents) {
    cost.ops += chunks_.size();
    cost.bytes += chunk_bytes_ + added * kExtentBytes;
    for (std::uint32_t c : chunks) {
      if (chunks_.contains(c)) continue;
      ++cost.ops;
      cost.bytes += kKeyBytes + extents_of_chunk(file.data->external, c).size() * kExtentBytes;
    }
  } else {
    const std::size_t count = file.rec.extents.size() + added;
    if (count > meta::kInlineExtents)
      cost.ops += count;  // all may become external, in as many chunks
    cost.bytes += count * (kExtentBytes + kKeyBytes);
  }
  return cost.ops <= most_ops_ && cost.bytes <= most_bytes_;
}

void Publisher::count(block::DeviceRange range) { device_chunks_.insert(chunk_of(range.block)); }

void Publisher::count(const std::set<std::uint32_t>& chunks) {
  if (!inode_.rec.external_extents) return;
  for (std::uint32_t c : chunks)
    if (chunks_.insert(c).second)
      chunk_bytes_ += kKeyBytes + extents_of_chunk(extents(), c).size() * kExtentBytes;
}

void Publisher::cut(std::uint64_t new_size) {
  const std::uint64_t from = blocks_of(new_size);
  while (!extents().empty() && extents().back().file_end() > from) {
    const meta::Extent last = extents().back();
    // The end of it, as far as it lies in one map chunk.
    const std::uint64_t device_end = last.device_block + last.blocks;
    std::uint64_t begin =
        std::max(last.device_block, chunk_of(device_end - 1) << meta::kArenaChunkShift);
    if (from > last.file_block)
      begin = std::max(begin, last.device_block + (from - last.file_block));
    const block::DeviceRange range{begin, device_end - begin};
    const std::set<std::uint32_t> chunk{meta::extent_chunk(last.file_block)};
    if (!fits(&range, nullptr, chunk, 0)) {
      ETCFS_ASSERT(any_);
      close(std::max(new_size, std::min(inode_.rec.size, last.file_end() << kBlockShift)), false);
    }
    count(range);
    count(chunk);
    released_.push_back(range);
    any_ = true;
    cut_extents(extents(), last.file_end() - range.blocks);
  }
  inode_.rec.size = std::min(inode_.rec.size, new_size);
}

void Publisher::add(const std::vector<MapChange>& changes, std::uint64_t final_size) {
  for (const MapChange& change : changes) {
    for (std::uint64_t b = change.file_block; b < change.end();) {
      const std::uint64_t place = change.device_block + (b - change.file_block);
      // As far as both the new and the old place lie in one map chunk each.
      std::uint64_t n = std::min(change.end() - b, to_chunk_end(place));
      const MapRun old = map_at(extents(), b, b + n);
      const bool had = old.kind != MapRun::Kind::kHole;
      n = old.blocks;
      if (had) n = std::min(n, to_chunk_end(old.device_block));
      const block::DeviceRange fresh{place, n}, freed{old.device_block, n};
      std::set<std::uint32_t> chunks;
      if (inode_.rec.external_extents) add_touched_chunks(extents(), b, n, chunks);
      if (any_ && !fits(&fresh, had ? &freed : nullptr, chunks, 1)) {
        close(std::max(inode_.rec.size, std::min(final_size, b << kBlockShift)), false);
        continue;  // the file may have become external
      }
      count(fresh);
      if (had) count(freed);
      count(chunks);
      append_range(published_, fresh);
      if (had) append_range(released_, freed);
      if (!changes_.empty() && changes_.back().end() == b &&
          changes_.back().device_block + changes_.back().blocks == place)
        changes_.back().blocks += n;
      else
        changes_.push_back({b, n, place, false});
      any_ = true;
      b += n;
    }
  }
}

void Publisher::finish(std::uint64_t final_size, bool must) {
  if (any_ || must || final_size != inode_.rec.size) close(final_size, true);
}

void Publisher::close(std::uint64_t size, bool last) {
  if (!changes_.empty()) extents() = apply_changes(extents(), changes_);
  if (inode_.data) inode_.data->external_mapped.reset();
  inode_.rec.size = size;
  ETCFS_ASSERT(extents().empty() || extents().back().file_end() <= blocks_of(size));
  meta::Step step;
  put_extents(step, last);
  step.put(io_.d.keys.inode(inode_.ino), meta::encode(inode_.rec));
  if (!published_.empty()) io_.d.space.publish(step, published_);
  if (!released_.empty()) io_.d.space.release(step, released_);
  io_.d.stream.append(std::move(step));
  inode_.attrs_dirty = false;
  begin();
}

// The records of x/ that change with this step, and the change between inline and external.
void Publisher::put_extents(meta::Step& step, bool last) {
  meta::Inode& rec = inode_.rec;
  const meta::Keys& keys = io_.d.keys;
  const auto add_chunks_of_all = [&] {
    for (const meta::Extent& e : extents()) chunks_.insert(meta::extent_chunk(e.file_block));
  };
  if (!rec.external_extents) {
    if (rec.extents.size() <= meta::kInlineExtents) return;
    inode_.data->external = std::move(rec.extents);
    rec.extents.clear();
    rec.external_extents = true;
    inode_.extents_loaded = true;
    add_chunks_of_all();
  } else if (last && extents().size() <= meta::kInlineExtents / 2) {
    const std::size_t ops = 1 + 2 * device_chunks_.size();
    const std::set<std::uint32_t> touched = chunks_;
    add_chunks_of_all();
    if (ops + chunks_.size() <= most_ops_) {
      for (std::uint32_t c : chunks_) step.erase(keys.extents(inode_.ino, c));
      rec.extents = std::move(inode_.data->external);
      inode_.data->external.clear();
      rec.external_extents = false;
      return;
    }
    chunks_ = touched;
  }
  for (std::uint32_t c : chunks_) {
    const auto in_chunk = extents_of_chunk(inode_.data->external, c);
    if (in_chunk.empty())
      step.erase(keys.extents(inode_.ino, c));
    else
      step.put(keys.extents(inode_.ino, c),
               meta::encode_extents({in_chunk.begin(), in_chunk.end()}));
  }
}

}  // namespace etcfs::fs

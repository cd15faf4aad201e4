// The part of Space that never waits: promises, allocation, publication and release. Every function
// here runs without a blocking call, so what it changes in memory and what it adds to the step are
// one.
//
// Crash consequences: allocated blocks exist in memory only, so a crash frees them; published and
// freed ones are in the step that refers to or drops them, so they are never lost or shared.
#include "block/space.h"

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"
#include "block/space_impl.h"

namespace etcfs::block {
namespace {

using log::field;
constexpr std::uint64_t kWatermarkBlocks = 16 * 1024;  // 64 MiB

bool has_mutation(const meta::Step& step, const std::string& key) {
  return std::any_of(step.mutations.begin(), step.mutations.end(),
                     [&](const meta::Mutation& m) { return m.key == key; });
}

void append_range(std::vector<DeviceRange>& ranges, DeviceRange r) {
  if (!ranges.empty() && ranges.back().end() == r.block) {
    ranges.back().blocks += r.blocks;
  } else {
    ranges.push_back(r);
  }
}

}  // namespace

void set_mutation(meta::Step& step, std::string key, std::optional<std::string> value) {
  for (meta::Mutation& m : step.mutations) {
    if (m.key != key) continue;
    m.value = std::move(value);
    return;
  }
  step.mutations.push_back({std::move(key), std::move(value)});
}

Space::Impl::Impl(meta::Kv& kv_in, const meta::Keys& keys_in, const meta::Guard& guard_in,
                  meta::CommitStream& stream_in, meta::Super super_in)
    : kv(kv_in),
      keys(keys_in),
      guard(guard_in),
      stream(stream_in),
      super(std::move(super_in)),
      watermark(std::min(kWatermarkBlocks, super.device_blocks / 16)),
      alive(std::make_shared<char>()),
      by_number(super.arenas(), nullptr),
      records(super.arenas()) {}

Space::Impl::~Impl() {
  if (group) group->kill();
}

Space::Impl::Owned* Space::Impl::find_block(std::uint64_t block) const {
  return find(ArenaNo{static_cast<std::uint32_t>(block / super.arena_blocks)});
}

// --- promises

bool Space::Impl::try_reserve(std::uint64_t blocks) {
  ETCFS_ASSERT(reserved <= free);
  if (free - reserved < blocks) return false;
  reserved += blocks;
  return true;
}

Result<void> Space::reserve(std::uint64_t blocks) {
  Impl& s = *impl_;
  if (!s.try_reserve(blocks)) return s.reserve_slow(blocks);
  if (s.low()) s.poke();
  return {};
}

void Space::unreserve(std::uint64_t blocks) {
  ETCFS_ASSERT(blocks <= impl_->reserved);
  impl_->reserved -= blocks;
  impl_->freed_cond.notify_all();
}

// --- allocation

// One piece of at most `blocks`, exact where there is such a run. Some arena has a free block.
Space::Impl::Owned* Space::Impl::place(std::uint64_t blocks, DeviceRange& got) {
  const auto exact = [&](Owned& a) {
    if (a.closing || a.map.free_blocks() == 0) return false;
    got = a.map.take_run(blocks);
    return got.blocks > 0;
  };
  if (current && exact(*current)) return current;
  for (bool fresh : {false, true}) {  // wholly free arenas stay so while others will do
    for (auto& [n, arena] : owned) {
      if (arena.get() == current || arena->map.wholly_free() != fresh) continue;
      if (exact(*arena)) return current = arena.get();
    }
  }
  Owned* best = nullptr;
  for (auto& [n, arena] : owned) {
    if (arena->closing || arena->map.free_blocks() == 0) continue;
    if (!best || arena->map.run_bound() > best->map.run_bound()) best = arena.get();
  }
  ETCFS_ASSERT(best != nullptr);
  got = best->map.take_longest(blocks);
  return current = best;
}

std::vector<DeviceRange> Space::allocate(std::uint64_t blocks, std::uint64_t near) {
  Impl& s = *impl_;
  ETCFS_ASSERT(blocks > 0 && blocks <= s.reserved && s.reserved <= s.free);
  std::vector<DeviceRange> out;
  for (std::uint64_t left = blocks; left > 0;) {
    DeviceRange got;
    Impl::Owned* arena = nullptr;
    if (near != 0 && near < s.super.device_blocks) {
      arena = s.find_block(near);
      if (arena && !arena->closing && arena->map.is_free(near)) {
        got = arena->map.take_at(near, left);
      } else {
        arena = nullptr;
      }
    }
    if (!arena) arena = s.place(left, got);
    near = got.end();  // may go on in the next arena
    arena->unpublished += got.blocks;
    arena->used_at = s.tick;
    left -= got.blocks;
    append_range(out, got);
  }
  s.reserved -= blocks;
  s.free -= blocks;
  s.unpublished += blocks;
  if (s.low()) s.poke();
  return out;
}

void Space::abandon(std::span<const DeviceRange> ranges) {
  Impl& s = *impl_;
  Impl::Pending pending;
  s.each_piece(ranges, [&](ArenaNo n, DeviceRange piece) {
    Impl::Owned* arena = s.find(n);
    ETCFS_ASSERT(arena && arena->unpublished >= piece.blocks);
    arena->unpublished -= piece.blocks;
    s.unpublished -= piece.blocks;
    arena->coming_back += piece.blocks;
    s.coming_back += piece.blocks;
    arena->used_at = s.tick;
    pending.ranges.push_back(piece);
  });
  if (!pending.ranges.empty()) s.add_pending(std::move(pending));
}

// --- steps

// The map of the chunks that `changed` touches, as the step will leave it.
void Space::Impl::put_map(meta::Step& step, Owned& arena, DeviceRange changed) {
  const std::uint32_t last = arena.map.chunk_of(changed.end() - 1);
  for (std::uint32_t c = arena.map.chunk_of(changed.block); c <= last; ++c) {
    std::string key = keys.amap(arena.n, c);
    // A step that got this chunk earlier must have been appended by now, or be this one: the values
    // are whole maps, so steps that are appended in another order than they were filled lose
    // changes.
    const StepNo at = stream.last_appended();
    ETCFS_ASSERT(arena.touched[c].v != at.v + 1 || has_mutation(step, key));
    arena.touched[c] = StepNo{at.v + 1};
    if (arena.map.chunk_empty(c)) {
      set_mutation(step, std::move(key), std::nullopt);
    } else {
      set_mutation(step, std::move(key), meta::encode_amap(arena.map.chunk_bits(c)));
    }
  }
}

void Space::Impl::put_summary(meta::Step& step, const Owned& arena) {
  set_mutation(step, keys.arena(arena.n),
               meta::encode(meta::Arena{guard.node(), guard.epoch(), arena.map.summary_free()}));
}

void Space::publish(meta::Step& step, std::span<const DeviceRange> ranges) {
  Impl& s = *impl_;
  s.each_piece(ranges, [&](ArenaNo n, DeviceRange piece) {
    Impl::Owned* arena = s.find(n);
    ETCFS_ASSERT(arena && arena->unpublished >= piece.blocks);
    arena->map.publish(piece);
    arena->unpublished -= piece.blocks;
    s.unpublished -= piece.blocks;
    arena->used_at = s.tick;
    s.put_map(step, *arena, piece);
    s.put_summary(step, *arena);
  });
}

void Space::Impl::drop_published(meta::Step& step, Owned& arena, DeviceRange piece,
                                 std::vector<DeviceRange>& dropped) {
  if (piece.end() > arena.map.span().end() || !arena.map.all_published(piece)) {
    // From a record that contradicts the map: what is not published must not be freed a second
    // time.
    ETCFS_LOG_ERROR("blocks are freed that the map does not show as used",
                    field("arena", arena.n.v), field("block", piece.block),
                    field("blocks", piece.blocks));
    return;
  }
  arena.map.unpublish(piece);
  arena.coming_back += piece.blocks;
  coming_back += piece.blocks;
  arena.used_at = tick;
  put_map(step, arena, piece);
  put_summary(step, arena);
  dropped.push_back(piece);
}

void Space::Impl::come_back_on_commit(meta::Step& step, std::vector<DeviceRange> dropped) {
  if (dropped.empty()) return;
  step.on_commit = [this, token = std::weak_ptr<char>(alive), before = std::move(step.on_commit),
                    dropped = std::move(dropped)]() mutable {
    if (before) before();
    if (token.expired()) return;
    add_pending({0, std::move(dropped), std::nullopt});
  };
}

void Space::Impl::put_freed(meta::Step& step, ArenaNo n, std::vector<DeviceRange> ranges) {
  std::string unique =
      fmt::format("{}.{:016x}.{:016x}", guard.node(), guard.epoch().v, ++freed_number);
  std::string value = meta::encode_freed(ranges);
  if (!guards.empty()) {  // reads that began before now may still be looking at the blocks
    meta::Mutation held{keys.freed(n, unique), value};
    unique += ".r";
    step.on_commit = [this, token = std::weak_ptr<char>(alive), before = std::move(step.on_commit),
                      held = std::move(held)]() mutable {
      if (before) before();
      if (token.expired()) return;
      add_pending({0, {}, std::move(held)});
    };
  }
  step.put(keys.freed(n, unique), std::move(value));
  if (wanted.insert(n).second) poke();
}

void Space::release(meta::Step& step, std::span<const DeviceRange> ranges) {
  Impl& s = *impl_;
  std::vector<DeviceRange> dropped;
  std::map<ArenaNo, std::vector<DeviceRange>> foreign;
  s.each_piece(ranges, [&](ArenaNo n, DeviceRange piece) {
    if (Impl::Owned* arena = s.find(n)) {
      s.drop_published(step, *arena, piece, dropped);
    } else {
      append_range(foreign[n], piece);
    }
  });
  s.come_back_on_commit(step, std::move(dropped));
  for (auto& [n, pieces] : foreign) s.put_freed(step, n, std::move(pieces));
}

std::size_t Space::keys_touched(std::span<const DeviceRange> ranges) const {
  const Impl& s = *impl_;
  std::set<std::pair<ArenaNo, std::uint32_t>> chunks;
  std::set<ArenaNo> arenas;
  s.each_piece(ranges, [&](ArenaNo n, DeviceRange piece) {
    arenas.insert(n);
    const Impl::Owned* arena = s.find(n);
    if (!arena) return;
    const std::uint32_t last = arena->map.chunk_of(piece.end() - 1);
    for (std::uint32_t c = arena->map.chunk_of(piece.block); c <= last; ++c) chunks.insert({n, c});
  });
  return chunks.size() + arenas.size();
}

// --- coming back

void Space::Impl::add_pending(Pending p) {
  p.barrier = next_ticket;
  pending.push_back(std::move(p));
  drain();
}

void Space::Impl::drain() {
  bool any = false;
  while (!pending.empty() && pending.front().barrier <= oldest_ticket()) {
    Pending p = std::move(pending.front());
    pending.pop_front();
    for (DeviceRange r : p.ranges) {
      Owned* arena = find_block(r.block);
      if (!arena && stopping) continue;  // given back at leave, the free being in an earlier step
      ETCFS_ASSERT(arena && arena->coming_back >= r.blocks);
      arena->map.give_back(r);
      arena->coming_back -= r.blocks;
      coming_back -= r.blocks;
      if (!arena->closing) free += r.blocks;
      any = true;
    }
    if (p.held_freed) {
      renames.push_back(std::move(*p.held_freed));
      poke();
    }
  }
  if (any) freed_cond.notify_all();
}

void Space::Impl::end_guard(std::uint64_t ticket) {
  ETCFS_ASSERT(ticket >= first_guard && ticket < next_ticket);
  guards[ticket - first_guard] = true;
  if (ticket != first_guard) return;
  while (!guards.empty() && guards.front()) {
    guards.pop_front();
    ++first_guard;
  }
  if (!pending.empty()) drain();
}

Space::ReadGuard::ReadGuard(Space& space) : space_(space), ticket_(space.impl_->next_ticket++) {
  space.impl_->guards.push_back(false);
}
Space::ReadGuard::~ReadGuard() { space_.impl_->end_guard(ticket_); }

void Space::Impl::poke() {
  if (poked) return;
  poked = true;
  work.notify_all();
}

// --- what is ours

bool Space::owns(DeviceRange range) const {
  const Impl& s = *impl_;
  bool all =
      range.blocks > 0 && range.block >= kIdentityBlocks && range.end() <= s.super.device_blocks;
  if (!all) return false;
  s.each_piece({&range, 1}, [&](ArenaNo n, DeviceRange) {
    const Impl::Owned* arena = s.find(n);
    all = all && arena && !arena->closing;
  });
  return all;
}

std::uint64_t Space::reserved_blocks() const { return impl_->reserved; }
std::uint64_t Space::allocated_unpublished_blocks() const { return impl_->unpublished; }
std::size_t Space::owned_arenas() const { return impl_->owned.size(); }

Space::Space(meta::Kv& kv, const meta::Keys& keys, const meta::Guard& guard,
             meta::CommitStream& stream, meta::Super super)
    : impl_(std::make_unique<Impl>(kv, keys, guard, stream, std::move(super))) {}

Space::~Space() = default;

// --- GuardedDevice

Result<void> GuardedDevice::read(std::uint64_t block, std::span<std::byte> into) {
  Result<void> result = device_.read(block << kBlockShift, into);
  if (!result && result.error() == Reason::kInvalid)
    return Reason::kCorrupt;  // outside of the device
  return result;
}

Result<void> GuardedDevice::write(std::uint64_t block,
                                  std::span<const std::span<const std::byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const auto& p : pieces) bytes += p.size();
  if (bytes == 0) return {};
  Space::Impl& s = *space_.impl_;
  if (s.stream.fenced()) return Reason::kFenced;
  const DeviceRange range{block, blocks_of(bytes)};
  ETCFS_ASSERT(range.block >= kIdentityBlocks && range.end() <= s.super.device_blocks);
  // Counts the write in its arenas, so that none of them is given back before it has ended.
  struct Counted {
    Space::Impl& s;
    const DeviceRange& range;
    Counted(Space::Impl& impl, const DeviceRange& r) : s(impl), range(r) {
      s.each_piece({&range, 1}, [&](ArenaNo n, DeviceRange) {
        Space::Impl::Owned* arena = s.find(n);
        ETCFS_ASSERT(arena != nullptr);  // I5: outside of own arenas nothing is ever written
        ++arena->writes;
        arena->used_at = s.tick;
      });
    }
    ~Counted() {
      s.each_piece({&range, 1}, [&](ArenaNo n, DeviceRange) {
        if (Space::Impl::Owned* arena = s.find(n)) --arena->writes;  // else: left meanwhile
      });
    }
  } counted(s, range);
  return device_.write(block << kBlockShift, pieces);
}

}  // namespace etcfs::block

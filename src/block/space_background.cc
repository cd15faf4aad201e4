// The background fiber of Space: merges what others have freed in our arenas, claims ahead of need,
// gives idle arenas back.
//
// It is the only one that merges, so a freed key is merged once: what is loaded by range replaces
// what the watch has brought up to that revision, and a re-read waits until every merge has
// committed.
#include "block/space_impl.h"

namespace etcfs::block {
namespace {

using log::field;
constexpr Nanos kDeadline = 5s;
constexpr Nanos kTick = 1s;
constexpr Nanos kDryPause = 1s;
constexpr Nanos kHeldPatience = 2s;  // then somebody looks whether the freeing node still lives
constexpr std::uint64_t kIdleTicks = 15;
constexpr std::size_t kMergeKeys = 64;  // mutations of a merge step at most
constexpr std::string_view kHeldSuffix = ".r";

bool held(const std::string& key) { return key.ends_with(kHeldSuffix); }

struct Freer {
  NodeName node;
  Epoch epoch;
};

// "<node>.<epoch>.<number>.r": nullopt when it is not of that form.
std::optional<Freer> parse_held(std::string_view unique) {
  constexpr std::size_t kTail = 1 + 16 + 1 + 16;  // .<epoch>.<number>
  if (!unique.ends_with(kHeldSuffix)) return std::nullopt;
  unique.remove_suffix(kHeldSuffix.size());
  if (unique.size() <= kTail) return std::nullopt;
  const std::string_view tail = unique.substr(unique.size() - kTail);
  std::uint64_t epoch = 0;
  for (std::size_t i = 1; i <= 16; ++i) {
    const char c = tail[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    epoch = epoch << 4 | static_cast<std::uint64_t>(digit);
  }
  return Freer{NodeName(unique.substr(0, unique.size() - kTail)), Epoch{epoch}};
}

}  // namespace

void Space::Impl::background() {
  Time next_tick = rt::now() + kTick;
  while (true) {
    work.wait_until(next_tick, [&] { return poked || stopping; });
    poked = false;
    if (!usable()) return;
    if (watch_lost && !recover_watch()) {
      rt::sleep_for(100ms);
      poked = true;
      continue;
    }
    if (!usable()) return;
    rename_freed();
    merge_freed();
    claim_wanted();
    claim_ahead();
    if (rt::now() < next_tick) continue;
    next_tick = rt::now() + kTick;
    ++tick;
    check_freed_epochs();
    close_idle();
  }
}

// --- what others free in our arenas

Result<void> Space::Impl::start_watch() {
  const std::string prefix = keys.all("freed");
  watch_lost = false;
  auto started = kv.watch(
      prefix, meta::prefix_end(prefix), Revision{},
      [this](const meta::WatchBatch& batch) { on_freed(batch); },
      [this] {
        watch_lost = true;
        poke();
      },
      rt::now() + kDeadline);
  if (!started) {
    watch_lost = true;
    return started.error();
  }
  watch = std::move(*started);
  return {};
}

Result<void> Space::Impl::recover_watch() {
  Locked lock(claim_mu);
  watch.reset();
  ETCFS_CHECK(start_watch());
  ETCFS_CHECK(stream.sync());  // every merge has committed: what is read now is not merged yet
  for (auto& [n, inbox] : inboxes) {
    inbox.loading = true;
    ETCFS_CHECK(load_freed(n));
  }
  ETCFS_LOG_INFO("watch of freed blocks restarted");
  return {};
}

void Space::Impl::on_freed(const meta::WatchBatch& batch) {
  bool any = false;
  for (const meta::WatchEvent& event : batch.events) {
    const auto key = keys.parse_freed(event.kv.key);
    if (!key) continue;
    const auto it = inboxes.find(key->arena);
    if (it == inboxes.end()) continue;
    Inbox& inbox = it->second;
    const Revision at = event.kv.mod_revision;
    if (!inbox.loading && at <= inbox.seen) continue;
    any = true;
    if (event.type == meta::WatchEvent::Type::kPut) {
      inbox.keys[event.kv.key] = {event.kv.value, at, rt::now()};
    } else if (inbox.loading) {
      inbox.keys[event.kv.key] = {std::nullopt, at, rt::now()};
    } else {
      inbox.keys.erase(event.kv.key);
    }
  }
  if (any) poke();
}

// Our own freed keys whose readers have ended.
void Space::Impl::rename_freed() {
  std::vector<meta::Mutation> todo = std::move(renames);
  renames.clear();
  for (meta::Mutation& m : todo) {
    meta::Step step;
    step.erase(m.key + std::string(kHeldSuffix));
    step.mutations.push_back(std::move(m));
    stream.append(std::move(step));
  }
}

void Space::Impl::merge_freed() {
  // claim_mu keeps re-reads and loads of inboxes out.
  Locked lock(claim_mu);
  for (auto& [n, arena] : owned) {
    while (true) {
      const auto it = inboxes.find(n);
      if (it == inboxes.end() || it->second.loading || it->second.keys.empty()) break;
      if (!stream.wait_room() || !usable()) return;
      if (!merge_step(*arena, it->second)) break;
    }
  }
}

// One step that merges as many keys as fit. false: nothing was left to merge.
bool Space::Impl::merge_step(Owned& arena, Inbox& inbox) {
  const std::size_t most = std::min(kMergeKeys, stream.limits().txn_ops - 8);
  meta::Step step;
  std::vector<DeviceRange> dropped;
  bool any = false;
  for (auto it = inbox.keys.begin(); it != inbox.keys.end();) {
    if (step.mutations.size() + 4 > most) break;
    if (held(it->first) && !it->second.dead) {
      ++it;
      continue;
    }
    const std::string key = it->first;
    auto ranges = meta::decode_freed(*it->second.value);
    it = inbox.keys.erase(it);
    if (!ranges) {
      ETCFS_LOG_ERROR("a record of freed blocks does not decode", field("arena", arena.n.v));
      continue;
    }
    any = true;
    std::vector<DeviceRange> rest;  // for another step: its put comes back to us by the watch
    each_piece(*ranges, [&](ArenaNo n, DeviceRange piece) {
      if (n != arena.n || piece.end() > arena.map.span().end()) {
        ETCFS_LOG_ERROR("a record of freed blocks names another arena's", field("arena", arena.n.v),
                        field("block", piece.block));
        return;
      }
      while (piece.blocks > 0) {  // chunk by chunk
        const std::uint64_t left = meta::kArenaChunkBlocks - piece.block % meta::kArenaChunkBlocks;
        const DeviceRange part{piece.block, std::min(left, piece.blocks)};
        if (step.mutations.size() + 3 > most) {
          rest.push_back(part);
        } else {
          drop_published(step, arena, part, dropped);
        }
        piece.block += part.blocks;
        piece.blocks -= part.blocks;
      }
    });
    if (rest.empty()) {
      step.erase(key);
    } else {
      step.put(key, meta::encode_freed(rest));
    }
  }
  if (!any) return false;
  come_back_on_commit(step, std::move(dropped));
  stream.append(std::move(step));
  return true;
}

// A node that died before it could say that its reads have ended: they have, as far as anybody who
// could still be answered is concerned.
void Space::Impl::check_freed_epochs() {
  std::map<NodeName, Epoch> current;
  std::vector<std::pair<ArenaNo, std::string>> old;
  for (const auto& [n, inbox] : inboxes)
    for (const auto& [key, freed] : inbox.keys)
      if (held(key) && !freed.dead && freed.value && freed.since + kHeldPatience <= rt::now())
        old.emplace_back(n, key);
  for (const auto& [n, key] : old) {
    const auto parsed = keys.parse_freed(key);
    const auto freer = parsed ? parse_held(parsed->unique) : std::nullopt;
    if (!freer || (freer->node == guard.node() && freer->epoch == guard.epoch())) continue;
    auto known = current.find(freer->node);
    if (known == current.end()) {
      const auto reply = kv.range({keys.epoch(freer->node), {}}, {}, rt::now() + kDeadline);
      if (!reply || reply->kvs.empty()) continue;
      const auto epoch = meta::decode_epoch(reply->kvs[0].value);
      if (!epoch) continue;
      known = current.emplace(freer->node, *epoch).first;
    }
    if (known->second <= freer->epoch) continue;
    const auto inbox = inboxes.find(n);
    if (inbox == inboxes.end()) continue;
    const auto it = inbox->second.keys.find(key);
    if (it == inbox->second.keys.end()) continue;
    it->second.dead = true;
    poked = true;
  }
}

// --- claiming ahead, giving back

void Space::Impl::claim_wanted() {
  if (wanted.empty()) return;
  Locked lock(claim_mu);
  if (records_at + kTick < rt::now() && !refresh_records()) return;
  const std::set<ArenaNo> todo = std::move(wanted);
  wanted.clear();
  for (ArenaNo n : todo) {
    if (n.v >= records.size() || !claimable(n)) continue;
    if (!claim(n) && !usable()) return;
  }
}

void Space::Impl::claim_ahead() {
  while (low() && dry_until <= rt::now()) {
    Locked lock(claim_mu);
    if (!low()) return;
    reopen();
    if (!low()) return;
    const Result<bool> got = claim_any();
    if (!usable()) return;
    if (!got || !*got) dry_until = rt::now() + kDryPause;
  }
}

// Arenas that were not used for a while and that we have no need of go back to everybody. First
// they close: no allocation, owns() denies them; when what began before has ended, a step gives
// them back.
void Space::Impl::close_idle() {
  const std::uint64_t keep = std::max(4 * watermark, 2 * super.arena_blocks);
  std::vector<Owned*> ready;
  for (auto& [n, arena] : owned) {
    Owned& a = *arena;
    const bool quiet = a.unpublished == 0 && a.coming_back == 0 && a.writes == 0;
    const std::uint64_t blocks = a.map.free_blocks();
    if (a.closing) {
      if (quiet && a.closing_ticket <= oldest_ticket()) ready.push_back(&a);
    } else if (quiet && &a != current && a.used_at + kIdleTicks < tick &&
               blocks >= a.map.capacity() / 8 && free - reserved >= keep + blocks) {
      a.closing = true;
      a.closing_ticket = next_ticket;
      free -= blocks;
      if (guards.empty()) ready.push_back(&a);
    }
  }
  if (stream.fenced()) return;
  for (Owned* a : ready) append_give_back(*a);
}

void Space::Impl::reopen() {
  for (auto& [n, arena] : owned) {
    if (!arena->closing) continue;
    arena->closing = false;
    free += arena->map.free_blocks();
  }
}

void Space::Impl::append_give_back(Owned& arena) {
  const ArenaNo n = arena.n;
  if (arena.writes != 0 || arena.unpublished != 0)
    ETCFS_LOG_WARN("an arena is left with allocations that were never published",
                   field("arena", n.v), field("writes", arena.writes),
                   field("unpublished", arena.unpublished));
  const meta::Arena record{{}, {}, arena.map.summary_free()};
  records[n.v].arena = record;
  const bool writing = arena.writes != 0;  // then nobody else may have it
  if (!arena.closing) free -= arena.map.free_blocks();
  coming_back -= arena.coming_back;
  unpublished -= arena.unpublished;
  if (current == &arena) current = nullptr;
  by_number[n.v] = nullptr;
  inboxes.erase(n);
  owned.erase(n);
  if (writing) return;
  meta::Step step;
  step.put(keys.arena(n), meta::encode(record));
  leaving.insert(n);
  step.on_commit = [this, token = std::weak_ptr<char>(alive), n] {
    if (!token.expired()) leaving.erase(n);
  };
  stream.append(std::move(step));
}

}  // namespace etcfs::block

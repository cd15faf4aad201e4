// The part of Space that asks etcd: reading the arenas' records, claiming an arena, loading its
// map.
//
// A claim is a guarded transaction outside the stream. Its outcome may be unknown; it is simply
// tried again with the same compare: either this try is the one that is applied, or the compare
// fails and the failure branch shows who has the arena, which may be us by the earlier try. A try
// that arrives late finds another mod_revision. One that was given up unresolved (shutdown, or this
// process is killed) leaves an arena under our epoch; it is found by the next search, or by a
// successor.
#include <utility>

#include "block/space_impl.h"

namespace etcfs::block {
namespace {

using log::field;
constexpr Nanos kDeadline = 5s;
constexpr Nanos kFirstPause = 5ms, kLastPause = 1s;
constexpr Nanos kPatience = 3s;  // for own frees that are on their way
constexpr Nanos kRecordsAge = 1s;
constexpr Nanos kTotalsDeadline = 500ms;
constexpr std::int64_t kFreedPage = 500;

}  // namespace

Result<void> Space::Impl::usable() const {
  if (stream.fenced()) return Reason::kFenced;
  if (stopping) return Reason::kShutdown;
  return {};
}

void Space::Impl::back_off(Nanos& pause) {
  const auto half = static_cast<std::uint64_t>(pause.count() / 2);
  rt::sleep_for(Nanos(half + rt::Runtime::current().random_below(half + 1)));
  pause = std::min<Nanos>(pause * 2, kLastPause);
}

// Reads until it gets an answer, or there is no point any more.
Result<meta::RangeReply> Space::Impl::must_range(const meta::RangeOp& op, Revision at) {
  for (Nanos pause = kFirstPause;; back_off(pause)) {
    ETCFS_CHECK(usable());
    Result<meta::RangeReply> reply = kv.range(op, at, rt::now() + kDeadline);
    if (reply || reply.error() == Reason::kCompacted) return reply;
  }
}

Result<void> Space::Impl::refresh_records() {
  const std::string prefix = keys.all("arena");
  const Time at = rt::now();
  ETCFS_TRY(const meta::RangeReply reply, must_range({prefix, meta::prefix_end(prefix)}));
  see_records(reply, at);
  return {};
}

void Space::Impl::see_records(const meta::RangeReply& reply, Time at) {
  if (reply.revision < records_revision) return;  // overtaken by a later read
  records_revision = reply.revision;
  for (std::uint32_t n = 0; n < records.size(); ++n)
    records[n] = {{{}, {}, arena_capacity(super, ArenaNo{n})}, {}};
  for (const meta::KeyValue& kv_pair : reply.kvs) {
    const auto n = keys.parse_arena(kv_pair.key);
    if (!n || n->v >= records.size()) continue;  // of a device that has grown since we looked
    Result<meta::Arena> arena = meta::decode_arena(kv_pair.value);
    if (!arena) {
      if (broken.insert(*n).second)
        ETCFS_LOG_ERROR("an arena's record does not decode; it is left alone",
                        field("arena", n->v));
      records[n->v] = {{"?", {}, 0}, kv_pair.mod_revision};
      continue;
    }
    records[n->v] = {std::move(*arena), kv_pair.mod_revision};
  }
  records_known = true;
  records_at = at;
}

// Ours for the taking, as far as the record seen last says.
bool Space::Impl::claimable(ArenaNo n) const {
  if (find(n) || leaving.contains(n) || broken.contains(n)) return false;
  const meta::Arena& a = records[n.v].arena;
  if (a.owner.empty()) return true;
  if (a.owner != guard.node()) return false;
  // Our own epoch: a claim whose outcome we never learnt.
  return a.owner_epoch == guard.epoch() || proven_dead.contains(a.owner_epoch);
}

// --- claiming

Result<bool> Space::Impl::claim_refused(ArenaNo n, const meta::TxnReply& reply) {
  const auto* epochs =
      reply.ops.size() == 2 ? std::get_if<meta::RangeReply>(&reply.ops[0].v) : nullptr;
  const auto* arenas =
      reply.ops.size() == 2 ? std::get_if<meta::RangeReply>(&reply.ops[1].v) : nullptr;
  if (!epochs || !arenas || epochs->kvs.empty()) return Reason::kCorrupt;
  ETCFS_TRY(const Epoch epoch, meta::decode_epoch(epochs->kvs[0].value));
  if (epoch != guard.epoch()) return Reason::kFenced;
  Record& record = records[n.v];
  if (arenas->kvs.empty()) {
    record = {{{}, {}, arena_capacity(super, n)}, {}};
    return false;
  }
  ETCFS_TRY(meta::Arena arena, meta::decode_arena(arenas->kvs[0].value));
  record = {std::move(arena), arenas->kvs[0].mod_revision};
  return record.arena.owner == guard.node() && record.arena.owner_epoch == guard.epoch() &&
         !leaving.contains(n);
}

Result<bool> Space::Impl::claim(ArenaNo n) {
  Record& record = records[n.v];
  meta::Txn txn;
  meta::Compare unchanged;
  unchanged.target = meta::Compare::Target::kModRevision;
  unchanged.key = keys.arena(n);
  unchanged.number = record.mod.v;
  txn.compares = {guard.compare(), std::move(unchanged)};
  meta::Arena mine{guard.node(), guard.epoch(), record.arena.free_blocks};
  txn.success.emplace_back(meta::PutOp{keys.arena(n), meta::encode(mine), 0});
  txn.failure.emplace_back(guard.read());
  txn.failure.emplace_back(meta::RangeOp{keys.arena(n), {}});
  for (Nanos pause = kFirstPause;; back_off(pause)) {
    ETCFS_CHECK(usable());
    meta::TxnOutcome outcome = kv.txn(txn, rt::now() + kDeadline);
    if (outcome.kind == meta::TxnOutcome::Kind::kRefused) return outcome.reason;
    if (!outcome.done()) continue;
    if (outcome.reply.succeeded) {
      record = {std::move(mine), outcome.reply.revision};
      break;
    }
    ETCFS_TRY(const bool ours, claim_refused(n, outcome.reply));
    if (!ours) return false;
    break;
  }
  if (Result<void> loaded = load(n, record.arena.free_blocks); !loaded) {
    inboxes.erase(n);
    if (loaded.error() != Reason::kCorrupt) return loaded.error();
    broken.insert(n);
    ETCFS_LOG_ERROR("an arena's free map does not decode; it is left alone", field("arena", n.v));
    return false;
  }
  ETCFS_LOG_DEBUG("arena claimed", field("arena", n.v), field("free", find(n)->map.free_blocks()));
  return true;
}

// The arena is ours in etcd: nobody but us changes its map from here on.
Result<void> Space::Impl::load(ArenaNo n, std::uint64_t summary_free) {
  inboxes[n] = Inbox{};  // from now on the watch collects
  auto arena = std::make_unique<Owned>(n, arena_span(super, n));
  const std::string prefix = keys.arena_map(n);
  ETCFS_TRY(const meta::RangeReply maps, must_range({prefix, meta::prefix_end(prefix)}));
  for (const meta::KeyValue& kv_pair : maps.kvs) {
    const auto key = keys.parse_amap(kv_pair.key);
    if (!key) return Reason::kCorrupt;
    ETCFS_TRY(const std::string bits, meta::decode_amap(kv_pair.value));
    ETCFS_CHECK(arena->map.load_chunk(key->chunk, bits));
  }
  ETCFS_CHECK(load_freed(n));
  if (arena->map.summary_free() != summary_free)
    ETCFS_LOG_ERROR("an arena's summary is not what its map says", field("arena", n.v),
                    field("summary", summary_free), field("map", arena->map.summary_free()));
  arena->used_at = tick;
  free += arena->map.free_blocks();
  by_number[n.v] = arena.get();
  owned[n] = std::move(arena);
  wanted.erase(n);
  if (merges_pending()) poke();
  return {};
}

// All of freed/<n>/ at one revision, then what the watch has seen of later ones.
Result<void> Space::Impl::load_freed(ArenaNo n) {
  const std::string prefix = keys.arena_freed(n);
  const std::string end = meta::prefix_end(prefix);
  while (true) {
    std::vector<meta::KeyValue> found;
    Revision at;
    std::string from = prefix;
    bool compacted = false;
    while (true) {
      meta::RangeOp op{from, end};
      op.limit = kFreedPage;
      Result<meta::RangeReply> page = must_range(op, at);
      if (!page && page.error() == Reason::kCompacted) {
        compacted = true;
        break;
      }
      if (!page) return page.error();
      if (at == Revision{}) at = page->revision;
      for (meta::KeyValue& kv_pair : page->kvs) found.push_back(std::move(kv_pair));
      if (!page->more || found.empty()) break;
      from = found.back().key + '\0';
    }
    if (compacted) continue;
    Inbox& inbox = inboxes[n];
    for (auto it = inbox.keys.begin(); it != inbox.keys.end();)
      it = it->second.revision <= at ? inbox.keys.erase(it) : std::next(it);
    const Time now = rt::now();
    for (meta::KeyValue& kv_pair : found)  // what came later by the watch stands
      inbox.keys.try_emplace(kv_pair.key,
                             FreedKey{std::move(kv_pair.value), kv_pair.mod_revision, now});
    std::erase_if(inbox.keys, [](const auto& item) { return !item.second.value; });
    inbox.seen = at;
    inbox.loading = false;
    return {};
  }
}

// --- choosing

Result<bool> Space::Impl::claim_best(std::set<ArenaNo>& tried) {
  const auto count = static_cast<std::uint32_t>(records.size());
  while (true) {
    // From a random start, so that nodes do not run into each other; wholly free ones first.
    const auto start = static_cast<std::uint32_t>(rt::Runtime::current().random_below(count));
    std::optional<ArenaNo> best;
    for (std::uint32_t i = 0; i < count; ++i) {
      const ArenaNo n{(start + i) % count};
      const std::uint64_t blocks = records[n.v].arena.free_blocks;
      if (blocks == 0 || !claimable(n) || tried.contains(n)) continue;
      if (!best || blocks > records[best->v].arena.free_blocks) best = n;
      if (blocks == super.arena_blocks) break;
    }
    if (!best) return false;
    tried.insert(*best);
    ETCFS_TRY(const bool got, claim(*best));
    if (got) return true;
  }
}

// The map of these arenas may be full, but frees wait to be merged.
Result<bool> Space::Impl::claim_with_freed(std::set<ArenaNo>& tried) {
  const std::string end = meta::prefix_end(keys.all("freed"));
  std::string from = keys.all("freed");
  while (true) {
    meta::RangeOp op{from, end};
    op.limit = 1;
    op.keys_only = true;
    ETCFS_TRY(const meta::RangeReply reply, must_range(op));
    if (reply.kvs.empty()) return false;
    const auto key = keys.parse_freed(reply.kvs[0].key);
    if (!key) return Reason::kCorrupt;
    from = meta::prefix_end(keys.arena_freed(key->arena));
    if (key->arena.v >= records.size() || !claimable(key->arena)) continue;
    if (!tried.insert(key->arena).second) continue;
    ETCFS_TRY(const bool got, claim(key->arena));
    if (got) return true;
  }
}

Result<bool> Space::Impl::claim_any() {
  std::set<ArenaNo> tried;
  const Time begun = rt::now();
  if (records_known) {
    ETCFS_TRY(const bool got, claim_best(tried));
    if (got) return true;
  }
  if (!records_known || records_at < begun) {
    ETCFS_CHECK(refresh_records());
    tried.clear();
    ETCFS_TRY(const bool got, claim_best(tried));
    if (got) return true;
  }
  return claim_with_freed(tried);
}

bool Space::Impl::merges_pending() const {
  for (const auto& [n, inbox] : inboxes)
    if (find(n) && !inbox.loading && !inbox.keys.empty()) return true;
  return false;
}

// --- the calls

// Each call may rely on a search that began after it; so a crowd on a full device searches once.
Result<void> Space::Impl::reserve_slow(std::uint64_t blocks) {
  const std::uint64_t call = ++calls;
  const Time until = rt::now() + kPatience;
  while (true) {
    ETCFS_CHECK(usable());
    {
      Locked lock(claim_mu);
      if (try_reserve(blocks)) return {};
      reopen();
      if (try_reserve(blocks)) return {};
      if (dry_up_to < call) {
        const std::uint64_t covered = calls;
        ETCFS_TRY(const bool got, claim_any());
        if (got) continue;
        dry_up_to = covered;
        ETCFS_LOG_DEBUG("no arena left to claim", field("free", free), field("reserved", reserved));
      }
    }
    if (try_reserve(blocks)) return {};
    if ((coming_back == 0 && !merges_pending()) || rt::now() >= until) return Reason::kNoSpace;
    poke();
    ETCFS_CHECK(stream.sync());
    if (try_reserve(blocks)) return {};
    freed_cond.wait_until(std::min<Time>(until, rt::now() + 20ms));
  }
}

Result<void> Space::start(std::span<const Epoch> proven_dead) {
  Impl& s = *impl_;
  s.proven_dead = {proven_dead.begin(), proven_dead.end()};
  ETCFS_CHECK(s.start_watch());
  Locked lock(s.claim_mu);
  ETCFS_CHECK(s.refresh_records());
  for (std::uint32_t n = 0; n < s.records.size(); ++n) {
    const ArenaNo arena{n};
    if (s.records[n].arena.owner.empty() || !s.claimable(arena)) continue;
    ETCFS_TRY([[maybe_unused]] const bool got, s.claim(arena));
  }
  s.group.emplace(rt::Runtime::current(), "space");
  s.poked = true;  // claims the first arena
  s.group->spawn([&s] { s.background(); });
  return {};
}

void Space::give_back() {
  Impl& s = *impl_;
  s.stopping = true;
  s.poke();
  s.freed_cond.notify_all();
  Locked lock(s.claim_mu);  // a claim under way has been given up or has ended
  if (s.stream.fenced()) return;
  s.rename_freed();
  while (!s.owned.empty()) s.append_give_back(*s.owned.begin()->second);
}

Result<SpaceTotals> Space::totals() {
  Impl& s = *impl_;
  const Time now = rt::now();
  const bool fresh = s.records_at + kRecordsAge >= now || s.totals_asked_at + kRecordsAge >= now;
  if (!s.records_known || !fresh) {
    s.totals_asked_at = now;  // others go on with what is known meanwhile
    const std::string prefix = s.keys.all("arena");
    auto reply = s.kv.range({prefix, meta::prefix_end(prefix)}, {}, now + kTotalsDeadline);
    if (reply) {
      s.see_records(*reply, now);
    } else if (!s.records_known) {
      return reply.error();
    }
  }
  SpaceTotals t;
  t.total_blocks = s.super.device_blocks - kIdentityBlocks;
  for (std::uint32_t n = 0; n < s.records.size(); ++n)
    if (!s.find(ArenaNo{n})) t.free_blocks += s.records[n].arena.free_blocks;
  for (const auto& [n, arena] : s.owned)
    t.free_blocks += arena->map.summary_free() - arena->unpublished;
  t.free_blocks -= std::min(t.free_blocks, s.reserved);
  return t;
}

}  // namespace etcfs::block

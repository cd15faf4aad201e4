// Inside of Space: only src/block/space*.cc include this.
//
// Who may do what with an arena follows from its record in etcd, which only its owner changes once
// it owns it: claimed by a guarded transaction outside the stream that compares the record's
// mod_revision, from then on changed by steps of the stream only, up to and including the step that
// gives it back.
//
// freed/<n>/<unique>: unique is "<node>.<epoch>.<number>", with ".r" behind it while reads that
// began before the free may still be under way on the node that freed: the owner merges such a key
// only when it has been renamed, or when that epoch is over (I8 across nodes).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "block/arena.h"
#include "block/space.h"
#include "rt/rt.h"

namespace etcfs::block {

// Sets the mutation of `key`, in place of an earlier one of the same step (a key stands in it
// once).
void set_mutation(meta::Step& step, std::string key, std::optional<std::string> value);

class Locked {
 public:
  explicit Locked(rt::Mutex& mu) : mu_(mu) { mu_.lock(); }
  ~Locked() { mu_.unlock(); }
  Locked(const Locked&) = delete;

 private:
  rt::Mutex& mu_;
};

struct Space::Impl {
  struct Owned {
    explicit Owned(ArenaNo number, DeviceRange span)
        : n(number), map(span), touched(map.chunk_count()) {}
    const ArenaNo n;
    ArenaMap map;
    std::uint64_t unpublished = 0;  // allocated, not yet published
    std::uint64_t coming_back = 0;  // dropped by a step, not yet safe to reuse
    std::uint64_t writes = 0;       // device writes under way
    std::uint64_t used_at = 0;      // tick of the last use
    bool closing = false;           // is being given back: no allocation, not owns()
    std::uint64_t closing_ticket = 0;
    std::vector<StepNo> touched;  // per chunk: last_appended() when a step last got its map
  };
  // What stands under freed/<n>/ of an arena that is ours or being loaded, as far as seen.
  struct FreedKey {
    std::optional<std::string> value;  // nullopt: deleted (kept only while loading)
    Revision revision;
    Time since{};
    bool dead = false;  // its epoch is known to be over
  };
  struct Inbox {
    bool loading = true;
    Revision seen;  // events up to here are in what was loaded
    std::map<std::string, FreedKey> keys;
  };
  struct Record {  // arena/<n> as last seen
    meta::Arena arena;
    Revision mod;  // 0: absent
  };
  // Waits until every ReadGuard older than `barrier` has ended.
  struct Pending {
    std::uint64_t barrier;
    std::vector<DeviceRange> ranges;           // of own arenas
    std::optional<meta::Mutation> held_freed;  // a freed key of ours to be renamed
  };

  Impl(meta::Kv& kv_in, const meta::Keys& keys_in, const meta::Guard& guard_in,
       meta::CommitStream& stream_in, meta::Super super_in);
  ~Impl();

  // --- space.cc
  Owned* find(ArenaNo n) const { return n.v < by_number.size() ? by_number[n.v] : nullptr; }
  Owned* find_block(std::uint64_t block) const;
  // Calls fn(arena number, piece) for the part of each range in each arena.
  template <class Fn>
  void each_piece(std::span<const DeviceRange> ranges, Fn fn) const {
    for (DeviceRange r : ranges) {
      while (r.blocks > 0) {
        const std::uint64_t n = r.block / super.arena_blocks;
        const std::uint64_t most = (n + 1) * super.arena_blocks - r.block;
        const DeviceRange piece{r.block, std::min(r.blocks, most)};
        fn(ArenaNo{static_cast<std::uint32_t>(n)}, piece);
        r.block += piece.blocks;
        r.blocks -= piece.blocks;
      }
    }
  }
  bool try_reserve(std::uint64_t blocks);
  Owned* place(std::uint64_t blocks, DeviceRange& got);
  void put_map(meta::Step& step, Owned& arena, DeviceRange changed);
  void put_summary(meta::Step& step, const Owned& arena);
  // Unpublishes the pieces of own arenas among `ranges`; when the step has committed and old reads
  // have ended they are free. Puts maps and summaries.
  void drop_published(meta::Step& step, Owned& arena, DeviceRange piece,
                      std::vector<DeviceRange>& dropped);
  void come_back_on_commit(meta::Step& step, std::vector<DeviceRange> dropped);
  void put_freed(meta::Step& step, ArenaNo n, std::vector<DeviceRange> ranges);
  void add_pending(Pending pending);
  void drain();
  void poke();
  bool low() const { return free - reserved < watermark; }
  std::uint64_t oldest_ticket() const { return guards.empty() ? next_ticket : first_guard; }
  void end_guard(std::uint64_t ticket);

  // --- space_claim.cc. All block but the first two.
  Result<void> usable() const;  // kFenced, kShutdown
  bool claimable(ArenaNo n) const;
  bool merges_pending() const;
  Result<void> reserve_slow(std::uint64_t blocks);
  Result<void> refresh_records();
  void see_records(const meta::RangeReply& reply, Time at);  // does not block
  Result<meta::RangeReply> must_range(const meta::RangeOp& op, Revision at = {});
  void back_off(Nanos& pause);
  // Under claim_mu. false: there is nothing to claim / somebody else was faster.
  Result<bool> claim_any();
  Result<bool> claim_best(std::set<ArenaNo>& tried);
  Result<bool> claim_with_freed(std::set<ArenaNo>& tried);
  Result<bool> claim(ArenaNo n);
  Result<bool> claim_refused(ArenaNo n, const meta::TxnReply& reply);
  Result<void> load(ArenaNo n, std::uint64_t summary_free);
  Result<void> load_freed(ArenaNo n);

  // --- space_background.cc
  void background();
  Result<void> start_watch();
  Result<void> recover_watch();
  void on_freed(const meta::WatchBatch& batch);
  void rename_freed();
  void merge_freed();
  bool merge_step(Owned& arena, Inbox& inbox);
  void check_freed_epochs();
  void claim_wanted();
  void claim_ahead();
  void close_idle();
  void reopen();  // whatever is being given back
  void append_give_back(Owned& arena);

  // set once
  meta::Kv& kv;
  const meta::Keys& keys;
  const meta::Guard& guard;
  meta::CommitStream& stream;
  const meta::Super super;
  const std::uint64_t watermark;      // below: claim in the background
  const std::shared_ptr<char> alive;  // callbacks of the stream may outlive us

  // arenas
  std::map<ArenaNo, std::unique_ptr<Owned>> owned;
  std::vector<Owned*> by_number;  // of all arenas
  Owned* current = nullptr;       // where small allocations go on
  std::vector<Record> records;
  Time records_at{}, totals_asked_at{};
  Revision records_revision;
  bool records_known = false;
  std::map<ArenaNo, Inbox> inboxes;
  std::set<ArenaNo> wanted;     // we free blocks there: claim it when it is nobody's
  std::set<ArenaNo> leaving;    // given back by a step that has not committed yet
  std::set<ArenaNo> broken;     // ours, but its records do not decode
  std::set<Epoch> proven_dead;  // epochs of this node whose device writes have ended

  // counters over arenas that are not closing / over all owned
  std::uint64_t free = 0, reserved = 0;
  std::uint64_t unpublished = 0, coming_back = 0;

  // read guards: tickets [first_guard, next_ticket), true = ended
  std::deque<bool> guards;
  std::uint64_t first_guard = 1, next_ticket = 1;
  std::deque<Pending> pending;          // barriers ascend
  std::vector<meta::Mutation> renames;  // freed keys whose readers have ended
  std::uint64_t freed_number = 0;

  // claims
  rt::Mutex claim_mu;
  rt::Condition freed_cond;     // blocks have come back
  std::uint64_t calls = 0;      // of reserve_slow
  std::uint64_t dry_up_to = 0;  // calls up to this one were covered by a search that found nothing
  Time dry_until{};             // the background does not search again before

  // background
  std::optional<rt::Group> group;
  rt::Condition work;
  bool poked = false, stopping = false;
  std::unique_ptr<meta::Watch> watch;
  bool watch_lost = false;
  std::uint64_t tick = 1;  // seconds or so
};

}  // namespace etcfs::block

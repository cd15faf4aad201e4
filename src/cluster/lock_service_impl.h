// The state of LockService, shared by its parts:
//   lock_service.cc   what callers see; waiting for grants
//   lock_acquire.cc   the driver of one family: tries, wants, waiting for others
//   lock_grant.cc     transactions that take a record, and what they load
//   lock_ahead.cc     many families in one transaction
//   lock_release.cc   giving up: asked for, idle, all
//   lock_janitor.cc   what dead epochs have left
//   lock_wants.cc     the mirror of want/, and the repair of what stands under our name by accident
//
// One change at a time: whoever changes the record of a family holds its slot (Slot). What a
// release put into the commit stream counts as outstanding until it has committed (stream_pending);
// no transaction outside the stream is sent for that family before.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/assert.h"
#include "cluster/lock_service.h"
#include "cluster/lock_view.h"

namespace etcfs::cluster {

struct LockService::Impl {
  struct Waiter {
    LockModes need;
    bool done = false;
  };
  // What goes on in a family; exists while something does.
  struct Work {
    std::size_t refs = 0;
    bool slot = false, driving = false, releasing = false;
    std::vector<Waiter*> waiters;
    rt::Condition wake;     // for the fibers of the service: slot, stream, view, wants
    rt::Condition granted;  // for waiters
    // The driver's.
    FamilyView view;
    bool view_known = false, watch_lost = false;
    bool synced = false;                    // the view was read after the watch began
    std::vector<meta::WatchBatch> pending;  // from the watch until then
    bool want_meant = false;                // an own want stands, or may
    std::unique_ptr<meta::Watch> watch;
    PassedOver passed_over;
    std::optional<std::pair<HolderId, Revision>> behind;
    Time behind_since{}, recheck_at{};
    Nanos recheck{};
  };
  struct Entry {
    Family family;
    LockModes held, usable;  // as memory means it; usable: less what is being released
    Revision alone_at;       // at this revision nobody else alive held or wanted; 0: not known
    Time granted_at{}, expect_since{}, first_served{}, last_served{}, lru_at{};
    Nanos cost{};           // of the last taking
    bool expected = false;  // granted to waiters, none of which has been served yet
    bool queued = false;    // in release_queue
    std::uint32_t stream_pending = 0, reserved = 0;
    std::unique_ptr<Work> work;
    Entry *lru_prev = nullptr, *lru_next = nullptr;
  };
  // Keeps an entry and its work in being.
  class Ref {
   public:
    Ref(Impl& s, Family family) : s_(s), e_(s.entry(family)) {
      if (!e_.work) e_.work = std::make_unique<Work>();
      ++e_.work->refs;
    }
    ~Ref() {
      --e_.work->refs;
      s_.maybe_drop(e_);
    }
    Ref(const Ref&) = delete;
    Entry& entry() { return e_; }
    Work& work() { return *e_.work; }

   private:
    Impl& s_;
    Entry& e_;
  };
  class Slot {
   public:
    explicit Slot(Work& w) : w_(w) {
      ETCFS_ASSERT(!w_.slot);
      w_.slot = true;
    }
    ~Slot() {
      w_.slot = false;
      w_.wake.notify_all();
    }
    Slot(const Slot&) = delete;

   private:
    Work& w_;
  };
  // A family's share of a taking transaction: where in the reply its parts stand.
  struct Loads {
    int inodes = -1, entries = -1, holds = -1;
  };
  enum class Attempt { kGranted, kAgain, kWait, kBackOff };

  Impl(meta::Kv& kv_in, const meta::Keys& keys_in, const meta::Guard& guard_in,
       meta::CommitStream& stream_in, Membership& membership_in, Options options_in)
      : kv(kv_in),
        keys(keys_in),
        guard(guard_in),
        stream(stream_in),
        membership(membership_in),
        options(options_in),
        me{guard_in.node(), guard_in.epoch()},
        is_live([this](const HolderId& id) { return membership.is_current(id.node, id.epoch); }) {}

  bool dead() const { return fenced || stopping; }
  Result<void> state() const {
    if (fenced) return Reason::kFenced;
    if (stopping) return Reason::kShutdown;
    return {};
  }
  Entry& entry(Family family);
  Entry* find(Family family);
  void maybe_drop(Entry& e);
  void fence();
  void wake_all();

  // lock_service.cc
  Result<void> wait_granted(const LockNeed& need);  // blocks
  void settle_waiters(Entry& e);                    // marks those whose need is usable
  void start_driver(Entry& e);

  // lock_acquire.cc; block
  void drive(Ref& ref);  // fiber
  Attempt attempt(Entry& e, Work& w, LockModes wish);
  Attempt try_quick(Entry& e, Work& w, LockModes target);
  Attempt try_take(Entry& e, Work& w, LockModes target);
  Attempt read_view(Entry& e, Work& w);
  Attempt put_want(Entry& e, Work& w, LockModes wish);
  Attempt wait_turn(Entry& e, Work& w, const Verdict& verdict, LockModes wish);
  void open_watch(Entry& e, Work& w);
  void close_watch(Work& w);
  void follow(Work& w, const meta::WatchBatch& batch);
  Attempt not_done(Family family, const meta::TxnOutcome& outcome, bool record_at_stake);
  bool take_view(Work& w, const std::vector<meta::OpReply>& ops, std::size_t first, Revision at);
  bool check_epoch(const meta::OpReply& reply);  // false: fenced (noted)
  void drop_want(Entry& e, Work& w);

  // lock_grant.cc
  Loads add_grant(std::vector<meta::KvOp>& ops, Family family, LockModes before, LockModes target);
  FamilyContents contents_of(std::vector<meta::OpReply>& ops, const Loads& loads) const;
  std::vector<meta::KvOp> read_ops(Family family) const;  // epoch/<me>, lock/<f>/, want/<f>/
  meta::Compare none_newer(std::string prefix, Revision than) const;
  void granted(Entry& e, LockModes target, FamilyContents contents, Nanos cost, bool expected);

  // lock_release.cc
  void check_asked(Family family);
  LockModes keep_now(const Entry& e);
  Time due(const Entry& e) const;
  void give_up(Ref& ref);                                            // fiber
  std::optional<StepNo> release(Entry& e, Work& w, LockModes keep);  // blocks
  void stream_done(Family family);
  void queue_release(Entry& e);
  void release_one(Family family);  // blocks
  void release_worker();            // fiber
  void enforce_budget();
  void release_all();  // blocks
  void set_held(Entry& e, LockModes modes);

  // lock_ahead.cc; blocks
  Result<void> acquire_ahead(std::span<const Family> families, LockModes modes);
  struct Ahead;  // one family of a batch
  Result<std::size_t> ahead_once(std::span<const Family> families, LockModes modes);

  // lock_wants.cc
  Result<void> load_wants();  // blocks
  void want_loop();           // fibers
  void audit_loop();
  void apply_want(const meta::WatchEvent& event);
  void audit_own_wants();         // block
  void audit_own_lock(Entry& e);  // the caller has the slot
  bool has_other_wants(Family family) const;
  std::optional<Revision> own_arrival(Family family) const;

  // lock_janitor.cc
  void janitor_loop();  // fiber
  bool sweep();         // block
  bool remove_void(std::vector<std::string> keys_void);

  // least recently used order of held entries
  void lru_remove(Entry& e);
  void lru_touch(Entry& e);

  // set once
  meta::Kv& kv;
  const meta::Keys& keys;
  const meta::Guard& guard;
  meta::CommitStream& stream;
  Membership& membership;
  const Options options;
  const HolderId me;
  const IsLive is_live;
  LockClient* client = nullptr;
  std::optional<rt::Group> group;

  std::unordered_map<Family, Entry> entries;
  std::size_t held_count = 0;
  Entry *lru_first = nullptr, *lru_last = nullptr;  // first: the idlest
  std::map<Family, Wants> wants;                    // mirror of want/, ours included
  Revision wants_at;
  std::unique_ptr<meta::Watch> want_watch;
  bool want_watch_lost = false;
  bool sweep_due = true;  // an epoch was raised since the janitor's last pass
  std::map<Family, Time> recent_asks;
  std::unordered_set<Family> suspects;  // a taking of unknown outcome was sent: may be applied late
  std::deque<Family> release_queue;
  std::size_t release_workers = 0;
  bool releasing_all = false;
  std::size_t ahead_batch = 32;  // families per transaction of acquire_ahead()
  bool fenced = false, stopping = false, refusal_logged = false;
  rt::Condition wake;  // stopping, fenced, held_count, watch lost
  Counters counters;
};

inline constexpr Nanos kLockTxnDeadline = std::chrono::seconds(2);

}  // namespace etcfs::cluster

// How the flusher works: gather() waits for company unless somebody waits for a commit, send()
// commits the longest prefix of steps that fits, and what did not certainly happen stays at the
// head of the queue. There is no record of tries: whatever answers says how far seq/<node> has
// come, and that alone pops steps (commit_to). A stale try can therefore arrive at any time without
// harm: either its compare of seq fails, or it carries exactly the next steps and our own next try
// learns so by its own compare.
//
// seq/<node> is absent until the first commit; absent and zero mean the same.
#include "meta/commit_stream.h"

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"
#include "meta/commit_batch.h"
#include "meta/schema/records.h"

namespace etcfs::meta {
namespace {

using log::field;

constexpr Nanos kTxnDeadline = 5s;
constexpr Nanos kGather = 50ms;  // steps that nobody waits for may wait for company this long
constexpr Nanos kFirstBackoff = 5ms, kLastBackoff = 1s, kSlowRetry = 500ms;
constexpr Nanos kQueueTime = 50ms;  // the queue is about this much of etcd's present speed …
constexpr std::size_t kLeastQueued = 4000;  // … but never less steps than that
constexpr std::size_t kFixedOps = 3;        // two compares, the put of seq

}  // namespace

struct CommitStream::Impl {
  struct Queued {
    Step step;
    std::size_t bytes;
  };

  Impl(Kv& kv_in, const Keys& keys, const Guard& guard_in, Limits limits_in)
      : kv(kv_in), guard(guard_in), limits(limits_in), seq_key(keys.seq(guard_in.node())) {
    ETCFS_ASSERT(limits.txn_ops > kFixedOps);
    room = {limits.txn_ops - kFixedOps, limits.txn_bytes};
  }

  // The flusher's parts; all but full() and hurry() block or call back.
  void run();
  void gather();
  void send();
  void not_applied(const TxnReply& reply);
  void refused(Reason reason);
  void resolve();
  void settle(const std::vector<OpReply>& ops, bool progress_expected);
  void commit_to(StepNo step);
  void fence(const char* why);
  void back_off(Nanos& pause);
  void note_speed(std::size_t steps, Nanos took);

  bool full() const { return queue.size() >= queue_cap || queued_bytes >= limits.queued_bytes; }
  bool urgent() const {
    return waiting > 0 || stopping || full() || batch_full;
  }
  void hurry() {
    if (gathering) hurry_cond.notify_one();
  }

  // set once
  Kv& kv;
  const Guard& guard;
  const Limits limits;
  const std::string seq_key;
  std::vector<std::function<void()>> fenced_fns;
  std::optional<rt::Group> group;

  std::deque<Queued> queue;  // steps committed + 1 … appended
  std::size_t queued_bytes = 0;
  StepNo committed, appended, sent;  // sent: the highest number that was ever in a transaction
  std::size_t queue_cap = kLeastQueued;
  double steps_per_second = 0;
  CommitBatch::Room room;  // shrinks when the server refuses
  CommitBatch batch;
  Txn txn;  // kept for its capacity
  Time last_sent{};
  std::size_t waiting = 0;  // fibers that wait for a commit or for room
  bool gathering = false, batch_full = false, stopping = false, ended = true, is_fenced = false;
  bool full_logged = false;
  rt::Condition work_cond, hurry_cond, committed_cond, room_cond, ended_cond;
  Counters counters;
};

void CommitStream::Impl::run() {
  while (true) {
    work_cond.wait([&] { return !queue.empty() || stopping || is_fenced; });
    if (queue.empty()) break;
    gather();
    if (!is_fenced) send();
    if (is_fenced) break;
  }
  ended = true;
  ended_cond.notify_all();
}

// Fills the batch from the head of the queue; append() goes on with it while `gathering`.
void CommitStream::Impl::gather() {
  rt::yield();  // whoever is ready now may still add to the batch
  batch.clear();
  batch_full = false;
  for (Queued& q : queue)
    if ((batch_full = !batch.add(q.step, room))) break;
  gathering = true;
  const Time until = last_sent + kGather;
  while (!urgent() && rt::now() < until)
    if (!hurry_cond.wait_until(until)) break;
  gathering = false;
}

void CommitStream::Impl::send() {
  const StepNo last{committed.v + batch.steps()};
  sent = std::max(sent, last);
  txn.compares.clear();
  txn.success.clear();
  txn.failure.clear();
  txn.compares.push_back(guard.compare());
  Compare in_order;
  in_order.key = seq_key;
  if (committed.v == 0) {
    in_order.target = Compare::Target::kVersion;  // == 0: absent
  } else {
    in_order.target = Compare::Target::kValue;
    in_order.value = encode_sequence(committed);
  }
  txn.compares.push_back(std::move(in_order));
  batch.move_into(txn.success);
  txn.success.emplace_back(PutOp{seq_key, encode_sequence(last), 0});
  txn.failure.emplace_back(guard.read());
  txn.failure.emplace_back(RangeOp{seq_key, {}});

  const Time begin = rt::now();
  last_sent = begin;
  TxnOutcome outcome = kv.txn(txn, begin + kTxnDeadline);
  ++counters.transactions;
  if (is_fenced) return;  // by fence_now(): whatever became of it, nobody may be told any more
  if (outcome.done() && outcome.reply.succeeded) {
    counters.mutations += batch.ops();
    counters.folded += batch.folded();
    note_speed(batch.steps(), rt::now() - begin);
    full_logged = false;
    commit_to(last);
    return;
  }
  batch.move_back(txn.success);
  switch (outcome.kind) {
    case TxnOutcome::Kind::kDone:
      return settle(outcome.reply.ops, true);
    case TxnOutcome::Kind::kRefused:
      return refused(outcome.reason);
    case TxnOutcome::Kind::kUnknown:
      ++counters.unknown;
      return resolve();
  }
}

// Nothing of the batch was or will be applied.
void CommitStream::Impl::refused(Reason reason) {
  if (reason == Reason::kTooManyOps) {
    ETCFS_ASSERT(batch.steps() > 1);  // a step must fit a transaction
    room.ops = std::max<std::size_t>(1, std::min(room.ops, batch.ops()) / 2);
    room.bytes = std::max<std::size_t>(1, std::min(room.bytes, batch.bytes()) / 2);
    ETCFS_LOG_WARN("etcd refused a batch as too large; batches shrink", field("ops", batch.ops()),
                   field("bytes", batch.bytes()));
    return;
  }
  if (!full_logged) {
    full_logged = true;
    ETCFS_LOG_WARN("etcd refuses commits; retrying", field("reason", reason_name(reason)),
                   field("queued_steps", queue.size()));
  }
  Nanos pause = kSlowRetry;
  back_off(pause);
}

// The transaction may have been applied, or may still be. Only an answer ends this.
void CommitStream::Impl::resolve() {
  Txn read;
  read.success.emplace_back(guard.read());
  read.success.emplace_back(RangeOp{seq_key, {}});
  Nanos pause = kFirstBackoff;
  while (true) {
    TxnOutcome outcome = kv.txn(read, rt::now() + kTxnDeadline);
    if (is_fenced) return;
    if (outcome.done()) return settle(outcome.reply.ops, false);
    back_off(pause);
  }
}

// ops: the answers to guard.read() and the read of seq. progress_expected: the compares failed, so
// one of the two must have moved.
void CommitStream::Impl::settle(const std::vector<OpReply>& ops, bool progress_expected) {
  const auto* epochs = ops.size() == 2 ? std::get_if<RangeReply>(&ops[0].v) : nullptr;
  const auto* seqs = ops.size() == 2 ? std::get_if<RangeReply>(&ops[1].v) : nullptr;
  if (!epochs || !seqs) return fence("etcd's answer is malformed");
  if (epochs->kvs.empty()) return fence("the epoch is gone from etcd");
  const Result<Epoch> epoch = decode_epoch(epochs->kvs[0].value);
  if (!epoch) return fence("the epoch in etcd does not decode");
  if (*epoch != guard.epoch()) return fence(nullptr);
  StepNo seq{0};
  if (!seqs->kvs.empty()) {
    const Result<StepNo> got = decode_sequence(seqs->kvs[0].value);
    if (!got) return fence("the sequence number in etcd does not decode");
    seq = *got;
  }
  // Beyond what was sent: a copy of this node commits under its epoch. Behind: etcd lost commits.
  if (seq > sent) return fence("another process commits under this node's epoch");
  if (seq < committed || (progress_expected && seq == committed))
    return fence("etcd has lost what it had committed");
  commit_to(seq);
}

void CommitStream::Impl::commit_to(StepNo step) {
  ETCFS_ASSERT(step.v - committed.v <= queue.size());
  while (committed < step) {
    Queued q = std::move(queue.front());
    queue.pop_front();
    queued_bytes -= q.bytes;
    ++committed.v;
    ++counters.steps;
    if (q.step.on_commit) q.step.on_commit();
  }
  if (committed_cond.has_waiters()) committed_cond.notify_all();
  if (room_cond.has_waiters() && !full()) room_cond.notify_all();
}

// `why` is null when another node has raised our epoch, which membership reports.
void CommitStream::Impl::fence(const char* why) {
  if (why)
    ETCFS_LOG_ERROR("commit stream stops for good", field("why", why), field("node", guard.node()),
                    field("committed", committed.v));
  else
    ETCFS_LOG_WARN("fenced: steps are lost", field("node", guard.node()),
                   field("epoch", guard.epoch().v), field("steps", queue.size()));
  is_fenced = true;
  gathering = false;
  batch.clear();
  queue.clear();
  queued_bytes = 0;
  work_cond.notify_all();
  hurry_cond.notify_all();
  committed_cond.notify_all();
  room_cond.notify_all();
  auto fns = std::move(fenced_fns);
  for (auto& fn : fns) fn();
}

void CommitStream::Impl::back_off(Nanos& pause) {
  const auto half = static_cast<std::uint64_t>(pause.count() / 2);
  rt::sleep_for(Nanos(half + rt::Runtime::current().random_below(half + 1)));
  pause = std::min<Nanos>(pause * 2, kLastBackoff);
}

void CommitStream::Impl::note_speed(std::size_t steps, Nanos took) {
  const double seconds = std::max(1e-5, std::chrono::duration<double>(took).count());
  steps_per_second = steps_per_second * 0.9 + static_cast<double>(steps) / seconds * 0.1;
  const auto by_time = static_cast<std::size_t>(steps_per_second *
                                                std::chrono::duration<double>(kQueueTime).count());
  queue_cap = std::min(limits.queued_steps, std::max(kLeastQueued, by_time));
}

CommitStream::CommitStream(Kv& kv, const Keys& keys, const Guard& guard, Limits limits)
    : impl_(std::make_unique<Impl>(kv, keys, guard, limits)) {
  impl_->queue_cap = std::min(limits.queued_steps, kLeastQueued);
}

// Without stop() this is a crash: what is queued is lost.
CommitStream::~CommitStream() {
  if (impl_->group) impl_->group->kill();
}

void CommitStream::start(StepNo last_committed) {
  Impl& s = *impl_;
  ETCFS_ASSERT(!s.group);
  s.committed = s.appended = s.sent = last_committed;
  s.ended = false;
  s.group.emplace(rt::Runtime::current(), "commit");
  s.group->spawn([&s] { s.run(); });
}

void CommitStream::fence_now() {
  if (!impl_->is_fenced) impl_->fence(nullptr);
}

void CommitStream::stop() {
  Impl& s = *impl_;
  s.stopping = true;
  s.work_cond.notify_all();
  s.hurry_cond.notify_all();
  s.room_cond.notify_all();
  s.ended_cond.wait([&] { return s.ended; });
}

Result<void> CommitStream::wait_room() {
  Impl& s = *impl_;
  while (true) {
    if (s.is_fenced) return Reason::kFenced;
    if (s.stopping) return Reason::kShutdown;
    if (!s.full()) return {};
    s.hurry();
    s.room_cond.wait();
  }
}

StepNo CommitStream::append(Step step) {
  Impl& s = *impl_;
  ++s.appended.v;
  if (s.is_fenced) return s.appended;
  ETCFS_ASSERT(s.group && !s.ended);
  ETCFS_ASSERT(step.mutations.size() + kFixedOps <= s.limits.txn_ops);
  std::size_t bytes = 0;
  for (const Mutation& m : step.mutations) bytes += CommitBatch::cost(m);
  ETCFS_ASSERT(bytes <= s.limits.txn_bytes);
  s.queued_bytes += bytes;
  s.queue.push_back({std::move(step), bytes});
  if (s.queue.size() == 1) s.work_cond.notify_one();
  if (s.gathering) {
    if (!s.batch_full) s.batch_full = !s.batch.add(s.queue.back().step, s.room);
    if (s.urgent()) s.hurry();
  }
  return s.appended;
}

Result<void> CommitStream::wait_committed(StepNo step) {
  struct Waiting {
    std::size_t& n;
    explicit Waiting(std::size_t& count) : n(count) { ++n; }
    ~Waiting() { --n; }
  };
  Impl& s = *impl_;
  ETCFS_ASSERT(step <= s.appended);
  if (step <= s.committed) return {};
  Waiting waiting(s.waiting);
  s.hurry();
  s.committed_cond.wait([&] { return s.is_fenced || step <= s.committed; });
  if (step <= s.committed) return {};
  return Reason::kFenced;
}

StepNo CommitStream::last_appended() const { return impl_->appended; }
StepNo CommitStream::last_committed() const { return impl_->committed; }
bool CommitStream::fenced() const { return impl_->is_fenced; }
void CommitStream::on_fenced(std::function<void()> fn) {
  if (impl_->is_fenced) return fn();
  impl_->fenced_fns.push_back(std::move(fn));
}
const CommitStream::Counters& CommitStream::counters() const { return impl_->counters; }
const CommitStream::Limits& CommitStream::limits() const { return impl_->limits; }

Result<std::size_t> probe_txn_ops(Kv& kv, const Keys& keys, std::size_t most, Time deadline) {
  // The compare never holds, so nothing is read or written; the server counts all the same.
  const auto fits = [&](std::size_t ops) -> Result<bool> {
    Txn txn;
    Compare never;
    never.target = Compare::Target::kVersion;
    never.op = Compare::Op::kLess;
    never.key = keys.super();
    txn.compares.push_back(std::move(never));
    txn.success.assign(ops, RangeOp{keys.super(), {}, 0, false, true});
    while (true) {
      const Time now = rt::now();
      if (now >= deadline) return Reason::kTimeout;
      TxnOutcome outcome = kv.txn(txn, std::min<Time>(deadline, now + kTxnDeadline));
      if (outcome.done()) return true;
      if (outcome.kind == TxnOutcome::Kind::kRefused) {
        if (outcome.reason == Reason::kTooManyOps) return false;
        return outcome.reason;
      }
      rt::sleep_for(50ms);
    }
  };
  ETCFS_TRY(const bool all, fits(most));
  if (all) return most;
  std::size_t good = 0, bad = most;  // `good` operations are allowed, `bad` are not
  while (bad - good > 1) {
    const std::size_t middle = good + (bad - good) / 2;
    ETCFS_TRY(const bool ok, fits(middle));
    (ok ? good : bad) = middle;
  }
  if (good == 0) return Reason::kTooManyOps;
  return good;
}

}  // namespace etcfs::meta

#include "sim/fakes/sim_kv.h"

#include "sim/fakes/sim_kv_internal.h"

namespace etcfs::sim {

using meta::TxnOutcome;
using meta::WatchBatch;

namespace {

constexpr std::chrono::nanoseconds kCatchUp = 100ms;

template <class R>
struct Call {
  std::optional<R> reply;
  rt::Condition arrived;
};

class SimWatch final : public meta::Watch {
 public:
  explicit SimWatch(std::shared_ptr<SimWatchState> state) : state_(std::move(state)) {}
  ~SimWatch() override {
    state_->cancelled = true;
    state_->changed.notify_all();
  }

 private:
  std::shared_ptr<SimWatchState> state_;
};

}  // namespace

// --- watches ---

// The next events up to a revision that is sometimes short of the newest: etcd's batches end
// anywhere between two revisions.
WatchBatch SimWatchState::collect() {
  std::int64_t until = server.revision_;
  if (server.runtime_.random_below(4) == 0)
    until = next + static_cast<std::int64_t>(
                       server.runtime_.random_below(static_cast<std::uint64_t>(until - next + 1)));
  ETCFS_ASSERT(next >= server.history_first_);
  WatchBatch batch;
  for (; next <= until; next++)
    for (const meta::WatchEvent& event :
         server.history_[static_cast<std::size_t>(next - server.history_first_)])
      if (in_range(key, end, event.kv.key)) batch.events.push_back(event);
  batch.revision = Revision{until};
  return batch;
}

void SimWatchState::pump(const std::shared_ptr<SimWatchState>& self) {
  rt::Runtime& runtime = self->server.runtime_;
  if (self->behind) rt::sleep_for(Nanos(runtime.random_below(kCatchUp.count())));
  while (!self->cancelled) {
    self->changed.wait([&] {
      return self->cancelled ||
             (self->connected() && (self->lost || self->next <= self->server.revision_));
    });
    rt::sleep_for(self->link->latency(runtime));
    if (self->cancelled || !self->connected()) continue;
    if (self->lost) {
      runtime.post([self] {
        if (self->dead()) return;
        self->cancelled = true;
        self->on_lost();
      });
      return;
    }
    WatchBatch batch = self->collect();
    if (batch.events.empty() && runtime.random_below(8) != 0) continue;  // seldom bare progress
    self->queue.push_back(std::move(batch));
    runtime.post([self] {
      WatchBatch first = std::move(self->queue.front());
      self->queue.pop_front();
      if (!self->dead()) self->on_batch(first);
    });
  }
}

// --- requests ---

SimKv::SimKv(SimKvServer& server, rt::Group& group, SimKvOptions options)
    : server_(server), group_(group), link_(std::make_shared<SimKvLink>()) {
  link_->options = options;
}

SimKv::~SimKv() = default;

SimFault SimKv::draw() {
  const SimKvOptions& o = link_->options;
  if (o.lose_request + o.lose_reply + o.late == 0) return SimFault::kNone;
  std::uint64_t n = server_.runtime().random_below(10'000);
  if (n < o.lose_request) return SimFault::kLoseRequest;
  if ((n -= o.lose_request) < o.lose_reply) return SimFault::kLoseReply;
  if ((n -= o.lose_reply) < o.late) return SimFault::kLate;
  return SimFault::kNone;
}

// One request and its reply; nullopt when none came. It gives up at the deadline or, as when a
// connection breaks, before it.
template <class R>
std::optional<R> SimKv::send(std::function<R(SimKvServer&)> serve, SimFault fault, Time deadline) {
  rt::Runtime& runtime = server_.runtime();
  Time now = runtime.now();
  if (now >= deadline) return std::nullopt;
  Time give_up = deadline;
  if (fault != SimFault::kNone && runtime.random_below(2) == 0)
    give_up =
        now + Nanos(runtime.random_below(static_cast<std::uint64_t>((deadline - now).count())));
  auto call = std::make_shared<Call<R>>();
  if (fault != SimFault::kLoseRequest) {
    Time arrival = now + link_->latency(runtime);
    if (fault == SimFault::kLate)
      arrival = give_up + Nanos(runtime.random_below(
                              static_cast<std::uint64_t>(link_->options.late_max.count()) + 1));
    server_.group().spawn(
        [&server = server_, link = link_, call, fault, arrival, serve = std::move(serve)] {
          rt::sleep_until(arrival);
          if ((link->partitioned && fault != SimFault::kLate) || !server.available_) return;
          R reply = serve(server);
          if (fault != SimFault::kNone) return;
          rt::sleep_for(link->latency(server.runtime()));
          if (link->partitioned) return;
          call->reply = std::move(reply);
          call->arrived.notify_all();
        });
  }
  call->arrived.wait_until(give_up, [&] { return call->reply.has_value(); });
  return std::move(call->reply);
}

template <class R>
Result<R> SimKv::retry(std::function<Result<R>(SimKvServer&)> serve, Time deadline) {
  rt::Runtime& runtime = server_.runtime();
  while (runtime.now() < deadline) {
    Time attempt = std::min<Time>(deadline, runtime.now() + 500ms);
    SimFault fault = draw();
    if (fault == SimFault::kLate) fault = SimFault::kLoseRequest;
    if (auto reply = send<Result<R>>(serve, fault, attempt)) return *std::move(reply);
    rt::sleep_until(
        std::min<Time>(deadline, runtime.now() + 10ms + Nanos(runtime.random_below(50'000'000))));
  }
  return Reason::kTimeout;
}

Result<meta::RangeReply> SimKv::range(const meta::RangeOp& op, Revision at, Time deadline) {
  return retry<meta::RangeReply>([op, at](SimKvServer& s) { return s.range(op, at); }, deadline);
}

TxnOutcome SimKv::txn(const meta::Txn& txn, Time deadline) {
  SimFault fault = draw();
  if (auto planned = planned_.find(++txns_); planned != planned_.end()) {
    fault = planned->second;
    planned_.erase(planned);
  }
  auto reply = send<TxnOutcome>([txn](SimKvServer& s) { return s.txn(txn); }, fault, deadline);
  if (reply) return *std::move(reply);
  TxnOutcome unknown;
  unknown.reason = server_.runtime().now() >= deadline ? Reason::kTimeout : Reason::kUnavailable;
  return unknown;
}

Result<std::int64_t> SimKv::lease_grant(std::chrono::seconds ttl, Time deadline) {
  return retry<std::int64_t>([ttl](SimKvServer& s) { return s.lease_grant(ttl); }, deadline);
}

Result<void> SimKv::lease_keepalive(std::int64_t lease, Time deadline) {
  return retry<void>([lease](SimKvServer& s) { return s.lease_keepalive(lease); }, deadline);
}

Result<void> SimKv::lease_revoke(std::int64_t lease, Time deadline) {
  return retry<void>([lease](SimKvServer& s) { return s.lease_revoke(lease); }, deadline);
}

Result<void> SimKv::compact(Revision revision, Time deadline) {
  return retry<void>([revision](SimKvServer& s) { return s.compact(revision); }, deadline);
}

Result<meta::Kv::Status> SimKv::status(Time deadline) {
  return retry<Status>([](SimKvServer& s) { return Result<Status>(s.status()); }, deadline);
}

Result<std::unique_ptr<meta::Watch>> SimKv::watch(std::string key, std::string end, Revision from,
                                                  std::function<void(const WatchBatch&)> on_batch,
                                                  std::function<void()> on_lost, Time deadline) {
  auto state = std::shared_ptr<SimWatchState>(
      new SimWatchState{server_, group_, link_, key, end, std::move(on_batch), std::move(on_lost)});
  ETCFS_CHECK(retry<void>(
      [state, from](SimKvServer& s) {
        if (state->next == 0) {  // not by an earlier try whose reply was lost
          state->next = from.v;
          s.add_watch(state);
        }
        return Result<void>();
      },
      deadline));
  group_.spawn([state] { SimWatchState::pump(state); });
  return std::unique_ptr<meta::Watch>(std::make_unique<SimWatch>(state));
}

// --- faults ---

void SimKv::set_partitioned(bool partitioned) {
  link_->partitioned = partitioned;
  if (!partitioned) server_.wake_watches();
}

bool SimKv::partitioned() const { return link_->partitioned; }

void SimKv::set_options(const SimKvOptions& options) { link_->options = options; }

void SimKv::fail_txn(std::uint64_t n, SimFault fault) { planned_[txns_ + n] = fault; }

}  // namespace etcfs::sim

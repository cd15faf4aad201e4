#include "meta/etcd/connection.h"

#include <signal.h>

#include <algorithm>

#include "base/log.h"

namespace etcfs::meta::etcd {
namespace {

class PostedTag final : public CompletionTag {
 public:
  PostedTag(rt::Runtime& runtime, std::function<void(bool)> fn)
      : runtime_(runtime), fn_(std::move(fn)) {}
  void complete(bool ok) override {
    runtime_.post([fn = std::move(fn_), ok] { fn(ok); });
    delete this;
  }

 private:
  rt::Runtime& runtime_;
  std::function<void(bool)> fn_;
};

}  // namespace

CompletionTag* posted_tag(rt::Runtime& runtime, std::function<void(bool)> fn) {
  return new PostedTag(runtime, std::move(fn));
}

gpr_timespec to_deadline(rt::Runtime& runtime, Time deadline) {
  if (deadline == Time::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  Nanos left = std::max<Nanos>(deadline - runtime.now(), Nanos(0));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

Connection::Connection(rt::Runtime& runtime, EtcdOptions options, std::vector<Endpoint> endpoints)
    : runtime_(runtime), options_(std::move(options)), endpoints_(std::move(endpoints)) {
  current_ = runtime_.random_below(endpoints_.size());  // so that nodes spread over the members
  thread_ = std::thread([this] { run(); });
}

Connection::~Connection() {
  ETCFS_ASSERT(callers_ == 0);
  *closed_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
  queue_.Shutdown();
  thread_.join();
}

void Connection::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);  // signals are the main thread's
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) static_cast<CompletionTag*>(tag)->complete(ok);
}

void Connection::leave_endpoint(std::size_t index) {
  if (index != current_ || endpoints_.size() == 1) return;
  current_ = (current_ + 1) % endpoints_.size();
  ETCFS_LOG_INFO("etcd endpoint left for the next", log::field("left", endpoints_[index].address),
                 log::field("now", endpoints_[current_].address));
  if (endpoint_changed_) endpoint_changed_();
}

void Connection::prepare(grpc::ClientContext& context) {
  if (!token_.empty()) context.AddMetadata("token", token_);
}

Result<void> Connection::log_in(Time deadline) {
  if (options_.user.empty() || !token_.empty()) return {};
  login_.lock();
  struct Unlock {
    rt::Mutex& mutex;
    ~Unlock() { mutex.unlock(); }
  } unlock{login_};
  if (!token_.empty()) return {};
  return authenticate(deadline);
}

Result<void> Connection::authenticate(Time deadline) {
  std::string token;
  grpc::Status status = attempt<pb::AuthenticateRequest, pb::AuthenticateResponse>(
      [](Endpoint& e, auto* context, const auto& request, auto* queue) {
        return e.auth->AsyncAuthenticate(context, request, queue);
      },
      [&](pb::AuthenticateRequest* request) {
        request->set_name(options_.user);
        request->set_password(options_.password);
      },
      +[](pb::AuthenticateResponse& reply) { return std::move(*reply.mutable_token()); }, deadline,
      token);
  if (status.ok()) {
    token_ = std::move(token);
    return {};
  }
  Verdict verdict = judge(status);
  if (verdict.reason == Reason::kNotSupported) return {};  // etcd does not ask for a login
  ETCFS_LOG_WARN("etcd refused the login", log::field("user", options_.user),
                 log::field("why", status.error_message()));
  return verdict.kind == Verdict::Kind::kUnknown ? verdict.reason : Reason::kAccess;
}

Result<void> Connection::retry(Time deadline, const std::function<grpc::Status(Time until)>& once) {
  Reason last = Reason::kTimeout;
  std::string why = "no time left";
  Nanos patience = options_.attempt;
  unsigned logins = 0;
  for (unsigned tries = 0; runtime_.now() < deadline; tries++) {
    Time until = std::min<Time>(deadline, runtime_.now() + patience);
    if (auto ready = log_in(until); !ready) {
      last = ready.error();
      if (last == Reason::kAccess) return last;
    } else {
      std::string token = token_;
      grpc::Status status = once(until);
      if (status.ok()) return {};
      Verdict verdict = judge(status);
      last = verdict.reason;
      why = status.error_message();
      if (verdict.kind == Verdict::Kind::kRefused) return last;
      if (verdict.kind == Verdict::Kind::kStaleToken) {
        drop_token(token);
        if (options_.user.empty() || ++logins > 2) return Reason::kAccess;
        continue;
      }
      // A slow server gets more time at the next try: a long listing must end one day.
      if (last == Reason::kTimeout) patience = std::min<Nanos>(patience * 2, 60s);
    }
    Nanos pause = 10ms * (1 << std::min(tries, 6u));
    pause = pause / 2 + Nanos(runtime_.random_below(static_cast<std::uint64_t>(pause.count())));
    rt::sleep_until(std::min<Time>(deadline, runtime_.now() + pause));
  }
  ETCFS_LOG_WARN("etcd does not answer", log::field("endpoint", endpoints_[current_].address),
                 log::field("why", why));
  return last;
}

}  // namespace etcfs::meta::etcd

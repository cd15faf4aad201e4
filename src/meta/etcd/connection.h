// Channels to the endpoints, the completion queue with its thread, the login, and the two ways of
// calling: once (attempt) and until it is answered (retry). Only for this folder.
//
// Everything but CompletionTag::complete() runs on the runtime thread, so nothing here is locked.
#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "etcd_rpc.grpc.pb.h"
#include "meta/etcd/etcd_kv.h"
#include "meta/etcd/messages.h"
#include "rt/rt.h"

namespace etcfs::meta::etcd {

// What stands in the completion queue.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void complete(bool ok) = 0;  // completion thread; called exactly once per operation
};

// A tag that runs fn(ok) on the runtime thread, once, and then is gone.
CompletionTag* posted_tag(rt::Runtime& runtime, std::function<void(bool)> fn);

struct Endpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::KV::Stub> kv;
  std::unique_ptr<pb::Watch::Stub> watch;
  std::unique_ptr<pb::Lease::Stub> lease;
  std::unique_ptr<pb::Maintenance::Stub> maintenance;
  std::unique_ptr<pb::Auth::Stub> auth;
};

gpr_timespec to_deadline(rt::Runtime& runtime, Time deadline);

// One request and its reply. Lives until the posted completion has run, whatever became of the
// fiber; so the completion thread may write to nothing else.
template <class Request, class Reply, class Out>
struct UnaryCall final : CompletionTag {
  explicit UnaryCall(rt::Runtime& r)
      : runtime(r),
        request(google::protobuf::Arena::CreateMessage<Request>(&arena)),
        reply(google::protobuf::Arena::CreateMessage<Reply>(&arena)) {}

  void complete(bool) override {
    if (status.ok()) out = unpack(*reply);
    runtime.post([call = std::move(self)] {
      call->done = true;
      call->finished.notify_all();
      if (call->on_done) call->on_done();
    });
  }

  rt::Runtime& runtime;
  google::protobuf::Arena arena;
  grpc::ClientContext context;
  Request* request;
  Reply* reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader;
  Out (*unpack)(Reply&) = nullptr;  // completion thread
  Out out{};
  std::function<void()> on_done;  // runtime thread
  bool done = false;
  rt::Condition finished;
  std::shared_ptr<UnaryCall> self;  // while it stands in the queue
};

class Connection {
 public:
  Connection(rt::Runtime& runtime, EtcdOptions options, std::vector<Endpoint> endpoints);
  ~Connection();  // cancels what is under way and waits for the completion thread

  rt::Runtime& runtime() { return runtime_; }
  grpc::CompletionQueue* queue() { return &queue_; }
  const EtcdOptions& options() const { return options_; }

  std::size_t current() const { return current_; }
  Endpoint& endpoint(std::size_t index) { return endpoints_[index]; }
  // Leaves that endpoint for the next one, unless somebody did already.
  void leave_endpoint(std::size_t index);
  void on_endpoint_changed(std::function<void()> fn) { endpoint_changed_ = std::move(fn); }

  // The header fields of every call: the token. Then, for the time it is under way, so that the
  // destructor can cancel it.
  void prepare(grpc::ClientContext& context);
  void track(grpc::ClientContext* context) { contexts_.insert(context); }
  void untrack(grpc::ClientContext* context) { contexts_.erase(context); }
  std::shared_ptr<bool> closed() const { return closed_; }

  // Blocks until there is a token, where one is needed.
  Result<void> log_in(Time deadline);
  const std::string& token() const { return token_; }
  void drop_token(const std::string& used) {
    if (token_ == used) token_.clear();
  }

  // One try on the present endpoint; blocks until answered or `until`. unpack() runs on the
  // completion thread. `out` is set with an OK status only.
  template <class Request, class Reply, class Out, class Start, class Fill>
  grpc::Status attempt(Start start, Fill fill, Out (*unpack)(Reply&), Time until, Out& out);

  // Repeats `once(until)` with jitter, on all endpoints in turn, until it has succeeded, was
  // refused or the deadline has come. Blocks.
  Result<void> retry(Time deadline, const std::function<grpc::Status(Time until)>& once);

  struct Inside {  // counts a fiber inside a call; also right when it is killed
    std::size_t& n;
    explicit Inside(std::size_t& count) : n(count) { n++; }
    ~Inside() { n--; }
    Inside(const Inside&) = delete;
  };
  Inside enter() { return Inside(callers_); }

 private:
  void run();  // completion thread
  Result<void> authenticate(Time deadline);

  // set once
  rt::Runtime& runtime_;
  const EtcdOptions options_;
  std::vector<Endpoint> endpoints_;
  std::function<void()> endpoint_changed_;
  grpc::CompletionQueue queue_;
  std::thread thread_;

  std::size_t current_ = 0;
  std::string token_;
  rt::Mutex login_;
  std::size_t callers_ = 0;  // fibers inside a call
  std::set<grpc::ClientContext*> contexts_;
  std::shared_ptr<bool> closed_ = std::make_shared<bool>(false);
};

template <class Request, class Reply, class Out, class Start, class Fill>
grpc::Status Connection::attempt(Start start, Fill fill, Out (*unpack)(Reply&), Time until,
                                 Out& out) {
  ETCFS_ASSERT(!*closed_);
  std::size_t index = current_;
  Time begun = runtime_.now();
  auto call = std::make_shared<UnaryCall<Request, Reply, Out>>(runtime_);
  fill(call->request);
  prepare(call->context);
  call->context.set_deadline(to_deadline(runtime_, until));
  call->unpack = unpack;
  track(&call->context);
  call->on_done = [this, closed = closed_, context = &call->context] {
    if (!*closed) untrack(context);
  };
  call->self = call;
  call->reader = start(endpoints_[index], &call->context, *call->request, &queue_);
  call->reader->Finish(call->reply, &call->status, call.get());
  {
    Inside inside(callers_);
    call->finished.wait([&] { return call->done; });
  }
  if (call->status.ok()) {
    out = std::move(call->out);
  } else if (judge(call->status).kind == Verdict::Kind::kUnknown) {
    // A deadline so short that any server may miss it says nothing about this one.
    bool hasty = call->status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                 runtime_.now() - begun < 500ms;
    if (!hasty) leave_endpoint(index);
  }
  return call->status;
}

}  // namespace etcfs::meta::etcd

#include "meta/etcd/watch_mux.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/log.h"

namespace etcfs::meta::etcd {

// One Watch call. Its operations complete on the completion thread and go on on the runtime thread,
// where nothing is started any more once detach() was called.
class WatchMux::Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(WatchMux& mux, std::size_t endpoint) : mux_(&mux), endpoint_(endpoint) {}

  void start() {
    Connection& connection = mux_->connection_;
    connection.prepare(context_);
    context_.AddMetadata("hasleader", "true");
    rpc_ = connection.endpoint(endpoint_).watch->PrepareAsyncWatch(&context_, connection.queue());
    rpc_->StartCall(tag(&Stream::on_start));
  }
  void create(std::int64_t id, pb::WatchRequest request) {
    unconfirmed_.push_back(id);
    send(std::move(request));
  }
  void send(pb::WatchRequest request) {
    requests_.push_back(std::move(request));
    write();
  }
  void cancel() { context_.TryCancel(); }  // ended() follows
  void detach() {
    mux_ = nullptr;
    context_.TryCancel();
  }
  std::size_t endpoint() const { return endpoint_; }

  // Confirmations come in the order of the requests.
  std::optional<std::int64_t> next_unconfirmed() {
    if (unconfirmed_.empty()) return std::nullopt;
    std::int64_t id = unconfirmed_.front();
    unconfirmed_.pop_front();
    return id;
  }

 private:
  CompletionTag* tag(void (Stream::*handler)(bool)) {
    return posted_tag(mux_->connection_.runtime(), [self = shared_from_this(), handler](bool ok) {
      if (self->mux_) (self.get()->*handler)(ok);
    });
  }
  void on_start(bool ok) {
    if (!ok) return finish();
    started_ = true;
    rpc_->Read(&response_, tag(&Stream::on_read));
    write();
  }
  void write() {
    if (!started_ || writing_ || finishing_ || requests_.empty()) return;
    writing_ = true;
    rpc_->Write(requests_.front(), tag(&Stream::on_write));
  }
  void on_write(bool ok) {
    writing_ = false;
    requests_.pop_front();
    if (ok) write();  // otherwise the read fails as well
  }
  void on_read(bool ok) {
    if (!ok) return finish();
    mux_->handle(response_);
    if (!mux_) return;
    response_.Clear();
    rpc_->Read(&response_, tag(&Stream::on_read));
  }
  void finish() {
    finishing_ = true;
    rpc_->Finish(&status_, tag(&Stream::on_finish));
  }
  void on_finish(bool) { std::exchange(mux_, nullptr)->ended(status_, endpoint_); }

  WatchMux* mux_;
  const std::size_t endpoint_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<pb::WatchRequest, pb::WatchResponse>> rpc_;
  pb::WatchResponse response_;
  grpc::Status status_;
  std::deque<pb::WatchRequest> requests_;
  std::deque<std::int64_t> unconfirmed_;
  bool started_ = false, writing_ = false, finishing_ = false;
};

class WatchMux::Handle final : public Watch {
 public:
  Handle(std::shared_ptr<WatchMux*> mux, std::shared_ptr<Watcher> watcher)
      : mux_(std::move(mux)), watcher_(std::move(watcher)) {}
  ~Handle() override {
    watcher_->closed = true;
    if (*mux_) (*mux_)->close(watcher_);
  }

 private:
  std::shared_ptr<WatchMux*> mux_;
  std::shared_ptr<Watcher> watcher_;
};

WatchMux::WatchMux(Connection& connection)
    : connection_(connection),
      self_(std::make_shared<WatchMux*>(this)),
      group_(connection.runtime(), "etcd watches") {
  group_.spawn([this] { run(); });
}

WatchMux::~WatchMux() {
  *self_ = nullptr;
  group_.kill();
  if (stream_) stream_->detach();
}

// --- opening ---

Result<std::unique_ptr<Watch>> WatchMux::open(std::string key, std::string end, Revision from,
                                              std::function<void(const WatchBatch&)> on_batch,
                                              std::function<void()> on_lost, Time deadline) {
  ETCFS_CHECK(connection_.log_in(deadline));
  auto watcher = std::make_shared<Watcher>();
  watcher->id = ++last_id_;
  watcher->key = std::move(key);
  watcher->end = std::move(end);
  watcher->next = from.v;
  watcher->on_batch = std::move(on_batch);
  watcher->on_lost = std::move(on_lost);
  watchers_.emplace(watcher->id, watcher);
  auto handle = std::make_unique<Handle>(self_, watcher);  // closes it on every way out
  if (stream_) send_create(*watcher);
  changed_.notify_all();
  rt::Runtime& runtime = connection_.runtime();
  auto settled = [&] { return watcher->confirmed || watcher->refused; };
  while (!watcher->settled.wait_until(
      std::min<Time>(deadline, runtime.now() + connection_.options().attempt), settled)) {
    if (runtime.now() >= deadline) return Reason::kTimeout;
    if (!stream_) continue;  // it is being opened again as it is
    std::size_t silent = stream_->endpoint();
    restart_stream();
    connection_.leave_endpoint(silent);
  }
  if (watcher->refused) return *watcher->refused;
  runtime.post([watcher] { release(watcher); });
  return std::unique_ptr<Watch>(std::move(handle));
}

void WatchMux::send_create(Watcher& watcher) {
  watcher.confirmed = false;
  pb::WatchRequest request;
  auto* create = request.mutable_create_request();
  create->set_key(watcher.key);
  if (!watcher.end.empty()) create->set_range_end(watcher.end);
  create->set_watch_id(watcher.id);
  create->set_progress_notify(true);
  if (watcher.next != 0)
    create->set_start_revision(watcher.resumed ? std::max<std::int64_t>(watcher.next - 1, 1)
                                               : watcher.next);
  stream_->create(watcher.id, std::move(request));
}

void WatchMux::close(const std::shared_ptr<Watcher>& watcher) {
  if (watchers_.erase(watcher->id) == 0 || !stream_) return;
  pb::WatchRequest request;
  request.mutable_cancel_request()->set_watch_id(watcher->id);
  stream_->send(std::move(request));
}

void WatchMux::run() {
  rt::Runtime& runtime = connection_.runtime();
  for (;;) {
    changed_.wait([&] { return !stream_ && !watchers_.empty(); });
    if (failures_ > 0) {
      Nanos pause = 10ms * (1 << std::min(failures_, 6u));
      rt::sleep_for(pause / 2 +
                    Nanos(runtime.random_below(static_cast<std::uint64_t>(pause.count()))));
    }
    if (!connection_.log_in(runtime.now() + connection_.options().attempt)) {
      failures_++;
      continue;
    }
    if (watchers_.empty()) continue;
    stream_token_ = connection_.token();
    stream_ = std::make_shared<Stream>(*this, connection_.current());
    stream_->start();
    for (auto& [id, watcher] : watchers_) send_create(*watcher);
  }
}

void WatchMux::endpoint_changed() {
  if (stream_ && stream_->endpoint() != connection_.current()) restart_stream();
}

// The old stream may still say something; nobody listens. The fiber opens the next one.
void WatchMux::restart_stream() {
  if (!stream_) return;
  std::exchange(stream_, nullptr)->detach();
  for (auto& [id, watcher] : watchers_) {
    watcher->resumed = watcher->resumed || watcher->confirmed;
    watcher->confirmed = false;
  }
  failures_++;
  changed_.notify_all();
}

void WatchMux::ended(const grpc::Status& status, std::size_t endpoint) {
  ETCFS_LOG_INFO("watch stream ended", log::field("etcd", connection_.endpoint(endpoint).address),
                 log::field("code", static_cast<int>(status.error_code())),
                 log::field("why", status.error_message()));
  if (judge(status).kind == Verdict::Kind::kStaleToken) connection_.drop_token(stream_token_);
  restart_stream();
  connection_.leave_endpoint(endpoint);
}

// --- what comes back ---

void WatchMux::handle(pb::WatchResponse& response) {
  if (response.created()) {
    if (auto id = stream_->next_unconfirmed()) created(response, *id);
    return;
  }
  if (response.canceled()) return canceled(response);
  auto it = watchers_.find(response.watch_id());
  if (it != watchers_.end()) deliver(response, std::shared_ptr<Watcher>(it->second));
}

void WatchMux::created(pb::WatchResponse& response, std::int64_t id) {
  auto it = watchers_.find(id);
  if (it == watchers_.end()) return;  // closed meanwhile
  std::shared_ptr<Watcher> watcher = it->second;
  if (!response.canceled()) {
    failures_ = 0;
    watcher->denials = 0;
    watcher->confirmed = true;
    if (watcher->next == 0) watcher->next = response.header().revision() + 1;
    watcher->settled.notify_all();
    return;
  }
  if (response.compact_revision() != 0) return lose(watcher);
  bool denied = response.cancel_reason().find("permission denied") != std::string::npos ||
                response.cancel_reason().find("user name is empty") != std::string::npos ||
                response.cancel_reason().find("auth") != std::string::npos;
  if (denied && !connection_.options().user.empty() &&
      (watcher->denials++ == 0 || watcher->resumed)) {
    // etcd says so of an expired login as well.
    connection_.drop_token(stream_token_);
    return restart_stream();
  }
  if (watcher->resumed) return restart_stream();
  ETCFS_LOG_WARN("etcd refused a watch", log::field("why", response.cancel_reason()));
  watcher->refused = denied ? Reason::kAccess : Reason::kInvalid;
  watchers_.erase(it);
  watcher->settled.notify_all();
}

void WatchMux::canceled(pb::WatchResponse& response) {
  auto it = watchers_.find(response.watch_id());
  if (it == watchers_.end()) return;  // we asked for it
  if (response.compact_revision() != 0) return lose(std::shared_ptr<Watcher>(it->second));
  ETCFS_LOG_INFO("etcd ended a watch", log::field("why", response.cancel_reason()));
  connection_.drop_token(stream_token_);
  restart_stream();
}

void WatchMux::lose(const std::shared_ptr<Watcher>& watcher) {
  watchers_.erase(watcher->id);
  watcher->lost = watcher->confirmed = true;
  watcher->settled.notify_all();
  if (watcher->released && !watcher->closed) watcher->on_lost();
}

// The owner gets nothing before it has its Watch.
void WatchMux::release(const std::shared_ptr<Watcher>& watcher) {
  watcher->released = true;
  for (WatchBatch& batch : std::exchange(watcher->held, {}))
    if (!watcher->closed) watcher->on_batch(batch);
  if (watcher->lost && !watcher->closed) watcher->on_lost();
}

// The revision in the header may be ahead of the events while a watch catches up; only a response
// without events, which etcd sends to watches that are up to date, says how far all is delivered.
void WatchMux::deliver(pb::WatchResponse& response, const std::shared_ptr<Watcher>& watcher) {
  WatchBatch batch;
  std::int64_t last = response.header().revision();
  if (response.events_size() > 0)
    last = response.events(response.events_size() - 1).kv().mod_revision();
  if (last < watcher->next) return;
  for (auto& event : *response.mutable_events())
    if (event.kv().mod_revision() >= watcher->next) batch.events.push_back(from_proto(event));
  watcher->next = last + 1;
  batch.revision = Revision{last};
  if (!watcher->released) {
    watcher->held.push_back(std::move(batch));
  } else if (!watcher->closed) {
    watcher->on_batch(batch);
  }
}

}  // namespace etcfs::meta::etcd

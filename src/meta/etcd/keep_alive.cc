#include "meta/etcd/keep_alive.h"

#include <memory>

namespace etcfs::meta::etcd {
namespace {

// start, write, read, finish; any failure goes straight to finish. Steps run on the runtime thread.
struct KeepAlive : std::enable_shared_from_this<KeepAlive> {
  KeepAlive(Connection& c) : connection(c), runtime(c.runtime()), closed(c.closed()) {}

  CompletionTag* tag(void (KeepAlive::*step)(bool)) {
    return posted_tag(runtime, [self = shared_from_this(), step](bool ok) {
      if (!*self->closed) (self.get()->*step)(ok);
    });
  }
  void on_start(bool ok) {
    if (!ok) return finish();
    rpc->Write(request, tag(&KeepAlive::on_write));
  }
  void on_write(bool ok) {
    if (!ok) return finish();
    rpc->Read(&reply, tag(&KeepAlive::on_read));
  }
  void on_read(bool ok) {
    answered = ok;
    if (ok) context.TryCancel();
    finish();
  }
  void finish() { rpc->Finish(&status, tag(&KeepAlive::on_finish)); }
  void on_finish(bool) {
    connection.untrack(&context);
    done = true;
    finished.notify_all();
  }

  Connection& connection;
  rt::Runtime& runtime;
  std::shared_ptr<bool> closed;
  grpc::ClientContext context;
  std::unique_ptr<
      grpc::ClientAsyncReaderWriter<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse>>
      rpc;
  pb::LeaseKeepAliveRequest request;
  pb::LeaseKeepAliveResponse reply;
  grpc::Status status;
  bool answered = false, done = false;
  rt::Condition finished;
};

}  // namespace

grpc::Status keep_alive(Connection& connection, std::int64_t lease, Time until, std::int64_t& ttl) {
  std::size_t index = connection.current();
  auto call = std::make_shared<KeepAlive>(connection);
  call->request.set_id(lease);
  connection.prepare(call->context);
  call->context.AddMetadata("hasleader", "true");
  call->context.set_deadline(to_deadline(connection.runtime(), until));
  connection.track(&call->context);
  call->rpc = connection.endpoint(index).lease->PrepareAsyncLeaseKeepAlive(&call->context,
                                                                           connection.queue());
  call->rpc->StartCall(call->tag(&KeepAlive::on_start));
  {
    Connection::Inside inside = connection.enter();
    call->finished.wait([&] { return call->done; });
  }
  if (call->answered) {
    ttl = call->reply.ttl();
    return grpc::Status::OK;
  }
  if (call->status.ok()) call->status = {grpc::StatusCode::UNAVAILABLE, "no answer"};
  if (judge(call->status).kind == Verdict::Kind::kUnknown) connection.leave_endpoint(index);
  return call->status;
}

}  // namespace etcfs::meta::etcd

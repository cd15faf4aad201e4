#include "meta/etcd/messages.h"

#include <string_view>
#include <utility>

namespace etcfs::meta::etcd {
namespace {

pb::Compare::CompareResult result_of(Compare::Op op) {
  switch (op) {
    case Compare::Op::kEqual:
      return pb::Compare::EQUAL;
    case Compare::Op::kGreater:
      return pb::Compare::GREATER;
    case Compare::Op::kLess:
      return pb::Compare::LESS;
    case Compare::Op::kNotEqual:
      return pb::Compare::NOT_EQUAL;
  }
  return pb::Compare::EQUAL;
}

void set_compare(const Compare& c, pb::Compare* out) {
  out->set_result(result_of(c.op));
  out->set_key(c.key);
  if (!c.end.empty()) out->set_range_end(c.end);
  switch (c.target) {
    case Compare::Target::kVersion:
      out->set_target(pb::Compare::VERSION);
      out->set_version(c.number);
      break;
    case Compare::Target::kCreateRevision:
      out->set_target(pb::Compare::CREATE);
      out->set_create_revision(c.number);
      break;
    case Compare::Target::kModRevision:
      out->set_target(pb::Compare::MOD);
      out->set_mod_revision(c.number);
      break;
    case Compare::Target::kValue:
      out->set_target(pb::Compare::VALUE);
      out->set_value(c.value);
      break;
  }
}

void set_op(const KvOp& op, pb::RequestOp* out) {
  if (auto* range = std::get_if<RangeOp>(&op)) {
    etcd::to_proto(*range, Revision{}, out->mutable_request_range());
  } else if (auto* put = std::get_if<PutOp>(&op)) {
    auto* message = out->mutable_request_put();
    message->set_key(put->key);
    message->set_value(put->value);
    if (put->lease != 0) message->set_lease(put->lease);
  } else if (auto* erase = std::get_if<DeleteOp>(&op)) {
    auto* message = out->mutable_request_delete_range();
    message->set_key(erase->key);
    if (!erase->end.empty()) message->set_range_end(erase->end);
  } else {
    etcd::to_proto(*std::get<TxnOp>(op).txn, out->mutable_request_txn());
  }
}

KeyValue take_kv(pb::KeyValue& in) {
  KeyValue kv;
  kv.key = std::move(*in.mutable_key());
  kv.value = std::move(*in.mutable_value());
  kv.create_revision = Revision{in.create_revision()};
  kv.mod_revision = Revision{in.mod_revision()};
  kv.version = in.version();
  kv.lease = in.lease();
  return kv;
}

// The header of a nested reply is empty: all of it happened at one revision.
TxnReply from_proto_at(pb::TxnResponse& in, Revision revision) {
  TxnReply reply;
  reply.succeeded = in.succeeded();
  reply.revision = revision;
  reply.ops.reserve(static_cast<std::size_t>(in.responses_size()));
  for (auto& op : *in.mutable_responses()) {
    OpReply& out = reply.ops.emplace_back();
    if (op.has_response_range()) {
      out.v = etcd::from_proto(*op.mutable_response_range());
    } else if (op.has_response_delete_range()) {
      out.v = DeleteReply{op.response_delete_range().deleted()};
    } else if (op.has_response_txn()) {
      out.v = std::make_shared<TxnReply>(from_proto_at(*op.mutable_response_txn(), revision));
    }
  }
  return reply;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

void to_proto(const RangeOp& op, Revision at, pb::RangeRequest* out) {
  out->set_key(op.key);
  if (!op.end.empty()) out->set_range_end(op.end);
  if (op.limit != 0) out->set_limit(op.limit);
  if (at.v != 0) out->set_revision(at.v);
  if (op.keys_only) out->set_keys_only(true);
  if (op.count_only) out->set_count_only(true);
}

void to_proto(const Txn& txn, pb::TxnRequest* out) {
  for (const Compare& compare : txn.compares) set_compare(compare, out->add_compare());
  for (const KvOp& op : txn.success) set_op(op, out->add_success());
  for (const KvOp& op : txn.failure) set_op(op, out->add_failure());
}

RangeReply from_proto(pb::RangeResponse& in) {
  RangeReply reply;
  reply.kvs.reserve(static_cast<std::size_t>(in.kvs_size()));
  for (auto& kv : *in.mutable_kvs()) reply.kvs.push_back(take_kv(kv));
  reply.more = in.more();
  reply.count = in.count();
  reply.revision = Revision{in.header().revision()};
  return reply;
}

TxnReply from_proto(pb::TxnResponse& in) {
  return from_proto_at(in, Revision{in.header().revision()});
}

WatchEvent from_proto(pb::Event& in) {
  WatchEvent event;
  event.type = in.type() == pb::Event::DELETE ? WatchEvent::Type::kDelete : WatchEvent::Type::kPut;
  event.kv = take_kv(*in.mutable_kv());
  return event;
}

// Only etcd's own words count as a refusal: the same codes may come from a proxy or from gRPC
// itself, which do not know what became of the request.
Verdict judge(const grpc::Status& status) {
  using Kind = Verdict::Kind;
  const std::string message = status.error_message();  // returned by value
  const std::string_view text = message;
  bool own = text.starts_with("etcdserver: ");
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      if (!own) break;
      if (contains(text, "revision of auth store is old"))
        return {Kind::kStaleToken, Reason::kAccess};
      if (contains(text, "too many operations") || contains(text, "request is too large"))
        return {Kind::kRefused, Reason::kTooManyOps};
      if (contains(text, "authentication failed") || contains(text, "user name is empty"))
        return {Kind::kRefused, Reason::kAccess};
      return {Kind::kRefused, Reason::kInvalid};
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (own && contains(text, "database space exceeded"))
        return {Kind::kRefused, Reason::kMetadataFull};
      // etcd's gRPC refuses to read such a request (ours would begin with a capital letter: that is
      // about the reply).
      if (text.starts_with("grpc: received message larger than max"))
        return {Kind::kRefused, Reason::kTooManyOps};
      break;
    case grpc::StatusCode::OUT_OF_RANGE:
      if (!own) break;
      if (contains(text, "has been compacted")) return {Kind::kRefused, Reason::kCompacted};
      return {Kind::kRefused, Reason::kInvalid};  // a future revision
    case grpc::StatusCode::NOT_FOUND:
      if (own && contains(text, "lease not found")) return {Kind::kRefused, Reason::kNotFound};
      break;
    case grpc::StatusCode::PERMISSION_DENIED:
      if (own) return {Kind::kRefused, Reason::kAccess};
      break;
    case grpc::StatusCode::UNAUTHENTICATED:
      if (own) return {Kind::kStaleToken, Reason::kAccess};
      break;
    case grpc::StatusCode::FAILED_PRECONDITION:
      if (own && contains(text, "authentication is not enabled"))
        return {Kind::kRefused, Reason::kNotSupported};
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {Kind::kUnknown, Reason::kTimeout};
    default:
      break;
  }
  if (contains(text, "timed out")) return {Kind::kUnknown, Reason::kTimeout};
  return {Kind::kUnknown, Reason::kUnavailable};
}

}  // namespace etcfs::meta::etcd

#include "meta/etcd/etcd_kv.h"

#include <grpc/support/log.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/log.h"
#include "meta/etcd/connection.h"
#include "meta/etcd/keep_alive.h"
#include "meta/etcd/messages.h"
#include "meta/etcd/watch_mux.h"

namespace etcfs::meta {
namespace {

using etcd::Connection;
using etcd::Endpoint;
using etcd::Verdict;
namespace pb = etcdserverpb;

class EtcdKv final : public Kv {
 public:
  EtcdKv(rt::Runtime& runtime, const EtcdOptions& options, std::vector<Endpoint> endpoints)
      : connection_(runtime, options, std::move(endpoints)), watches_(connection_) {
    connection_.on_endpoint_changed([this] { watches_.endpoint_changed(); });
  }

  Result<RangeReply> range(const RangeOp& op, Revision at, Time deadline) override {
    RangeReply out;
    ETCFS_CHECK(connection_.retry(deadline, [&](Time until) {
      return connection_.attempt<pb::RangeRequest, pb::RangeResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.kv->AsyncRange(context, request, queue);
          },
          [&](pb::RangeRequest* request) { etcd::to_proto(op, at, request); },
          +[](pb::RangeResponse& reply) { return etcd::from_proto(reply); }, until, out);
    }));
    return out;
  }

  TxnOutcome txn(const Txn& txn, Time deadline) override {
    TxnOutcome outcome;
    for (bool again : {true, false}) {
      if (auto ready = connection_.log_in(deadline); !ready) {
        if (ready.error() == Reason::kAccess) outcome.kind = TxnOutcome::Kind::kRefused;
        outcome.reason = ready.error();
        return outcome;
      }
      std::string token = connection_.token();
      grpc::Status status = connection_.attempt<pb::TxnRequest, pb::TxnResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.kv->AsyncTxn(context, request, queue);
          },
          [&](pb::TxnRequest* request) { etcd::to_proto(txn, request); },
          +[](pb::TxnResponse& reply) { return etcd::from_proto(reply); }, deadline, outcome.reply);
      if (status.ok()) {
        outcome.kind = TxnOutcome::Kind::kDone;
        return outcome;
      }
      Verdict verdict = etcd::judge(status);
      outcome.reason = verdict.reason;
      if (verdict.kind == Verdict::Kind::kUnknown) return outcome;
      outcome.kind = TxnOutcome::Kind::kRefused;
      if (verdict.kind == Verdict::Kind::kRefused) return outcome;
      connection_.drop_token(token);
      if (connection_.options().user.empty() || !again) return outcome;
      outcome.kind = TxnOutcome::Kind::kUnknown;  // until the second try has said more
    }
    return outcome;
  }

  Result<std::int64_t> lease_grant(std::chrono::seconds ttl, Time deadline) override {
    std::int64_t id = 0;
    ETCFS_CHECK(connection_.retry(deadline, [&](Time until) {
      return connection_.attempt<pb::LeaseGrantRequest, pb::LeaseGrantResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.lease->AsyncLeaseGrant(context, request, queue);
          },
          [&](pb::LeaseGrantRequest* request) { request->set_ttl(ttl.count()); },
          +[](pb::LeaseGrantResponse& reply) { return reply.id(); }, until, id);
    }));
    return id;
  }

  Result<void> lease_keepalive(std::int64_t lease, Time deadline) override {
    std::int64_t ttl = 0;
    ETCFS_CHECK(connection_.retry(
        deadline, [&](Time until) { return etcd::keep_alive(connection_, lease, until, ttl); }));
    if (ttl <= 0) return Reason::kNotFound;
    return {};
  }

  Result<void> lease_revoke(std::int64_t lease, Time deadline) override {
    bool done = false;
    return connection_.retry(deadline, [&](Time until) {
      return connection_.attempt<pb::LeaseRevokeRequest, pb::LeaseRevokeResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.lease->AsyncLeaseRevoke(context, request, queue);
          },
          [&](pb::LeaseRevokeRequest* request) { request->set_id(lease); },
          +[](pb::LeaseRevokeResponse&) { return true; }, until, done);
    });
  }

  Result<std::unique_ptr<Watch>> watch(std::string key, std::string end, Revision from,
                                       std::function<void(const WatchBatch&)> on_batch,
                                       std::function<void()> on_lost, Time deadline) override {
    return watches_.open(std::move(key), std::move(end), from, std::move(on_batch),
                         std::move(on_lost), deadline);
  }

  Result<void> compact(Revision revision, Time deadline) override {
    bool done = false;
    auto result = connection_.retry(deadline, [&](Time until) {
      return connection_.attempt<pb::CompactionRequest, pb::CompactionResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.kv->AsyncCompact(context, request, queue);
          },
          [&](pb::CompactionRequest* request) { request->set_revision(revision.v); },
          +[](pb::CompactionResponse&) { return true; }, until, done);
    });
    if (!result && result.error() == Reason::kCompacted) return {};
    return result;
  }

  Result<Status> status(Time deadline) override {
    Status out;
    ETCFS_CHECK(connection_.retry(deadline, [&](Time until) {
      return connection_.attempt<pb::StatusRequest, pb::StatusResponse>(
          [](Endpoint& e, auto* context, const auto& request, auto* queue) {
            return e.maintenance->AsyncStatus(context, request, queue);
          },
          [](pb::StatusRequest*) {}, &EtcdKv::unpack_status, until, out);
    }));
    return out;
  }

 private:
  static Status unpack_status(pb::StatusResponse& reply) {
    Status out;
    out.version = reply.version();
    out.db_bytes = reply.dbsize();
    for (const std::string& error : reply.errors()) {
      bool known = false;
      for (const char* alarm : {"NOSPACE", "CORRUPT"})
        if (error.find(std::string("alarm:") + alarm) != std::string::npos) {
          known = true;
          if (std::find(out.alarms.begin(), out.alarms.end(), alarm) == out.alarms.end())
            out.alarms.push_back(alarm);  // one per member otherwise
        }
      if (!known) out.alarms.push_back(error);
    }
    return out;
  }

  Connection connection_;
  etcd::WatchMux watches_;
};

// --- connect ---

struct Address {
  std::string target;  // host:port
  bool tls = false;
};

std::optional<Address> parse_endpoint(std::string text) {
  Address address;
  if (text.starts_with("https://")) {
    address.tls = true;
    text.erase(0, 8);
  } else if (text.starts_with("http://")) {
    text.erase(0, 7);
  }
  while (text.ends_with('/')) text.pop_back();
  auto colon = text.rfind(':');
  if (colon != std::string::npos && text.find(']', colon) != std::string::npos)
    colon = std::string::npos;  // of an IPv6 address without a port
  std::string host = text.substr(0, colon);
  std::string port = colon == std::string::npos ? "2379" : text.substr(colon + 1);
  bool digits = !port.empty() && port.size() <= 5 &&
                std::all_of(port.begin(), port.end(), [](unsigned char c) { return isdigit(c); });
  if (host.empty() || !digits || host.find_first_of("/,@ ") != std::string::npos ||
      (host.find(':') != std::string::npos && host.front() != '['))
    return std::nullopt;
  address.target = host + ":" + port;
  return address;
}

Result<std::string> read_file(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || in.bad()) {
    ETCFS_LOG_WARN("cannot read a TLS file", log::field("path", path));
    return Reason::kNotFound;
  }
  return text;
}

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  // A transaction is sent once; what is to be repeated is decided here and not below.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // etcd hangs up on whoever pings more often than every 5 s.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 6'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);  // so long may connecting take
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  return args;
}

// gRPC's own lines are for its developers; what matters of them comes back in a status.
void log_of_grpc(gpr_log_func_args* line) {
  ETCFS_LOG_DEBUG("grpc", log::field("says", line->message));
}

}  // namespace

Result<std::unique_ptr<Kv>> connect(const EtcdOptions& options) {
  gpr_set_log_function(&log_of_grpc);
  ETCFS_TRY(std::string ca, read_file(options.ca_file));
  ETCFS_TRY(std::string cert, read_file(options.cert_file));
  ETCFS_TRY(std::string key, read_file(options.key_file));
  std::vector<Endpoint> endpoints;
  for (const std::string& text : options.endpoints) {
    auto address = parse_endpoint(text);
    if (!address) {
      ETCFS_LOG_WARN("malformed etcd endpoint", log::field("endpoint", text));
      return Reason::kInvalid;
    }
    bool tls = address->tls || !ca.empty() || !cert.empty() || !key.empty();
    Endpoint& endpoint = endpoints.emplace_back();
    endpoint.address = text;
    endpoint.channel = grpc::CreateCustomChannel(
        address->target,
        tls ? grpc::SslCredentials({ca, key, cert}) : grpc::InsecureChannelCredentials(),
        channel_arguments());
    endpoint.kv = pb::KV::NewStub(endpoint.channel);
    endpoint.watch = pb::Watch::NewStub(endpoint.channel);
    endpoint.lease = pb::Lease::NewStub(endpoint.channel);
    endpoint.maintenance = pb::Maintenance::NewStub(endpoint.channel);
    endpoint.auth = pb::Auth::NewStub(endpoint.channel);
  }
  if (endpoints.empty()) return Reason::kInvalid;
  return std::unique_ptr<Kv>(
      std::make_unique<EtcdKv>(rt::Runtime::current(), options, std::move(endpoints)));
}

}  // namespace etcfs::meta

// What only a real etcd has: lost connections, restarts, logins, certificates, a full database.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <numeric>

#include "etcd_rpc.grpc.pb.h"
#include "tests/contract/kv_bed.h"
#include "tests/contract/tcp_proxy.h"

namespace etcfs::testing {
namespace {

using meta::EtcdOptions;
using meta::RangeOp;
using meta::TxnOutcome;
using Kind = TxnOutcome::Kind;

#define REQUIRE_ETCD() \
  if (!EtcdServer::installed()) GTEST_SKIP() << "no etcd program"

std::vector<std::string> numbered(const std::string& key, int first, int last) {
  std::vector<std::string> all;
  for (int i = first; i <= last; i++) all.push_back("put " + key + "=" + std::to_string(i));
  return all;
}

// Repeats until it is certain that it is done. Only right for puts of values that nobody else
// writes.
Revision put_surely(meta::Kv& kv, const std::string& key, const std::string& value) {
  for (;;) {
    meta::Txn txn = put_txn(key, value);
    txn.compares = {compare_value(meta::Compare::Op::kNotEqual, key, value)};
    meta::Txn absent = put_txn(key, value);
    absent.compares = {
        compare_number(meta::Compare::Target::kVersion, meta::Compare::Op::kEqual, key, 0)};
    for (const meta::Txn& one : {absent, txn}) {
      TxnOutcome outcome = kv.txn(one, rt::now() + 5s);
      if (!outcome.done()) rt::sleep_for(20ms);
    }
    if (get(kv, key) == value) return Revision{};
  }
}

TEST(EtcdConnect, RefusesMalformedEndpointsAndMissingFiles) {
  rt::Runtime runtime;
  auto reason = [](EtcdOptions options) {
    auto kv = meta::connect(options);
    return kv ? std::string("connected") : std::string(reason_name(kv.error()));
  };
  EXPECT_EQ(reason({}), "kInvalid");
  for (const char* bad : {"", ":2379", "host:port", "host:123456", "a,b:1", "http://", "::1:2379"})
    EXPECT_EQ(reason({.endpoints = {bad}}), "kInvalid") << bad;
  for (const char* good :
       {"host", "host:1", "http://host:1", "https://host/", "[::1]:2379", "[::1]"})
    EXPECT_EQ(reason({.endpoints = {good}}), "connected") << good;
  EXPECT_EQ(reason({.endpoints = {"host:1"}, .ca_file = "/nonexistent/ca.pem"}), "kNotFound");
}

TEST(EtcdKv, WithoutAServerCallsEndAtTheirDeadline) {
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client client(runtime, EtcdOptions{.endpoints = {"127.0.0.1:" + std::to_string(free_port())}});
    Time begun = rt::now();
    auto reply = client->range(RangeOp{"a", {}}, Revision{}, begun + 1s);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), Reason::kUnavailable);
    EXPECT_GE(rt::now() - begun, 1s);
    TxnOutcome outcome = client->txn(put_txn("a", "1"), rt::now() + 1s);
    EXPECT_EQ(outcome.kind, Kind::kUnknown);
    Recorder seen;
    auto watch =
        client->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), rt::now() + 1s);
    ASSERT_FALSE(watch);
    EXPECT_EQ(watch.error(), Reason::kTimeout);
  });
}

TEST(EtcdKv, WatchesGoOnAfterTheServerWasKilledAndRestarted) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    EtcdOptions options{.endpoints = {etcd.endpoint()}};
    Client reader(runtime, options), writer(runtime, options);
    Recorder all, old, quiet;
    Revision first = put(*writer, "k", "1");
    auto watch = reader->watch("k", {}, first, all.on_batch(), all.on_lost(), soon());
    auto late = reader->watch("q", {}, Revision{}, quiet.on_batch(), quiet.on_lost(), soon());
    ASSERT_TRUE(watch && late);
    int next = 2;
    for (int round = 0; round < 3; round++) {
      for (int i = 0; i < 5; i++) put_surely(*writer, "k", std::to_string(next++));
      etcd.kill();
      TxnOutcome outcome = writer->txn(put_txn("other", "1"), rt::now() + 300ms);
      EXPECT_EQ(outcome.kind, Kind::kUnknown);
      ASSERT_TRUE(etcd.start()) << etcd.log();
      for (int i = 0; i < 5; i++) put_surely(*writer, "k", std::to_string(next++));
      ASSERT_TRUE(all.wait_events(static_cast<std::size_t>(next - 1)));
    }
    EXPECT_EQ(all.texts(), numbered("k", 1, next - 1));
    EXPECT_EQ(all.lost, 0);
    put_surely(*writer, "q", "1");
    ASSERT_TRUE(quiet.wait_events(1));
    EXPECT_EQ(quiet.texts(), std::vector<std::string>{"put q=1"});
  });
}

TEST(EtcdKv, AReadSurvivesARestart) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client client(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
    put(*client, "a", "1");
    etcd.kill();
    bool read = false;
    rt::Group group(runtime, "reader");
    group.spawn([&] {
      EXPECT_EQ(get(*client, "a"), "1");
      read = true;
    });
    rt::sleep_for(300ms);  // some tries fail meanwhile
    EXPECT_FALSE(read);
    ASSERT_TRUE(etcd.start()) << etcd.log();
    group.wait();
    EXPECT_TRUE(read);
  });
}

TEST(EtcdKv, AWatchThatIsCutOffDuringACompactionIsLost) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  TcpProxy proxy(etcd.client_port());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client cut(runtime, EtcdOptions{.endpoints = {proxy.endpoint()}});
    Client other(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
    Recorder seen, resumed;
    auto watch = cut->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    put(*other, "a", "1");
    ASSERT_TRUE(seen.wait_events(1));
    proxy.cut();
    put(*other, "a", "2");
    Revision compacted = put(*other, "a", "3");
    ASSERT_TRUE(other->compact(compacted, soon()));
    proxy.restore();
    ASSERT_TRUE(seen.wait_lost());
    EXPECT_EQ(seen.texts(), numbered("a", 1, 1));
    // The same client starts again where the history begins.
    auto again = cut->watch("a", {}, Revision{compacted.v + 1}, resumed.on_batch(),
                            resumed.on_lost(), soon());
    ASSERT_TRUE(again);
    put(*other, "a", "4");
    ASSERT_TRUE(resumed.wait_events(1));
    EXPECT_EQ(resumed.texts(), numbered("a", 4, 4));
    EXPECT_EQ(seen.lost, 1);
  });
}

// The deletions of the compacted revision itself are what an old etcd forgets to replay.
TEST(EtcdKv, AWatchThatMissedADeletionAtTheCompactedRevisionIsLost) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  TcpProxy proxy(etcd.client_port());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client cut(runtime, EtcdOptions{.endpoints = {proxy.endpoint()}});
    Client other(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
    Recorder seen;
    auto watch = cut->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    put(*other, "a", "1");
    ASSERT_TRUE(seen.wait_events(1));
    proxy.cut();
    Revision gone = done(other->txn(ops_txn({meta::DeleteOp{"a", {}}}), soon())).revision;
    ASSERT_TRUE(other->compact(gone, soon()));
    proxy.restore();
    ASSERT_TRUE(seen.wait_lost());
  });
}

TEST(EtcdKv, ALostReplyIsUnknownThoughApplied) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  TcpProxy proxy(etcd.client_port());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client cut(runtime, EtcdOptions{.endpoints = {proxy.endpoint()}});
    Client other(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
    put(*cut, "a", "1");
    proxy.swallow_replies(true);
    TxnOutcome outcome = cut->txn(put_txn("a", "2"), rt::now() + 1s);
    EXPECT_EQ(outcome.kind, Kind::kUnknown);
    EXPECT_EQ(outcome.reason, Reason::kTimeout);
    EXPECT_EQ(get(*other, "a"), "2");
    proxy.restore();
    EXPECT_EQ(get(*cut, "a"), "2");
  });
}

TEST(EtcdKv, ASilentEndpointIsLeftForTheNext) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  TcpProxy proxy(etcd.client_port());
  rt::Runtime runtime;
  for (int round = 0; round < 4; round++) {  // it begins with either of the two
    run_in_fiber(runtime, [&] {
      std::string key = "k" + std::to_string(round);
      Client client(runtime, EtcdOptions{.endpoints = {proxy.endpoint(), etcd.endpoint()}});
      Client writer(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
      Recorder seen;
      auto watch = client->watch(key, {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
      ASSERT_TRUE(watch);
      proxy.swallow_replies(true);
      put(*writer, key, "1");
      EXPECT_EQ(get(*client, key), "1");
      ASSERT_TRUE(seen.wait_events(1));
      EXPECT_EQ(client->txn(put_txn(key, "2"), soon()).kind, Kind::kDone);
      ASSERT_TRUE(seen.wait_events(2));
      EXPECT_EQ(seen.texts(), numbered(key, 1, 2));
    });
    proxy.restore();
  }
}

TEST(EtcdKv, ADestroyedClientLeavesNothingBehind) {
  REQUIRE_ETCD();
  ASSERT_TRUE(shared_etcd());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    std::string p = fresh_prefix();
    int calls = 0;
    for (int i = 0; i < 20; i++) {
      auto client =
          std::make_unique<Client>(runtime, EtcdOptions{.endpoints = {shared_etcd()->endpoint()}});
      auto watch = (*client)->watch(
          p, meta::prefix_end(p), Revision{}, [&](const meta::WatchBatch&) { calls++; }, [] {},
          soon());
      ASSERT_TRUE(watch);
      client->group().spawn([&client, &p] { (**client).txn(put_txn(p + "a", "1"), soon()); });
      rt::yield();
      if (i % 2 == 0) (*watch).reset();
      client.reset();  // with a call under way; then perhaps the watch
      int had = calls;
      rt::sleep_for(2ms);
      EXPECT_EQ(calls, had);
    }
  });
}

TEST(EtcdKv, AFullDatabaseIsSaidToBeFull) {
  REQUIRE_ETCD();
  EtcdServer etcd({.arguments = {"--quota-backend-bytes", "4000000"}});
  ASSERT_TRUE(etcd.start()) << etcd.log();
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client client(runtime, EtcdOptions{.endpoints = {etcd.endpoint()}});
    TxnOutcome outcome;
    int i = 0;
    for (; i < 50; i++) {
      outcome = client->txn(put_txn("k" + std::to_string(i), std::string(500'000, 'x')), soon());
      if (!outcome.done()) break;
    }
    EXPECT_EQ(outcome.kind, Kind::kRefused);
    EXPECT_EQ(reason_name(outcome.reason), "kMetadataFull");
    EXPECT_EQ(get(*client, "k" + std::to_string(i)), "<absent>");
    EXPECT_EQ(client->status(soon())->alarms, std::vector<std::string>{"NOSPACE"});
    meta::Txn in_failure;
    in_failure.failure = {meta::PutOp{"b", "1"}};
    outcome = client->txn(in_failure, soon());
    EXPECT_EQ(outcome.kind, Kind::kRefused);
    EXPECT_EQ(client->lease_grant(5s, soon()).error(), Reason::kMetadataFull);
    EXPECT_EQ(std::get<meta::DeleteReply>(
                  done(client->txn(ops_txn({meta::DeleteOp{"k0", {}}}), soon())).ops.at(0).v)
                  .deleted,
              1);
  });
}

// --- logins ---

template <class Request, class Reply, class Stub>
void admin(Stub& stub, grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
           Request request) {
  grpc::ClientContext context;
  Reply reply;
  grpc::Status status = (stub.*call)(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

void enable_auth(const std::string& endpoint) {
  namespace pb = etcdserverpb;
  auto stub = pb::Auth::NewStub(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()));
  for (const char* name : {"root", "guest"}) {
    pb::AuthUserAddRequest add;
    add.set_name(name);
    add.set_password(std::string(name) + "-password");
    admin(*stub, &pb::Auth::Stub::UserAdd, add);
  }
  pb::AuthUserGrantRoleRequest grant;
  grant.set_user("root");
  grant.set_role("root");
  admin(*stub, &pb::Auth::Stub::UserGrantRole, grant);
  admin(*stub, &pb::Auth::Stub::AuthEnable, pb::AuthEnableRequest{});
}

TEST(EtcdKv, LoginsAreMadeRefusedAndRenewed) {
  REQUIRE_ETCD();
  EtcdServer etcd;
  ASSERT_TRUE(etcd.start()) << etcd.log();
  enable_auth(etcd.endpoint());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    auto options = [&](std::string user, std::string password) {
      return EtcdOptions{.endpoints = {etcd.endpoint()}, .user = user, .password = password};
    };
    Client root(runtime, options("root", "root-password"));
    put(*root, "a", "1");
    Recorder seen;
    auto watch = root->watch("a", {}, Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);

    for (auto& [user, password] : std::vector<std::pair<std::string, std::string>>{
             {"root", "wrong"}, {"guest", "guest-password"}, {"", ""}}) {
      SCOPED_TRACE("user " + user);
      Client other(runtime, options(user, password));
      TxnOutcome outcome = other->txn(put_txn("a", "other"), soon());
      EXPECT_EQ(outcome.kind, Kind::kRefused);
      EXPECT_EQ(reason_name(outcome.reason), "kAccess");
      auto reply = other->range(RangeOp{"a", {}}, Revision{}, soon());
      EXPECT_EQ(reply ? "read" : reason_name(reply.error()), "kAccess");
      Recorder nothing;
      auto denied =
          other->watch("a", {}, Revision{}, nothing.on_batch(), nothing.on_lost(), soon());
      EXPECT_EQ(denied ? "watching" : reason_name(denied.error()), "kAccess");
    }

    // A restart forgets the tokens: everything logs in again by itself.
    for (int round = 2; round < 4; round++) {
      etcd.kill();
      ASSERT_TRUE(etcd.start()) << etcd.log();
      put_surely(*root, "a", std::to_string(round));
      ASSERT_TRUE(seen.wait_events(static_cast<std::size_t>(round - 1)));
      auto lease = root->lease_grant(5s, soon());
      ASSERT_TRUE(lease);
      EXPECT_TRUE(root->lease_keepalive(*lease, soon()));
    }
    EXPECT_EQ(seen.texts(), numbered("a", 2, 3));
  });
}

TEST(EtcdKv, AUserWithoutAuthenticationOnTheServerIsFine) {
  REQUIRE_ETCD();
  ASSERT_TRUE(shared_etcd());
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    Client client(
        runtime,
        EtcdOptions{.endpoints = {shared_etcd()->endpoint()}, .user = "somebody", .password = "x"});
    std::string p = fresh_prefix();
    put(*client, p, "1");
    EXPECT_EQ(get(*client, p), "1");
  });
}

// --- TLS ---

bool make_certificates(const std::string& dir) {
  std::ofstream(dir + "/san") << "subjectAltName=IP:127.0.0.1\n";
  std::string key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
  std::string script = "cd '" + dir + "' && { openssl req -x509 " + key +
                       " -keyout ca.key -out ca.crt -subj /CN=ca -days 2";
  for (const char* who : {"server", "client"})
    script += std::string(" && openssl req ") + key + " -keyout " + who + ".key -out " + who +
              ".csr -subj /CN=" + who + " && openssl x509 -req -in " + who +
              ".csr -CA ca.crt -CAkey ca.key -CAcreateserial -out " + who +
              ".crt -days 2 -extfile san";
  return std::system((script + "; } >/dev/null 2>&1").c_str()) == 0;
}

TEST(EtcdKv, TlsWithCertificatesOnBothSides) {
  REQUIRE_ETCD();
  EtcdServer etcd({.tls = true});
  const std::string& dir = etcd.directory();
  if (!make_certificates(dir)) GTEST_SKIP() << "no openssl program";
  ASSERT_TRUE(etcd.start()) << etcd.log();
  rt::Runtime runtime;
  run_in_fiber(runtime, [&] {
    EtcdOptions good{.endpoints = {"https://" + etcd.endpoint()},
                     .ca_file = dir + "/ca.crt",
                     .cert_file = dir + "/client.crt",
                     .key_file = dir + "/client.key"};
    {
      Client client(runtime, good);
      put(*client, "a", "1");
      EXPECT_EQ(get(*client, "a"), "1");
    }
    EtcdOptions no_certificate = good, no_tls, wrong_ca = good;
    no_certificate.cert_file = no_certificate.key_file = "";
    no_tls.endpoints = {etcd.endpoint()};
    wrong_ca.ca_file = dir + "/client.crt";
    for (const EtcdOptions& bad : {no_certificate, no_tls, wrong_ca}) {
      Client client(runtime, bad);
      EXPECT_FALSE(client->range(RangeOp{"a", {}}, Revision{}, rt::now() + 1s));
      EXPECT_EQ(client->txn(put_txn("a", "2"), rt::now() + 1s).kind, Kind::kUnknown);
    }
    Client client(runtime, good);
    EXPECT_EQ(get(*client, "a"), "1");
  });
}

}  // namespace
}  // namespace etcfs::testing

#include "tests/contract/kv_bed.h"

#include <unistd.h>

#include <utility>

namespace etcfs::testing {

using meta::KvOp;
using meta::PutOp;
using meta::RangeOp;
using meta::Txn;

Client::Client(rt::Runtime& runtime, sim::SimKvServer& server, sim::SimKvOptions options)
    : group_(runtime, "client"), kv_(std::make_unique<sim::SimKv>(server, group_, options)) {}

Client::Client(rt::Runtime& runtime, const meta::EtcdOptions& options) : group_(runtime, "client") {
  auto kv = meta::connect(options);
  if (!kv) ADD_FAILURE() << "connect: " << reason_name(kv.error());
  kv_ = *std::move(kv);
}

Client::~Client() { group_.kill(); }

KvBed::KvBed(Side side, std::uint64_t seed)
    : side_(side), runtime_({.simulated = side == Side::kSimulated, .seed = seed}) {
  if (side == Side::kSimulated) server_ = std::make_unique<sim::SimKvServer>(runtime_);
}

KvBed::~KvBed() = default;

std::unique_ptr<Client> KvBed::client() {
  if (server_) return std::make_unique<Client>(runtime_, *server_);
  return std::make_unique<Client>(runtime_,
                                  meta::EtcdOptions{.endpoints = {shared_etcd()->endpoint()}});
}

void KvBed::run(const std::function<void()>& body) { run_in_fiber(runtime_, body); }

void run_in_fiber(rt::Runtime& runtime, const std::function<void()>& body) {
  rt::Group group(runtime, "test");
  bool ended = false;
  group.spawn([&] {
    body();
    ended = true;
    runtime.stop();
  });
  runtime.run();
  if (!ended) ADD_FAILURE() << "the test's fiber is stuck";
  group.kill();
}

EtcdServer* shared_etcd() {
  static std::unique_ptr<EtcdServer> server = [] {
    std::unique_ptr<EtcdServer> made;
    if (!EtcdServer::installed()) return made;
    made = std::make_unique<EtcdServer>();
    if (!made->start()) {
      ADD_FAILURE() << "etcd does not start: " << made->log();
      made.reset();
    }
    return made;
  }();
  return server.get();
}

std::string fresh_prefix() {
  static int last = 0;
  return "/kv-contract/" + std::to_string(::getpid()) + "/" + std::to_string(++last) + "/";
}

Txn put_txn(const std::string& key, const std::string& value, std::int64_t lease) {
  return ops_txn({PutOp{key, value, lease}});
}

Txn ops_txn(std::vector<KvOp> ops) {
  Txn txn;
  txn.success = std::move(ops);
  return txn;
}

meta::Compare compare_number(meta::Compare::Target target, meta::Compare::Op op,
                             const std::string& key, std::int64_t number, const std::string& end) {
  meta::Compare compare;
  compare.target = target;
  compare.op = op;
  compare.key = key;
  compare.end = end;
  compare.number = number;
  return compare;
}

meta::Compare compare_value(meta::Compare::Op op, const std::string& key, const std::string& value,
                            const std::string& end) {
  meta::Compare compare;
  compare.target = meta::Compare::Target::kValue;
  compare.op = op;
  compare.key = key;
  compare.end = end;
  compare.value = value;
  return compare;
}

meta::TxnReply done(meta::TxnOutcome outcome) {
  EXPECT_TRUE(outcome.done()) << "kind " << static_cast<int>(outcome.kind) << " "
                              << reason_name(outcome.reason);
  return std::move(outcome.reply);
}

Revision put(meta::Kv& kv, const std::string& key, const std::string& value, std::int64_t lease) {
  return done(kv.txn(put_txn(key, value, lease), soon())).revision;
}

std::string get(meta::Kv& kv, const std::string& key) {
  auto reply = kv.range(RangeOp{key, {}}, Revision{}, soon());
  if (!reply) return "<error " + std::string(reason_name(reply.error())) + ">";
  return reply->kvs.empty() ? "<absent>" : reply->kvs[0].value;
}

std::string to_string(const meta::WatchEvent& event) {
  if (event.type == meta::WatchEvent::Type::kDelete) return "delete " + event.kv.key;
  return "put " + event.kv.key + "=" + event.kv.value;
}

std::function<void(const meta::WatchBatch&)> Recorder::on_batch() {
  return [this](const meta::WatchBatch& batch) {
    EXPECT_FALSE(rt::Runtime::in_fiber());
    if (!batch.events.empty()) batches.push_back(batch);
    for (const meta::WatchEvent& event : batch.events) {
      EXPECT_GT(event.kv.mod_revision, revision) << "again, or out of order";
      EXPECT_LE(event.kv.mod_revision, batch.revision);
      events.push_back(event);
    }
    EXPECT_GE(batch.revision, revision);
    revision = batch.revision;
    changed_.notify_all();
  };
}

std::function<void()> Recorder::on_lost() {
  return [this] {
    lost++;
    changed_.notify_all();
  };
}

bool Recorder::wait_events(std::size_t n) {
  return changed_.wait_until(soon(), [&] { return events.size() >= n; });
}
bool Recorder::wait_lost() {
  return changed_.wait_until(soon(), [&] { return lost > 0; });
}
bool Recorder::wait_revision(Revision wanted) {
  return changed_.wait_until(soon(), [&] { return revision >= wanted; });
}

std::vector<std::string> Recorder::texts() const {
  std::vector<std::string> all;
  for (const meta::WatchEvent& event : events) all.push_back(to_string(event));
  return all;
}

}  // namespace etcfs::testing

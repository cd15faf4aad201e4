// What the tests of the Kv seam stand on: a runtime, a store (simulated or real) and clients to it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meta/etcd/etcd_kv.h"
#include "meta/kv.h"
#include "rt/rt.h"
#include "sim/fakes/sim_kv.h"
#include "tests/contract/etcd_server.h"

namespace etcfs::testing {

enum class Side { kSimulated, kEtcd };

// A node's view of the store. Ends like a node: its fibers first.
class Client {
 public:
  Client(rt::Runtime& runtime, sim::SimKvServer& server, sim::SimKvOptions options = {});
  Client(rt::Runtime& runtime, const meta::EtcdOptions& options);
  ~Client();
  meta::Kv& operator*() { return *kv_; }
  meta::Kv* operator->() { return kv_.get(); }
  rt::Group& group() { return group_; }
  sim::SimKv& sim() { return dynamic_cast<sim::SimKv&>(*kv_); }

 private:
  rt::Group group_;
  std::unique_ptr<meta::Kv> kv_;
};

class KvBed {
 public:
  explicit KvBed(Side side, std::uint64_t seed = 1);
  ~KvBed();
  rt::Runtime& runtime() { return runtime_; }
  std::unique_ptr<Client> client();
  void run(const std::function<void()>& body);  // in a fiber

 private:
  Side side_;
  rt::Runtime runtime_;
  std::unique_ptr<sim::SimKvServer> server_;
};

// Runs body in a fiber of the runtime until it returns.
void run_in_fiber(rt::Runtime& runtime, const std::function<void()>& body);

EtcdServer* shared_etcd();   // one for the whole program, null without the program
std::string fresh_prefix();  // of keys that no other test uses

inline Time soon() { return rt::now() + 30s; }

// --- shorthands ---
meta::Txn put_txn(const std::string& key, const std::string& value, std::int64_t lease = 0);
meta::Txn ops_txn(std::vector<meta::KvOp> ops);
meta::Compare compare_number(meta::Compare::Target target, meta::Compare::Op op,
                             const std::string& key, std::int64_t number,
                             const std::string& end = {});
meta::Compare compare_value(meta::Compare::Op op, const std::string& key, const std::string& value,
                            const std::string& end = {});
meta::TxnReply done(meta::TxnOutcome outcome);  // fails the test unless it is done
Revision put(meta::Kv& kv, const std::string& key, const std::string& value,
             std::int64_t lease = 0);
std::string get(meta::Kv& kv, const std::string& key);  // "<absent>" when there is none
std::string to_string(const meta::WatchEvent& event);   // "put k=v" or "delete k"

// Collects what a watch says.
class Recorder {
 public:
  std::function<void(const meta::WatchBatch&)> on_batch();
  std::function<void()> on_lost();
  bool wait_events(std::size_t n);  // blocks; false after half a minute
  bool wait_lost();
  bool wait_revision(Revision revision);
  std::vector<std::string> texts() const;

  std::vector<meta::WatchBatch> batches;  // those with events
  std::vector<meta::WatchEvent> events;
  Revision revision;
  int lost = 0;

 private:
  rt::Condition changed_;
};

}  // namespace etcfs::testing

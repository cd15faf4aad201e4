// The simulated etcd: SimKvServer is the store that all nodes share, SimKv a node's client to it
// with a network in between that delays, loses, cuts off and repeats nothing but what the switches
// say.
//
// The server keeps etcd's v3 semantics to the letter where EtcFS can notice: revisions, versions,
// compares over ranges, nested transactions (compares see the state before any put), what is
// refused as a whole, leases, history and compaction. tests/contract/kv_contract holds it to a real
// etcd. Everything random comes from Runtime::random(), so a run is named by its seed. Works in a
// runtime that is not simulated as well.
//
// Fibers: a request travels and is served in a fiber of the server's own group, so it arrives even
// when its sender has been killed meanwhile; what is delivered to a node runs in the node's group
// and ends with it. Kill the node's Group first, then destroy its SimKv and watches, then the
// server.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meta/kv.h"
#include "rt/rt.h"

namespace etcfs::sim {

struct SimKvLimits {
  std::size_t txn_ops = 128;
  std::size_t request_bytes = 1'536 * 1024;
};

struct SimWatchState;
struct SimKvLink;

class SimKvServer {
 public:
  explicit SimKvServer(rt::Runtime& runtime, SimKvLimits limits = {});
  ~SimKvServer();  // not from a fiber of group(); requests under way vanish
  SimKvServer(const SimKvServer&) = delete;
  SimKvServer& operator=(const SimKvServer&) = delete;

  // Served at once and atomically; none of these blocks. Clients come through SimKv; tests, oracles
  // and check/ may call directly.
  Result<meta::RangeReply> range(const meta::RangeOp& op, Revision at) const;
  meta::TxnOutcome txn(const meta::Txn& txn);
  Result<std::int64_t> lease_grant(std::chrono::seconds ttl);
  Result<void> lease_keepalive(std::int64_t lease);
  Result<void> lease_revoke(std::int64_t lease);
  Result<void> compact(Revision revision);
  meta::Kv::Status status() const;

  Revision revision() const { return Revision{revision_}; }
  Revision compacted() const { return Revision{compacted_}; }
  std::vector<meta::KeyValue> dump() const;  // every key there is, ascending
  std::size_t lease_count() const { return leases_.size(); }

  // Faults of the whole cluster.
  void set_available(bool available);  // false: no quorum; nothing is served, watches stall
  bool available() const { return available_; }
  void set_nospace(bool nospace);  // the NOSPACE alarm
  void new_leader();               // prolongs every lease to its full TTL, as etcd does

  rt::Runtime& runtime() { return runtime_; }
  rt::Group& group() { return group_; }

 private:
  friend class SimKv;
  friend struct SimKvLink;
  friend struct SimWatchState;
  struct Version {
    std::int64_t mod = 0, create = 0, version = 0, lease = 0;
    std::string value;
    bool deleted = false;
  };
  using Versions = std::vector<Version>;  // ascending by mod, never empty
  struct Lease {
    Nanos ttl{};
    Time expires{};
    std::set<std::string> keys;
  };
  // A transaction with the branches chosen: compares are all evaluated before anything is written.
  struct Path {
    bool succeeded = false;
    std::vector<Path> nested;  // of the chosen branch, in order
  };

  static const Version* find(const Versions& versions, std::int64_t at);
  template <class Fn>  // fn(key, version) for every key of [key, end) that exists at `at`
  void each(const std::string& key, const std::string& end, std::int64_t at, Fn fn) const;
  bool holds(const meta::Compare& compare) const;
  Path choose(const meta::Txn& txn) const;
  std::optional<Reason> refuse(const meta::Txn& txn) const;
  std::optional<Reason> refuse_path(const meta::Txn& txn, const Path& path) const;
  meta::TxnReply apply(const meta::Txn& txn, const Path& path);
  meta::RangeReply read(const meta::RangeOp& op, std::int64_t at) const;
  void put(const meta::PutOp& op);
  std::int64_t erase(const std::string& key, const std::string& end);
  void commit();  // ends the open revision, if anything was written, and wakes the watches
  void drop_lease(std::map<std::int64_t, Lease>::iterator it);
  void expire_leases();  // fiber
  void trim_history();
  void wake_watches();
  void add_watch(const std::shared_ptr<SimWatchState>& watch);

  // set once
  rt::Runtime& runtime_;
  SimKvLimits limits_;
  // the store
  std::map<std::string, Versions> keys_;
  std::int64_t revision_ = 1, compacted_ = 0;
  std::vector<meta::WatchEvent> open_;  // written at revision_ + 1, not yet committed
  std::deque<std::vector<meta::WatchEvent>> history_;  // of revisions history_first_, +1, ...
  std::int64_t history_first_ = 2;
  std::map<std::int64_t, Lease> leases_;
  std::vector<std::weak_ptr<SimWatchState>> watches_;
  // faults
  bool available_ = true, nospace_ = false;

  rt::Condition leases_changed_;
  rt::Group group_;
};

// What may befall one request.
enum class SimFault {
  kNone,
  kLoseRequest,  // never arrives; a transaction is unknown to its sender
  kLoseReply,    // applied, but the sender does not learn it
  kLate,         // the sender gives up, and it is applied only some time afterwards
};

struct SimKvOptions {
  Nanos latency_min = 50us, latency_max = 1ms;  // of one way
  Nanos late_max = 8s;                          // by how much a late request is late
  // How often, per 10,000 requests.
  unsigned lose_request = 0, lose_reply = 0, late = 0;
};

class SimKv final : public meta::Kv {
 public:
  // `group` is the node's: fibers that deliver watches belong to it.
  SimKv(SimKvServer& server, rt::Group& group, SimKvOptions options = {});
  ~SimKv() override;

  Result<meta::RangeReply> range(const meta::RangeOp& op, Revision at, Time deadline) override;
  meta::TxnOutcome txn(const meta::Txn& txn, Time deadline) override;
  Result<std::int64_t> lease_grant(std::chrono::seconds ttl, Time deadline) override;
  Result<void> lease_keepalive(std::int64_t lease, Time deadline) override;
  Result<void> lease_revoke(std::int64_t lease, Time deadline) override;
  Result<std::unique_ptr<meta::Watch>> watch(std::string key, std::string end, Revision from,
                                             std::function<void(const meta::WatchBatch&)> on_batch,
                                             std::function<void()> on_lost, Time deadline) override;
  Result<void> compact(Revision revision, Time deadline) override;
  Result<Status> status(Time deadline) override;

  // Faults of this node's connection. While cut off nothing passes in either direction; requests
  // time out, watches fall silent and go on where they were afterwards.
  void set_partitioned(bool partitioned);
  bool partitioned() const;
  void set_options(const SimKvOptions& options);
  // The n-th transaction from now on (1 = the next) suffers `fault`, whatever the odds are.
  void fail_txn(std::uint64_t n, SimFault fault);
  std::uint64_t txns_sent() const { return txns_; }

 private:
  template <class R>
  std::optional<R> send(std::function<R(SimKvServer&)> serve, SimFault fault, Time deadline);
  template <class R>
  Result<R> retry(std::function<Result<R>(SimKvServer&)> serve, Time deadline);
  SimFault draw();

  SimKvServer& server_;
  rt::Group& group_;
  std::shared_ptr<SimKvLink> link_;
  std::uint64_t txns_ = 0;
  std::map<std::uint64_t, SimFault> planned_;  // by number of the transaction
};

}  // namespace etcfs::sim

// Kv: the seam to etcd, as far as EtcFS uses it. Real: meta/etcd (the only user of grpc); simulated:
// sim/fakes/sim_kv. Both pass tests/contract/kv_contract. All methods block the calling fiber.
//
// Terms are etcd v3's (https://etcd.io/docs/v3.4/learning/api/). Keys and values are raw bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"

namespace etcfs::meta {

struct KeyValue {
  std::string key, value;
  Revision create_revision, mod_revision;
  std::int64_t version = 0;
  std::int64_t lease = 0;
};

// [key, end): end empty = the single key; end "\0" = everything from key on.
std::string prefix_end(std::string prefix);  // the smallest string above every string with the prefix

struct Compare {
  enum class Target { kVersion, kCreateRevision, kModRevision, kValue };
  enum class Op { kEqual, kGreater, kLess, kNotEqual };
  Target target = Target::kModRevision;
  Op op = Op::kEqual;
  std::string key, end;        // with end: true if true for every key of the range; an empty range
                               // compares as one key whose numbers are all 0
  std::int64_t number = 0;     // for the three numbers
  std::string value;           // for kValue (false when the key is absent)
};

struct RangeOp {
  std::string key, end;
  std::int64_t limit = 0;      // 0 = none
  bool keys_only = false;
  bool count_only = false;
};
struct PutOp {
  std::string key, value;
  std::int64_t lease = 0;
};
struct DeleteOp {
  std::string key, end;
};
struct TxnOp;                  // nested transaction
using KvOp = std::variant<RangeOp, PutOp, DeleteOp, TxnOp>;
struct Txn;
struct TxnOp {
  std::shared_ptr<const Txn> txn;
};
struct Txn {
  std::vector<Compare> compares;
  std::vector<KvOp> success, failure;
};

struct RangeReply {
  std::vector<KeyValue> kvs;   // ascending by key
  bool more = false;           // limit cut it
  std::int64_t count = 0;      // keys in the range, regardless of limit
  Revision revision;           // of the store when it was read
};
struct TxnReply;
struct DeleteReply {
  std::int64_t deleted = 0;
};
struct OpReply {
  std::variant<std::monostate /* put */, RangeReply, DeleteReply, std::shared_ptr<TxnReply>> v;
};
struct TxnReply {
  bool succeeded = false;      // which branch ran
  Revision revision;           // of the store after it
  std::vector<OpReply> ops;
};

// What a commit can come back as: the third is not an error to be shrugged off. kRefused means that
// etcd certainly did not and will not apply it (invalid request, too many operations, NOSPACE).
struct TxnOutcome {
  enum class Kind { kDone, kRefused, kUnknown } kind = Kind::kUnknown;
  TxnReply reply;              // with kDone
  Reason reason = Reason::kUnknown;  // otherwise: kTooManyOps, kMetadataFull, kUnavailable, kTimeout…
  bool done() const { return kind == Kind::kDone; }
};

struct WatchEvent {
  enum class Type { kPut, kDelete } type = Type::kPut;
  KeyValue kv;                 // for kDelete: key and mod_revision only
};
struct WatchBatch {
  std::vector<WatchEvent> events;   // in revision order, all events of a revision in one batch; may
                                    // be empty: then the batch only says how far it has come
  Revision revision;                // every event up to it has been delivered
};

// A running watch. Destroying it ends it; no callback comes after the destructor has returned.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Kv {
 public:
  virtual ~Kv() = default;

  // Linearizable read. revision 0 = newest; kCompacted when it is gone. Retries inside until deadline,
  // as all below but txn() do; then kTimeout, or kUnavailable when it could not even be sent.
  virtual Result<RangeReply> range(const RangeOp& op, Revision at, Time deadline) = 0;

  // One try, never repeated inside (a repeat could apply twice).
  virtual TxnOutcome txn(const Txn& txn, Time deadline) = 0;

  virtual Result<std::int64_t> lease_grant(std::chrono::seconds ttl, Time deadline) = 0;
  virtual Result<void> lease_keepalive(std::int64_t lease, Time deadline) = 0;  // kNotFound: expired
  virtual Result<void> lease_revoke(std::int64_t lease, Time deadline) = 0;

  // Delivers every event of [key, end) from revision `from` on (0 = from now), in order, exactly once,
  // across reconnects (resumed at the right revision, with hasleader). on_batch and on_lost run on the
  // runtime thread, outside any fiber, not before watch() has returned, and must not block. on_lost:
  // the revision was compacted away; the watch has ended, the owner re-reads and starts another. Blocks
  // until the server has confirmed the watch, so that nothing between a later read and the first event
  // can be missed; kTimeout otherwise. With `from` in the past, and be it by one revision, etcd may take
  // 100 ms to the first event; watching from now and reading afterwards is the fast way.
  virtual Result<std::unique_ptr<Watch>> watch(std::string key, std::string end, Revision from,
                                               std::function<void(const WatchBatch&)> on_batch,
                                               std::function<void()> on_lost, Time deadline) = 0;

  // Done already, or to a later revision, is success.
  virtual Result<void> compact(Revision revision, Time deadline) = 0;

  struct Status {
    std::string version;
    std::int64_t db_bytes = 0;
    std::vector<std::string> alarms;
  };
  virtual Result<Status> status(Time deadline) = 0;
};

}  // namespace etcfs::meta

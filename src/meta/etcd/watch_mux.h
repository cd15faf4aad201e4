// All watches of a node over one stream. The stream is opened again, on the endpoint then in use,
// when it breaks, when the member has lost its leader (hasleader) or when calls have left its
// endpoint; each watch goes on behind the last event it delivered. Only for this folder; runtime
// thread only.
//
// A resumed watch asks for one revision more than it needs and drops what it has seen: old etcd
// loses the deletions of a compacted revision itself, and so a compaction up to there is noticed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meta/etcd/connection.h"
#include "meta/kv.h"
#include "rt/rt.h"

namespace etcfs::meta::etcd {

class WatchMux {
 public:
  explicit WatchMux(Connection& connection);
  ~WatchMux();

  // As Kv::watch.
  Result<std::unique_ptr<Watch>> open(std::string key, std::string end, Revision from,
                                      std::function<void(const WatchBatch&)> on_batch,
                                      std::function<void()> on_lost, Time deadline);
  void endpoint_changed();

  struct Watcher {
    std::int64_t id = 0;
    std::string key, end;
    std::int64_t next = 0;  // revision of the next event; 0: from now, not yet known
    bool resumed = false;   // by a later stream than the first
    bool confirmed = false;
    bool closed = false;  // no callback any more
    bool lost = false;
    bool released = false;  // open() has returned; until then what arrives is held back
    std::vector<WatchBatch> held;
    unsigned denials = 0;
    std::optional<Reason> refused;
    std::function<void(const WatchBatch&)> on_batch;
    std::function<void()> on_lost;
    rt::Condition settled;
  };
  class Stream;
  class Handle;

 private:
  friend class Stream;
  void run();  // fiber: opens streams
  void send_create(Watcher& watcher);
  void close(const std::shared_ptr<Watcher>& watcher);
  void restart_stream();
  // From the stream.
  void handle(pb::WatchResponse& response);
  void created(pb::WatchResponse& response, std::int64_t id);
  void canceled(pb::WatchResponse& response);
  void deliver(pb::WatchResponse& response, const std::shared_ptr<Watcher>& watcher);
  static void release(const std::shared_ptr<Watcher>& watcher);
  void lose(const std::shared_ptr<Watcher>& watcher);
  void ended(const grpc::Status& status, std::size_t endpoint);

  Connection& connection_;
  std::shared_ptr<WatchMux*> self_;  // null once destroyed; handles may live longer
  std::map<std::int64_t, std::shared_ptr<Watcher>> watchers_;
  std::int64_t last_id_ = 0;
  std::shared_ptr<Stream> stream_;
  unsigned failures_ = 0;
  std::string stream_token_;
  rt::Condition changed_;
  rt::Group group_;
};

}  // namespace etcfs::meta::etcd

// Family locks (design section 5; I3). One record per (family, node, epoch), written by this node
// alone, at most one change of it outstanding at any time, unknown outcomes included.
//
// In this form the files part is all-or-nothing: one range [0, kMaxIndex].
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cluster/membership.h"
#include "meta/commit_stream.h"
#include "meta/guard.h"
#include "meta/kv.h"
#include "meta/schema/records.h"
#include "rt/rt.h"

namespace etcfs::cluster {

using meta::LockMode;

struct LockModes {
  LockMode names = LockMode::kNone;
  LockMode files = LockMode::kNone;
  bool covers(LockModes asked) const {
    return meta::covers(names, asked.names) && meta::covers(files, asked.files);
  }
  bool none() const { return names == LockMode::kNone && files == LockMode::kNone; }
  friend bool operator==(const LockModes&, const LockModes&) = default;
};
constexpr LockMode stronger(LockMode a, LockMode b) { return a > b ? a : b; }
constexpr LockModes merge(LockModes a, LockModes b) {
  return {stronger(a.names, b.names), stronger(a.files, b.files)};
}

struct LockNeed {
  Family family;
  LockModes modes;
};

// What stood in etcd under the family when the lock was granted, read in the same transaction: up
// to Options::load_limit keys of each kind; the *_more flags say that the rest is to be read by ranges.
struct FamilyContents {
  std::vector<meta::KeyValue> inodes;  // i/<family>/   (index 0, the directory, comes first)
  bool inodes_more = false;
  std::vector<meta::KeyValue> entries;  // d/<directory ino>/
  bool entries_more = false;
  std::vector<meta::KeyValue> holds;  // hold/<family …>, all of them
};

// The cached state that locks protect; implemented by fs. on_* run on the runtime thread and must
// not block; the blocking ones run in a fiber of the lock service.
class LockClient {
 public:
  virtual ~LockClient() = default;
  // The lock was granted or strengthened. `before` is what was held; contents holds what was
  // loaded: everything if nothing was held of a part before, else that part is empty and what is
  // cached stands.
  virtual void on_granted(Family family, LockModes before, LockModes now,
                          FamilyContents contents) = 0;
  // Another node asks; from here on replies carry zero timeouts for this family until released.
  virtual void on_asked(Family family) = 0;
  // Blocks. Takes the kernel's copies away and writes dirty data back, so that only `keep` is
  // needed; requests are still served under the old modes until it calls lock_service.close(family,
  // keep) at the end, atomically with its last check. It returns the mutations that must be
  // committed before the release (holds, plocks, birth bound, lazy times): they go into the release
  // step or steps before it. An error (device failure) is logged and released all the same.
  virtual std::vector<meta::Mutation> prepare_release(Family family, LockModes keep) = 0;
  // The release step was appended: forget what `keep` does not cover.
  virtual void on_released(Family family, LockModes keep) = 0;
};

class LockService {
 public:
  struct Options {
    Nanos minimum_hold = std::chrono::milliseconds(10);
    Nanos maximum_hold = std::chrono::milliseconds(200);
    Nanos want_patience = std::chrono::milliseconds(50);  // wants that sleep longer are passed over
    std::size_t held_budget = 100'000;  // families; beyond, the idlest are released
    std::int64_t load_limit = 512;      // keys of each kind that come with a grant
  };
  struct Counters {
    std::uint64_t acquires = 0, acquire_txns = 0, waits = 0, releases = 0, ahead = 0;
  };

  LockService(meta::Kv& kv, const meta::Keys& keys, const meta::Guard& guard,
              meta::CommitStream& stream, Membership& membership, Options options);
  ~LockService();
  void set_client(LockClient& client);
  Result<void> start();  // watches want/; blocks
  void stop();           // refuses new acquisitions, ends the fibers; blocks

  // Usable now: what this node holds less what is being released. Cheap; never blocks.
  LockModes usable(Family family) const;
  // Blocks until every need has been granted at some moment since the call; the caller then tries
  // again and comes back if something was taken away meanwhile. Families are waited for in
  // increasing order. kFenced, kShutdown.
  Result<void> acquire(std::span<const LockNeed> needs);
  // Acquires those of `families` that are free, many per transaction, without waiting or asking:
  // for walks. Blocks. on_granted is called for those that were got.
  Result<void> acquire_ahead(std::span<const Family> families, LockModes modes);
  // Says that an operation was served under the lock (ages the minimum hold, feeds idleness).
  void note_served(Family family);
  // mkdir: the new family is ours from birth. Adds the record to the step and marks it held X, X.
  void adopt(meta::Step& step, Family family);
  // rmdir of a family with nothing left in it, held X, X: adds the delete of the record and forgets
  // it.
  void abandon(meta::Step& step, Family family);
  // See LockClient::prepare_release: from now on usable(family) is `keep`.
  void close(Family family, LockModes keep);
  // Gives up idle families (memory pressure); `families` that are busy are skipped. Does not block.
  void release_idle(std::span<const Family> families);
  // Another node has asked for this family lately (within a few seconds): zero name timeouts.
  bool contended(Family family) const;
  // Releases everything held, in the background of leave. Blocks.
  void release_all();

  const Counters& counters() const;
  std::size_t held_families() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace etcfs::cluster

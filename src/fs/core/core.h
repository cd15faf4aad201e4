// Core: the state behind Filesystem and what its operations are made of. Private to fs.
//
// How an operation runs. Its body is a function that looks only at memory and never blocks. It
// either does all of its work (checks, changes memory, appends one step) and answers, or finds
// something missing (a lock, an entry, an inode), notes it in its Attempt and returns kRetry. Then
// the operation waits for what was noted, holding nothing, and the body starts again from the
// beginning. So there are no locks between operations of a node, nothing is held while waiting, and
// "check and change" cannot be interleaved. Only operations on file data block in the middle; they
// pin the family for that time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fs/core/advisory.h"
#include "fs/core/family.h"
#include "fs/file/file_io.h"
#include "fs/filesystem.h"

namespace etcfs::fs {

struct Core;
using cluster::LockMode;
using cluster::LockModes;

// What one run of an operation's body found missing.
class Attempt {
 public:
  explicit Attempt(Core& core) : core_(core) {}

  // The family with at least this lock and its directory or inodes loaded; null: noted as missing.
  FamilyState* names(Family family, LockMode mode);
  FamilyState* files(Family family, LockMode mode);
  FamilyState* both(Family family, LockMode names, LockMode files);

  enum class Found { kYes, kNo, kMissing };
  // Entry of a directory whose names part is at hand.
  Found entry(FamilyState& family, std::string_view name, DirEntry** out);
  Result<DirEntry*> existing(FamilyState& family, std::string_view name);  // kNotFound
  // Inode that an entry names: it must be there (kCorrupt).
  Result<InodeRef> named_inode(const DirEntry& entry, LockMode mode);
  // Inode whose lock is at hand (directories: names part, else files part). kStale: no such inode.
  Result<InodeRef> inode(Ino ino, LockMode mode);
  bool complete(FamilyState& family);  // entries and, where held, inodes
  std::optional<Family> new_family();  // an unused family number
  void need(Family family, LockModes modes);
  void need_commit(StepNo step) { commit_ = step; }
  void need_flush(InodeRef inode) { flush_ = std::move(inode); }

  Result<void> satisfy();  // blocks
  void served();

 private:
  Core& core_;
  std::vector<cluster::LockNeed> needs_;
  std::vector<Family> used_;
  std::optional<std::pair<Ino, std::string>> entry_;
  std::optional<Ino> inode_;
  std::optional<Family> complete_;
  bool families_ = false;
  StepNo commit_;
  InodeRef flush_;
};

struct OpenFile {
  Ino ino;
  int flags = 0;
  bool directory = false;
  std::uint64_t errors_seen = 0;
};
struct OpenInfo {  // per inode that is open here
  std::uint32_t handles = 0, writers = 0;
  bool held = false;               // hold/<ino>/<me> stands or is on its way
  std::uint64_t write_errors = 0;  // failed write-backs so far; a handle that saw fewer reports one
};

struct PendingRequest {  // a READ or WRITE from its arrival to its answer
  std::uint64_t begin = 0, end = 0, serial = 0;
  bool overtaken = false;  // a READ: bytes of its range have changed since it began to look at them
};

struct Core : cluster::LockClient {
  Core(Filesystem::Deps deps, FsOptions options);
  ~Core() override;

  Filesystem::Deps d;
  FsOptions options;
  block::GuardedDevice device;
  FileIo io;
  rt::Group group;
  rt::Gate gate;

  std::unordered_map<Family, std::unique_ptr<FamilyState>> families;
  std::map<Ino, OpenInfo> opens;
  std::unordered_map<Handle, std::unique_ptr<OpenFile>> handles;
  Handle next_handle = 1;
  std::unordered_map<Ino, std::vector<PendingRequest>> pending_writes, pending_reads;
  rt::Condition write_done;
  rt::Condition released;  // some family was given up, or weakened
  std::uint64_t request_serial = 0;
  std::unordered_map<Ino, meta::Inode> dead_dirs;  // removed directories that may still be a cwd
  AdvisoryTable advisory;
  std::uint64_t operations = 0;
  std::size_t cached_inodes = 0;

  // family numbers reserved from the counter
  std::uint64_t family_next = 0, family_end = 0;
  rt::Mutex family_mutex;

  std::set<Family> loading;  // by load_complete()
  rt::Condition loaded;

  // background work
  std::vector<Ino> reap_queue;
  struct WalkPlace {
    Family directory;
    std::uint64_t cookie = 0;  // its entries up to here have been walked
  };
  std::vector<WalkPlace> walk_stack;
  rt::Condition work;
  rt::Condition walk_progress;
  std::size_t ahead_unused = 0;
  bool stopping = false;

  template <class F>
  auto run(bool changes, F&& body) -> decltype(body(std::declval<Attempt&>()));

  FamilyState& family(Family f);  // created on demand
  FamilyState* find_family(Family f);
  bool alone() const;  // no other live node: locks cost nobody anything
  LockMode reading_mode() const { return alone() ? LockMode::kExclusive : LockMode::kShared; }
  // A courtesy: takes those that are free. Fails only where nothing more can be had at all; blocks.
  Result<void> acquire_free(const std::vector<Family>& families, LockMode mode);
  Time now() const { return rt::now(); }
  WallTime wall() const { return rt::Runtime::current().wall_now(); }
  OpenInfo* open_info(Ino ino);
  bool is_open(Ino ino) { return open_info(ino) != nullptr; }

  // Answers.
  Attr attr_of(const InodeState& inode) const;
  Nanos attr_timeout(const FamilyState& family) const;
  Nanos name_timeout(const FamilyState& family) const;
  Entry entry_of(FamilyState& parent, DirEntry& entry, const InodeRef& inode);
  AttrReply reply_of(InodeState& inode);
  Entry negative(FamilyState& parent, std::string_view name);

  // Steps.
  void put_inode(meta::Step& step, InodeState& inode);  // replaces an earlier put of it in the step
  void touch_dir(InodeState& dir, WallTime when);       // mtime and ctime
  Result<void> finish(StepNo step);                     // waits with -o sync; StepNo 0: nothing
  // The same for an answer: what was allowed before the wait may be over, so nothing is cached.
  Result<Entry> finish(StepNo step, Entry entry);
  StepNo append(meta::Step step);
  void forget_file(InodeState& inode);  // it is deleted
  // A file's entry went away: one link less; deletes the inode or leaves it to the reaper.
  void drop_entry_target(InodeRef inode, WallTime when, meta::Step& step);
  // An empty directory's entry went away: its inode, and its family where nothing is left of it.
  void drop_directory(FamilyState& fam, meta::Step& step);
  OpenReply open_handle(Ino ino, int flags, bool directory);
  Result<void> close_handle(Handle handle);
  Result<void> take_write_error(Handle handle);  // kIo once per handle and failure
  void drop_locks(Ino ino, LockRequest::Kind kind, std::uint64_t owner);
  void unclaim(Ino ino);  // the last advisory lock is gone

  // LockClient
  void on_granted(Family f, LockModes before, LockModes now,
                  cluster::FamilyContents contents) override;
  void on_asked(Family f) override;
  std::vector<meta::Mutation> prepare_release(Family f, LockModes keep) override;
  void on_released(Family f, LockModes keep) override;

  // loader.cc; all block
  Result<meta::RangeReply> must_range(const meta::RangeOp& op);
  Result<void> load_entry(Ino directory, const std::string& name);
  Result<void> load_inode(Ino ino);
  Result<void> load_complete(Family f);
  Result<void> load_families();
  // Of a stored record; what memory knows already stays. kCorrupt.
  Result<void> take_inode(FamilyState& fam, const meta::KeyValue& kv);
  Result<void> take_entry(FamilyState& fam, const meta::KeyValue& kv);
  Result<void> decode_contents(FamilyState& fam, LockModes before, LockModes now,
                               const cluster::FamilyContents& contents);

  // release.cc
  void expire_names(FamilyState& fam);
  void hold_back(FamilyState& fam);  // an answer, while the family is being given up; blocks
  void drop_names_copies(FamilyState& fam);
  void pass_over_files(FamilyState& fam, bool all);

  // pages.cc
  struct LockedRange {
    std::uint64_t begin = 0, end = 0;
    bool edge = false;  // of a WRITE: locked only if it was not cached
    auto operator<=>(const LockedRange&) const = default;
  };
  using LockedPages = std::map<Ino, std::vector<LockedRange>>;
  struct Tasks {
    std::size_t left = 0;
    rt::Condition ended;
  };
  LockedPages locked_pages(Family f) const;
  void start_task(const std::shared_ptr<Tasks>& tasks, std::function<void()> body);
  void start_dropping(const std::vector<Ino>& inodes, const LockedPages& locked,
                      const std::shared_ptr<Tasks>& tasks);
  std::uint64_t start_dropping_gaps(Ino ino, std::uint64_t first,
                                    const std::vector<LockedRange>& around,
                                    const std::shared_ptr<Tasks>& tasks);
  bool wait_for_dropping(Tasks& tasks, const std::function<bool()>& changed);  // blocks
  void drop_pages(Family f, const std::vector<Ino>& inodes);
  void drop_file_pages(FamilyState& fam, bool all);
  void drop_last_page(InodeState& inode);  // blocks
  void drop_full_pages(Ino ino, std::uint64_t offset, std::size_t size);  // blocks

  void flush_family(FamilyState& fam);  // failures are counted per file and logged
  void drop_unwritten(FamilyState& fam);
  bool pin(InodeState& inode);          // for a change; false: being given up
  void unpin(InodeState& inode);

  // background.cc
  void reap_loop();
  Result<void> reap(Ino ino);
  Result<void> look_at_holds(Ino ino);  // blocks
  void walk_loop();
  bool walk_from(FamilyState& fam);
  std::vector<Family> next_to_walk(std::size_t most);
  void budget_loop();
  Result<void> walk_orphans();
  void queue_reap(Ino ino);
  void look_for_orphan(Ino ino, StepNo dropped);  // blocks
  void erase_void_holds(Family f, std::span<const std::pair<Ino, NodeName>> voided);
};

// Held while an operation uses an inode across blocking calls.
class Pin {
 public:
  enum class For { kRead, kChange };
  Pin(Core& core, InodeRef inode, For what = For::kChange);
  ~Pin();
  Pin(const Pin&) = delete;

 private:
  InodeRef inode_;
  FamilyState& family_;
  For what_;
};

template <class F>
auto Core::run(bool changes, F&& body) -> decltype(body(std::declval<Attempt&>())) {
  if (!gate.try_enter()) return Reason::kShutdown;
  struct Leave {
    rt::Gate& gate;
    ~Leave() { gate.leave(); }
  } leave{gate};
  operations++;
  if (changes) ETCFS_CHECK(d.stream.wait_room());
  for (;;) {
    Attempt attempt(*this);
    auto result = body(attempt);
    if (result || result.error() != Reason::kRetry) {
      attempt.served();
      return result;
    }
    ETCFS_CHECK(attempt.satisfy());
  }
}

// chown, and write and truncate by the unprivileged, take setuid away, and setgid where the group
// may execute. True: something was taken.
bool kill_suidgid(meta::Inode& rec);
bool kill_capability(meta::Inode& rec);  // security.capability, which no write may leave; true if it was there

bool valid_name(std::string_view name);
Result<void> check_name(std::string_view name);

}  // namespace etcfs::fs

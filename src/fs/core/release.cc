// Giving a family up (design sections 5 and 7). The order: zero timeouts; names expired or run out;
// the directory's attributes and listing; the files' attributes and pages, again while anything was
// answered in the meantime; close, atomically with that test; running operations end; dirty data
// goes out; then the lock service appends the release step with what others must know.
//
// After close no READ is answered (it starts again and waits for the lock), and a WRITE that was
// under way drops the pages it handed to the kernel before it is answered (Filesystem::write), so
// nothing can be cached behind the pass.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fs/core/core.h"

namespace etcfs::fs {
namespace {
// expire_entry can be overtaken by the answer to a revalidating LOOKUP given this shortly before.
constexpr Nanos kOvertaken = std::chrono::milliseconds(50);
constexpr Nanos kRunOutMargin = std::chrono::milliseconds(20);
}  // namespace

// Nothing to do: name_timeout() asks contended(), attributes can be dropped at any time.
void Core::on_asked(Family) {}

// When this returns no name of the directory is answered from the kernel's cache.
void Core::expire_names(FamilyState& fam) {
  const Time start = now();
  if (fam.names_until <= start) return;
  std::vector<std::string> names;
  Time wait_until{};
  auto consider = [&](const std::string& name, Time& until) {
    if (until <= start) return;
    names.push_back(name);
    // Answered lately: the answer may not have been taken yet.
    if (until - options.name_timeout > start - kOvertaken) wait_until = std::max(wait_until, until);
    until = Time{};
  };
  for (auto& [name, entry] : fam.entries) consider(name, entry.kernel_until);
  for (auto& [name, until] : fam.negatives) consider(name, until);
  if (names.empty()) names.emplace_back("\1etcfs-barrier");
  const Time last = std::exchange(fam.names_until, Time{});
  if (!d.kernel.expire_names(Ino(fam.family, 0), std::move(names), last + kRunOutMargin))
    wait_until = last;
  if (wait_until > Time{}) rt::sleep_until(wait_until + kRunOutMargin);
}

void Core::flush_family(FamilyState& fam) {
  std::vector<InodeRef> dirty;
  for (auto& [index, inode] : fam.files)
    if (inode->is_regular() && io.is_dirty(*inode)) dirty.push_back(inode);
  // Together: one flush of the device for all. What is left is asked for one by one, to learn whose
  // error it is.
  Result<void> last = io.flush_many(dirty);
  for (auto& inode : dirty)
    if (auto r = io.flush(inode); !r) {
      if (OpenInfo* info = open_info(inode->ino)) info->write_errors++;
      last = r;
    }
  if (!last)
    ETCFS_LOG_ERROR("write-back failed while a lock was given up",
                    log::field("family", fam.family.v),
                    log::field("reason", reason_name(last.error())));
}

// What the last write-back before a release could not write is lost, loudly: to write it later, under
// a weaker lock or none, would be to write into what others may have made of it since.
void Core::drop_unwritten(FamilyState& fam) {
  std::vector<Ino> lost;
  for (auto& [index, inode] : fam.files) {
    if (!inode->is_regular() || !io.is_dirty(*inode)) continue;
    io.discard_unwritten(*inode);
    if (OpenInfo* info = open_info(inode->ino)) info->write_errors++;
    lost.push_back(inode->ino);
  }
  if (!lost.empty()) drop_pages(fam.family, lost);
}

// An answer given now would make another pass necessary: give the pass its moment.
void Core::hold_back(FamilyState& fam) {
  if (fam.closing) rt::sleep_for(std::chrono::milliseconds(std::min(1 + fam.passes, 20u)));
}

void Core::drop_names_copies(FamilyState& fam) {
  expire_names(fam);
  d.kernel.invalidate(Ino(fam.family, 0), 0, 0);
  if (fam.dir) fam.dir->kernel_attrs = false;
}

void Core::pass_over_files(FamilyState& fam, bool all) {
  for (fam.passes = 0;; fam.passes++) {
    const auto answered = fam.answered;
    drop_file_pages(fam, all);
    flush_family(fam);
    if (fam.answered == answered) return;
  }
}

std::vector<meta::Mutation> Core::prepare_release(Family f, LockModes keep) {
  FamilyState* fam = find_family(f);
  std::vector<meta::Mutation> out;
  if (!fam) {
    d.locks.close(f, keep);
    return out;
  }
  fam->closing = true;
  const LockModes have = d.locks.usable(f);
  const bool names_go = have.names != LockMode::kNone && keep.names == LockMode::kNone;
  const bool files_go = have.files != LockMode::kNone && keep.files == LockMode::kNone;
  const bool files_shared = have.files == LockMode::kExclusive && keep.files == LockMode::kShared;
  // Names given with a timeout before `closing` run out here; since then none was given.
  if (names_go) drop_names_copies(*fam);
  // Attributes that were answered lately may not have been taken yet: then there would be nothing
  // to drop, and they would be planted afterwards.
  if (fam->attrs_given + kOvertaken > now()) rt::sleep_until(fam->attrs_given + kOvertaken);
  do {
    // A rename may have moved entries here that the kernel still answers.
    while (names_go && fam->names_until > now()) expire_names(*fam);
    if (files_go || files_shared) pass_over_files(*fam, files_go);
  } while (names_go && fam->names_until > now());
  // From the end of the pass to here nothing blocks.
  fam->closed = fam->closed || files_go || files_shared;
  d.locks.close(f, keep);
  if (files_go || files_shared) {
    fam->unpinned.wait([&] { return (files_go ? fam->pins : fam->writer_pins) == 0; });
    flush_family(*fam);
    drop_unwritten(*fam);
  }
  if (have.names == LockMode::kExclusive && keep.names != LockMode::kExclusive && fam->dir &&
      fam->dir->rec.birth_family == f && fam->dir->rec.birth_bound > fam->birth_next) {
    fam->dir->rec.birth_bound = fam->birth_safe = fam->birth_next;
    out.push_back({d.keys.inode(fam->dir->ino), meta::encode(fam->dir->rec)});
  }
  if (files_go) {
    for (auto it = opens.lower_bound(Ino(f, 1)); it != opens.end() && it->first.family() == f; ++it)
      if (!it->second.held) {
        it->second.held = true;
        out.push_back({d.keys.hold(it->first, d.guard.node()), meta::encode_hold(d.guard.epoch())});
      }
    advisory.for_family(f, [&](Ino ino) {
      if (advisory.claimed(ino)) return;
      advisory.set_claimed(ino, true);
      out.push_back({d.keys.plock(ino), meta::encode_advisory(d.guard.node(), d.guard.epoch())});
    });
  }
  return out;
}

void Core::on_released(Family f, LockModes keep) {
  FamilyState* fam = find_family(f);
  if (!fam) return;
  ETCFS_ASSERT(keep.files != LockMode::kNone || fam->pins == 0);
  if (keep.names == LockMode::kNone) {
    if (fam->dir) cached_inodes--;
    fam->drop_names();
  }
  if (keep.files == LockMode::kNone) {
    for (auto& [index, inode] : fam->files)
      if (inode->is_regular()) io.drop(*inode);
    cached_inodes -= fam->files.size();
    fam->drop_files();
  }
  fam->closing = fam->closed = false;
  if (fam->ahead) {
    fam->ahead = false;
    if (ahead_unused) ahead_unused--;
  }
  if (keep.none()) families.erase(f);
  released.notify_all();
}

}  // namespace etcfs::fs

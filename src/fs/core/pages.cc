// Dropping the kernel's pages of files, around those that it keeps locked (design section 7, step
// 4).
//
// While a READ is unanswered its pages are locked, and while a WRITE is, its last page where that
// is overwritten in part and was not cached. An invalidation that meets such a page waits for the
// answer, and the answer may wait for the very lock that is being given up (a WRITE that needs X
// where we hold S). Locked pages cannot be read by anybody, so there is nothing to drop in them.
// A request may also come while a pass is under way: then the pass begins again around it, and the
// invalidation that waits is left to itself; it ends with the answer.
#include <algorithm>

#include "fs/core/core.h"

namespace etcfs::fs {
namespace {

constexpr Nanos kPatience = std::chrono::milliseconds(50);
// A partly overwritten page that *is* cached is not locked: dropping it takes microseconds.
constexpr Nanos kForCachedEdge = std::chrono::milliseconds(20);

std::uint64_t page_of(std::uint64_t at) { return at & ~(kBlockBytes - 1); }

}  // namespace

void Core::start_task(const std::shared_ptr<Tasks>& tasks, std::function<void()> body) {
  tasks->left++;
  group.spawn([tasks, body = std::move(body)] {
    body();
    if (--tasks->left == 0) tasks->ended.notify_all();
  });
}

// What the kernel may have locked of the files of a family, ascending and merged.
Core::LockedPages Core::locked_pages(Family f) const {
  LockedPages out;
  for (const auto& [ino, writes] : pending_writes) {
    if (ino.family() != f) continue;
    for (const PendingRequest& w : writes) {
      const std::uint64_t last = page_of(w.end - 1);
      if (w.end != last + kBlockBytes || w.begin > last)
        out[ino].push_back({last, last + kBlockBytes, true});
    }
  }
  for (const auto& [ino, reads] : pending_reads) {
    if (ino.family() != f) continue;
    for (const PendingRequest& r : reads)
      out[ino].push_back({page_of(r.begin), page_of(r.end + kBlockBytes - 1), false});
  }
  for (auto& [ino, ranges] : out) std::sort(ranges.begin(), ranges.end());
  return out;
}

// Starts to drop all of these files but what is locked. `tasks` counts what has not ended.
void Core::start_dropping(const std::vector<Ino>& inodes, const LockedPages& locked,
                          const std::shared_ptr<Tasks>& tasks) {
  std::vector<Ino> whole;
  for (Ino ino : inodes) {
    auto it = locked.find(ino);
    if (it == locked.end()) {
      whole.push_back(ino);
      continue;
    }
    const std::uint64_t end = start_dropping_gaps(ino, 0, it->second, tasks);
    start_task(tasks, [this, ino, end] { d.kernel.invalidate(ino, end, 0); });
  }
  if (!whole.empty())
    start_task(tasks, [this, whole = std::move(whole)] { d.kernel.invalidate_all(whole); });
}

// What lies between `first` and the last of these ranges, and not in them; answers where that ends.
std::uint64_t Core::start_dropping_gaps(Ino ino, std::uint64_t first,
                                        const std::vector<LockedRange>& around,
                                        const std::shared_ptr<Tasks>& tasks) {
  for (const LockedRange& r : around) {
    if (r.begin > first)
      start_task(tasks, [this, ino, first, length = r.begin - first] {
        d.kernel.invalidate(ino, first, length);
      });
    first = std::max(first, r.end);
  }
  return first;
}

// True: all of them have ended; false: what they had to go around has changed meanwhile.
bool Core::wait_for_dropping(Tasks& tasks, const std::function<bool()>& changed) {
  const auto done = [&] { return tasks.left == 0; };
  while (!tasks.ended.wait_until(now() + kPatience, done))
    if (changed()) return done();
  return true;
}

// Blocks until no page of these files is readable in the kernel but those of requests under way.
void Core::drop_pages(Family f, const std::vector<Ino>& inodes) {
  for (;;) {
    const LockedPages locked = locked_pages(f);
    auto tasks = std::make_shared<Tasks>(), edges = std::make_shared<Tasks>();
    start_dropping(inodes, locked, tasks);
    for (const auto& [ino, ranges] : locked)
      for (const LockedRange& r : ranges)
        if (r.edge)
          start_task(edges,
                     [this, ino = ino, r] { d.kernel.invalidate(ino, r.begin, kBlockBytes); });
    edges->ended.wait_until(now() + kForCachedEdge, [&] { return edges->left == 0; });
    if (wait_for_dropping(*tasks, [&] { return locked_pages(f) != locked; })) return;
  }
}

// The pages that a WRITE hands to the kernel whole: readable there before the answer. Around those of
// READs under way: their pages are locked, so nobody reads them, and the READ may wait for this very
// WRITE, or for the lock that its pin keeps. Such a READ is answered later, with the new bytes.
void Core::drop_full_pages(Ino ino, std::uint64_t offset, std::size_t size) {
  const std::uint64_t first = (offset + kBlockBytes - 1) & ~(kBlockBytes - 1);
  const std::uint64_t last = page_of(offset + size);
  if (last <= first) return;
  const auto being_read = [&] {
    std::vector<LockedRange> out;
    if (auto it = pending_reads.find(ino); it != pending_reads.end())
      for (const PendingRequest& r : it->second) {
        const std::uint64_t begin = std::max(page_of(r.begin), first);
        const std::uint64_t end = std::min(page_of(r.end + kBlockBytes - 1), last);
        if (begin < end) out.push_back({begin, end, false});
      }
    std::sort(out.begin(), out.end());
    return out;
  };
  for (;;) {
    const std::vector<LockedRange> around = being_read();
    auto tasks = std::make_shared<Tasks>();
    const std::uint64_t at = start_dropping_gaps(ino, first, around, tasks);
    if (at < last)
      start_task(tasks, [this, ino, at, last] { d.kernel.invalidate(ino, at, last - at); });
    if (wait_for_dropping(*tasks, [&] { return being_read() != around; })) return;
  }
}

// Before a file grows: what a mapping has stored behind its end, in its last page, must not show.
// The kernel writes such a page back only up to the end that it still knows.
void Core::drop_last_page(InodeState& inode) {
  if (!inode.kernel_pages || inode.size % kBlockBytes == 0) return;
  auto tasks = std::make_shared<Tasks>();
  start_task(tasks, [this, ino = inode.ino, page = page_of(inode.size)] {
    d.kernel.invalidate(ino, page, kBlockBytes);
  });
  // Not for ever: a READ of that page may wait for the lock that our caller keeps from its release.
  tasks->ended.wait_until(now() + kForCachedEdge, [&] { return tasks->left == 0; });
}

void Core::drop_file_pages(FamilyState& fam, bool all) {
  std::vector<Ino> inodes;
  for (auto& [index, inode] : fam.files) {
    if (!inode->kernel_attrs && !inode->kernel_pages) continue;
    if (!all) {  // to S: only what might be written through a mapping without asking us
      OpenInfo* info = open_info(inode->ino);
      if (!info || info->writers == 0) continue;
    }
    inodes.push_back(inode->ino);
    inode->kernel_attrs = inode->kernel_pages = false;
  }
  if (!inodes.empty()) drop_pages(fam.family, inodes);
}

}  // namespace etcfs::fs

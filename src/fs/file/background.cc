// Background write-back: files that have been dirty for a while, or the oldest ones when much is
// dirty. Many small files go together: their blocks in few large requests, one flush, one step
// each.
#include <algorithm>

#include "base/log.h"
#include "fs/file/file_io_impl.h"

namespace etcfs::fs {

void FileIo::Impl::start() {
  for (unsigned i = 0; i < kWriterFibers; ++i) fibers().spawn([this] { background(); });
}

void FileIo::Impl::stop() {
  stopping = true;
  wake.notify_all();
  if (group) group->wait();
}

void FileIo::Impl::background() {
  while (!stopping) {
    if (d.stream.fenced()) {
      wake.wait_until(rt::now() + 1s);
      continue;
    }
    const Time before = rt::now();
    std::vector<Part> parts = pick_stream();
    if (parts.empty()) parts = pick(over_half(), nullptr);
    if (!parts.empty()) {
      if (!dirty_files.empty()) wake.notify_one();
      run_background(std::move(parts));
      continue;
    }
    if (dirty_files.empty()) {
      wake.wait([&] { return stopping || !dirty_files.empty(); });
    } else {
      // What is there is too young, or busy: its write-back ends, or its family is released.
      const Time due = dirty_files.front()->data->since + d.dirty_age;
      const Time soon = before + 10ms;
      wake.wait_until(over_half() ? soon : std::max(due, soon));
    }
  }
}

std::vector<FileIo::Impl::Part> FileIo::Impl::pick(bool urgent, const Family* family) {
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
  const Time now = rt::now();
  for (auto it = dirty_files.begin(); it != dirty_files.end();) {
    const InodeRef inode = *it++;
    FileData& data = *inode->data;
    if (!urgent && data.since + d.dirty_age > now) break;
    if (inode->gone) {
      unlist(*inode);
      continue;
    }
    if (family && inode->ino.family() != *family) continue;
    if (!pick_one(inode, family, parts)) continue;
    bytes += data.dirty_blocks * kBlockBytes;
    if (bytes >= round_bytes() || parts.size() >= kRoundFiles) break;
  }
  // Files of one directory were born one after the other: their data is to lie so, too.
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.inode->ino < b.inode->ino; });
  return parts;
}

bool FileIo::Impl::pick_one(const InodeRef& inode, const Family* family,
                            std::vector<Part>& parts) {
  FileData& data = *inode->data;
  if (data.retry_at > rt::now() || data.write_turn.locked()) return false;
  const bool pins = !family && pin;
  if (pins && !pin(*inode)) return false;
  parts.emplace_back(inode);
  parts.back().pinned = pins;
  parts.back().write_turn = std::unique_lock(data.write_turn, std::try_to_lock);
  ETCFS_ASSERT(parts.back().write_turn.owns_lock());
  return true;
}

std::vector<FileIo::Impl::Part> FileIo::Impl::pick_stream() {
  std::vector<Part> parts;
  while (parts.empty() && !streams.empty()) {
    const InodeRef inode = streams.front();
    streams.pop_front();
    const DataUse data(inode);  // frees it if only this list kept it
    data->streaming = false;
    if (data->listed && !inode->gone) pick_one(inode, nullptr, parts);
  }
  return parts;
}

void FileIo::Impl::run_background(std::vector<Part> parts) {
  struct Unpin {
    Impl& io;
    std::vector<Part>& parts;
    ~Unpin() {
      for (Part& p : parts)
        if (p.pinned && io.unpin) io.unpin(*p.inode);
    }
  } unpin_all{*this, parts};
  write_back(parts, {.most_bytes = round_bytes(), .data_only = false});
}

// Blocks until everything that was dirty at the call is in appended steps.
Result<void> FileIo::Impl::sync_all() {
  const std::uint64_t before = next_round;
  Result<void> result = sync_listed([](const FileData&) { return true; });
  round_ended.wait([&] { return rounds.empty() || *rounds.begin() >= before; });
  // What these could not write is dirty again.
  auto failed = sync_listed([](const FileData& data) { return data.failures > 0; });
  return result ? failed : result;
}

Result<void> FileIo::Impl::sync_listed(const std::function<bool(const FileData&)>& wanted) {
  struct Pinned {
    Impl& io;
    std::vector<InodeRef> inodes;
    ~Pinned() {
      if (io.unpin)
        for (const InodeRef& inode : inodes) io.unpin(*inode);
    }
  };
  Result<void> result;
  std::vector<InodeRef> todo, others;  // others: their family is being released, which flushes them
  for (const InodeRef& inode : dirty_files)
    if (wanted(*inode->data)) todo.push_back(inode);
  for (std::size_t i = 0; i < todo.size();) {
    Pinned pinned{*this, {}};
    for (; i < todo.size() && pinned.inodes.size() < kRoundFiles; ++i) {
      if (todo[i]->gone || !needs_flush(*todo[i])) continue;
      if (pin && !pin(*todo[i]))
        others.push_back(todo[i]);
      else
        pinned.inodes.push_back(todo[i]);
    }
    if (auto r = flush_many(pinned.inodes, false); !r && result) result = r;
  }
  for (const InodeRef& inode : others)
    for (int tries = 0; !inode->gone && needs_flush(*inode); ++tries) {
      if (d.stream.fenced()) return Reason::kFenced;
      if (tries == 10'000) return Reason::kTimeout;
      rt::sleep_for(1ms);
    }
  return result;
}

}  // namespace etcfs::fs

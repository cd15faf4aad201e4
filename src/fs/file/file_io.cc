// The public face, the list of files that have something to flush, and the bound on dirty bytes.
#include "fs/file/file_io.h"

#include "base/log.h"
#include "fs/file/file_io_impl.h"
#include "meta/patient_range.h"

namespace etcfs::fs {

using log::field;

FileIo::Impl::~Impl() {
  // Without stop() this is a crash.
  if (group && group->size() > 0) group->kill();
}

rt::Group& FileIo::Impl::fibers() {
  if (!group) group.emplace(rt::Runtime::current(), "file");
  return *group;
}

bool FileIo::Impl::needs_flush(const InodeState& inode) {
  if (inode.attrs_dirty || inode.size != inode.rec.size) return true;
  const FileData* data = inode.data.get();
  return data && (!data->dirty.empty() || !data->sets.empty() || data->cut != kNoCut);
}

void FileIo::Impl::list(const InodeRef& inode) {
  FileData& data = *inode->data;
  if (data.listed) return;
  const bool first = dirty_files.empty();
  data.listed = true;
  data.since = rt::now();
  data.place = dirty_files.insert(dirty_files.end(), inode);
  if (first) wake.notify_one();
}

void FileIo::Impl::unlist(InodeState& inode) {
  if (!inode.data || !inode.data->listed) return;
  inode.data->listed = false;
  dirty_files.erase(inode.data->place);
}

void FileIo::Impl::touch_times(InodeState& inode) {
  inode.rec.mtime = inode.rec.ctime = d.wall_now();
  inode.attrs_dirty = true;
}

void FileIo::Impl::add_dirty(FileData& data, std::uint64_t blocks) {
  data.dirty_blocks += blocks;
  const bool before = over_half();
  dirty_blocks += blocks;
  if (!before && over_half()) wake.notify_all();
}

void FileIo::Impl::sub_dirty(FileData& data, std::uint64_t blocks, bool in_dirty) {
  ETCFS_ASSERT(dirty_blocks >= blocks);
  dirty_blocks -= blocks;
  if (in_dirty) {
    ETCFS_ASSERT(data.dirty_blocks >= blocks);
    data.dirty_blocks -= blocks;
  }
  if (room.has_waiters()) room.notify_all();
}

void FileIo::Impl::discard(InodeState& inode) {
  FileData& data = *inode.data;
  ETCFS_ASSERT(data.sets.empty());
  cut_segments(data, data.dirty, 0, true);
  data.cut = kNoCut;
  data.tail = {};
  unlist(inode);
}

// Waits until `bytes` more may be dirty. Write-back makes room; where it may not touch the files of
// the caller's family, because that is being released and the release waits for this caller, the
// caller writes them back itself.
Result<void> FileIo::Impl::wait_for_dirty_room(const InodeRef& inode, std::size_t bytes) {
  const auto enough = [&] {
    return dirty_blocks == 0 || dirty_blocks * kBlockBytes + bytes <= d.dirty_bytes;
  };
  while (!enough()) {
    if (d.stream.fenced()) return Reason::kFenced;
    if (failures >= kFailuresUntilRefusal) return Reason::kIo;
    if (space_failures >= kFailuresUntilRefusal) return Reason::kNoSpace;
    wake.notify_all();
    const std::uint64_t before = dirty_blocks;
    if (room.wait_until(rt::now() + 50ms, [&] { return enough() || dirty_blocks < before; }))
      continue;
    const Family family = inode->ino.family();
    std::vector<Part> parts = pick(true, &family);
    if (!parts.empty()) write_back(parts, {.most_bytes = round_bytes(), .data_only = false});
  }
  return {};
}

Result<meta::RangeReply> FileIo::Impl::must_range(const meta::RangeOp& op, Revision at) {
  return meta::patient_range(d.kv, op, at, [this]() -> Result<void> {
    if (d.stream.fenced()) return Reason::kFenced;
    if (stopping) return Reason::kShutdown;
    return {};
  });
}

// Reads x/<ino>/ if that has not been done. Blocks.
Result<void> FileIo::Impl::load_extents(const InodeRef& inode) {
  if (inode->extents_loaded) return {};
  DataUse data(inode);
  std::lock_guard turn(data->load_turn);
  if (inode->extents_loaded) return {};
  Extents extents;
  const std::string prefix = d.keys.extents_of(inode->ino);
  meta::RangeOp op{.key = prefix, .end = meta::prefix_end(prefix), .limit = 64};
  Revision at{};
  while (true) {
    const auto page = must_range(op, at);
    if (!page && page.error() == Reason::kCompacted) {  // all of it once more, at a later revision
      extents.clear();
      op.key = prefix;
      at = {};
      continue;
    }
    ETCFS_TRY(const meta::RangeReply reply, page);
    at = reply.revision;
    for (const meta::KeyValue& kv : reply.kvs) {
      ETCFS_TRY(const Extents chunk, meta::decode_extents(kv.value));
      extents.insert(extents.end(), chunk.begin(), chunk.end());
    }
    if (!reply.more || reply.kvs.empty()) break;
    op.key = reply.kvs.back().key + '\0';
  }
  if (!valid_extents(extents)) {
    ETCFS_LOG_ERROR("extents of a file overlap or are out of order", field("ino", inode->ino.v));
    return Reason::kCorrupt;
  }
  if (!inode->rec.external_extents) {
    inode->extents_loaded = true;
    return {};
  }
  data->external = std::move(extents);
  data->external_mapped.reset();
  inode->extents_loaded = true;
  return {};
}

FileIo::FileIo(Deps deps) : impl_(std::make_unique<Impl>(std::move(deps))) {}
FileIo::~FileIo() = default;
void FileIo::start() { impl_->start(); }
void FileIo::stop() { impl_->stop(); }

Result<ReadReply> FileIo::read(const InodeRef& inode, std::uint64_t offset, std::size_t size) {
  return impl_->read(inode, offset, size);
}
Result<std::uint64_t> FileIo::write(const InodeRef& inode, std::uint64_t offset,
                                    std::span<const std::byte> data, bool append) {
  return impl_->write(inode, offset, data, append);
}
Result<void> FileIo::truncate(const InodeRef& inode, std::uint64_t new_size) {
  return impl_->truncate(inode, new_size);
}
Result<void> FileIo::flush(const InodeRef& inode, bool data_only) {
  return impl_->flush(inode, data_only);
}
Result<void> FileIo::flush_many(std::span<const InodeRef> inodes) {
  return impl_->flush_many(inodes, false);
}
Result<void> FileIo::sync_all() { return impl_->sync_all(); }

void FileIo::discard_unwritten(InodeState& inode) {
  ETCFS_LOG_ERROR("dirty data that could not be written is dropped", field("ino", inode.ino.v),
                  field("blocks", inode.data ? inode.data->dirty_blocks : 0));
  if (inode.data) impl_->discard(inode);
  inode.size = inode.rec.size;
  inode.attrs_dirty = false;
}

void FileIo::drop(InodeState& inode) {
  if (!inode.data) {
    if (inode.rec.external_extents) inode.extents_loaded = false;
    return;
  }
  FileData& data = *inode.data;
  if (!data.dirty.empty()) {
    // Only what cannot be written any more may be lost here.
    const bool fenced = impl_->d.stream.fenced();  // reported as such by others
    ETCFS_ASSERT(data.failures > 0 || data.error || fenced);
    if (!fenced)
      ETCFS_LOG_ERROR("dirty data that could not be written is dropped", field("ino", inode.ino.v),
                      field("blocks", data.dirty_blocks));
  }
  if (data.sets.empty()) impl_->discard(inode);
  data.external.clear();
  data.external_mapped.reset();
  if (inode.rec.external_extents) inode.extents_loaded = false;
  data.error.reset();
  if (data.idle()) inode.data.reset();
}

Result<void> FileIo::add_deletion(const InodeRef& inode, meta::Step& step) {
  return impl_->add_deletion(inode, step);
}
bool FileIo::deletion_may_block(const InodeState& inode) const {
  return impl_->deletion_may_block(inode);
}
Result<std::uint64_t> FileIo::seek(const InodeRef& inode, std::uint64_t offset, SeekWhat what) {
  return impl_->seek(inode, offset, what);
}
std::uint64_t FileIo::blocks512(const InodeState& inode) const { return impl_->blocks512(inode); }
bool FileIo::is_dirty(const InodeState& inode) const { return Impl::needs_flush(inode); }

std::string FileIo::encode_record(const InodeState& inode) const {
  // rec is the published view at any time: extents that are kept in x/ are not in it, and its size
  // follows the extents.
  return meta::encode(inode.rec);
}
std::uint64_t FileIo::dirty_bytes() const { return impl_->dirty_blocks * kBlockBytes; }
void FileIo::set_pin(std::function<bool(InodeState&)> pin, std::function<void(InodeState&)> unpin) {
  impl_->pin = std::move(pin);
  impl_->unpin = std::move(unpin);
}

}  // namespace etcfs::fs

// Life of the filesystem, and what concerns the whole of it.
#include "fs/filesystem.h"

#include "base/log.h"
#include "fs/impl.h"

namespace etcfs::fs {

Filesystem::Filesystem(Deps deps, FsOptions options)
    : impl_(std::make_unique<Impl>(std::move(deps), options)) {}
Filesystem::~Filesystem() = default;

Result<void> Filesystem::start() {
  Impl& c = *impl_;
  c.io.start();
  c.group.spawn([&c] { c.reap_loop(); });
  c.group.spawn([&c] { c.walk_loop(); });
  c.group.spawn([&c] { c.budget_loop(); });
  c.d.stream.on_fenced([&c] { c.released.notify_all(); });
  ETCFS_CHECK(c.load_families());
  c.d.membership.on_epoch_raised([&c](const NodeName&, Epoch) {
    // A dead node's open files count for nothing any more.
    for (auto& [f, fam] : c.families) {
      std::vector<std::pair<Ino, NodeName>> voided;
      std::erase_if(fam->holds, [&](const auto& h) {
        if (c.d.membership.is_current(h.first.second, h.second)) return false;
        voided.push_back(h.first);
        return true;
      });
      c.erase_void_holds(f, voided);
    }
    if (!c.stopping) c.group.spawn([&c] { (void)c.walk_orphans(); });
  });
  return c.walk_orphans();
}

Result<void> Filesystem::stop() {
  Impl& c = *impl_;
  c.gate.close();
  const Result<void> written = c.io.sync_all();
  if (!written)
    ETCFS_LOG_ERROR("write-back failed at the end",
                    log::field("reason", reason_name(written.error())));
  c.stopping = true;
  c.work.notify_all();
  c.io.stop();
  c.group.wait();
  return written;
}

Result<StatFs> Filesystem::statfs() {
  Impl& c = *impl_;
  ETCFS_TRY(auto totals, c.d.space.totals());
  StatFs s;
  s.blocks = totals.total_blocks;
  s.free_blocks = totals.free_blocks;
  s.files = s.free_files = std::uint64_t{1} << 40;
  return s;
}

Result<void> Filesystem::syncfs() {
  ETCFS_CHECK(impl_->io.sync_all());
  return impl_->d.stream.sync();
}

Filesystem::Stats Filesystem::stats() const {
  return {impl_->cached_inodes, impl_->families.size(), impl_->io.dirty_bytes(), impl_->operations};
}

}  // namespace etcfs::fs

// From etcd into memory. Every load is checked against the family's generation afterwards: if the
// lock went away meanwhile, what was read is void. What memory already knows (also as absent or
// deleted) wins: etcd may lag behind this node's own steps.
#include "base/log.h"
#include "fs/core/core.h"
#include "meta/patient_range.h"

namespace etcfs::fs {
namespace {
constexpr std::uint64_t kFamilyBlock = 8192;
}  // namespace

// Until this node is out of the cluster.
Result<meta::RangeReply> Core::must_range(const meta::RangeOp& op) {
  return meta::patient_range(d.kv, op, Revision{}, [this]() -> Result<void> {
    if (d.stream.fenced()) return Reason::kFenced;
    if (gate.closed()) return Reason::kShutdown;
    return {};
  });
}

FamilyState& Core::family(Family f) {
  auto& slot = families[f];
  if (!slot) slot = std::make_unique<FamilyState>(f);
  return *slot;
}

FamilyState* Core::find_family(Family f) {
  auto it = families.find(f);
  return it == families.end() ? nullptr : it->second.get();
}

Result<void> Core::take_entry(FamilyState& fam, const meta::KeyValue& kv) {
  if (fam.entries_complete) return {};  // what was removed since is not remembered any more
  auto key = d.keys.parse_dirent(kv.key);
  if (!key) return Reason::kCorrupt;
  ETCFS_TRY(auto rec, meta::decode_dirent(kv.value));
  if (!fam.find(key->name) && !fam.absent.contains(key->name))
    fam.insert(key->name, {rec.ino, rec.cookie, static_cast<std::uint8_t>(rec.type), Time{}});
  return {};
}

Result<void> Core::take_inode(FamilyState& fam, const meta::KeyValue& kv) {
  auto key = d.keys.parse_inode(kv.key);
  if (!key) return Reason::kCorrupt;
  const Ino ino = *key;
  ETCFS_TRY(auto rec, meta::decode_inode(kv.value));
  if (ino.is_directory()) {
    if (fam.dir) return {};
  } else if (fam.files_complete || fam.files.contains(ino.index()) || fam.deleted.contains(ino.index())) {
    return {};
  }
  auto inode = std::make_shared<InodeState>();
  inode->ino = ino;
  inode->size = rec.size;
  inode->extents_loaded = !rec.external_extents;
  inode->rec = std::move(rec);
  cached_inodes++;
  if (ino.is_directory()) {
    if (inode->rec.birth_family == fam.family)
      fam.birth_next = fam.birth_safe = inode->rec.birth_bound;
    fam.dir = std::move(inode);
  } else {
    fam.files.emplace(ino.index(), std::move(inode));
  }
  return {};
}

Result<void> Core::decode_contents(FamilyState& fam, LockModes before, LockModes now,
                                   const cluster::FamilyContents& contents) {
  const bool names = before.names == LockMode::kNone && now.names != LockMode::kNone;
  const bool files = before.files == LockMode::kNone && now.files != LockMode::kNone;
  for (const auto& kv : contents.inodes) {
    auto ino = d.keys.parse_inode(kv.key);
    if (!ino) return Reason::kCorrupt;
    if (ino->is_directory() ? !names : !files) continue;
    ETCFS_CHECK(take_inode(fam, kv));
  }
  if (names)
    for (const auto& kv : contents.entries) ETCFS_CHECK(take_entry(fam, kv));
  return {};
}

void Core::on_granted(Family f, LockModes before, LockModes now, cluster::FamilyContents contents) {
  FamilyState& fam = family(f);
  fam.closing = fam.closed = false;
  const Result<void> decoded = decode_contents(fam, before, now, contents);
  // Then what follows it was not taken: it is missing, not absent, and asking for it tells.
  if (!decoded)
    ETCFS_LOG_ERROR("a record of this family does not decode", log::field("family", f.v));
  if (before.names == LockMode::kNone && now.names != LockMode::kNone) {
    fam.names_loaded = true;
    fam.entries_complete = decoded && !contents.entries_more;
  }
  if (before.files == LockMode::kNone && now.files != LockMode::kNone) {
    fam.files_loaded = true;
    fam.files_complete = decoded && !contents.inodes_more;
  }
  const bool again = before.files == LockMode::kNone || now.files == LockMode::kExclusive;
  if (now.files == before.files || !again) return;
  fam.holds.clear();
  std::vector<std::pair<Ino, NodeName>> voided;
  for (const auto& kv : contents.holds) {
    auto key = d.keys.parse_hold(kv.key);
    auto epoch = meta::decode_hold(kv.value);
    if (!key) continue;
    if (!epoch) {  // whose it may be is not known: it counts
      fam.holds.emplace(std::pair(key->ino, key->node), Epoch{UINT64_MAX});
      continue;
    }
    if (key->node == d.guard.node() ? *epoch == d.guard.epoch()
                                    : d.membership.is_current(key->node, *epoch)) {
      if (key->node != d.guard.node()) fam.holds.emplace(std::pair(key->ino, key->node), *epoch);
    } else {
      voided.emplace_back(key->ino, key->node);
    }
  }
  erase_void_holds(f, voided);
}

// Holds of epochs that are over. Under X of the files nobody can put a hold of the family, so
// what goes is what was seen; the step comes before any release of ours. Else they stay until
// somebody has X.
void Core::erase_void_holds(Family f, std::span<const std::pair<Ino, NodeName>> voided) {
  if (d.locks.usable(f).files != LockMode::kExclusive) return;
  const std::size_t most = d.stream.limits().txn_ops / 2;
  while (!voided.empty()) {
    meta::Step step;
    for (const auto& [ino, node] : voided.first(std::min(most, voided.size())))
      step.erase(d.keys.hold(ino, node));
    voided = voided.subspan(step.mutations.size());
    append(std::move(step));
  }
}

Result<void> Core::load_entry(Ino directory, const std::string& name) {
  FamilyState* fam = find_family(directory.family());
  if (!fam || !fam->names_loaded) return {};
  if (++fam->single_loads > 8) return load_complete(directory.family());
  const auto generation = fam->generation;
  ETCFS_TRY(auto reply,
            must_range({.key = d.keys.dirent(directory, name)}));
  fam = find_family(directory.family());
  if (!fam || fam->generation != generation || fam->find(name) || fam->entries_complete) return {};
  if (!reply.kvs.empty()) return take_entry(*fam, reply.kvs[0]);
  fam->absent.insert(name);
  return {};
}

Result<void> Core::load_inode(Ino ino) {
  FamilyState* fam = find_family(ino.family());
  if (!fam) return {};
  const auto generation = fam->generation;
  ETCFS_TRY(auto reply, must_range({.key = d.keys.inode(ino)}));
  fam = find_family(ino.family());
  if (!fam || fam->generation != generation) return {};
  if (reply.kvs.empty()) {
    if (!fam->files.contains(ino.index())) fam->deleted.insert(ino.index());
    return {};
  }
  return take_inode(*fam, reply.kvs[0]);
}

// Reads the whole directory and, where the files part is held, all inodes of the family. Entries
// can only be added by the holder of names X: if that is we, memory knows them; so pages need not
// be of one revision.
Result<void> Core::load_complete(Family f) {
  loaded.wait([&] { return !loading.contains(f); });
  FamilyState* fam = find_family(f);
  if (!fam) return {};
  struct Loading {
    Core& c;
    const Family f;
    ~Loading() {
      c.loading.erase(f);
      c.loaded.notify_all();
    }
  } here{*this, f};
  loading.insert(f);
  const auto generation = fam->generation;
  auto pages = [&](std::string prefix, auto&& take) -> Result<bool> {
    std::string key = prefix, end = meta::prefix_end(prefix);
    for (;;) {
      ETCFS_TRY(auto reply, must_range({.key = key, .end = end, .limit = options.load_page}));
      fam = find_family(f);
      if (!fam || fam->generation != generation) return false;
      for (auto& kv : reply.kvs) ETCFS_CHECK(take(kv));
      if (!reply.more || reply.kvs.empty()) return true;
      key = reply.kvs.back().key + '\0';
    }
  };
  if (fam->names_loaded && !fam->entries_complete) {
    ETCFS_TRY(bool valid, pages(d.keys.entries(Ino(f, 0)),
                                [&](const meta::KeyValue& kv) { return take_entry(*fam, kv); }));
    if (!valid) return {};
    fam->entries_complete = true;
    fam->absent.clear();
  }
  if (fam->files_loaded && !fam->files_complete) {
    ETCFS_TRY(bool valid,
              pages(d.keys.family_inodes(f), [&](const meta::KeyValue& kv) -> Result<void> {
                auto ino = d.keys.parse_inode(kv.key);
                if (ino && ino->is_directory()) return {};  // the names part's
                return take_inode(*fam, kv);
              }));
    if (!valid) return {};
    fam->files_complete = true;
    fam->deleted.clear();
  }
  return {};
}

// Raises the counter by a block. An unknown outcome loses at most a block of numbers: never reuse
// them.
Result<void> Core::load_families() {
  family_mutex.lock();
  struct Unlock {
    rt::Mutex& m;
    ~Unlock() { m.unlock(); }
  } unlock{family_mutex};
  while (family_next >= family_end) {
    if (d.stream.fenced()) return Reason::kFenced;
    ETCFS_TRY(auto reply,
              must_range({.key = d.keys.family_counter()}));
    if (reply.kvs.empty()) return Reason::kCorrupt;
    ETCFS_TRY(Family next, meta::decode_family_counter(reply.kvs[0].value));
    meta::Txn txn;
    txn.compares.push_back(d.guard.compare());
    txn.compares.push_back({.target = meta::Compare::Target::kModRevision,
                            .key = d.keys.family_counter(),
                            .number = reply.kvs[0].mod_revision.v});
    txn.success.push_back(meta::PutOp{d.keys.family_counter(),
                                      meta::encode_family_counter(Family(next.v + kFamilyBlock))});
    auto outcome = d.kv.txn(txn, now() + std::chrono::seconds(10));
    if (outcome.done() && outcome.reply.succeeded) {
      family_next = next.v;
      family_end = next.v + kFamilyBlock;
    } else if (!outcome.done()) {
      rt::sleep_for(std::chrono::milliseconds(50));
    }
  }
  return {};
}

}  // namespace etcfs::fs

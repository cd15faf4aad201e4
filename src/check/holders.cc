// Holders: whatever is held is held by a node under an epoch that the node has or had; and at any
// revision the locks of current epochs exclude each other as they should (I3). Records of dead
// epochs are void and may stand until somebody removes them.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "check/check.h"

namespace etcfs::check {
namespace {

class Holders {
 public:
  Holders(const Image& image, Findings& out) : image_(image), keys_(image.keys), out_(out) {}

  void check() {
    for (const Holder& lock : image_.locks)
      check_epoch(keys_.lock(lock.key.family, lock.key.node, lock.key.epoch), lock.key.node,
                  lock.key.epoch);
    for (const Holder& want : image_.wants)
      check_epoch(keys_.want(want.key.family, want.key.node, want.key.epoch), want.key.node,
                  want.key.epoch);
    for (const auto& [key, epoch] : image_.holds) {
      check_epoch(keys_.hold(key.ino, key.node), key.node, epoch);
      check_inode(keys_.hold(key.ino, key.node), key.ino, key.node, epoch);
    }
    for (const auto& [ino, holder] : image_.plocks) {
      check_epoch(keys_.plock(ino), holder.first, holder.second);
      check_inode(keys_.plock(ino), ino, holder.first, holder.second);
    }
    for (const auto& [n, arena] : image_.arenas)
      if (!arena.owner.empty()) check_epoch(keys_.arena(n), arena.owner, arena.owner_epoch);
    for (const auto& [node, beat] : image_.beats) check_epoch(keys_.beat(node), node, beat.epoch);
    for (const auto& [node, live] : image_.lives) check_epoch(keys_.live(node), node, live.epoch);
    for (const auto& [node, step] : image_.seqs)
      if (!image_.epochs.contains(node) && !image_.broken.contains(keys_.epoch(node)))
        report(Code::kEpochUnknown, keys_.seq(node), "the node has no epoch");
    check_conflicts();
  }

 private:
  void report(Code code, std::string key, std::string message) {
    out_.push_back({code, std::move(key), std::move(message)});
  }
  bool current(const NodeName& node, Epoch epoch) const {
    auto it = image_.epochs.find(node);
    return it != image_.epochs.end() && it->second == epoch;
  }

  void check_epoch(std::string key, const NodeName& node, Epoch epoch) {
    auto it = image_.epochs.find(node);
    if (it == image_.epochs.end()) {
      if (meta::valid_node_name(node) && image_.broken.contains(keys_.epoch(node))) return;
      report(Code::kEpochUnknown, std::move(key),
             fmt::format("epoch {} of node '{}', which never had one", epoch.v, printable(node)));
    } else if (epoch == Epoch{} || epoch > it->second) {
      report(Code::kEpochUnknown, std::move(key),
             fmt::format("epoch {} of node '{}', which is at {}", epoch.v, node, it->second.v));
    }
  }
  void check_inode(std::string key, Ino ino, const NodeName& node, Epoch epoch) {
    if (current(node, epoch) && !image_.inodes.contains(ino) &&
        !image_.broken.contains(keys_.inode(ino)))
      report(Code::kHoldWithoutInode, std::move(key),
             fmt::format("there is no inode {:016x}", ino.v));
  }

  void check_conflicts() {
    auto begin = image_.locks.begin();
    while (begin != image_.locks.end()) {
      auto end = begin;
      while (end != image_.locks.end() && end->key.family == begin->key.family) ++end;
      std::vector<const Holder*> holders;
      for (auto it = begin; it != end; ++it)
        if (current(it->key.node, it->key.epoch)) holders.push_back(&*it);
      for (std::size_t i = 0; i < holders.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) check_pair(*holders[j], *holders[i]);
      begin = end;
    }
  }
  void check_pair(const Holder& a, const Holder& b) {
    const std::string key = keys_.lock(b.key.family, b.key.node, b.key.epoch);
    if (!meta::compatible(a.record.names, b.record.names))
      report(Code::kLockConflict, key,
             fmt::format("names {}, '{}' has {}", mode(b.record.names), a.key.node,
                         mode(a.record.names)));
    for (const meta::FileRange& r : a.record.files)
      for (const meta::FileRange& s : b.record.files)
        if (r.first <= s.last && s.first <= r.last && !meta::compatible(r.mode, s.mode)) {
          report(Code::kLockConflict, key,
                 fmt::format("files {} to {} {}, '{}' has {} to {} {}", s.first, s.last,
                             mode(s.mode), a.key.node, r.first, r.last, mode(r.mode)));
          return;
        }
  }
  static std::string_view mode(meta::LockMode m) {
    return m == meta::LockMode::kExclusive ? "exclusive"
                                           : (m == meta::LockMode::kShared ? "shared" : "none");
  }

  const Image& image_;
  const meta::Keys& keys_;
  Findings& out_;
};

}  // namespace

void check_holders(const Image& image, Findings& out) { Holders(image, out).check(); }

}  // namespace etcfs::check

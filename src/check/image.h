// Image: everything that etcd holds of one filesystem at one revision, decoded, plus the size of
// the device. What cannot be decoded is in `findings`, never dropped in silence. Pure data: the
// checks (check.h) work on it and touch nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "check/finding.h"
#include "meta/kv.h"
#include "meta/schema/keys.h"
#include "meta/schema/records.h"

namespace etcfs::check {

struct Entry {
  std::string name;
  meta::Dirent dirent;
};
struct Holder {  // lock/ or want/
  meta::Keys::HolderKey key;
  meta::LockRecord record;
};
struct Freed {
  meta::Keys::FreedKey key;
  std::vector<meta::DeviceRange> ranges;
};

struct Image {
  explicit Image(meta::Keys k) : keys(std::move(k)) {}
  meta::Keys keys;
  Revision revision;
  std::uint64_t key_count = 0;
  std::optional<std::uint64_t> device_blocks;  // of the device itself, where it was looked at

  std::optional<meta::Super> super;
  std::optional<Family> family_counter;
  std::map<Ino, meta::Inode> inodes;
  std::map<Ino, std::vector<Entry>> entries;  // by directory; names ascending
  std::map<Ino, std::map<std::uint32_t, std::vector<meta::Extent>>> external;
  std::set<Ino> orphans;
  std::vector<Holder> locks, wants;
  std::vector<std::pair<meta::Keys::HoldKey, Epoch>> holds;
  std::map<Ino, std::pair<NodeName, Epoch>> plocks;
  std::map<ArenaNo, meta::Arena> arenas;
  std::map<ArenaNo, std::map<std::uint32_t, std::string>> maps;
  std::vector<Freed> freed;
  std::map<NodeName, Epoch> epochs;
  std::map<NodeName, StepNo> seqs;
  std::map<NodeName, meta::Beat> beats;
  std::map<NodeName, Revision> beat_revisions;  // mod_revision of beat/<node>
  std::map<NodeName, meta::Live> lives;
  std::set<NodeName> fences;

  Findings findings;             // records that do not decode, keys that nobody spells
  std::set<std::string> broken;  // keys of records that do not decode: there, but unreadable

  // Keys are added in ascending order.
  void add(const meta::KeyValue& kv);
};

// Reads every key of the filesystem at one revision, by pages of at most page_keys. Blocks. Each
// page must come within page_timeout. Any error is an error: an image is whole or there is none.
// Starts again, a few times, when the revision is compacted away underneath (kCompacted at last).
Result<Image> load_image(meta::Kv& kv, const meta::Keys& keys,
                         Nanos page_timeout = std::chrono::seconds(30),
                         std::int64_t page_keys = 10'000);

}  // namespace etcfs::check

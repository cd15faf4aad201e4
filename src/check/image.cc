#include "check/image.h"

#include "rt/rt.h"

namespace etcfs::check {
namespace {

// Decodes into `put`; a record that does not is a finding.
template <class T, class Put>
void decoded(Image& image, const meta::KeyValue& kv, Result<T> record, Put put) {
  if (record) {
    put(std::move(*record));
  } else {
    image.broken.insert(kv.key);
    image.findings.push_back(
        {Code::kRecordCorrupt, kv.key,
         "value of " + std::to_string(kv.value.size()) + " bytes does not decode"});
  }
}

bool add_single(Image& image, const meta::KeyValue& kv) {
  if (kv.key == image.keys.super()) {
    decoded(image, kv, meta::decode_super(kv.value), [&](meta::Super v) { image.super = v; });
  } else if (kv.key == image.keys.family_counter()) {
    decoded(image, kv, meta::decode_family_counter(kv.value),
            [&](Family v) { image.family_counter = v; });
  } else {
    return false;
  }
  return true;
}

bool add_tree(Image& image, const meta::KeyValue& kv) {
  const meta::Keys& keys = image.keys;
  if (auto ino = keys.parse_inode(kv.key)) {
    decoded(image, kv, meta::decode_inode(kv.value), [&](meta::Inode v) {
      image.inodes.emplace_hint(image.inodes.end(), *ino, std::move(v));
    });
  } else if (auto d = keys.parse_dirent(kv.key)) {
    decoded(image, kv, meta::decode_dirent(kv.value), [&](meta::Dirent v) {
      image.entries[d->directory].push_back({std::move(d->name), v});
    });
  } else if (auto x = keys.parse_extents(kv.key)) {
    decoded(image, kv, meta::decode_extents(kv.value),
            [&](std::vector<meta::Extent> v) { image.external[x->ino][x->chunk] = std::move(v); });
  } else if (auto orphan = keys.parse_orphan(kv.key)) {
    image.orphans.insert(*orphan);
    if (!kv.value.empty())
      image.findings.push_back({Code::kRecordCorrupt, kv.key, "an orphan key has no value"});
  } else {
    return false;
  }
  return true;
}

bool add_holder(Image& image, const meta::KeyValue& kv) {
  const meta::Keys& keys = image.keys;
  if (auto lock = keys.parse_lock(kv.key)) {
    decoded(image, kv, meta::decode_lock(kv.value), [&](meta::LockRecord v) {
      image.locks.push_back({std::move(*lock), std::move(v)});
    });
  } else if (auto want = keys.parse_want(kv.key)) {
    decoded(image, kv, meta::decode_lock(kv.value), [&](meta::LockRecord v) {
      image.wants.push_back({std::move(*want), std::move(v)});
    });
  } else if (auto hold = keys.parse_hold(kv.key)) {
    decoded(image, kv, meta::decode_hold(kv.value),
            [&](Epoch v) { image.holds.emplace_back(std::move(*hold), v); });
  } else if (auto plock = keys.parse_plock(kv.key)) {
    decoded(image, kv, meta::decode_advisory(kv.value),
            [&](std::pair<NodeName, Epoch> v) { image.plocks[*plock] = std::move(v); });
  } else {
    return false;
  }
  return true;
}

bool add_space(Image& image, const meta::KeyValue& kv) {
  const meta::Keys& keys = image.keys;
  if (auto arena = keys.parse_arena(kv.key)) {
    decoded(image, kv, meta::decode_arena(kv.value),
            [&](meta::Arena v) { image.arenas[*arena] = std::move(v); });
  } else if (auto map = keys.parse_amap(kv.key)) {
    decoded(image, kv, meta::decode_amap(kv.value),
            [&](std::string v) { image.maps[map->arena][map->chunk] = std::move(v); });
  } else if (auto freed = keys.parse_freed(kv.key)) {
    decoded(image, kv, meta::decode_freed(kv.value), [&](std::vector<meta::DeviceRange> v) {
      image.freed.push_back({std::move(*freed), std::move(v)});
    });
  } else {
    return false;
  }
  return true;
}

bool add_node(Image& image, const meta::KeyValue& kv) {
  const meta::Keys& keys = image.keys;
  if (auto epoch = keys.parse_node("epoch", kv.key)) {
    decoded(image, kv, meta::decode_epoch(kv.value), [&](Epoch v) { image.epochs[*epoch] = v; });
  } else if (auto seq = keys.parse_node("seq", kv.key)) {
    decoded(image, kv, meta::decode_sequence(kv.value), [&](StepNo v) { image.seqs[*seq] = v; });
  } else if (auto beat = keys.parse_node("beat", kv.key)) {
    image.beat_revisions[*beat] = kv.mod_revision;
    decoded(image, kv, meta::decode_beat(kv.value),
            [&](meta::Beat v) { image.beats[*beat] = std::move(v); });
  } else if (auto live = keys.parse_node("live", kv.key)) {
    decoded(image, kv, meta::decode_live(kv.value),
            [&](meta::Live v) { image.lives[*live] = std::move(v); });
  } else if (auto fence = keys.parse_node("fence", kv.key)) {
    image.fences.insert(std::move(*fence));
  } else {
    return false;
  }
  return true;
}

Result<Image> load_once(meta::Kv& kv, const meta::Keys& keys, Nanos page_timeout,
                        std::int64_t page_keys) {
  Image image(keys);
  meta::RangeOp op;
  op.key = keys.prefix();
  op.end = meta::prefix_end(keys.prefix());
  op.limit = page_keys;
  for (;;) {
    ETCFS_TRY(meta::RangeReply page, kv.range(op, image.revision, rt::now() + page_timeout));
    if (image.revision == Revision{}) image.revision = page.revision;  // all later pages read there
    for (const meta::KeyValue& item : page.kvs) image.add(item);
    if (!page.more) return image;
    if (page.kvs.empty()) return Reason::kCorrupt;  // "more" without progress would never end
    op.key = page.kvs.back().key + '\0';
  }
}

}  // namespace

void Image::add(const meta::KeyValue& kv) {
  ++key_count;
  if (!add_tree(*this, kv) && !add_space(*this, kv) && !add_holder(*this, kv) &&
      !add_node(*this, kv) && !add_single(*this, kv))
    findings.push_back({Code::kKeyUnknown, kv.key, "no key of this format looks like this"});
}

Result<Image> load_image(meta::Kv& kv, const meta::Keys& keys, Nanos page_timeout,
                         std::int64_t page_keys) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    auto image = load_once(kv, keys, page_timeout, page_keys);
    if (image || image.error() != Reason::kCompacted || tries == kTries) return image;
  }
}

}  // namespace etcfs::check

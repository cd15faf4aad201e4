// A small, whole and correct filesystem as keys and values, for the tests of check/: each test
// breaks one thing in it.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "check/check.h"

namespace etcfs::check {

class TestImage {
 public:
  static constexpr std::uint64_t kArenaBlocks = 8192;             // two chunks of the map
  static constexpr std::uint64_t kDeviceBlocks = 2 * 8192 + 100;  // the third arena is partial
  meta::Keys keys{"t"};
  std::map<std::string, std::string> kvs;

  // The tree:    /            family 1
  //              /d           family 2, gives birth in family 9
  //              /d/e         family 3
  //              /f           1:1, one written and one unwritten extent
  //              /d/g         1:1 as well (a hard link)
  //              /big         1:2, external extents in two chunks
  //              /link        1:3
  //              /fifo        1:4
  //              /null        1:5, a character device
  //              /d/h         9:1, empty
  //              (orphan)     2:7, with an extent
  // Nodes a (epoch 2) and b (epoch 5) are alive, c was fenced at epoch 1.
  const Ino root = kRootIno, d{Family{2}, 0}, e{Family{3}, 0}, f{Family{1}, 1}, big{Family{1}, 2},
            link{Family{1}, 3}, fifo{Family{1}, 4}, null{Family{1}, 5}, h{Family{9}, 1},
            orphan{Family{2}, 7};

  TestImage() {
    meta::Super super;
    super.uuid = std::string(16, 'u');
    super.identity_hash = std::string(32, 'i');
    super.arena_blocks = kArenaBlocks;
    super.device_blocks = kDeviceBlocks;
    kvs[keys.super()] = encode(super);
    kvs[keys.family_counter()] = meta::encode_family_counter(Family{10});

    put_dir(root, root, 4 - 1, Family{1}, 6, 22);
    put_dir(d, root, 3, Family{9}, 2, 19);
    put_dir(e, d, 2, Family{3}, 1, 16);
    put_entry(root, "d", d, 4, 16);
    put_entry(root, "f", f, 8, 17);
    put_entry(root, "big", big, 8, 18);
    put_entry(root, "link", link, 10, 19);
    put_entry(root, "fifo", fifo, 1, 20);
    put_entry(root, "null", null, 2, 21);
    put_entry(d, "e", e, 4, 16);
    put_entry(d, "g", f, 8, 17);
    put_entry(d, "h", h, 8, 18);

    meta::Inode file = inode(S_IFREG | 0644, 2);
    file.size = 5 * kBlockBytes - 1;
    file.extents = {{0, 1, 5, 0, 0}, {5, 6, 3, meta::Extent::kUnwritten, 0}};
    put(f, file);
    meta::Inode large = inode(S_IFREG | 0600, 1);
    large.size = 16400 * kBlockBytes;
    large.external_extents = true;
    put(big, large);
    kvs[keys.extents(big, 0)] = meta::encode_extents({{16380, 100, 10, 0, 0}});  // over the border
    kvs[keys.extents(big, 1)] = meta::encode_extents({{16390, 4090, 10, 0, 0}});
    meta::Inode symlink = inode(S_IFLNK | 0777, 1);
    symlink.symlink = "target";
    put(link, symlink);
    put(fifo, inode(S_IFIFO | 0600, 1));
    meta::Inode device = inode(S_IFCHR | 0600, 1);
    device.rdev = 0x103;
    put(null, device);
    put(h, inode(S_IFREG | 0644, 1));
    meta::Inode gone = inode(S_IFREG | 0644, 0);
    gone.size = 1;
    gone.extents = {{0, 8191, 1, 0, 0}};
    put(orphan, gone);
    kvs[keys.orphan(orphan)] = meta::encode_orphan();

    kvs[keys.freed(ArenaNo{1}, "a-1")] = meta::encode_freed({{8192, 2}, {8200, 1}});
    // Blocks 1..8, 100..109, 4090..4099 and 8191; freed but published 8192, 8193 and 8200.
    set_map(ArenaNo{0}, 0, {{1, 8}, {100, 10}, {4090, 6}});
    set_map(ArenaNo{0}, 1, {{0, 4}, {4095, 1}});
    set_map(ArenaNo{1}, 0, {{0, 2}, {8, 1}});
    kvs[keys.arena(ArenaNo{0})] = encode(meta::Arena{"a", Epoch{2}, kArenaBlocks - 1 - 29});
    kvs[keys.arena(ArenaNo{1})] = encode(meta::Arena{"", Epoch{0}, kArenaBlocks - 3});
    kvs[keys.arena(ArenaNo{2})] = encode(meta::Arena{"c", Epoch{1}, 100});

    put_node("a", Epoch{2}, 100);
    put_node("b", Epoch{5}, 7);
    kvs[keys.epoch("c")] = meta::encode_epoch(Epoch{2});
    kvs[keys.beat("c")] = encode(meta::Beat{Epoch{1}, "boot", "machine", 1, 2});
    kvs[keys.seq("c")] = meta::encode_sequence(StepNo{0});
    put_lock(Family{1}, "a", Epoch{2}, meta::LockMode::kExclusive,
             {{0, 99, meta::LockMode::kShared}, {100, kMaxIndex, meta::LockMode::kExclusive}});
    put_lock(Family{1}, "b", Epoch{5}, meta::LockMode::kNone, {{0, 99, meta::LockMode::kShared}});
    put_lock(Family{1}, "c", Epoch{1}, meta::LockMode::kExclusive,
             {{0, kMaxIndex, meta::LockMode::kExclusive}});  // void
    kvs[keys.want(Family{1}, "b", Epoch{5})] =
        encode(meta::LockRecord{meta::LockMode::kShared, {}, {}});
    kvs[keys.hold(f, "b")] = meta::encode_hold(Epoch{5});
    kvs[keys.plock(f)] = meta::encode_advisory("a", Epoch{2});
    kvs[keys.fence("c")] = "\x08\x01";
  }

  static meta::Inode inode(std::uint32_t mode, std::uint32_t nlink) {
    meta::Inode v;
    v.mode = mode;
    v.nlink = nlink;
    return v;
  }
  void put(Ino ino, const meta::Inode& v) { kvs[keys.inode(ino)] = encode(v); }
  void put_dir(Ino ino, Ino parent, std::uint32_t nlink, Family birth, std::uint32_t bound,
               std::uint64_t next_cookie) {
    meta::Inode v = inode(S_IFDIR | 0755, nlink);
    v.parent = parent;
    v.birth_family = birth;
    v.birth_bound = bound;
    v.next_cookie = next_cookie;
    put(ino, v);
  }
  void put_entry(Ino directory, std::string_view name, Ino ino, std::uint32_t type,
                 std::uint64_t cookie) {
    kvs[keys.dirent(directory, name)] = encode(meta::Dirent{ino, type, cookie});
  }
  void put_node(const NodeName& node, Epoch epoch, std::uint64_t step) {
    kvs[keys.epoch(node)] = meta::encode_epoch(epoch);
    kvs[keys.seq(node)] = meta::encode_sequence(StepNo{step});
    kvs[keys.beat(node)] = encode(meta::Beat{epoch, "boot", "machine", 1, 2});
    kvs[keys.live(node)] = encode(meta::Live{epoch, "host", "", "0.1", "/mnt", {1, 0}});
  }
  void put_lock(Family family, const NodeName& node, Epoch epoch, meta::LockMode names,
                std::vector<meta::FileRange> files) {
    kvs[keys.lock(family, node, epoch)] = encode(meta::LockRecord{names, std::move(files), {}});
  }
  void set_map(ArenaNo n, std::uint32_t chunk, const std::vector<meta::DeviceRange>& used) {
    std::string bits(meta::kArenaChunkBlocks / 8, '\0');
    for (const meta::DeviceRange& r : used)
      for (std::uint64_t b = r.block; b < r.end(); ++b)
        bits[b / 8] |= static_cast<char>(1u << b % 8);
    kvs[keys.amap(n, chunk)] = meta::encode_amap(bits);
  }

  // Changes the record of an inode in place.
  void change(Ino ino, const std::function<void(meta::Inode&)>& edit) {
    auto v = meta::decode_inode(kvs.at(keys.inode(ino)));
    edit(*v);
    put(ino, *v);
  }

  Image image() const {
    Image out(keys);
    out.device_blocks = kDeviceBlocks;
    for (const auto& [key, value] : kvs) out.add({key, value, {}, Revision{1}, 1, 0});
    return out;
  }
  // "code key" of every finding, in order.
  std::vector<std::string> findings() const {
    std::vector<std::string> out;
    for (const Finding& f : check_all(image()))
      out.push_back(std::string(code_name(f.code)) + " " + printable(f.key));
    return out;
  }
};

}  // namespace etcfs::check

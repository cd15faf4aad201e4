// For tests of file data: one node's stack (stream, space, FileIo) on the simulated etcd and
// device, a sparse model of a file's bytes, and what a crash may leave of it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/check.h"
#include "fs/file/file_io.h"
#include "meta/guard.h"
#include "rt/rt.h"
#include "sim/fakes/sim_device.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::fs::test {

using Bytes = std::vector<std::byte>;

// A file's bytes: blocks that are not all zeros (or were written), and the size.
struct Model {
  using Block = std::array<std::byte, kBlockBytes>;
  std::uint64_t size = 0;
  std::map<std::uint64_t, std::shared_ptr<const Block>> blocks;

  const Block* at(std::uint64_t block) const {
    auto it = blocks.find(block);
    return it == blocks.end() ? nullptr : it->second.get();
  }
  void write(std::uint64_t offset, std::span<const std::byte> data) {
    size = std::max<std::uint64_t>(size, offset + data.size());
    while (!data.empty()) {
      const std::uint64_t block = offset >> kBlockShift, in = offset & (kBlockBytes - 1);
      const std::size_t n = std::min<std::size_t>(data.size(), kBlockBytes - in);
      auto fresh = std::make_shared<Block>();
      if (const Block* old = at(block)) *fresh = *old;
      std::memcpy(fresh->data() + in, data.data(), n);
      blocks[block] = std::move(fresh);
      offset += n;
      data = data.subspan(n);
    }
  }
  void truncate(std::uint64_t to) {
    if (to < size) {
      blocks.erase(blocks.lower_bound(blocks_of(to)), blocks.end());
      const std::uint64_t in = to & (kBlockBytes - 1);
      if (const Block* old = in ? at(to >> kBlockShift) : nullptr) {
        auto fresh = std::make_shared<Block>(*old);
        std::memset(fresh->data() + in, 0, kBlockBytes - in);
        blocks[to >> kBlockShift] = std::move(fresh);
      }
    }
    size = to;
  }
  Bytes read(std::uint64_t offset, std::size_t n) const {
    if (offset >= size) return {};
    n = static_cast<std::size_t>(std::min<std::uint64_t>(n, size - offset));
    Bytes out(n);
    for (std::size_t done = 0; done < n;) {
      const std::uint64_t block = (offset + done) >> kBlockShift,
                          in = (offset + done) & (kBlockBytes - 1);
      const std::size_t part = std::min<std::size_t>(n - done, kBlockBytes - in);
      if (const Block* b = at(block)) std::memcpy(out.data() + done, b->data() + in, part);
      done += part;
    }
    return out;
  }
};

inline Bytes flat(const ReadReply& reply) {
  Bytes out;
  for (auto p : reply.pieces) out.insert(out.end(), p.begin(), p.end());
  return out;
}

// Shared by the incarnations of a node: etcd and the medium.
struct World {
  World(std::uint64_t seed, meta::Overwrite overwrite, std::uint64_t device_bytes = 128 * kMiB,
        std::uint64_t arena_bytes = 16 * kMiB)
      : runtime({.simulated = true, .seed = seed}),
        server(runtime),
        disk(runtime, device_bytes),
        keys("test") {
    super.uuid = std::string(16, 'u');
    super.identity_hash = std::string(32, 'h');
    super.arena_blocks = arena_bytes >> kBlockShift;
    super.device_blocks = device_bytes >> kBlockShift;
    super.overwrite = overwrite;
    put(keys.super(), meta::encode(super));
  }
  void put(std::string key, std::string value) {
    meta::Txn txn;
    txn.success.emplace_back(meta::PutOp{std::move(key), std::move(value), 0});
    ASSERT_TRUE(server.txn(txn).done());
  }
  std::uint64_t random(std::uint64_t n) { return runtime.random_below(n); }
  Bytes random_bytes(std::size_t n) {
    Bytes out(n);
    for (std::size_t i = 0; i < n; i += 8) {
      const std::uint64_t v = runtime.random() | 0x0101010101010101ull;  // no zeros by chance
      std::memcpy(out.data() + i, &v, std::min<std::size_t>(8, n - i));
    }
    return out;
  }
  // Runs `body` in a fiber of its own to its end.
  void run(std::function<void()> body) {
    rt::Group group(runtime, "test");
    group.spawn([&] {
      body();
      runtime.stop();
    });
    runtime.run();
    if (group.size() != 0) {
      ADD_FAILURE() << "the test hangs";
      group.kill();
    }
  }
  // Files and space as etcd shows them; empty = clean.
  std::string findings() {
    check::Image image(keys);
    image.device_blocks = super.device_blocks;
    for (const meta::KeyValue& kv : server.dump()) image.add(kv);
    check::Findings found = image.findings;
    check::check_files(image, found);
    check::check_space(image, found);
    std::string out;
    for (const auto& f : found) out += check::to_string(f) + "\n";
    return out;
  }
  // The file as a survivor would find it.
  Model published(Ino ino) {
    Model m;
    std::vector<meta::Extent> extents;
    for (const meta::KeyValue& kv : server.dump()) {
      if (kv.key == keys.inode(ino)) {
        const auto rec = meta::decode_inode(kv.value);
        if (!rec) ADD_FAILURE() << "inode does not decode";
        m.size = rec->size;
        extents.insert(extents.end(), rec->extents.begin(), rec->extents.end());
      } else if (auto x = keys.parse_extents(kv.key); x && x->ino == ino) {
        const auto chunk = meta::decode_extents(kv.value);
        extents.insert(extents.end(), chunk->begin(), chunk->end());
      }
    }
    for (const meta::Extent& e : extents)
      for (std::uint64_t i = 0; i < e.blocks; ++i)
        m.blocks[e.file_block + i] =
            std::make_shared<const Model::Block>(disk.peek(e.device_block + i));
    return m;
  }

  rt::Runtime runtime;
  sim::SimKvServer server;
  sim::SimDisk disk;
  meta::Keys keys;
  meta::Super super;
};

// One incarnation of the node "a". Made and destroyed in a fiber of the test.
struct Node {
  Node(World& w, std::uint64_t epoch_number, std::vector<Epoch> proven_dead,
       std::uint64_t dirty_bytes = 2 * kMiB)
      : world(w),
        group(w.runtime, "node"),
        kv(w.server, group),
        device(w.disk, "a"),
        guard(w.keys, "a", Epoch{epoch_number}),
        stream(kv, w.keys, guard, {}),
        space(kv, w.keys, guard, stream, w.super),
        guarded(device, space),
        io({.kv = kv,
            .keys = w.keys,
            .stream = stream,
            .space = space,
            .device = guarded,
            .overwrite = w.super.overwrite,
            .dirty_bytes = dirty_bytes,
            .dirty_age = 100ms,
            .wall_now = [&w] { return w.runtime.wall_now(); }}) {
    w.put(w.keys.epoch("a"), meta::encode_epoch(Epoch{epoch_number}));
    StepNo last{0};
    for (const meta::KeyValue& pair : w.server.dump())
      if (pair.key == w.keys.seq("a")) last = *meta::decode_sequence(pair.value);
    in_node([&, proven_dead, last] {
      stream.start(last);
      ASSERT_TRUE(space.start(proven_dead));
      io.start();
    });
  }
  ~Node() { group.kill(); }  // fibers that are about to end
  // Runs `body` in a fiber of the node, so that a crash ends what it starts.
  void in_node(std::function<void()> body) {
    bool done = false;
    rt::Condition ended;
    group.spawn([&] {
      body();
      done = true;
      ended.notify_all();
    });
    ended.wait([&] { return done; });
  }
  void stop() {
    in_node([&] {
      EXPECT_TRUE(io.sync_all());
      io.stop();
      EXPECT_EQ(space.reserved_blocks(), 0u);
      EXPECT_EQ(space.allocated_unpublished_blocks(), 0u);
      EXPECT_EQ(io.dirty_bytes(), 0u);
      space.give_back();
      stream.stop();
    });
  }
  void crash() { group.kill(); }

  InodeRef create(Ino ino) {
    auto inode = std::make_shared<InodeState>();
    inode->ino = ino;
    inode->rec.mode = 0100644;
    inode->rec.nlink = 1;
    meta::Step step;
    step.put(world.keys.inode(ino), io.encode_record(*inode));
    stream.append(std::move(step));
    return inode;
  }
  // As the filesystem loads it from etcd.
  InodeRef load(Ino ino) {
    auto reply = kv.range({world.keys.inode(ino), {}}, {}, rt::now() + 10s);
    if (!reply || reply->kvs.size() != 1) {
      ADD_FAILURE() << "no inode";
      return nullptr;
    }
    auto inode = std::make_shared<InodeState>();
    inode->ino = ino;
    inode->rec = *meta::decode_inode(reply->kvs[0].value);
    inode->size = inode->rec.size;
    inode->extents_loaded = !inode->rec.external_extents;
    return inode;
  }
  // flush() and the wait for the stream, as fsync does it.
  Result<void> fsync(const InodeRef& inode, bool data_only = false) {
    ETCFS_CHECK(io.flush(inode, data_only));
    return stream.sync();
  }
  Bytes read(const InodeRef& inode, std::uint64_t offset, std::size_t n) {
    auto r = io.read(inode, offset, n);
    if (!r) {
      ADD_FAILURE() << "read: " << reason_name(r.error());
      return {};
    }
    return flat(*r);
  }
  void write(const InodeRef& inode, std::uint64_t offset, const Bytes& data) {
    auto r = io.write(inode, offset, data, false);
    ASSERT_TRUE(r) << reason_name(r.error());
  }

  World& world;
  rt::Group group;
  sim::SimKv kv;
  sim::SimDevice device;
  meta::Guard guard;
  meta::CommitStream stream;
  block::Space space;
  block::GuardedDevice guarded;
  FileIo io;
};

}  // namespace etcfs::fs::test

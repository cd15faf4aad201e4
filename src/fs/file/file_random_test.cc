// Random operations on several files of one node against a model of bytes, with crashes, device
// errors and power cuts. A run is named by its seed. After a crash each file must be a legal state:
// its size lies between those it had since the last fsync, and every byte stood at its place at
// some moment since then, in a file that was long enough: so no foreign bytes, and no size without
// the data.
#include <algorithm>

#include "fs/file/file_data.h"
#include "fs/file/file_test_bed.h"

namespace etcfs::fs::test {
namespace {

constexpr unsigned kFiles = 3;
Ino ino_of(unsigned i) { return Ino{Family{1}, i + 1}; }

// A file and what a crash may leave of it.
struct Tracked {
  InodeRef inode;
  Model model;
  // Versions since the last fsync, that one first, the present one last.
  std::vector<Model> history;
  std::uint64_t lowest_cut = UINT64_MAX;  // of the truncates since then
  bool reopening = false, nudged = false;
};

struct Fate {
  bool crash = false, power_cut = false, errors = false;
};

class History {
 public:
  History(std::uint64_t seed, meta::Overwrite overwrite, Fate fate)
      : world_(seed, overwrite, 96 * kMiB), fate_(fate) {
    for (Tracked& t : files_) t.history.emplace_back();
  }

  void go(unsigned incarnations) {
    world_.run([&] {
      for (epoch_ = 1; epoch_ <= incarnations && !::testing::Test::HasFailure(); ++epoch_)
        incarnation(epoch_ == incarnations);
    });
  }

 private:
  void incarnation(bool last) {
    std::vector<Epoch> dead;
    if (epoch_ > 1) dead.push_back(Epoch{epoch_ - 1});
    node_ = std::make_unique<Node>(world_, epoch_, dead, 256 * kKiB << world_.random(4));
    sim::SimDeviceOptions options;
    options.late_writes = 0;
    if (fate_.errors)
      options.read_errors = 0, options.write_errors = 400, options.flush_errors = 200;
    node_->device.set_options(options);
    node_->in_node([&] { open_files(); });
    const bool crash = fate_.crash && !last;
    unsigned running = kFiles;
    rt::Condition ended;
    for (unsigned i = 0; i < kFiles; ++i)
      node_->group.spawn([&, i] {
        for (unsigned n = 0; n < 60; ++n) one_op(files_[i]);
        --running;
        ended.notify_all();
      });
    // Write-backs that nobody remembers, so that they overlap with everything else.
    for (int k = 0; k < 2; ++k)
      node_->group.spawn([&, this] {
        while (running > 0) {
          rt::sleep_for(Nanos(world_.random(3'000'000)));
          Tracked& t = files_[world_.random(kFiles)];
          if (t.reopening || t.nudged) continue;
          t.nudged = true;
          (void)node_->io.flush(t.inode, world_.random(2) == 0);
          t.nudged = false;
          ended.notify_all();
        }
      });
    if (crash) {
      ended.wait_until(rt::now() + Nanos(world_.random(400'000'000)), [&] { return running == 0; });
      die();
    } else {
      ended.wait([&] {
        return running == 0 &&
               std::none_of(files_.begin(), files_.end(), [](auto& t) { return t.nudged; });
      });
      leave();
    }
    node_.reset();
    EXPECT_EQ(world_.findings(), "");
    for (unsigned i = 0; i < kFiles; ++i) check_survivor(i);
  }

  void open_files() {
    for (unsigned i = 0; i < kFiles; ++i) {
      Tracked& t = files_[i];
      if (epoch_ == 1) {
        t.inode = node_->create(ino_of(i));
      } else {
        t.inode = node_->load(ino_of(i));
      }
      t.nudged = t.reopening = false;
      t.inode->opens = static_cast<std::uint32_t>(world_.random(2));
    }
    ASSERT_TRUE(node_->stream.sync());
  }

  void die() {
    node_->crash();
    if (fate_.power_cut) world_.disk.power_cut();
    while (node_->device.unfinished() > 0) rt::sleep_for(10ms);
  }

  void leave() {
    node_->in_node([&] {
      for (Tracked& t : files_) {
        while (!node_->fsync(t.inode)) rt::sleep_for(100ms);
        saved(t);
      }
    });
    node_->device.set_options({});
    node_->stop();
  }

  void saved(Tracked& t) {
    t.history.clear();
    t.history.push_back(t.model);
    t.lowest_cut = UINT64_MAX;
  }

  std::uint64_t some_offset(const Tracked& t) {
    switch (world_.random(10)) {
      case 0:
        return t.model.size;
      case 1:
        return 64 * kMiB * (1 + world_.random(3)) - world_.random(20'000);
      case 2:
        return world_.random(3) * kBlockBytes;
      case 3:
        return world_.random(60) * kBlockBytes;
      case 4:
        return t.model.size > 0 ? world_.random(t.model.size) : 0;
      default:
        return world_.random(300'000);
    }
  }
  std::size_t some_length() {
    switch (world_.random(6)) {
      case 0:
        return 1 + world_.random(10);
      case 1:
        return kBlockBytes;
      case 2:
        return (1 + world_.random(10)) * kBlockBytes;
      case 3:
        return 1 + world_.random(200'000);
      default:
        return 1 + world_.random(9'000);
    }
  }

  void one_op(Tracked& t) {
    FileIo& io = node_->io;
    switch (world_.random(12)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const Bytes data = world_.random_bytes(some_length());
        const bool append = world_.random(4) == 0;
        const std::uint64_t at = append ? t.model.size : some_offset(t);
        Model after = t.model;
        after.write(at, data);
        t.history.push_back(after);
        auto r = io.write(t.inode, append ? 1 : at, data, append);
        if (!r) {  // only where the device fails all the time
          EXPECT_TRUE(fate_.errors) << reason_name(r.error());
          break;
        }
        EXPECT_EQ(*r, at);
        t.model = std::move(after);
        break;
      }
      case 4:
      case 5: {
        const std::uint64_t to = world_.random(3) == 0 ? 0 : some_offset(t);
        Model after = t.model;
        after.truncate(to);
        t.history.push_back(after);
        if (to < t.model.size) t.lowest_cut = std::min(t.lowest_cut, to);
        auto r = io.truncate(t.inode, to);
        ASSERT_TRUE(r) << reason_name(r.error());
        t.model = std::move(after);
        break;
      }
      case 6:
      case 7: {
        const bool data_only = world_.random(2) == 0;
        auto r = node_->fsync(t.inode, data_only);
        if (r)
          saved(t);
        else
          EXPECT_TRUE(fate_.errors) << reason_name(r.error());
        break;
      }
      case 8:  // as if the family had been given up and got back
        t.reopening = true;
        while (t.nudged) rt::sleep_for(100us);
        if (node_->fsync(t.inode)) {
          saved(t);
          ASSERT_FALSE(io.is_dirty(*t.inode));
          io.drop(*t.inode);
          EXPECT_EQ(t.inode->data, nullptr);
          t.inode = node_->load(t.inode->ino);
          ASSERT_NE(t.inode, nullptr);
        }
        t.reopening = false;
        break;
      case 9:
        rt::sleep_for(Nanos(world_.random(200'000'000)));
        break;
      default:
        break;
    }
    compare(t);
  }

  void compare(Tracked& t) {
    ASSERT_EQ(t.inode->size, t.model.size);
    const std::uint64_t at = some_offset(t);
    const std::size_t n = some_length();
    ASSERT_EQ(node_->read(t.inode, at, n), t.model.read(at, n)) << "at " << at << " of " << n;
    if (world_.random(10) == 0) {
      ASSERT_EQ(node_->read(t.inode, 0, 400'000), t.model.read(0, 400'000));
    }
  }

  // What etcd and the device show now is legal, and becomes the file's model.
  void check_survivor(unsigned i) {
    Tracked& t = files_[i];
    const Model got = world_.published(ino_of(i));
    std::uint64_t least = UINT64_MAX, most = 0;
    for (const Model& m : t.history) {
      least = std::min(least, m.size);
      most = std::max(most, m.size);
    }
    EXPECT_GE(got.size, least) << "file " << i;
    EXPECT_LE(got.size, most) << "file " << i;
    std::set<std::uint64_t> blocks;
    for (const auto& [b, bytes] : got.blocks) blocks.insert(b);
    for (const Model& m : t.history)
      for (const auto& [b, bytes] : m.blocks) blocks.insert(b);
    for (std::uint64_t b : blocks) {
      if (b >= blocks_of(got.size)) continue;
      const std::uint64_t at = b << kBlockShift;
      const auto in = static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, got.size - at));
      check_block(t, got, b, in, i);
    }
    t.model = got;
    // Behind the end anything may stand on the device; the model has zeros there.
    t.model.size = kMaxFileBytes;
    t.model.truncate(got.size);
    saved(t);
  }

  void check_block(const Tracked& t, const Model& got, std::uint64_t b, std::size_t bytes,
                   unsigned file) {
    static const Model::Block kZeros{};
    const auto of = [&](const Model& m) {
      const Model::Block* p = m.at(b);
      return p ? p : &kZeros;
    };
    const Model::Block* have = of(got);
    for (const Model& m : t.history)  // nearly always one of the versions as a whole
      if (m.size >= (b << kBlockShift) + bytes &&
          std::memcmp(have->data(), of(m)->data(), bytes) == 0)
        return;
    for (std::size_t k = 0; k < bytes; ++k) {
      const std::uint64_t at = (b << kBlockShift) + k;
      const bool legal = std::any_of(t.history.begin(), t.history.end(), [&](const Model& m) {
        return m.size > at && (*have)[k] == (*of(m))[k];
      });
      // Cut away at some moment: the block may have been made zeros in place for a growth.
      if (!legal && t.lowest_cut <= at && world_.super.overwrite == meta::Overwrite::kInPlace &&
          (*have)[k] == std::byte{0})
        continue;
      ASSERT_TRUE(legal) << "file " << file << " byte " << at << " of " << got.size << " is "
                         << static_cast<int>((*have)[k]);
    }
  }

  World world_;
  const Fate fate_;
  std::uint64_t epoch_ = 1;
  std::unique_ptr<Node> node_;
  std::array<Tracked, kFiles> files_;
};

class RandomFiles : public ::testing::TestWithParam<meta::Overwrite> {
 protected:
  void seeds(std::uint64_t first, std::uint64_t count, Fate fate, unsigned incarnations) {
    if (const char* one = std::getenv("ETCFS_SEED")) {
      first = std::strtoull(one, nullptr, 10);
      count = 1;
    }
    for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      History(seed, GetParam(), fate).go(incarnations);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(FileIo, RandomFiles,
                         ::testing::Values(meta::Overwrite::kInPlace, meta::Overwrite::kRedirect),
                         [](const auto& p) {
                           return p.param == meta::Overwrite::kInPlace ? "InPlace" : "Redirect";
                         });

TEST_P(RandomFiles, MatchTheModel) { seeds(1000, 25, {}, 2); }
TEST_P(RandomFiles, AreLegalAfterACrash) { seeds(2000, 25, {.crash = true}, 5); }
TEST_P(RandomFiles, AreLegalAfterAPowerCut) {
  seeds(3000, 25, {.crash = true, .power_cut = true}, 5);
}
TEST_P(RandomFiles, SurviveDeviceErrors) { seeds(4000, 20, {.errors = true}, 2); }
TEST_P(RandomFiles, SurviveDeviceErrorsAndCrashes) {
  seeds(5000, 20, {.crash = true, .power_cut = true, .errors = true}, 4);
}

}  // namespace
}  // namespace etcfs::fs::test

#include "fs/file/file_io.h"

#include <algorithm>

#include "fs/file/file_test_bed.h"

namespace etcfs::fs::test {
namespace {

constexpr Ino kIno{Family{1}, 1};

class EachMode : public ::testing::TestWithParam<meta::Overwrite> {};
INSTANTIATE_TEST_SUITE_P(FileIo, EachMode,
                         ::testing::Values(meta::Overwrite::kInPlace, meta::Overwrite::kRedirect),
                         [](const auto& p) {
                           return p.param == meta::Overwrite::kInPlace ? "InPlace" : "Redirect";
                         });

// Runs `body` on a fresh node and checks the image after a clean stop.
void on_node(World& w, std::function<void(Node&)> body, std::uint64_t dirty_bytes = 2 * kMiB) {
  w.run([&] {
    Node node(w, 1, {}, dirty_bytes);
    node.in_node([&] { body(node); });
    node.stop();
    EXPECT_EQ(w.findings(), "");
  });
}

TEST_P(EachMode, ReadsWhatWasWritten) {
  World w(1, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    const Bytes data = w.random_bytes(10'000);
    n.write(f, 100, data);
    EXPECT_EQ(f->size, 10'100u);
    EXPECT_EQ(f->rec.size, 0u);  // nothing is published yet
    Bytes want(10'100);
    std::copy(data.begin(), data.end(), want.begin() + 100);
    EXPECT_EQ(n.read(f, 0, 20'000), want);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(f->rec.size, 10'100u);
    EXPECT_EQ(f->rec.extents.size(), 1u);
    EXPECT_EQ(n.io.dirty_bytes(), 0u);
    EXPECT_EQ(n.read(f, 0, 20'000), want);
    EXPECT_EQ(n.read(f, 10'099, 5), Bytes(1, want.back()));
    EXPECT_EQ(n.read(f, 10'100, 5), Bytes());
    const Model m = w.published(kIno);
    EXPECT_EQ(m.read(0, 20'000), want);
  });
}

TEST_P(EachMode, OverwriteKeepsOrMovesBlocks) {
  World w(2, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, w.random_bytes(64 * kKiB));
    ASSERT_TRUE(n.fsync(f));
    const auto before = f->rec.extents;
    const auto steps = n.stream.last_appended();
    const Bytes data = w.random_bytes(kBlockBytes);
    n.write(f, 8 * kKiB, data);
    ASSERT_TRUE(n.fsync(f, true));
    if (GetParam() == meta::Overwrite::kInPlace) {
      EXPECT_EQ(f->rec.extents, before);
      EXPECT_EQ(n.stream.last_appended(), steps);  // times follow lazily
      EXPECT_TRUE(f->attrs_dirty);
    } else {
      EXPECT_EQ(f->rec.extents.size(), 3u);
      EXPECT_EQ(n.stream.last_appended().v, steps.v + 1);
    }
    EXPECT_EQ(w.published(kIno).read(8 * kKiB, kBlockBytes), data);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_FALSE(f->attrs_dirty);
  });
}

TEST_P(EachMode, SequentialWriteIsOneExtent) {
  World w(3, GetParam());
  on_node(
      w,
      [&](Node& n) {
        auto f = n.create(kIno);
        Bytes data = w.random_bytes(kMiB);
        for (int i = 0; i < 12; ++i) {
          n.write(f, static_cast<std::uint64_t>(i) * kMiB, data);
          rt::sleep_for(20ms);
        }
        ASSERT_TRUE(n.fsync(f));
        EXPECT_EQ(f->rec.extents.size(), 1u);
        EXPECT_EQ(f->rec.size, 12 * kMiB);
      },
      4 * kMiB);
}

TEST_P(EachMode, AppendPlacesAtTheEnd) {
  World w(4, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    f->opens = 1;
    Model m;
    for (int i = 0; i < 50; ++i) {
      const Bytes data = w.random_bytes(333);
      auto at = n.io.write(f, 7, data, true);
      ASSERT_TRUE(at);
      EXPECT_EQ(*at, static_cast<std::uint64_t>(i) * 333);
      m.write(*at, data);
      if (i % 3 == 0) {
        ASSERT_TRUE(n.fsync(f));
      }
    }
    EXPECT_EQ(n.read(f, 0, kMiB), m.read(0, kMiB));
  });
}

TEST_P(EachMode, TruncateThenWriteNeverShowsAnEmptyFile) {
  World w(5, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, w.random_bytes(100 * kKiB));
    ASSERT_TRUE(n.fsync(f));
    ASSERT_TRUE(n.io.truncate(f, 0));
    EXPECT_EQ(f->size, 0u);
    EXPECT_EQ(f->rec.size, 100 * kKiB);
    EXPECT_EQ(n.io.blocks512(*f), 0u);
    EXPECT_EQ(n.read(f, 0, 10), Bytes());
    n.write(f, 0, w.random_bytes(5));
    const auto steps = n.stream.last_appended();
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(n.stream.last_appended().v, steps.v + 1);
    EXPECT_EQ(f->rec.size, 5u);
    EXPECT_EQ(f->rec.extents.size(), 1u);
  });
}

// What is on its way when the file is cut must not carry the cut: the new data is not there yet.
TEST_P(EachMode, RewritingInALoopNeverShowsAnEmptyFile) {
  for (std::uint64_t seed = 200; seed < 205; ++seed) {
    SCOPED_TRACE(seed);
    World w(seed, GetParam());
    on_node(w, [&](Node& n) {
      auto f = n.create(kIno);
      n.write(f, 0, Bytes(30'000, std::byte{1}));
      ASSERT_TRUE(n.fsync(f));
      bool done = false;
      rt::Group group(w.runtime);
      group.spawn([&] {
        for (int i = 0; i < 150; ++i) {
          ASSERT_TRUE(n.io.truncate(f, 0));
          n.write(f, 0, Bytes(1 + w.random(60'000), std::byte{2}));
          rt::sleep_for(Nanos(w.random(700'000)));
        }
        done = true;
      });
      for (int k = 0; k < 2; ++k)
        group.spawn([&] {
          while (!done) {
            EXPECT_TRUE(n.io.flush(f));
            EXPECT_GT(f->rec.size, 0u);
            rt::sleep_for(Nanos(w.random(500'000)));
          }
        });
      group.wait();
    });
  }
}

TEST_P(EachMode, GrowthShowsZeros) {
  World w(6, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    Bytes data = w.random_bytes(3 * kBlockBytes);
    n.write(f, 0, data);
    ASSERT_TRUE(n.fsync(f));
    ASSERT_TRUE(n.io.truncate(f, 5000));
    ASSERT_TRUE(n.fsync(f));
    ASSERT_TRUE(n.io.truncate(f, 3 * kBlockBytes));
    Bytes want(3 * kBlockBytes);
    std::copy_n(data.begin(), 5000, want.begin());
    EXPECT_EQ(n.read(f, 0, kMiB), want);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(w.published(kIno).read(0, kMiB), want);
    ASSERT_TRUE(n.io.truncate(f, 4500));
    n.write(f, 9000, Bytes(1, std::byte{7}));
    want.assign(9001, std::byte{0});
    std::copy_n(data.begin(), 4500, want.begin());
    want[9000] = std::byte{7};
    EXPECT_EQ(n.read(f, 0, kMiB), want);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(w.published(kIno).read(0, kMiB), want);
  });
}

TEST_P(EachMode, HolesCostNothing) {
  World w(7, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    EXPECT_EQ(n.io.truncate(f, kMaxFileBytes + 1).error(), Reason::kFileTooBig);
    ASSERT_TRUE(n.io.truncate(f, kMaxFileBytes));
    EXPECT_EQ(n.read(f, kMaxFileBytes - 3, 10), Bytes(3));
    EXPECT_EQ(n.io.write(f, kMaxFileBytes, Bytes(1), false).error(), Reason::kFileTooBig);
    EXPECT_EQ(n.io.write(f, kMaxFileBytes - 1, Bytes(2), false).error(), Reason::kFileTooBig);
    n.write(f, kMaxFileBytes - 1, Bytes(1, std::byte{9}));
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(f->rec.size, kMaxFileBytes);
    EXPECT_EQ(n.io.blocks512(*f), 8u);
    EXPECT_EQ(n.read(f, kMaxFileBytes - 2, 10), (Bytes{std::byte{0}, std::byte{9}}));
    EXPECT_EQ(*n.io.seek(f, 0, SeekWhat::kData), (kMaxFileBytes - 1) / kBlockBytes * kBlockBytes);
    EXPECT_EQ(*n.io.seek(f, 0, SeekWhat::kHole), 0u);
    EXPECT_EQ(*n.io.seek(f, kMaxFileBytes - 1, SeekWhat::kHole), kMaxFileBytes);
    EXPECT_EQ(n.io.seek(f, kMaxFileBytes, SeekWhat::kData).error(), Reason::kNoSuchOffset);
  });
}

TEST_P(EachMode, FewExtentsStandFarOut) {
  World w(17, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    std::uint64_t written = 0;
    for (std::uint64_t at = std::uint64_t{1} << 58;; at += 2 * kBlockBytes) {
      const auto r = n.io.write(f, at, Bytes(1), false);
      if (!r) {
        EXPECT_EQ(r.error(), Reason::kFileTooBig);
        break;
      }
      ASSERT_LT(++written, 5000u);
      if (written % 500 == 0) {
        ASSERT_TRUE(n.fsync(f));
      }
    }
    EXPECT_GE(written, 4000u);  // the block with the end may count twice while it is dirty
    EXPECT_LE(written, 4096u);
    ASSERT_TRUE(n.fsync(f));
    n.write(f, 0, Bytes(10));  // elsewhere it goes on
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(n.io.blocks512(*f), (written + 1) * 8);
  });
}

// A failed write-back of the block with the end must not let the file grow over what stands behind.
TEST_P(EachMode, AFailedAppendPublishesNoByteThatNobodyWrote) {
  World w(18, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, w.random_bytes(5000));
    ASSERT_TRUE(n.fsync(f));
    n.device.fail_writes(3);
    n.write(f, 5000, w.random_bytes(20'000));
    EXPECT_EQ(n.fsync(f).error(), Reason::kIo);
    EXPECT_EQ(f->rec.size, 5000u);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(f->rec.size, 25'000u);
  });
}

// Both of two who wait for the same failed write-back hear of it.
TEST_P(EachMode, EachOfTwoFlushesHearsOfAFailure) {
  World w(19, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, w.random_bytes(20'000));
    n.device.fail_writes(3);
    std::vector<Result<void>> results;
    rt::Condition ended;
    for (int i = 0; i < 2; ++i)
      n.group.spawn([&] {
        results.push_back(n.io.flush(f));
        ended.notify_all();
      });
    ended.wait([&] { return results.size() == 2; });
    for (const auto& r : results) EXPECT_EQ(r.error(), Reason::kIo);
    ASSERT_TRUE(n.fsync(f));
  });
}

// The caller's step carries all of it: nothing of a file goes before its name does.
TEST_P(EachMode, DeletionOfAnIdleFileIsOneStep) {
  World w(20, GetParam());
  on_node(w, [&](Node& n) {
    auto small = n.create(kIno);
    n.write(small, 0, Bytes(3 * kBlockBytes));
    ASSERT_TRUE(n.fsync(small));
    EXPECT_FALSE(n.io.deletion_may_block(*small));
    const StepNo before = n.stream.last_appended();
    meta::Step step;
    small->gone = true;
    ASSERT_TRUE(n.io.add_deletion(small, step));
    EXPECT_EQ(n.stream.last_appended(), before);
    n.stream.append(std::move(step));
    ASSERT_TRUE(n.stream.sync());
  });
}

TEST_P(EachMode, SeekSeesDirtyAndPublishedData) {
  World w(8, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 2 * kBlockBytes, w.random_bytes(kBlockBytes));
    ASSERT_TRUE(n.fsync(f));
    n.write(f, 5 * kBlockBytes + 10, w.random_bytes(10));
    EXPECT_EQ(*n.io.seek(f, 0, SeekWhat::kData), 2 * kBlockBytes);
    EXPECT_EQ(*n.io.seek(f, 2 * kBlockBytes + 5, SeekWhat::kData), 2 * kBlockBytes + 5);
    EXPECT_EQ(*n.io.seek(f, 2 * kBlockBytes, SeekWhat::kHole), 3 * kBlockBytes);
    EXPECT_EQ(*n.io.seek(f, 3 * kBlockBytes, SeekWhat::kData), 5 * kBlockBytes);
    EXPECT_EQ(*n.io.seek(f, 5 * kBlockBytes, SeekWhat::kHole), f->size);
    EXPECT_EQ(n.io.blocks512(*f), 16u);
  });
}

TEST_P(EachMode, ManyExtentsGoOutsideAndComeBack) {
  World w(9, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    Model m;
    const auto put = [&](std::uint64_t block) {
      const Bytes data = w.random_bytes(kBlockBytes);
      n.write(f, block * kBlockBytes, data);
      m.write(block * kBlockBytes, data);
    };
    // 200 blocks with holes between them, over five chunks of 64 MiB.
    for (std::uint64_t i = 0; i < 200; ++i) {
      put(i * 400);
      if (i % 20 == 19) {
        ASSERT_TRUE(n.fsync(f));
      }
      EXPECT_EQ(f->rec.external_extents, (i + 1) / 20 * 20 > 64) << i;
    }
    EXPECT_TRUE(f->rec.extents.empty());
    EXPECT_EQ(n.io.blocks512(*f), 1600u);
    n.io.drop(*f);
    EXPECT_FALSE(f->extents_loaded);
    auto g = n.load(kIno);
    EXPECT_FALSE(g->extents_loaded);
    for (std::uint64_t i = 0; i < 200; ++i)
      ASSERT_EQ(n.read(g, i * 400 * kBlockBytes, 9000), m.read(i * 400 * kBlockBytes, 9000)) << i;
    for (std::uint64_t b : {400u, 80'000u - 400u, 7u}) {
      const Bytes data = w.random_bytes(5000);
      n.write(g, b * kBlockBytes + 1, data);
      m.write(b * kBlockBytes + 1, data);
    }
    ASSERT_TRUE(n.fsync(g));
    EXPECT_EQ(w.findings(), "");
    ASSERT_TRUE(n.io.truncate(g, 8000 * kBlockBytes + 10));
    m.truncate(8000 * kBlockBytes + 10);
    ASSERT_TRUE(n.fsync(g));
    EXPECT_FALSE(g->rec.external_extents);
    EXPECT_LE(g->rec.extents.size(), 32u);
    for (std::uint64_t b = 0; b < 8001; b += 100)
      ASSERT_EQ(n.read(g, b * kBlockBytes, 9000), m.read(b * kBlockBytes, 9000)) << b;
  });
}

TEST_P(EachMode, DeletionFreesEverything) {
  World w(10, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    for (std::uint64_t i = 0; i < 100; ++i) n.write(f, i * 300 * kBlockBytes, Bytes(10'000));
    ASSERT_TRUE(n.fsync(f));
    n.write(f, 0, Bytes(10'000));
    ASSERT_TRUE(n.io.truncate(f, 90 * 300 * kBlockBytes));
    meta::Step step;
    f->gone = true;
    ASSERT_TRUE(n.io.add_deletion(f, step));
    n.stream.append(std::move(step));
    ASSERT_TRUE(n.stream.sync());
    EXPECT_EQ(n.io.dirty_bytes(), 0u);
    EXPECT_EQ(n.space.reserved_blocks(), 0u);
    for (const auto& kv : w.server.dump()) {
      EXPECT_FALSE(w.keys.parse_inode(kv.key));
      EXPECT_FALSE(w.keys.parse_extents(kv.key));
    }
  });
}

TEST(FileIo, DeletionOfAFileThatNeedsManySteps) {
  World w(11, meta::Overwrite::kRedirect, kGiB, 256 * kMiB);
  on_node(
      w,
      [&](Node& n) {
        auto f = n.create(kIno);
        auto g = n.create(Ino{Family{1}, 2});
        // Two files grown in turns: small pieces in many map chunks.
        for (std::uint64_t i = 0; i < 300; ++i) {
          n.write(f, i * 256 * kKiB, Bytes(256 * kKiB, std::byte{1}));
          ASSERT_TRUE(n.io.flush(f));
          n.write(g, i * 512 * kKiB, Bytes(512 * kKiB, std::byte{2}));
          ASSERT_TRUE(n.io.flush(g));
        }
        EXPECT_TRUE(f->rec.external_extents);
        for (const InodeRef& inode : {f, g}) {
          meta::Step step;
          ASSERT_TRUE(n.io.add_deletion(inode, step));
          n.stream.append(std::move(step));
          ASSERT_TRUE(n.stream.sync());
          EXPECT_EQ(w.findings(), "");
        }
      },
      8 * kMiB);
}

TEST_P(EachMode, FullDeviceIsReportedByWrite) {
  World w(12, GetParam(), 16 * kMiB);
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    std::uint64_t at = 0;
    Result<std::uint64_t> r = std::uint64_t{0};
    while ((r = n.io.write(f, at, Bytes(64 * kKiB, std::byte{1}), false))) at += 64 * kKiB;
    EXPECT_EQ(r.error(), Reason::kNoSpace);
    EXPECT_GE(at, 15 * kMiB);
    ASSERT_TRUE(n.fsync(f));
    // In place needs no space; truncating gives it back, also before the cut is published.
    if (GetParam() == meta::Overwrite::kInPlace) n.write(f, 0, Bytes(at, std::byte{2}));
    ASSERT_TRUE(n.io.truncate(f, 1000));
    n.write(f, 1000, Bytes(8 * kMiB, std::byte{3}));
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(n.read(f, 5000, 1), Bytes(1, std::byte{3}));
  });
}

TEST_P(EachMode, DeviceErrorIsReportedAndNothingIsLost) {
  World w(13, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    Model m;
    const Bytes data = w.random_bytes(3 * kMiB / 2);
    n.write(f, 0, data);
    m.write(0, data);
    n.device.fail_writes(100);
    EXPECT_EQ(n.fsync(f).error(), Reason::kIo);
    EXPECT_TRUE(n.io.is_dirty(*f));
    EXPECT_EQ(f->rec.size, 0u);
    EXPECT_EQ(n.read(f, 0, 2 * kMiB), m.read(0, 2 * kMiB));
    n.device.fail_writes(0);
    EXPECT_TRUE(n.fsync(f));
    EXPECT_EQ(w.published(kIno).read(0, 2 * kMiB), m.read(0, 2 * kMiB));
    n.write(f, 100, Bytes(10'000));
    m.write(100, Bytes(10'000));
    n.device.fail_flushes(1);
    EXPECT_EQ(n.fsync(f).error(), Reason::kIo);
    EXPECT_TRUE(n.fsync(f));
    EXPECT_EQ(w.published(kIno).read(0, 2 * kMiB), m.read(0, 2 * kMiB));
  });
}

TEST_P(EachMode, BackgroundErrorReachesTheNextFlushOnce) {
  World w(14, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, Bytes(10'000, std::byte{1}));
    n.device.fail_writes(3);
    rt::sleep_for(5s);
    EXPECT_FALSE(n.io.is_dirty(*f));
    EXPECT_EQ(f->rec.size, 10'000u);
    EXPECT_EQ(n.io.flush(f).error(), Reason::kIo);
    EXPECT_TRUE(n.io.flush(f));
  });
}

TEST_P(EachMode, ManySmallFilesShareRequestsAndFlush) {
  World w(15, GetParam());
  on_node(
      w,
      [&](Node& n) {
        unsigned writes = 0;
        w.disk.on_write([&](const std::string&, std::uint64_t, std::uint64_t) { ++writes; });
        std::vector<InodeRef> files;
        for (std::uint32_t i = 1; i <= 500; ++i) {
          files.push_back(n.create(Ino{Family{1}, i}));
          n.write(files.back(), 0, Bytes(4000, static_cast<std::byte>(i)));
        }
        rt::sleep_for(2s);
        EXPECT_LE(writes, 12u);
        std::uint64_t next = files[0]->rec.extents.at(0).device_block;
        for (std::uint32_t i = 0; i < 500; ++i) {
          EXPECT_FALSE(n.io.is_dirty(*files[i]));
          EXPECT_EQ(files[i]->rec.extents.at(0).device_block, next++);  // side by side
          EXPECT_EQ(n.read(files[i], 0, 5000), Bytes(4000, static_cast<std::byte>(i + 1)));
          EXPECT_EQ(files[i]->data, nullptr);
        }
      },
      64 * kMiB);
}

TEST_P(EachMode, AnAttributeStepDoesNotPublishASize) {
  World w(16, GetParam());
  on_node(w, [&](Node& n) {
    auto f = n.create(kIno);
    n.write(f, 0, Bytes(5000, std::byte{1}));
    f->rec.mode = 0100600;  // chmod
    meta::Step step;
    step.put(w.keys.inode(kIno), n.io.encode_record(*f));
    n.stream.append(std::move(step));
    ASSERT_TRUE(n.stream.sync());
    EXPECT_EQ(w.published(kIno).size, 0u);
    ASSERT_TRUE(n.fsync(f));
    EXPECT_EQ(n.load(kIno)->rec.mode, 0100600u);
    EXPECT_EQ(w.published(kIno).size, 5000u);
  });
}

TEST_P(EachMode, WritersWaitWhenTooMuchIsDirty) {
  World w(17, GetParam());
  on_node(
      w,
      [&](Node& n) {
        rt::Group writers(w.runtime);
        for (std::uint32_t i = 1; i <= 4; ++i)
          writers.spawn([&, i] {
            auto f = n.create(Ino{Family{1}, i});
            for (std::uint64_t k = 0; k < 40; ++k) {
              n.write(f, k * 50'000, Bytes(50'000, static_cast<std::byte>(i)));
              EXPECT_LE(n.io.dirty_bytes(), 256 * kKiB + 4 * 64 * kKiB);
            }
            EXPECT_EQ(n.read(f, 0, 3 * kMiB), Bytes(2'000'000, static_cast<std::byte>(i)));
          });
        writers.wait();
      },
      256 * kKiB);
}

// A family that is being released: background write-back must keep off, and the writer that the
// release waits for must still get room.
TEST_P(EachMode, WriterOfAReleasedFamilyMakesItsOwnRoom) {
  World w(18, GetParam());
  on_node(
      w,
      [&](Node& n) {
        auto released = std::make_shared<bool>(true);
        n.io.set_pin([released](InodeState&) { return !*released; }, [](InodeState&) {});
        auto f = n.create(kIno);
        for (std::uint64_t k = 0; k < 20; ++k) n.write(f, k * 40'000, Bytes(40'000, std::byte{1}));
        EXPECT_EQ(f->size, 800'000u);
        *released = false;
      },
      128 * kKiB);
}

TEST_P(EachMode, ReadersSeeWholeWrites) {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    World w(seed, GetParam());
    SCOPED_TRACE(seed);
    on_node(w, [&](Node& n) {
      auto f = n.create(kIno);
      constexpr std::size_t kSize = 40'000;
      n.write(f, 1000, Bytes(kSize, std::byte{1}));
      ASSERT_TRUE(n.fsync(f));
      bool done = false;
      rt::Group group(w.runtime);
      group.spawn([&] {
        for (int i = 2; i < 60; ++i) {
          n.write(f, 1000, Bytes(kSize, static_cast<std::byte>(i)));
          rt::sleep_for(Nanos(w.random(2'000'000)));
        }
        done = true;
      });
      group.spawn([&] {
        while (!done) {
          EXPECT_TRUE(n.io.flush(f));
          rt::sleep_for(Nanos(w.random(3'000'000)));
        }
      });
      for (int r = 0; r < 2; ++r)
        group.spawn([&] {
          while (!done) {
            const Bytes got = n.read(f, 1000, kSize);
            ASSERT_EQ(got.size(), kSize);
            EXPECT_EQ(got, Bytes(kSize, got[0]));
            rt::sleep_for(Nanos(w.random(500'000)));
          }
        });
      group.wait();
    });
  }
}

}  // namespace
}  // namespace etcfs::fs::test

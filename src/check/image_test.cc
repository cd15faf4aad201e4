#include "check/image.h"

#include <gtest/gtest.h>

#include <functional>

#include "check/check.h"
#include "check/test_image.h"
#include "rt/rt.h"
#include "sim/fakes/sim_kv.h"

namespace etcfs::check {
namespace {

struct LoadImage : ::testing::Test {
  TestImage t;
  void run(const std::function<void(sim::SimKv&, sim::SimKvServer&)>& body) {
    rt::Options options;
    options.simulated = true;
    rt::Runtime runtime(options);
    sim::SimKvServer server(runtime);
    rt::Group group(runtime, "test");
    group.spawn([&] {
      {
        for (const auto& [key, value] : t.kvs) put(server, key, value);
        sim::SimKv kv(server, group);
        body(kv, server);
      }
      runtime.stop();
    });
    runtime.run();
  }
  static void put(sim::SimKvServer& server, const std::string& key, const std::string& value) {
    meta::Txn txn;
    txn.success.emplace_back(meta::PutOp{key, value, 0});
    ASSERT_TRUE(server.txn(txn).done());
  }
};

// A Kv that does something before each range.
class Hooked final : public meta::Kv {
 public:
  Hooked(meta::Kv& kv, std::function<void(int)> before) : kv_(kv), before_(std::move(before)) {}
  Result<meta::RangeReply> range(const meta::RangeOp& op, Revision at, Time deadline) override {
    before_(++ranges);
    limits.push_back(op.limit);
    return kv_.range(op, at, deadline);
  }
  meta::TxnOutcome txn(const meta::Txn& txn, Time deadline) override {
    return kv_.txn(txn, deadline);
  }
  Result<std::int64_t> lease_grant(std::chrono::seconds, Time) override {
    return Reason::kNotSupported;
  }
  Result<void> lease_keepalive(std::int64_t, Time) override { return Reason::kNotSupported; }
  Result<void> lease_revoke(std::int64_t, Time) override { return Reason::kNotSupported; }
  Result<std::unique_ptr<meta::Watch>> watch(std::string, std::string, Revision,
                                             std::function<void(const meta::WatchBatch&)>,
                                             std::function<void()>, Time) override {
    return Reason::kNotSupported;
  }
  Result<void> compact(Revision, Time) override { return Reason::kNotSupported; }
  Result<Status> status(Time) override { return Reason::kNotSupported; }
  int ranges = 0;
  std::vector<std::int64_t> limits;

 private:
  meta::Kv& kv_;
  std::function<void(int)> before_;
};

TEST_F(LoadImage, ReadsEverythingByPages) {
  for (std::int64_t page : {1, 2, 7, 10'000})
    run([&](sim::SimKv& kv, sim::SimKvServer& server) {
      auto image = load_image(kv, t.keys, 5s, page);
      ASSERT_TRUE(image);
      EXPECT_EQ(image->key_count, t.kvs.size());
      EXPECT_EQ(image->revision, server.revision());
      EXPECT_TRUE(check_all(*image).empty());
      EXPECT_EQ(image->inodes.size(), 10u);
      EXPECT_EQ(image->beat_revisions.size(), 3u);
    });
}

TEST_F(LoadImage, OtherFilesystemsAreNotRead) {
  run([&](sim::SimKv& kv, sim::SimKvServer& server) {
    put(server, "/etcfs/t0/i/0000000001/000000", "x");
    put(server, "/etcfs/s/super", "x");
    auto image = load_image(kv, t.keys);
    ASSERT_TRUE(image);
    EXPECT_EQ(image->key_count, t.kvs.size());
  });
}

TEST_F(LoadImage, AllPagesAreOfOneRevision) {
  run([&](sim::SimKv& kv, sim::SimKvServer& server) {
    const Revision before = server.revision();
    Hooked hooked(kv, [&](int n) {
      if (n == 2) put(server, t.keys.inode(t.h), "changed while we read");
    });
    auto image = load_image(hooked, t.keys, 5s, 5);
    ASSERT_TRUE(image);
    EXPECT_EQ(image->revision, before);
    EXPECT_TRUE(check_all(*image).empty());
  });
}

TEST_F(LoadImage, StartsAgainWhenItsRevisionIsCompactedAway) {
  run([&](sim::SimKv& kv, sim::SimKvServer& server) {
    Hooked hooked(kv, [&](int n) {
      if (n != 3) return;
      put(server, "/other", "");
      ASSERT_TRUE(server.compact(server.revision()));
    });
    auto image = load_image(hooked, t.keys, 5s, 5);
    ASSERT_TRUE(image);
    EXPECT_EQ(image->revision, server.revision());
    EXPECT_EQ(image->key_count, t.kvs.size());
    EXPECT_TRUE(check_all(*image).empty());
  });
}

TEST_F(LoadImage, GivesUpWhenCompactionIsAlwaysFaster) {
  run([&](sim::SimKv& kv, sim::SimKvServer& server) {
    Hooked hooked(kv, [&](int) {
      put(server, "/other", "");
      ASSERT_TRUE(server.compact(server.revision()));
    });
    auto image = load_image(hooked, t.keys, 5s, 5);
    ASSERT_FALSE(image);
    EXPECT_EQ(image.error(), Reason::kCompacted);
    EXPECT_EQ(hooked.ranges, 6);  // three times the first page and one more
  });
}

TEST_F(LoadImage, NoAnswerIsAnErrorAndNoImage) {
  run([&](sim::SimKv& kv, sim::SimKvServer&) {
    Hooked hooked(kv, [&](int n) { kv.set_partitioned(n == 2); });
    auto image = load_image(hooked, t.keys, 1s, 5);
    ASSERT_FALSE(image);
    EXPECT_TRUE(image.error() == Reason::kTimeout || image.error() == Reason::kUnavailable);
  });
}

TEST_F(LoadImage, AnEmptyPrefixIsAnEmptyImage) {
  t.kvs.clear();
  run([&](sim::SimKv& kv, sim::SimKvServer&) {
    auto image = load_image(kv, t.keys);
    ASSERT_TRUE(image);
    EXPECT_EQ(image->key_count, 0u);
    EXPECT_FALSE(check_all(*image).empty());
  });
}

}  // namespace
}  // namespace etcfs::check

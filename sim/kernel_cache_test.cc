#include <gtest/gtest.h>
#include <sys/stat.h>

#include "sim/fakes/sim_kernel_cache.h"

namespace etcfs::sim {
namespace {

class KernelCacheTest : public ::testing::Test {
 protected:
  KernelCacheTest() : runtime_(simulated()), cache_(runtime_) {}
  static rt::Options simulated() {
    rt::Options o;
    o.simulated = true;
    return o;
  }
  void run(std::function<void()> body) {
    rt::Group group(runtime_);
    group.spawn(std::move(body));
    runtime_.run();
  }
  fs::Attr attr(std::uint64_t size) {
    fs::Attr a;
    a.ino = kFile;
    a.mode = S_IFREG | 0644;
    a.size = size;
    return a;
  }
  static constexpr Ino kFile{kRootFamily, 7};
  rt::Runtime runtime_;
  SimKernelCache cache_;
};

TEST_F(KernelCacheTest, NamesAndAttributesRunOut) {
  run([&] {
    fs::Entry entry{.ino = kFile, .attr = attr(0), .attr_timeout = 2s, .entry_timeout = 1s};
    cache_.took_entry(kRootIno, "f", entry);
    EXPECT_EQ(cache_.find_name(kRootIno, "f"), kFile);
    EXPECT_TRUE(cache_.find_attr(kFile));
    rt::sleep_for(1s);
    EXPECT_FALSE(cache_.find_name(kRootIno, "f"));
    EXPECT_TRUE(cache_.find_attr(kFile));
    rt::sleep_for(1s);
    EXPECT_FALSE(cache_.find_attr(kFile));
  });
}

TEST_F(KernelCacheTest, ExpiredNamesAreAskedForAgain) {
  run([&] {
    cache_.took_entry(kRootIno, "f",
                      {.ino = Ino{}, .attr = {}, .attr_timeout = {}, .entry_timeout = 1s});
    EXPECT_EQ(cache_.find_name(kRootIno, "f"), Ino{});
    EXPECT_TRUE(cache_.expire_names(kRootIno, {"f", "g"}, rt::now() + 1s));
    EXPECT_FALSE(cache_.find_name(kRootIno, "f"));
    ASSERT_EQ(cache_.calls().size(), 1u);
    EXPECT_EQ(cache_.calls()[0].names, (std::vector<std::string>{"f", "g"}));
  });
}

TEST_F(KernelCacheTest, ReadsAreAnsweredFromWholePagesOnly) {
  run([&] {
    const std::string bytes = std::string(4096, 'x') + std::string(100, 'y');
    cache_.took_attr(attr(4196), 10s);
    cache_.took_pages(kFile, 0, bytes, true);
    EXPECT_EQ(cache_.find_bytes(kFile, 0, 10000), bytes);
    EXPECT_EQ(cache_.find_bytes(kFile, 4000, 196), bytes.substr(4000, 196));
    cache_.invalidate(kFile, 4096, 4096);
    EXPECT_FALSE(cache_.find_bytes(kFile, 0, 10));  // its attributes are gone too
    cache_.took_attr(attr(4196), 10s);
    EXPECT_EQ(cache_.find_bytes(kFile, 0, 10), std::string(10, 'x'));
    EXPECT_FALSE(cache_.find_bytes(kFile, 4095, 2));
  });
}

TEST_F(KernelCacheTest, WritesGoThroughPagesThatAreThere) {
  run([&] {
    cache_.took_attr(attr(8192), 10s);
    cache_.took_pages(kFile, 0, std::string(4096, 'x'), false);
    cache_.wrote_pages(kFile, 4090, "abcdefgh");  // the second page is not cached
    EXPECT_EQ(cache_.find_bytes(kFile, 4088, 8), "xxabcdef");
    EXPECT_FALSE(cache_.find_bytes(kFile, 4088, 9));
    cache_.wrote_pages(kFile, 4096, std::string(4096, 'z'));
    EXPECT_EQ(cache_.find_bytes(kFile, 4095, 2), "fz");
  });
}

TEST_F(KernelCacheTest, StoreOfTheLastBytePushesTheSizeUp) {
  run([&] {
    cache_.took_attr(attr(3), 10s);
    cache_.took_pages(kFile, 0, "abc", true);
    cache_.store_last_byte(kFile, 5, std::byte{'e'});
    EXPECT_EQ(cache_.find_attr(kFile)->size, 5u);
    EXPECT_EQ(cache_.find_bytes(kFile, 0, 10), std::string("abc\0e", 5));
  });
}

}  // namespace
}  // namespace etcfs::sim

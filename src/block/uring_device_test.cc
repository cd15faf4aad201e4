// What the contract suite does not say: opening, the lock of a node name, ends of fibers.
#include "block/uring_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "rt/rt.h"

namespace etcfs::block {
namespace {

class UringDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "etcfs-uring-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    path_ = name;
    ASSERT_EQ(::truncate(path_.c_str(), 8 << 20), 0);
  }
  void TearDown() override { ::unlink(path_.c_str()); }
  void run(const std::function<void()>& body) {
    rt::Runtime runtime;
    rt::Group group(runtime, "test");
    bool ended = false;
    group.spawn([&] {
      body();
      ended = true;
      runtime.stop();
    });
    runtime.run();
    EXPECT_TRUE(ended);
  }
  std::unique_ptr<UringDevice> open(UringDevice::Options options = {.allow_file = true}) {
    auto device = UringDevice::open(path_, options);
    EXPECT_TRUE(device) << reason_name(device.error());
    return std::move(*device);
  }
  std::string path_;
};

TEST_F(UringDeviceTest, AFileMustBeAskedFor) {
  run([&] {
    EXPECT_EQ(UringDevice::open(path_, {}).error(), Reason::kInvalid);
    EXPECT_EQ(UringDevice::open("/", {.allow_file = true}).error(), Reason::kInvalid);
    EXPECT_EQ(UringDevice::open("/dev/null", {.allow_file = true}).error(), Reason::kInvalid);
    EXPECT_EQ(UringDevice::open(path_ + ".none", {.allow_file = true}).error(), Reason::kNotFound);
    ASSERT_EQ(::truncate(path_.c_str(), 100), 0);
    EXPECT_EQ(UringDevice::open(path_, {.allow_file = true}).error(), Reason::kInvalid);
  });
}

TEST_F(UringDeviceTest, AFileIsFlushed) {
  run([&] {
    auto device = open();
    EXPECT_FALSE(device->is_block_device());
    EXPECT_TRUE(device->has_volatile_cache());
    EXPECT_NE(device->node_ino(), 0u);
    EXPECT_TRUE(device->flush());
  });
}

TEST_F(UringDeviceTest, ReadOnlyRefusesWrites) {
  run([&] {
    auto device = open({.allow_file = true, .read_only = true});
    Buffer b = Buffer::allocate(4096);
    std::memset(b.data(), 1, b.size());
    const std::span<const std::byte> piece = b.span();
    EXPECT_EQ(device->write(0, {&piece, 1}).error(), Reason::kIo);
    EXPECT_TRUE(device->read(0, b.span()));
    EXPECT_EQ(b.data()[0], std::byte{0});
  });
}

TEST_F(UringDeviceTest, TheLockOfANodeNameIsExclusive) {
  run([&] {
    auto first = open(), second = open();
    EXPECT_TRUE(*first->try_lock_node("a"));
    EXPECT_TRUE(*first->try_lock_node("a"));  // ours already
    EXPECT_FALSE(*second->try_lock_node("a"));
    EXPECT_TRUE(*second->try_lock_node("b"));  // another name, another place
    first.reset();
    EXPECT_TRUE(*second->try_lock_node("a"));
  });
}

TEST_F(UringDeviceTest, AFileThatShrankGivesAnError) {
  run([&] {
    auto device = open();
    ASSERT_EQ(::truncate(path_.c_str(), 4 << 20), 0);
    Buffer b = Buffer::allocate(2 << 20);
    EXPECT_EQ(device->read(3 << 20, b.span()).error(), Reason::kIo);  // half of it is gone
    EXPECT_TRUE(device->read(0, b.span()));
    EXPECT_EQ(*device->poll_size(), std::uint64_t{4 << 20});
  });
}

TEST_F(UringDeviceTest, AKilledFiberLeavesNoRequestBehind) {
  run([&] {
    auto device = open();
    rt::Group victims(rt::Runtime::current(), "victims");
    for (int i = 0; i < 200; ++i)  // more than the queue holds
      victims.spawn([&, i] {
        Buffer b = Buffer::allocate(32 << 10);
        std::memset(b.data(), i, b.size());
        const std::span<const std::byte> piece = b.span();
        (void)device->write(static_cast<std::uint64_t>(i) * (32 << 10), {&piece, 1});
        (void)device->flush();
      });
    rt::yield();
    victims.kill();
    EXPECT_EQ(device->requests_in_flight(), 0u);
    Buffer b = Buffer::allocate(1 << 20);
    EXPECT_TRUE(device->read(0, b.span()));  // and it goes on
    EXPECT_TRUE(device->flush());
  });
}

TEST_F(UringDeviceTest, FlushesAreShared) {
  run([&] {
    auto device = open();
    Buffer b = Buffer::allocate(1 << 20);
    std::memset(b.data(), 1, b.size());
    const std::span<const std::byte> piece = b.span();
    ASSERT_TRUE(device->write(0, {&piece, 1}));
    rt::Group group(rt::Runtime::current(), "flushes");
    std::size_t most = 0;
    int done = 0;
    for (int i = 0; i < 100; ++i)
      group.spawn([&] {
        EXPECT_TRUE(device->flush());
        most = std::max(most, device->requests_in_flight());
        ++done;
      });
    group.wait();
    EXPECT_EQ(done, 100);
    EXPECT_LE(most, 1u);
  });
}

}  // namespace
}  // namespace etcfs::block

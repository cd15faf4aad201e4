// The kernel is one end of a SEQPACKET socket here: what arrives there is what it would be told.
#include "fuse/kernel_cache.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "fuse/protocol.h"

namespace etcfs::fuse {
namespace {

struct Sent {
  int code = 0;
  std::string body;
};

class KernelCacheTest : public ::testing::Test {
 protected:
  KernelCacheTest() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
  }
  ~KernelCacheTest() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void in_fiber(std::function<void()> body) {
    rt::Group group(runtime_);
    group.spawn([&] {
      body();
      runtime_.stop();
    });
    runtime_.run();
  }
  Sent receive(int flags = 0) {
    char text[8192];
    const ssize_t n = ::recv(ends_[1], text, sizeof text, flags);
    Sent sent;
    if (n < static_cast<ssize_t>(sizeof(fuse_out_header))) return sent;
    fuse_out_header header;
    std::memcpy(&header, text, sizeof header);
    EXPECT_EQ(header.len, static_cast<std::uint32_t>(n));
    EXPECT_EQ(header.unique, 0u);
    sent.code = header.error;
    sent.body.assign(text + sizeof header, static_cast<std::size_t>(n) - sizeof header);
    return sent;
  }
  template <class T>
  static T head(const Sent& sent) {
    T out{};
    EXPECT_GE(sent.body.size(), sizeof out);
    std::memcpy(&out, sent.body.data(), std::min(sizeof out, sent.body.size()));
    return out;
  }

  rt::Runtime runtime_;
  int ends_[2];
};

TEST_F(KernelCacheTest, WithoutAMountEverythingSucceedsAndNothingIsSent) {
  KernelCache cache(runtime_);
  in_fiber([&] {
    EXPECT_TRUE(cache.expire_names(kRootIno, {"a"}, rt::now() + 1s));
    cache.invalidate(kRootIno, 0, 0);
    cache.invalidate_all({kRootIno});
    cache.invalidate_attributes(kRootIno);
    cache.store_last_byte(kRootIno, 5, std::byte{1});
    cache.prune({kRootIno});
  });
}

TEST_F(KernelCacheTest, ExpiresNamesAndNeverInvalidatesThem) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  cache.set_expire_entries(true);
  in_fiber([&] { EXPECT_TRUE(cache.expire_names(kRootIno, {"ab", "c"}, rt::now() + 5s)); });
  const Sent first = receive();
  EXPECT_EQ(first.code, FUSE_NOTIFY_INVAL_ENTRY);
  const auto out = head<fuse_notify_inval_entry_out>(first);
  EXPECT_EQ(out.parent, 1u);  // the root's node id
  EXPECT_EQ(out.flags, unsigned{FUSE_EXPIRE_ONLY});
  EXPECT_EQ(out.namelen, 2u);
  EXPECT_EQ(first.body.substr(sizeof out), std::string("ab\0", 3));
  EXPECT_EQ(receive().body.substr(sizeof out), std::string("c\0", 2));
}

TEST_F(KernelCacheTest, AKernelThatCannotExpireIsNotAsked) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  in_fiber([&] { EXPECT_FALSE(cache.expire_names(kRootIno, {"a"}, rt::now() + 5s)); });
  EXPECT_EQ(receive(MSG_DONTWAIT).body, "");
}

TEST_F(KernelCacheTest, DropsPagesAndAttributes) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  const Ino file(Family{5}, 6);
  in_fiber([&] {
    cache.invalidate(file, 4096, 8192);
    cache.invalidate_attributes(file);
  });
  const Sent pages = receive();
  EXPECT_EQ(pages.code, FUSE_NOTIFY_INVAL_INODE);
  auto out = head<fuse_notify_inval_inode_out>(pages);
  EXPECT_EQ(out.ino, file.v);
  EXPECT_EQ(out.off, 4096);
  EXPECT_EQ(out.len, 8192);
  out = head<fuse_notify_inval_inode_out>(receive());
  EXPECT_EQ(out.off, -1);
  EXPECT_EQ(out.len, 0);
}

TEST_F(KernelCacheTest, ManyInodesAreAllDroppedWhole) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  std::vector<Ino> inodes;
  for (std::uint32_t i = 1; i <= 100; i++) inodes.emplace_back(Family{5}, i);
  in_fiber([&] { cache.invalidate_all(inodes); });
  for (Ino ino : inodes) {
    const auto out = head<fuse_notify_inval_inode_out>(receive());
    EXPECT_EQ(out.ino, ino.v);
    EXPECT_EQ(out.off, 0);
    EXPECT_EQ(out.len, 0);
  }
}

TEST_F(KernelCacheTest, StoresTheLastByteAndPrunes) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  const Ino file(Family{5}, 6);
  in_fiber([&] { cache.store_last_byte(file, 10, std::byte{'z'}); });
  const Sent store = receive();
  EXPECT_EQ(store.code, FUSE_NOTIFY_STORE);
  const auto out = head<fuse_notify_store_out>(store);
  EXPECT_EQ(out.nodeid, file.v);
  EXPECT_EQ(out.offset, 9u);
  EXPECT_EQ(out.size, 1u);
  EXPECT_EQ(store.body.substr(sizeof out), "z");
  in_fiber([&] { cache.prune({file, kRootIno}); });
  const Sent prune = receive();
  EXPECT_EQ(prune.code, kNotifyPrune);
  EXPECT_EQ(head<NotifyPruneOut>(prune).count, 2u);
  ASSERT_EQ(prune.body.size(), sizeof(NotifyPruneOut) + 16);
  std::uint64_t nodes[2];
  std::memcpy(nodes, prune.body.data() + sizeof(NotifyPruneOut), sizeof nodes);
  EXPECT_EQ(nodes[0], file.v);
  EXPECT_EQ(nodes[1], 1u);
}

// The socket is full, so the notifications block like those behind a parked request.
TEST_F(KernelCacheTest, BlockedNamesGiveUpAtTheDeadlineAndAreNotRepeated) {
  KernelCache cache(runtime_);
  cache.attach(ends_[0]);
  cache.set_expire_entries(true);
  const std::string filler(1024, 'f');
  int fillers = 0;
  while (::send(ends_[0], filler.data(), filler.size(), MSG_DONTWAIT) > 0) fillers++;
  ASSERT_GT(fillers, 0);
  const Ino directory(Family{9}, 0);
  in_fiber([&] {
    EXPECT_FALSE(cache.expire_names(directory, {"first", "second"}, rt::now() + 50ms));
    EXPECT_FALSE(cache.expire_names(directory, {"third"}, rt::now() + 50ms));  // waits behind
  });
  char text[4096];
  for (int i = 0; i < fillers; i++) ASSERT_GT(::recv(ends_[1], text, sizeof text, 0), 0);
  // The blocked one comes through late, which does no harm; its successors were given up.
  EXPECT_EQ(receive().body.substr(sizeof(fuse_notify_inval_entry_out)), std::string("first\0", 6));
  in_fiber([&] { EXPECT_TRUE(cache.expire_names(directory, {"fourth"}, rt::now() + 5s)); });
  EXPECT_EQ(receive().body.substr(sizeof(fuse_notify_inval_entry_out)), std::string("fourth\0", 7));
}

}  // namespace
}  // namespace etcfs::fuse

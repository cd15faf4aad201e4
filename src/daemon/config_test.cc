#include "daemon/config.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstdio>
#include <fstream>

namespace etcfs::daemon {
namespace {

Parsed parse(std::vector<const char*> args) {
  return parse_command_line(static_cast<int>(args.size()), args.data());
}

std::vector<const char*> usual(std::vector<const char*> more = {}) {
  std::vector<const char*> args{"/usr/bin/etcfs", "--etcd",   "e1:2379,e2:2379", "--fs", "data",
                                "--device",       "/dev/sdx", "--node",          "n1",   "/mnt"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Config, TakesTheUsualCommandLine) {
  const Parsed p = parse(usual());
  ASSERT_TRUE(p.config) << p.text;
  EXPECT_EQ(p.config->endpoints, (std::vector<std::string>{"e1:2379", "e2:2379"}));
  EXPECT_EQ(p.config->fs_name, "data");
  EXPECT_EQ(p.config->device, "/dev/sdx");
  EXPECT_EQ(p.config->node, "n1");
  EXPECT_EQ(p.config->mountpoint, "/mnt");
  EXPECT_EQ(p.config->source, "etcfs#data");
  EXPECT_FALSE(p.config->foreground);
  EXPECT_FALSE(p.config->helper);
  EXPECT_EQ(p.config->ttl, 3s);
  EXPECT_EQ(p.config->mount.flags, 0ul);
}

TEST(Config, TakesOptions) {
  const Parsed p = parse(usual({"-o", "ro,noatime", "-o", "sync,readdirplus=never", "--foreground",
                                "--ttl", "1.5", "--dirty-bytes", "64M", "--log-level", "debug"}));
  ASSERT_TRUE(p.config) << p.text;
  EXPECT_EQ(p.config->mount.flags, static_cast<unsigned long>(MS_RDONLY | MS_NOATIME | MS_SYNCHRONOUS));
  EXPECT_TRUE(p.config->mount.sync);
  EXPECT_EQ(p.config->mount.readdirplus, fuse::ReaddirPlus::kNever);
  EXPECT_TRUE(p.config->foreground);
  EXPECT_EQ(p.config->ttl, 1500ms);
  EXPECT_EQ(p.config->dirty_bytes, 64 * kMiB);
  EXPECT_EQ(p.config->log_level, log::Level::kDebug);
}

void expect_refused(const Parsed& p, int status, const std::string& word) {
  EXPECT_FALSE(p.config);
  EXPECT_EQ(p.status, status);
  EXPECT_NE(p.text.find(word), std::string::npos) << p.text;
  EXPECT_EQ(p.text.find('\n'), p.text.size() - 1) << "one line: " << p.text;
}

TEST(Config, RefusesInOnePlainLine) {
  expect_refused(parse({"etcfs", "--fs", "data", "--device", "/d", "/mnt"}), 2, "--etcd");
  expect_refused(parse({"etcfs", "--etcd", "e:1", "--device", "/d", "/mnt"}), 2, "--fs");
  expect_refused(parse({"etcfs", "--etcd", "e:1", "--fs", "data", "/mnt"}), 2, "--device");
  expect_refused(parse({"etcfs", "--etcd", "e:1", "--fs", "data", "--device", "/d"}), 2,
                 "directory");
  expect_refused(parse({"etcfs", "--etcd", "e:1", "--fs", "a/b", "--device", "/d", "/m"}), 2,
                 "a/b");
  expect_refused(parse(usual({"--nosuchoption"})), 2, "nosuchoption");
  expect_refused(parse(usual({"-o", "nosuchthing"})), 2, "nosuchthing");
  expect_refused(parse(usual({"-o", "ro=1"})), 2, "ro=1");
  expect_refused(parse(usual({"--ttl", "0"})), 2, "--ttl");
  expect_refused(parse(usual({"--dirty-bytes", "x"})), 2, "--dirty-bytes");
  expect_refused(parse(usual({"--log-level", "loud"})), 2, "--log-level");
}

TEST(Config, HelpNamesEveryOption) {
  const Parsed p = parse({"etcfs", "--help"});
  EXPECT_FALSE(p.config);
  EXPECT_EQ(p.status, 0);
  for (const char* option : {"--etcd",        "--fs",
                             "--device",      "--node",
                             "mountpoint",    "--options",
                             "--foreground",  "--ca",
                             "--cert",        "--key",
                             "--user",        "--password-file",
                             "--ttl",         "--start-timeout",
                             "--dirty-bytes", "--cached-inodes",
                             "--log-level",   "--log-file",
                             "--config",      "--version"})
    EXPECT_NE(p.text.find(option), std::string::npos) << option;
}

TEST(Config, ReadsAFileAndLetsTheCommandLineOverrideIt) {
  const std::string path = ::testing::TempDir() + "etcfs_config_test.toml";
  std::ofstream(path) << "etcd = [\"f1:1\", \"f2:2\"]\nfs = \"filed\"\ndevice = \"/dev/f\"\n"
                         "ttl = 7.5\nnode = \"fn\"\nforeground = true\n";
  const Parsed p = parse({"etcfs", "--config", path.c_str(), "--node", "cn", "/mnt"});
  std::remove(path.c_str());
  ASSERT_TRUE(p.config) << p.text;
  EXPECT_EQ(p.config->endpoints, (std::vector<std::string>{"f1:1", "f2:2"}));
  EXPECT_EQ(p.config->fs_name, "filed");
  EXPECT_EQ(p.config->device, "/dev/f");
  EXPECT_EQ(p.config->node, "cn");
  EXPECT_EQ(p.config->ttl, 7500ms);
  EXPECT_TRUE(p.config->foreground);
}

TEST(Config, AFileMayNameTheMountpointButNothingUnknown) {
  const std::string path = ::testing::TempDir() + "etcfs_config_test2.toml";
  const std::string known = "etcd = [\"f:1\"]\nfs = \"x\"\ndevice = \"/d\"\nmountpoint = \"/m\"\n";
  std::ofstream(path) << known;
  const Parsed good = parse({"etcfs", "--config", path.c_str()});
  std::ofstream(path) << known << "nosuchkey = 1\n";
  const Parsed bad = parse({"etcfs", "--config", path.c_str()});
  std::remove(path.c_str());
  ASSERT_TRUE(good.config) << good.text;
  EXPECT_EQ(good.config->mountpoint, "/m");
  expect_refused(bad, 2, "nosuchkey");
}

TEST(Config, HelperOfMount) {
  const Parsed p = parse({"/sbin/mount.etcfs", "e1:2379,e2:2379/data", "/mnt", "-v", "-o",
                          "rw,device=/dev/sdx,node=n1,_netdev,nofail,x-systemd.automount,nosuid"});
  ASSERT_TRUE(p.config) << p.text;
  EXPECT_TRUE(p.config->helper);
  EXPECT_EQ(p.config->endpoints, (std::vector<std::string>{"e1:2379", "e2:2379"}));
  EXPECT_EQ(p.config->fs_name, "data");
  EXPECT_EQ(p.config->device, "/dev/sdx");
  EXPECT_EQ(p.config->node, "n1");
  EXPECT_EQ(p.config->source, "e1:2379,e2:2379/data");  // as in fstab, so that `mount -a` knows it
  EXPECT_EQ(p.config->mount.flags, static_cast<unsigned long>(MS_NOSUID));
}

TEST(Config, HelperRefuses) {
  expect_refused(parse({"mount.etcfs", "e:1/data", "/mnt"}), 1, "device=");
  expect_refused(parse({"mount.etcfs", "data", "/mnt", "-o", "device=/d"}), 1, "'data'");
  expect_refused(parse({"mount.etcfs", "e:1/data"}), 1, "usage");
  expect_refused(parse({"mount.etcfs", "e:1/data", "/m", "-o"}), 1, "-o");
  expect_refused(parse({"mount.etcfs", "e:1/data", "/m", "-q"}), 1, "-q");
  const Parsed fake = parse({"mount.etcfs", "e:1/data", "/m", "-f", "-o", "device=/d,node=n"});
  EXPECT_FALSE(fake.config);
  EXPECT_EQ(fake.status, 0);
}

TEST(MountSource, IsEndpointsSlashName) {
  const auto s = parse_mount_source("https://e1:2379,e2/data");
  ASSERT_TRUE(s);
  EXPECT_EQ(s->endpoints, (std::vector<std::string>{"https://e1:2379", "e2"}));
  EXPECT_EQ(s->fs_name, "data");
  EXPECT_FALSE(parse_mount_source("data"));
  EXPECT_FALSE(parse_mount_source("/data"));
  EXPECT_FALSE(parse_mount_source("e1:2379/"));
  EXPECT_FALSE(parse_mount_source("http://data"));
}

TEST(ParseBytes, BinaryUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("2m"), 2 * kMiB);
  EXPECT_FALSE(parse_bytes(""));
  EXPECT_FALSE(parse_bytes("M"));
  EXPECT_FALSE(parse_bytes("-1K"));
  EXPECT_FALSE(parse_bytes("1X"));
  EXPECT_FALSE(parse_bytes("1Kx"));
}

TEST(MountOptions, LaterOnesWin) {
  Config c;
  EXPECT_EQ(apply_mount_options("ro,rw", c), "");
  EXPECT_EQ(c.mount.flags, 0ul);
  EXPECT_EQ(apply_mount_options("noatime,relatime", c), "");
  EXPECT_EQ(c.mount.flags, static_cast<unsigned long>(MS_RELATIME));
}

}  // namespace
}  // namespace etcfs::daemon

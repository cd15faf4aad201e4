// etcfsctl as a whole, against a real etcd and image files: exit status, exact lines, JSON.
#include "ctl/commands.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "block/identity.h"
#include "meta/etcd/etcd_kv.h"
#include "tests/contract/etcd_server.h"

namespace etcfs::testing {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status = -1;
  std::string out, err;
};

struct Ctl : ::testing::Test {
  static void SetUpTestSuite() {
    if (!EtcdServer::installed()) return;
    server = std::make_unique<EtcdServer>();
    ASSERT_TRUE(server->start()) << server->log();
  }
  static void TearDownTestSuite() { server.reset(); }

  void SetUp() override {
    if (!EtcdServer::installed()) GTEST_SKIP() << "no etcd program";
    std::string pattern = (fs::temp_directory_path() / "etcfsctl-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir = pattern;
    ::unsetenv("ETCFS_ETCD");
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    name = info->name();
  }
  void TearDown() override {
    if (!dir.empty()) fs::remove_all(dir);
  }

  std::string image(const std::string& file, std::uint64_t bytes) const {
    const std::string path = (dir / file).string();
    std::ofstream(path).close();
    fs::resize_file(path, bytes);
    return path;
  }
  Outcome run(std::vector<std::string> args) const {
    std::vector<const char*> argv{"etcfsctl"};
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    std::ostringstream out, err;
    Outcome outcome;
    outcome.status = ctl::run(static_cast<int>(argv.size()), argv.data(), out, err);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  // With --etcd and --fs of this test.
  Outcome ctl(std::string command, std::vector<std::string> rest = {}) const {
    std::vector<std::string> args{std::move(command), "--etcd", server->endpoint(), "--fs", name};
    args.insert(args.end(), rest.begin(), rest.end());
    return run(std::move(args));
  }
  Outcome mkfs(const std::string& device, std::vector<std::string> rest = {}) const {
    std::vector<std::string> args{"--device", device};
    args.insert(args.end(), rest.begin(), rest.end());
    return ctl("mkfs", args);
  }
  void refused(const Outcome& outcome, const std::string& line, int status = 1) const {
    EXPECT_EQ(outcome.status, status);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "etcfsctl: " + line + "\n");
  }

  void with_kv(const std::function<void(meta::Kv&)>& body) const {
    rt::Runtime runtime;
    rt::Group group(runtime, "test");
    group.spawn([&] {
      {
        meta::EtcdOptions options;
        options.endpoints = {server->endpoint()};
        auto kv = meta::connect(options);
        ASSERT_TRUE(kv);
        body(**kv);
      }
      runtime.stop();
    });
    runtime.run();
  }
  void put(const std::string& key, const std::string& value) const {
    with_kv([&](meta::Kv& kv) {
      meta::Txn txn;
      txn.success.emplace_back(meta::PutOp{key, value, 0});
      ASSERT_TRUE(kv.txn(txn, rt::now() + 10s).done());
    });
  }
  std::string get(const std::string& key) const {
    std::string value = "(absent)";
    with_kv([&](meta::Kv& kv) {
      meta::RangeOp op;
      op.key = key;
      auto reply = kv.range(op, Revision{}, rt::now() + 10s);
      ASSERT_TRUE(reply);
      if (!reply->kvs.empty()) value = reply->kvs[0].value;
    });
    return value;
  }
  meta::Keys keys() const { return meta::Keys(name); }

  static std::unique_ptr<EtcdServer> server;
  fs::path dir;
  std::string name;
};
std::unique_ptr<EtcdServer> Ctl::server;

std::string block0(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string block(4096, '\0');
  in.read(block.data(), 4096);
  return block;
}

TEST_F(Ctl, MkfsMakesAFilesystemThatCheckFindsClean) {
  const std::string device = image("disk", 256 * kMiB);
  Outcome made = mkfs(device);
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.err, "");
  const std::string uuid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
  EXPECT_TRUE(std::regex_match(
      made.out, std::regex("filesystem '" + name + "' made on " + device +
                           ": 256.0 MiB in 16 arenas of 16.0 MiB, overwrite redirect, uuid " +
                           uuid + "\nmount it with: etcfs --etcd " + server->endpoint() + " --fs " +
                           name + " --device " + device + " MOUNTPOINT\n")))
      << made.out;
  auto super = meta::decode_super(get(keys().super()));
  ASSERT_TRUE(super);
  EXPECT_EQ(super->device_blocks, 65536u);
  EXPECT_EQ(super->arena_blocks, 4096u);
  EXPECT_EQ(super->identity_hash, block::sha256(block0(device)));
  EXPECT_EQ(super->overwrite, meta::Overwrite::kRedirect);

  Outcome check = ctl("check", {"--device", device});
  EXPECT_EQ(check.status, 0) << check.out << check.err;
  EXPECT_TRUE(std::regex_match(
      check.out, std::regex(name + ": 3 keys at revision [0-9]+, 1 inodes, 0 entries: clean\n")))
      << check.out;
  Outcome df = ctl("df");
  EXPECT_EQ(df.status, 0);
  EXPECT_EQ(df.out.substr(df.out.find('\n') + 1),
            name + "  256.0 MiB  0 B   256.0 MiB  0%    1       16      0\n");
  Outcome nodes = ctl("nodes");
  EXPECT_EQ(nodes.status, 0);
  EXPECT_EQ(nodes.out, "NODE  STATE  EPOCH  ARENAS  HOST  ADDRESS  VERSION  STARTED  MOUNTPOINT\n");
}

TEST_F(Ctl, MkfsTakesItsOptions) {
  const std::string device = image("disk", 256 * kMiB);
  Outcome made = mkfs(device, {"--arena-size", "64M", "--overwrite", "in-place", "--json"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find("\"arena_bytes\": 67108864,"), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("\"overwrite\": \"in-place\""), std::string::npos) << made.out;
  EXPECT_EQ(meta::decode_super(get(keys().super()))->overwrite, meta::Overwrite::kInPlace);
}

TEST_F(Ctl, MkfsRefusesWhatCannotBeADevice) {
  const std::string none = (dir / "none").string();
  refused(mkfs(none), none + ": cannot open the device: No such file or directory");
  refused(mkfs(dir.string()),
          dir.string() +
              ": not a block device (a regular file is taken too, as an image for one node)");
  const std::string small = image("small", 15 * kMiB);
  refused(mkfs(small),
          small + " has 15.0 MiB, which is less than one arena of 16.0 MiB: take a larger device");
  refused(mkfs(small, {"--force"}),
          small + " has 15.0 MiB, which is less than one arena of 16.0 MiB: take a larger device");
  const std::string few = image("few", 60 * kMiB);
  refused(mkfs(few), few +
                         " has 60.0 MiB, which is less than 4 arenas of 16.0 MiB: take a larger "
                         "device, a smaller --arena-size, or --force");
  EXPECT_EQ(block0(few), std::string(4096, '\0'));
  EXPECT_EQ(get(keys().super()), "(absent)");
  EXPECT_EQ(mkfs(few, {"--force"}).status, 0);
}

TEST_F(Ctl, MkfsRefusesBadArenaSizes) {
  const std::string device = image("disk", 256 * kMiB);
  refused(
      mkfs(device, {"--arena-size", "48M"}),
      "an arena of 50331648 bytes: --arena-size takes a power of two from 16.0 MiB to 64.0 GiB");
  refused(mkfs(device, {"--arena-size", "8M"}),
          "an arena of 8388608 bytes: --arena-size takes a power of two from 16.0 MiB to 64.0 GiB");
  refused(mkfs(device, {"--arena-size", "much"}), "--arena-size: 'much' is not a size like 64M", 2);
}

TEST_F(Ctl, MkfsRefusesAnExistingName) {
  ASSERT_EQ(mkfs(image("one", 64 * kMiB)).status, 0);
  const std::string two = image("two", 64 * kMiB);
  refused(mkfs(two),
          "a filesystem named '" + name + "' exists: take another --fs, or --force destroys it");
  EXPECT_EQ(block0(two), std::string(4096, '\0'));
}

TEST_F(Ctl, MkfsRefusesADeviceWithASignature) {
  const std::string device = image("disk", 64 * kMiB);
  {
    std::fstream file(device, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4086);
    file.write("SWAPSPACE2", 10);  // of a page of 4 KiB
    file.seekp(1024);
    const char header[] = {1, 0, 0, 0, '\xff', 1, 0, 0};  // version 1, last page
    file.write(header, sizeof header);
  }
  refused(mkfs(device),
          device + " holds data: swap filesystem or volume found on it; --force destroys it");
  EXPECT_EQ(get(keys().super()), "(absent)");
  EXPECT_EQ(mkfs(device, {"--force"}).status, 0);
  EXPECT_EQ(block0(device).substr(4086), std::string(10, '\0'));
}

TEST_F(Ctl, MkfsRefusesTheDeviceOfAnotherFilesystem) {
  const std::string device = image("disk", 64 * kMiB);
  ASSERT_EQ(mkfs(device).status, 0);
  const std::string first = name, before = block0(device);
  name += "2";
  refused(mkfs(device), device + " holds data: EtcFS filesystem found on it; --force destroys it");
  EXPECT_EQ(block0(device), before);
  EXPECT_EQ(mkfs(device, {"--force"}).status, 0);
  EXPECT_NE(block0(device), before);
}

// Keeps the beat of a node moving, until destroyed.
class Beating {
 public:
  Beating(const std::string& endpoint, const std::string& key, const std::string& octal) {
    const std::string script = "while :; do printf '" + octal +
                               "' | ETCDCTL_API=3 etcdctl --endpoints=" + endpoint + " put " + key +
                               " >/dev/null; sleep 0.3; done";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      ::_exit(127);
    }
    ::setpgid(pid_, pid_);
  }
  ~Beating() {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

TEST_F(Ctl, ForceDestroysADeadFilesystemButNotALiveOne) {
  const std::string device = image("disk", 64 * kMiB);
  ASSERT_EQ(mkfs(device).status, 0);
  put(keys().epoch("n"), meta::encode_epoch(Epoch{3}));
  put(keys().orphan(Ino{99}), "");
  const std::string super = get(keys().super()), before = block0(device);
  {
    Beating beating(server->endpoint(), keys().beat("n"), "\\010\\003");
    while (get(keys().beat("n")) == "(absent)") ::usleep(50'000);
    refused(mkfs(device, {"--force"}),
            "filesystem '" + name +
                "' is in use by node 'n': unmount it there first; --force "
                "does not help here");
    // Nor through another name over its device.
    const std::string first = name;
    name += "2";
    refused(mkfs(device, {"--force"}),
            "filesystem '" + first +
                "' is in use by node 'n': unmount it there first; --force "
                "does not help here");
    name = first;
  }
  EXPECT_EQ(get(keys().super()), super);
  EXPECT_EQ(block0(device), before);
  EXPECT_EQ(mkfs(device, {"--force", "--ttl", "1.5"}).status, 0);
  EXPECT_NE(get(keys().super()), super);
  EXPECT_NE(block0(device), before);
  EXPECT_EQ(get(keys().orphan(Ino{99})), "(absent)");
  EXPECT_EQ(get(keys().beat("n")), "(absent)");
  EXPECT_EQ(get(keys().epoch("n")), meta::encode_epoch(Epoch{4}));
  EXPECT_EQ(ctl("check").status, 0);
}

TEST_F(Ctl, CheckReportsFindings) {
  const std::string device = image("disk", 64 * kMiB);
  ASSERT_EQ(mkfs(device).status, 0);
  put(keys().dirent(kRootIno, "a\n\xff"), encode(meta::Dirent{Ino{kRootFamily, 1}, 8, 16}));
  Outcome check = ctl("check");
  EXPECT_EQ(check.status, 1);
  EXPECT_EQ(check.err, "");
  const std::string key = "/etcfs/" + name + "/d/0000000001000000/a\\x0a\\xff";
  EXPECT_TRUE(check.out.starts_with(
      "cookie-range " + key + ": cookie 16, not within [16, 16)\n" + "entry-without-inode " + key +
      ": names inode 0000000001000001\n" + name + ": 4 keys at revision "))
      << check.out;
  EXPECT_TRUE(check.out.ends_with(", 1 inodes, 1 entries: 2 findings\n")) << check.out;
  EXPECT_TRUE(ctl("check", {"--most", "1"}).out.find("... and 1 more (--most, --json)\n") !=
              std::string::npos);
  Outcome json = ctl("check", {"--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_NE(json.out.find("  \"clean\": false,\n  \"findings\": [\n    {\n      \"code\": "
                          "\"cookie-range\",\n      \"key\": \"/etcfs/" +
                          name + "/d/0000000001000000/a\\\\x0a\\\\xff\",\n"),
            std::string::npos)
      << json.out;
  const std::string shorter = image("shorter", 63 * kMiB);
  EXPECT_NE(ctl("check", {"--device", shorter}).out.find("device-too-small /etcfs/"),
            std::string::npos);
}

TEST_F(Ctl, CheckThatCannotReadFailsWith2) {
  refused(ctl("check", {"--device", "/nonexistent"}),
          "/nonexistent: cannot open the device: No such file or directory", 2);
  Outcome absent = ctl("check");
  EXPECT_EQ(absent.status, 2);
  EXPECT_TRUE(absent.err.starts_with("etcfsctl: etcd at " + server->endpoint() +
                                     " has no filesystem '" + name + "' ("))
      << absent.err;
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port());
  refused(run({"check", "--etcd", nowhere, "--fs", "x", "--timeout", "1"}),
          "no answer from etcd at " + nowhere +
              " within 1 s: check that it runs, and --etcd and the TLS options",
          2);
}

TEST_F(Ctl, TheOthersFailWith1) {
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port());
  for (const char* command : {"status", "nodes", "df"}) {
    refused(run({command, "--etcd", nowhere, "--fs", "x", "--timeout", "1"}),
            "no answer from etcd at " + nowhere +
                " within 1 s: check that it runs, and --etcd and the TLS options");
    Outcome absent = ctl(command);
    EXPECT_EQ(absent.status, 1);
    EXPECT_NE(absent.err.find("has no filesystem '" + name + "'"), std::string::npos) << absent.err;
  }
  refused(run({"df", "--etcd", "a,b:c", "--fs", "x"}),
          "a,b:c is not a list of etcd endpoints: --etcd takes HOST:PORT[,HOST:PORT...]");
  refused(ctl("df", {"--cacert", "/nonexistent"}),
          "cannot read /nonexistent: check the path and its permissions");
  // A login that etcd does not ask for does no harm.
  EXPECT_NE(ctl("df", {"--user", "root:x"}).err.find("has no filesystem"), std::string::npos);
}

TEST_F(Ctl, StatesOfNodes) {
  ASSERT_EQ(mkfs(image("disk", 64 * kMiB)).status, 0);
  for (auto [node, epoch] : {std::pair{"alive", 2}, {"silent", 3}, {"fenced", 5}, {"left", 6}})
    put(keys().epoch(node), meta::encode_epoch(Epoch{static_cast<std::uint64_t>(epoch)}));
  put(keys().beat("silent"), encode(meta::Beat{Epoch{3}, "b", "m", 1, 2}));
  put(keys().beat("fenced"), encode(meta::Beat{Epoch{4}, "b", "m", 1, 2}));
  put(keys().live("silent"),
      encode(meta::Live{Epoch{3}, "host1", "10.0.0.1", "0.1.0", "/mnt", {0, 0}}));
  put(keys().arena(ArenaNo{1}), encode(meta::Arena{"silent", Epoch{3}, 4096}));
  put(keys().arena(ArenaNo{2}), encode(meta::Arena{"silent", Epoch{2}, 4096}));
  Outcome nodes = ctl("nodes");
  EXPECT_EQ(nodes.status, 0) << nodes.err;
  EXPECT_EQ(
      nodes.out,
      "NODE    STATE   EPOCH  ARENAS  HOST   ADDRESS   VERSION  STARTED               MOUNTPOINT\n"
      "alive   left    2      0       -      -         -        -                     -\n"
      "fenced  fenced  5      0       -      -         -        -                     -\n"
      "left    left    6      0       -      -         -        -                     -\n"
      "silent  silent  3      1       host1  10.0.0.1  0.1.0    1970-01-01T00:00:00Z  /mnt\n");
  Beating beating(server->endpoint(), keys().beat("alive"), "\\010\\002");
  while (get(keys().beat("alive")) == "(absent)") ::usleep(50'000);
  Outcome alive = ctl("nodes");
  EXPECT_NE(alive.out.find("alive   alive   2 "), std::string::npos) << alive.out << alive.err;
  put(keys().beat("broken"), "\xff");
  Outcome broken = ctl("nodes");
  EXPECT_EQ(broken.status, 1);  // said, not skipped
  EXPECT_NE(broken.err.find("a stored record does not decode"), std::string::npos) << broken.err;
}

TEST_F(Ctl, StatusTellsAll) {
  ASSERT_EQ(mkfs(image("disk", 64 * kMiB)).status, 0);
  put(keys().epoch("n"), meta::encode_epoch(Epoch{3}));
  put(keys().beat("n"), encode(meta::Beat{Epoch{3}, "b", "m", 1, 2}));
  put(keys().arena(ArenaNo{1}), encode(meta::Arena{"n", Epoch{3}, 4000}));
  Outcome status = ctl("status");
  EXPECT_EQ(status.status, 0) << status.err;
  EXPECT_NE(
      status.out.find("device      64.0 MiB in 4 arenas of 16.0 MiB, 1 owned; overwrite redirect\n"
                      "space       63.6 MiB free of 64.0 MiB, 1 inodes\n"
                      "nodes       0 alive, 1 silent, 0 fenced, 0 left\n"
                      "  n silent, epoch 3\n"),
      std::string::npos)
      << status.out;
  Outcome json = ctl("status", {"--json"});
  EXPECT_EQ(json.status, 0);
  EXPECT_NE(json.out.find("\"free_bytes\": 66711552,"), std::string::npos) << json.out;
  Outcome df = ctl("df", {"--json"});
  EXPECT_NE(df.out.find("\"used_bytes\": 393216,"), std::string::npos) << df.out;
}

TEST_F(Ctl, UsageErrorsAreOneLineAndStatus2) {
  refused(run({}), "A subcommand is required (see etcfsctl --help)", 2);
  refused(run({"df", "--fs", "x"}), "--etcd is required (see etcfsctl df --help)", 2);
  for (std::vector<std::string> args :
       {std::vector<std::string>{"nosuch"},
        {"df", "--etcd", "a:1"},
        {"df", "--etcd", "a:1", "--fs", "a/b"},
        {"mkfs", "--etcd", "a:1", "--fs", "x"},
        {"mkfs", "--etcd", "a:1", "--fs", "x", "--device", "d", "--overwrite", "never"},
        {"check", "--etcd", "a:1", "--fs", "x", "--nosuch"}}) {
    Outcome outcome = run(args);
    EXPECT_EQ(outcome.status, 2) << args[0];
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("etcfsctl: ")) << outcome.err;
  }
}

TEST_F(Ctl, HelpAndVersion) {
  for (std::vector<std::string> args : {std::vector<std::string>{"--help"},
                                        {"mkfs", "--help"},
                                        {"status", "--help"},
                                        {"nodes", "--help"},
                                        {"check", "--help"},
                                        {"df", "--help"}}) {
    Outcome outcome = run(args);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    if (args.size() == 2) {
      for (const char* option : {"--etcd", "--fs", "--cacert", "--cert", "--key", "--user",
                                 "--json", "ETCFS_ETCD", "Exit status:"})
        EXPECT_NE(outcome.out.find(option), std::string::npos) << args[0] << " " << option;
    }
  }
  EXPECT_EQ(run({"--version"}).out, "etcfsctl 0.1.0\n");
}

TEST_F(Ctl, EndpointsComeFromTheEnvironment) {
  ASSERT_EQ(mkfs(image("disk", 64 * kMiB)).status, 0);
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port());
  ::setenv("ETCFS_ETCD", (nowhere + "," + server->endpoint()).c_str(), 1);
  EXPECT_EQ(run({"df", "--fs", name}).status, 0);
  ::setenv("ETCFS_ETCD", nowhere.c_str(), 1);
  EXPECT_EQ(run({"df", "--fs", name, "--etcd", server->endpoint()}).status, 0);
  ::unsetenv("ETCFS_ETCD");
}

}  // namespace
}  // namespace etcfs::testing

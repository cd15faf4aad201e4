#include "sim/world.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "check/check.h"
#include "check/image.h"

namespace etcfs::sim {
namespace {

constexpr std::uint64_t kDeviceBytes = 256 * kMiB;
constexpr std::uint64_t kArenaBlocks = 4096;  // 16 MiB
// Longer than everything that may rightly take long: TTL, late replies, a dead node's locks.
constexpr Nanos kStuckAfter = std::chrono::seconds(120);
constexpr const char* kFsName = "sim";

}  // namespace

World::World(rt::Runtime& runtime, const SimOptions& options)
    : runtime_(runtime),
      options_(options),
      random_(options.seed * 0x9e3779b97f4a7c15ull + 1),
      keys_(kFsName),
      etcd_(runtime),
      disk_(runtime, kDeviceBytes, {.volatile_cache = random_.below(4) != 0}) {
  const unsigned nodes = options_.nodes > 0 ? options_.nodes : 1 + static_cast<unsigned>(below(3));
  for (unsigned n = 0; n < nodes; n++) {
    auto slot = std::make_unique<Slot>();
    slot->number = n;
    slot->name = "node" + std::to_string(n);
    slots_.push_back(std::move(slot));
  }
  most_under_way_ = 1 + static_cast<unsigned>(below(4));
  if (options_.etcd_faults && below(2) == 0) {
    kv_options_.lose_request = static_cast<unsigned>(below(100));
    kv_options_.lose_reply = static_cast<unsigned>(below(100));
    kv_options_.late = static_cast<unsigned>(below(50));
  }
  super_.uuid = std::string(16, 'u');
  super_.arena_blocks = kArenaBlocks;
  super_.device_blocks = kDeviceBytes / kBlockBytes;
  super_.identity_hash = std::string(32, 'i');
  super_.overwrite = below(3) == 0 ? meta::Overwrite::kInPlace : meta::Overwrite::kRedirect;
  super_.created = runtime_.wall_now();
  // Late writes in place are what the grace time is for, which this form does not have yet.
  if (super_.overwrite == meta::Overwrite::kInPlace) device_options_.late_writes = 0;
}

World::~World() {
  for (auto& slot : slots_) bury(*slot);
}

void World::fail(std::string text) {
  if (!report_->right) return;
  report_->right = false;
  report_->text = std::move(text);
}

// What mkfs leaves.
void World::format() {
  meta::Inode root;
  root.mode = S_IFDIR | 0755;
  root.nlink = 2;
  root.atime = root.mtime = root.ctime = root.btime = runtime_.wall_now();
  root.parent = kRootIno;
  root.birth_family = kRootFamily;
  // In some runs its numbers are used up: its files are born in a second family.
  root.birth_bound = options_.seed % 8 == 3 ? kMaxIndex + 1 : 1;
  root.next_cookie = meta::kFirstCookie;
  meta::Txn txn;
  auto put = [&](std::string key, std::string value) {
    txn.success.push_back(meta::PutOp{std::move(key), std::move(value), 0});
  };
  put(keys_.super(), meta::encode(super_));
  put(keys_.family_counter(), meta::encode_family_counter(Family{kRootFamily.v + 1}));
  put(keys_.inode(kRootIno), meta::encode(root));
  ETCFS_ASSERT(etcd_.txn(txn).done());
}

std::vector<World::Slot*> World::running() {
  std::vector<Slot*> up;
  for (auto& slot : slots_)
    if (slot->up) up.push_back(slot.get());
  return up;
}

bool World::boot(Slot& slot) {
  ETCFS_ASSERT(!slot.group);
  daemon::NodeConfig config;
  config.fs_name = kFsName;
  config.name = slot.name;
  config.host = {
      .boot_id = "boot",
      .machine_id = "machine-" + slot.name,
      .device_dev = 1,
      .device_ino = 1,
      .device_lock_taken = std::all_of(dead_devices_.begin(), dead_devices_.end(),
                                       [](const auto& d) { return d->unfinished() == 0; })};
  config.txn_ops_most = 512;
  // In half the runs a directory of four names is a large one, known in part.
  if (options_.seed % 2 == 1) {
    config.locks.load_limit = 2;
    config.fs.load_page = 2;
  }
  slot.lives++;
  slot.failed = false;
  slot.group = std::make_unique<rt::Group>(runtime_, slot.name);
  slot.kv = std::make_unique<SimKv>(etcd_, *slot.group, kv_options_);
  slot.device = std::make_unique<SimDevice>(disk_, slot.name, device_options_);
  SimKernelOptions kernel{.latency_max = 200us, .blocked_names = below(3) == 0 ? 500u : 0u};
  slot.kernel = std::make_unique<SimKernelCache>(runtime_, kernel);
  std::optional<Result<void>> started;
  slot.group->spawn([&, config] {
    // Made in a fiber of the node, so that the groups of its services die with it.
    slot.node = std::make_unique<daemon::Node>(*slot.kv, *slot.device, *slot.kernel, config);
    slot.node->on_fenced([this, &slot] {
      slot.failed = true;
      fail(fmt::format("{} was fenced although it was alive and connected", slot.name));
    });
    started = slot.node->start();
    changed_.notify_all();
  });
  if (!changed_.wait_until(rt::now() + kStuckAfter, [&] { return started.has_value(); })) {
    fail(slot.name + " does not come up");
    return false;
  }
  if (!*started) {
    fail(fmt::format("{} does not start: {}", slot.name, reason_name(started->error())));
    return false;
  }
  slot.up = true;
  start_clients(slot);
  return true;
}

void World::start_clients(Slot& slot) {
  const std::uint64_t clients = 1 + below(3);
  for (std::uint64_t i = 0; i < clients; i++) {
    slot.clients.push_back(std::make_unique<Client>(
        Client::Deps{slot.number, *slot.node, *slot.kernel, history_, options_.kernel_caches},
        random_.next()));
    slot.group->spawn(
        [this, &slot, client = slot.clients.back().get()] { client_loop(slot, *client); });
  }
}

void World::client_loop(Slot& slot, Client& client) {
  while (!slot.failed) {
    changed_.wait([&] { return issuing_ && under_way_ < most_under_way_; });
    {
      struct UnderWay {
        explicit UnderWay(World& w) : w(w) { w.under_way_++; }
        ~UnderWay() {
          w.under_way_--;
          w.changed_.notify_all();
        }
        World& w;
      } under_way(*this);
      steps_++;
      if (!client.step()) return;
    }
    if (runtime_.random_below(4) == 0)
      rt::sleep_for(Nanos(runtime_.random_below(20'000'000)));
    else
      rt::yield();
  }
}

void World::bury(Slot& slot) {
  if (slot.group) slot.group->kill();
  slot.clients.clear();
  slot.node.reset();
  slot.kernel.reset();
  if (slot.device) dead_devices_.push_back(std::move(slot.device));
  slot.kv.reset();
  slot.group.reset();
  slot.up = false;
}

void World::crash(std::vector<Slot*> victims, bool power_cut) {
  std::vector<History::Crash> crashes;
  for (Slot* slot : victims) {
    crashes.push_back({slot->number, slot->node->stream().last_committed()});
    bury(*slot);
    report_->crashes++;
  }
  if (power_cut) disk_.power_cut();
  history_.crashed(std::move(crashes));
  check_image("after a crash");
}

// At any moment: some number of steps of anything from now.
void World::kill_somewhere(const std::vector<Slot*>& victims) {
  for (std::uint64_t n = below(200); n > 0; n--) rt::yield();
  if (below(2) == 0) rt::sleep_for(Nanos(below(5'000'000)));
  for (std::uint64_t n = below(20); n > 0; n--) rt::yield();
  crash(victims, victims.size() == slots_.size() && below(2) == 0);
}

bool World::drain() {
  issuing_ = false;
  if (changed_.wait_until(rt::now() + kStuckAfter, [&] { return under_way_ == 0; })) return true;
  std::string text = "operations do not end:";
  for (const Record& r : history_.records())
    if (!r.outcome) text += "\n  " + to_string(r.op);
  fail(std::move(text));
  return false;
}

bool World::in_node(Slot& slot, std::function<bool()> body) {
  auto result = std::make_shared<std::optional<bool>>();
  slot.group->spawn([this, result, body = std::move(body)] {
    *result = body();
    changed_.notify_all();
  });
  if (!changed_.wait_until(rt::now() + kStuckAfter, [&] { return result->has_value(); })) {
    fail(slot.name + " does not answer");
    return false;
  }
  return **result;
}

// Nothing is under way: some node reads everything, then all nodes make durable what they did.
bool World::recheck() {
  auto up = running();
  Slot& reader = *up[below(up.size())];
  bool right = in_node(reader, [&] { return reader.clients.front()->walk(); });
  for (Slot* slot : up)
    right = right && in_node(*slot, [slot] { return slot->clients.front()->syncfs(); });
  if (!right) fail("a node stopped serving while the tree was read");
  if (right) history_.checkpoint();
  return right;
}

void World::restart_cleanly(Slot& slot) {
  if (!drain()) return;
  if (!in_node(slot, [&slot] { return slot.clients.front()->syncfs(); }))
    return fail("cannot sync");
  if (!in_node(slot, [&slot] {
        (void)slot.node->stop();
        return true;
      }))
    return;
  history_.left(slot.number);
  bury(slot);
  check_image("after a clean stop");
  report_->restarts++;
  if (below(2) == 0) rt::sleep_for(Nanos(below(5'000'000'000)));
  boot(slot);
}

void World::disturb() {
  auto up = running();
  switch (below(8)) {
    case 0:
      etcd_.new_leader();
      break;
    case 1:
      if (etcd_.revision().v > 60) (void)etcd_.compact(Revision{etcd_.revision().v - 50});
      break;
    case 2: {  // shorter than a TTL
      Slot& slot = *up[below(up.size())];
      slot.kv->set_partitioned(true);
      rt::sleep_for(Nanos(below(800'000'000)));
      slot.kv->set_partitioned(false);
      break;
    }
    case 3:
      restart_cleanly(*up[below(up.size())]);
      break;
    default: {
      if (!options_.crashes) break;
      std::vector<Slot*> victims{up[below(up.size())]};
      if (below(5) == 0) victims = up;
      kill_somewhere(victims);
      if (!drain()) return;
      const bool survivors = !running().empty();
      if (survivors && below(2) == 0 && !recheck()) return;
      if (below(2) == 0) rt::sleep_for(Nanos(below(6'000'000'000)));
      for (Slot* slot : victims)
        if (!boot(*slot)) return;
      recheck();
    }
  }
}

void World::check_image(const char* when) {
  check::Image image(keys_);
  for (const meta::KeyValue& kv : etcd_.dump())
    if (kv.key.starts_with(keys_.prefix())) image.add(kv);
  image.revision = etcd_.revision();
  image.device_blocks = kDeviceBytes / kBlockBytes;
  const check::Findings findings = check::check_all(image);
  report_->images_checked++;
  if (findings.empty()) return;
  std::string text = fmt::format("the image {} (revision {}) is wrong:", when, image.revision.v);
  for (std::size_t i = 0; i < findings.size() && i < 20; i++)
    text += "\n  " + to_string(findings[i]);
  fail(std::move(text));
}

void World::run(SimReport& report) {
  report_ = &report;
  format();
  check_image("after mkfs");
  for (auto& slot : slots_)
    if (!boot(*slot)) return;
  while (steps_ < options_.steps && report.right) {
    issuing_ = true;
    changed_.notify_all();
    const std::size_t until = steps_ + 10 + below(60);
    if (!changed_.wait_until(rt::now() + kStuckAfter,
                             [&] { return steps_ >= until || !report.right; })) {
      drain();
      fail("no progress");
    }
    if (!report.right) return;
    check_image("at some moment");
    disturb();
  }
  if (!report.right || !drain() || !recheck()) return;
  for (auto& slot : slots_) {
    if (!in_node(*slot, [&slot] {
          (void)slot->node->stop();
          return true;
        }))
      return;
    history_.left(slot->number);
    bury(*slot);
  }
  check_image("at the end");
}

SimReport simulate(const SimOptions& options) {
  rt::Options o;
  o.simulated = true;
  o.seed = options.seed;
  o.stack_bytes = 256 * 1024;
  SimReport report;
  rt::Runtime runtime(o);
  const Time begin = runtime.now();
  std::string error_lines;
  log::set_sink([&](log::Level level, const std::string& line) {
    if (level == log::Level::kError) error_lines += "\n  " + line;
    if (options.verbose)
      std::fprintf(stderr, "%12.6f %s\n",
                   std::chrono::duration<double>(runtime.now() - begin).count(), line.c_str());
  });
  {
    World world(runtime, options);
    rt::Group group(runtime, "world");
    group.spawn([&] {
      world.run(report);
      runtime.stop();
    });
    runtime.run();
    group.kill();
    world.finish(report);
  }
  log::set_sink({});
  if (!error_lines.empty() && report.right) {
    report.right = false;
    report.text = "ERROR lines were logged:" + error_lines;
  }
  report.virtual_seconds = std::chrono::duration<double>(runtime.now() - begin).count();
  report.trace_hash ^= runtime.schedule_hash();
  return report;
}

// Judges the history; not in a fiber.
void World::finish(SimReport& report) {
  for (auto& slot : slots_) bury(*slot);
  report.operations = history_.records().size();
  report.trace_hash = history_.hash() * 31;
  const History::Verdict verdict = history_.check();
  report.most_states = verdict.most_states;
  if (verdict.right) return;
  report.text = verdict.text + (report.right ? "" : "\n and before that: " + report.text);
  report.right = false;
}

}  // namespace etcfs::sim

// World: a whole cluster in one simulated runtime: one etcd, one device, N nodes with their
// clients, and the accidents that befall them. Everything follows from the seed.
//
// A run goes in rounds: clients work for a while; then something happens (a crash of one or more
// nodes between any two steps of anything, a clean restart, the loss of an etcd leader, a
// compaction, a short partition); then, with the others drained, a survivor or the restarted node
// reads the whole tree. What was asked and answered is judged afterwards against ModelFs (History),
// the contents of etcd at many moments by check/, and no ERROR line may have been logged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/node.h"
#include "rt/random.h"
#include "rt/rt.h"
#include "sim/client.h"
#include "sim/fakes/sim_device.h"
#include "sim/fakes/sim_kernel_cache.h"
#include "sim/fakes/sim_kv.h"
#include "sim/history.h"

namespace etcfs::sim {

struct SimOptions {
  std::uint64_t seed = 1;
  unsigned nodes = 0;    // 0: the seed chooses 1 to 3
  unsigned steps = 300;  // operations of clients, at least
  bool crashes = true;
  bool etcd_faults = true;    // lost requests, lost and late replies
  bool kernel_caches = true;  // clients answer from the kernel's cache where they may
  bool verbose = false;       // prints the log with virtual times
};

struct SimReport {
  bool right = true;
  std::string text;              // what went wrong
  std::uint64_t trace_hash = 0;  // of all calls, answers and scheduling decisions
  std::size_t operations = 0, crashes = 0, restarts = 0, images_checked = 0, most_states = 0;
  double virtual_seconds = 0;
};

// Runs one simulation to its end in this thread.
SimReport simulate(const SimOptions& options);

class World {
 public:
  World(rt::Runtime& runtime, const SimOptions& options);
  ~World();
  void run(SimReport& report);     // in a fiber; blocks until the run is over
  void finish(SimReport& report);  // not in a fiber: ends all nodes and judges the history

 private:
  struct Slot {
    unsigned number = 0;
    NodeName name;
    // Of one incarnation, in the order of making.
    std::unique_ptr<rt::Group> group;
    std::unique_ptr<SimKv> kv;
    std::unique_ptr<SimDevice> device;
    std::unique_ptr<SimKernelCache> kernel;
    std::unique_ptr<daemon::Node> node;
    std::vector<std::unique_ptr<Client>> clients;
    bool up = false, failed = false;
    unsigned lives = 0;
  };
  void format();
  bool boot(Slot& slot);  // blocks until it serves; false: it does not
  void start_clients(Slot& slot);
  void bury(Slot& slot);  // kills and destroys
  void crash(std::vector<Slot*> victims, bool power_cut);
  void restart_cleanly(Slot& slot);
  void client_loop(Slot& slot, Client& client);
  bool drain();  // no new operations; blocks until none is under way
  bool in_node(Slot& slot, std::function<bool()> body);  // in a fiber of the node; blocks
  bool recheck();                                        // walk and checkpoint
  void disturb();
  void kill_somewhere(const std::vector<Slot*>& victims);
  void check_image(const char* when);
  void fail(std::string text);
  std::vector<Slot*> running();
  std::uint64_t below(std::uint64_t n) { return random_.below(n); }

  rt::Runtime& runtime_;
  const SimOptions options_;
  rt::Random random_;
  meta::Keys keys_;
  SimKvServer etcd_;
  SimDisk disk_;
  meta::Super super_;
  History history_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::unique_ptr<SimDevice>> dead_devices_;  // whose requests may still be carried out
  SimKvOptions kv_options_;
  SimDeviceOptions device_options_;
  SimReport* report_ = nullptr;

  bool issuing_ = false;
  unsigned under_way_ = 0, most_under_way_ = 1;
  std::size_t steps_ = 0;
  rt::Condition changed_;
};

}  // namespace etcfs::sim

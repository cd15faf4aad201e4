// etcfs_sim: runs simulated clusters, one seed after the other, until one goes wrong.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "sim/world.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Runs whole EtcFS clusters in a deterministic simulation and judges what they answer."};
  etcfs::sim::SimOptions options;
  std::uint64_t runs = 1;
  bool no_crashes = false, no_faults = false, no_caches = false, keep_going = false;
  app.add_option("--seed", options.seed, "seed of the first run; the next runs count up from it");
  app.add_option("--runs", runs, "number of runs");
  app.add_option("--nodes", options.nodes, "nodes in the cluster (0: the seed chooses 1 to 3)");
  app.add_option("--steps", options.steps, "operations of clients per run, at least");
  app.add_flag("--no-crashes", no_crashes, "nodes do not crash");
  app.add_flag("--no-etcd-faults", no_faults, "no requests or replies of etcd are lost");
  app.add_flag("--no-kernel-caches", no_caches, "clients ask the filesystem every time");
  app.add_flag("--keep-going", keep_going, "go on after a run that went wrong");
  app.add_flag("-v,--verbose", options.verbose, "print the log of each run with virtual times");
  CLI11_PARSE(app, argc, argv);
  options.crashes = !no_crashes;
  options.etcd_faults = !no_faults;
  options.kernel_caches = !no_caches;
  unsigned wrong = 0;
  for (std::uint64_t i = 0; i < runs; i++, options.seed++) {
    const etcfs::sim::SimReport r = etcfs::sim::simulate(options);
    std::printf(
        "seed %llu: %s, trace %016llx, %zu operations, %zu crashes, %zu restarts, %zu images, "
        "%zu states, %.1f s\n",
        static_cast<unsigned long long>(options.seed), r.right ? "right" : "WRONG",
        static_cast<unsigned long long>(r.trace_hash), r.operations, r.crashes, r.restarts,
        r.images_checked, r.most_states, r.virtual_seconds);
    if (!r.right) {
      std::printf("%s\n", r.text.c_str());
      wrong++;
      if (!keep_going) break;
    }
    std::fflush(stdout);
  }
  return wrong ? 1 : 0;
}

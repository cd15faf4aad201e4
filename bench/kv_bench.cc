// kv_bench [endpoint [seconds]]: puts per second through the Kv seam by size of the transaction,
// with one in flight as the commit stream has it, and what the client's CPU costs. Without an
// endpoint it starts an etcd of its own.
#include <fmt/core.h>
#include <sys/resource.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "meta/etcd/etcd_kv.h"
#include "rt/rt.h"
#include "tests/contract/etcd_server.h"

namespace etcfs {
namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Like a batch of creates: keys and values of the size of inodes and directory entries.
meta::Txn make_txn(int puts, std::uint64_t number) {
  meta::Txn txn;
  meta::Compare guard;
  guard.target = meta::Compare::Target::kVersion;
  guard.op = meta::Compare::Op::kEqual;
  guard.key = "/kv-bench/absent";
  txn.compares = {guard};
  for (int i = 0; i < puts; i++)
    txn.success.push_back(
        meta::PutOp{fmt::format("/kv-bench/{:016x}", number * static_cast<std::uint64_t>(puts) + i),
                    std::string(80, 'v')});
  return txn;
}

bool run(meta::Kv& kv, int puts, double seconds) {
  std::uint64_t txns = 0;
  double cpu = cpu_seconds();
  Time begun = rt::now();
  auto length = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds));
  while (rt::now() - begun < length) {
    if (!kv.txn(make_txn(puts, txns % 1000), rt::now() + 10s).done()) return false;
    txns++;
  }
  double took = std::chrono::duration<double>(rt::now() - begun).count();
  cpu = cpu_seconds() - cpu;
  fmt::print(
      "{:4} puts/txn: {:9.0f} puts/s {:7.0f} txn/s {:7.1f} us/txn client CPU {:6.1f} us/txn\n",
      puts, txns * puts / took, txns / took, took / txns * 1e6, cpu / txns * 1e6);
  return true;
}

bool run_ranges(meta::Kv& kv, double seconds) {
  std::uint64_t keys = 0;
  double cpu = cpu_seconds();
  Time begun = rt::now();
  auto length = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds));
  while (rt::now() - begun < length) {
    auto reply = kv.range({"/kv-bench/", meta::prefix_end("/kv-bench/"), 10'000}, Revision{},
                          rt::now() + 10s);
    if (!reply) return false;
    keys += reply->kvs.size();
  }
  double took = std::chrono::duration<double>(rt::now() - begun).count();
  cpu = cpu_seconds() - cpu;
  fmt::print("range of 10,000: {:9.0f} keys/s, client CPU {:.2f} us/key\n", keys / took,
             cpu / keys * 1e6);
  return true;
}

// How long the first event of a fresh watch takes while somebody else is writing. A watch that
// begins in the past, and be it by one revision, is caught up by etcd's background loop, ten times
// a second.
bool run_watch(meta::Kv& kv, meta::Kv& other, bool from_now) {
  const std::string key = "/kv-bench-watch/a";
  rt::Group writers(rt::Runtime::current());
  bool stop = false;
  writers.spawn([&] {
    for (std::uint64_t i = 0; !stop; i++) (void)other.txn(make_txn(1, i), rt::now() + 10s);
  });
  constexpr int kRounds = 50;
  Nanos total{}, worst{};
  for (int i = 0; i < kRounds; i++) {
    auto read = kv.range({key, {}}, Revision{}, rt::now() + 10s);
    if (!read) return false;
    rt::sleep_for(3ms);  // in which the others write something
    Time begun = rt::now();
    bool seen = false;
    rt::Condition changed;
    auto watch = kv.watch(
        key, {}, from_now ? Revision{} : Revision{read->revision.v + 1},
        [&](const meta::WatchBatch& batch) {
          seen = seen || !batch.events.empty();
          changed.notify_all();
        },
        [] {}, rt::now() + 10s);
    meta::Txn txn;
    txn.success = {meta::PutOp{key, "v"}};
    if (!watch || !kv.txn(txn, rt::now() + 10s).done()) return false;
    changed.wait([&] { return seen; });
    Nanos took = rt::now() - begun;
    total += took;
    worst = std::max(worst, took);
  }
  stop = true;
  writers.wait();
  auto ms = [](Nanos t) { return std::chrono::duration<double, std::milli>(t).count(); };
  fmt::print("watch from {:22} first event after {:6.1f} ms on average, {:6.1f} at worst\n",
             from_now ? "now:" : "the revision just read:", ms(total) / kRounds, ms(worst));
  return true;
}

int bench(const std::string& endpoint, double seconds) {
  rt::Runtime runtime;
  rt::Group group(runtime, "bench");
  int status = 1;
  group.spawn([&] {
    auto kv = meta::connect({.endpoints = {endpoint}});
    auto other = meta::connect({.endpoints = {endpoint}});
    if (kv && other && run_watch(**kv, **other, false) && run_watch(**kv, **other, true) &&
        run(**kv, 1, seconds) && run(**kv, 16, seconds) && run(**kv, 120, seconds) &&
        run_ranges(**kv, seconds))
      status = 0;
    runtime.stop();
  });
  runtime.run();
  group.kill();
  if (status != 0) fmt::print(stderr, "etcd at {} fails\n", endpoint);
  return status;
}

}  // namespace
}  // namespace etcfs

int main(int argc, char** argv) {
  double seconds = argc > 2 ? std::atof(argv[2]) : 3;
  if (argc > 1) return etcfs::bench(argv[1], seconds);
  etcfs::testing::EtcdServer etcd;
  if (!etcd.start()) {
    fmt::print(stderr, "no etcd program, or it does not start: {}\n", etcd.log());
    return 1;
  }
  return etcfs::bench(etcd.endpoint(), seconds);
}

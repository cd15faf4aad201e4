// The same random transactions on the simulated and on a real etcd: every reply must agree.
// Revisions are compared as distances from where each store stood at the beginning.
#include <cstdlib>

#include "tests/contract/kv_bed.h"

namespace etcfs::testing {
namespace {

using meta::Compare;
using meta::DeleteOp;
using meta::KvOp;
using meta::PutOp;
using meta::RangeOp;
using meta::Txn;
using meta::TxnOp;

// Draws transactions; the base revision of a store is added to the revisions it compares with.
class Generator {
 public:
  Generator(std::uint64_t seed, std::string prefix) : state_(seed), prefix_(std::move(prefix)) {}

  // The same call sequence gives the same transaction for each base.
  std::pair<Txn, Txn> txn(std::int64_t base_a, std::int64_t base_b, std::int64_t written) {
    std::uint64_t saved = state_;
    Txn a = draw(base_a, written, 0);
    state_ = saved;
    Txn b = draw(base_b, written, 0);
    return {std::move(a), std::move(b)};
  }
  std::uint64_t below(std::uint64_t n) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return (state_ >> 33) % n;
  }

 private:
  std::string key() { return prefix_ + static_cast<char>('a' + below(6)); }
  std::string end(const std::string& from) {
    switch (below(4)) {
      case 0:
        return from + static_cast<char>(1 + below(20));
      case 1:
        return key();  // may be before `from`
      case 2:
        return meta::prefix_end(prefix_);
      default:
        return {};
    }
  }
  std::int64_t revision(std::int64_t base, std::int64_t written) {
    if (below(4) == 0) return 0;
    return base + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(written) + 2));
  }
  Compare compare(std::int64_t base, std::int64_t written) {
    Compare c;
    c.key = key();
    c.end = end(c.key);
    c.op = static_cast<Compare::Op>(below(4));
    c.target = static_cast<Compare::Target>(below(4));
    if (c.target == Compare::Target::kValue) {
      c.value = std::to_string(below(4));
    } else if (c.target == Compare::Target::kVersion) {
      c.number = static_cast<std::int64_t>(below(5));
    } else {
      c.number = revision(base, written);
    }
    return c;
  }
  KvOp op(std::int64_t base, std::int64_t written, int depth) {
    std::string k = key();
    switch (below(depth < 2 ? 5 : 4)) {
      case 0:
        return RangeOp{k, end(k), static_cast<std::int64_t>(below(3)), below(4) == 0,
                       below(8) == 0};
      case 1:
        return DeleteOp{k, below(3) == 0 ? end(k) : std::string()};
      case 4:
        return TxnOp{std::make_shared<const Txn>(draw(base, written, depth + 1))};
      default:
        return PutOp{k, std::to_string(below(4))};
    }
  }
  Txn draw(std::int64_t base, std::int64_t written, int depth) {
    Txn txn;
    for (auto n = below(3); n > 0; n--) txn.compares.push_back(compare(base, written));
    for (auto* branch : {&txn.success, &txn.failure})
      for (auto n = below(4); n > 0; n--) branch->push_back(op(base, written, depth));
    return txn;
  }

  std::uint64_t state_;
  std::string prefix_;
};

std::string text_of(const meta::RangeReply& reply, std::int64_t base) {
  std::string text = "[" + std::to_string(reply.revision.v - base) + " " +
                     std::to_string(reply.count) + (reply.more ? "+" : "");
  for (const auto& kv : reply.kvs)
    text += " " + kv.key + "=" + kv.value + "/" + std::to_string(kv.create_revision.v - base) +
            "," + std::to_string(kv.mod_revision.v - base) + "," + std::to_string(kv.version);
  return text + "]";
}

std::string text_of(const meta::TxnReply& reply, std::int64_t base) {
  std::string text =
      std::string(reply.succeeded ? "yes" : "no") + "@" + std::to_string(reply.revision.v - base);
  for (const auto& op : reply.ops) {
    if (auto* range = std::get_if<meta::RangeReply>(&op.v)) {
      text += " " + text_of(*range, base);
    } else if (auto* deleted = std::get_if<meta::DeleteReply>(&op.v)) {
      text += " -" + std::to_string(deleted->deleted);
    } else if (auto* nested = std::get_if<std::shared_ptr<meta::TxnReply>>(&op.v)) {
      text += " (" + text_of(**nested, base) + ")";
    } else {
      text += " put";
    }
  }
  return text;
}

std::string text_of(const meta::TxnOutcome& outcome, std::int64_t base) {
  if (outcome.done()) return text_of(outcome.reply, base);
  return (outcome.kind == meta::TxnOutcome::Kind::kRefused ? "refused " : "unknown ") +
         std::string(reason_name(outcome.reason));
}

TEST(KvRandom, SimulatedAndRealEtcdAgree) {
  if (!shared_etcd()) GTEST_SKIP() << "no etcd program";
  const char* given = std::getenv("ETCFS_TEST_SEED");
  for (std::uint64_t seed = given ? std::strtoull(given, nullptr, 0) : 1, last = given ? seed : 6;
       seed <= last; seed++) {
    SCOPED_TRACE("ETCFS_TEST_SEED=" + std::to_string(seed));
    rt::Runtime runtime;
    sim::SimKvServer server(runtime);
    run_in_fiber(runtime, [&] {
      Client real(runtime, meta::EtcdOptions{.endpoints = {shared_etcd()->endpoint()}});
      std::string p = fresh_prefix();
      Generator generator(seed, p);
      std::int64_t base_real = put(*real, p + "base", "").v;
      std::int64_t base_sim = server.txn(put_txn(p + "base", "")).reply.revision.v;
      Recorder seen_real, seen_sim;
      Client sim(runtime, server, sim::SimKvOptions{0us, 0us});
      auto watch_real = real->watch(p, meta::prefix_end(p), Revision{}, seen_real.on_batch(),
                                    seen_real.on_lost(), soon());
      auto watch_sim = sim->watch(p, meta::prefix_end(p), Revision{}, seen_sim.on_batch(),
                                  seen_sim.on_lost(), soon());
      ASSERT_TRUE(watch_real && watch_sim);
      for (int i = 0; i < 300; i++) {
        SCOPED_TRACE("transaction " + std::to_string(i));
        auto [for_real, for_sim] =
            generator.txn(base_real, base_sim, server.revision().v - base_sim);
        ASSERT_EQ(text_of(real->txn(for_real, soon()), base_real),
                  text_of(server.txn(for_sim), base_sim));
      }
      Revision end_sim = server.txn(put_txn(p + "end", "")).reply.revision;
      Revision end_real = put(*real, p + "end", "");
      ASSERT_EQ(end_real.v - base_real, end_sim.v - base_sim);
      ASSERT_TRUE(seen_real.wait_revision(end_real) && seen_sim.wait_revision(end_sim));
      EXPECT_EQ(seen_real.texts(), seen_sim.texts());
      EXPECT_GT(seen_sim.events.size(), 50u);
      RangeOp all{p, meta::prefix_end(p)};
      auto now_real = real->range(all, Revision{}, soon());
      ASSERT_TRUE(now_real);
      EXPECT_EQ(text_of(*now_real, base_real), text_of(*server.range(all, Revision{}), base_sim));
      auto middle = static_cast<std::int64_t>(
          generator.below(static_cast<std::uint64_t>(end_sim.v - base_sim)));
      auto then_real = real->range(all, Revision{base_real + middle}, soon());
      auto then_sim = server.range(all, Revision{base_sim + middle});
      ASSERT_TRUE(then_real && then_sim);
      EXPECT_EQ(text_of(*then_real, base_real), text_of(*then_sim, base_sim));
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace etcfs::testing

// The contract of meta/kv.h, held against the simulated and a real etcd. What is asserted here the
// rest of EtcFS relies on; where the two sides differ one of them is wrong.
#include "tests/contract/kv_bed.h"

namespace etcfs::testing {
namespace {

using meta::Compare;
using meta::DeleteOp;
using meta::DeleteReply;
using meta::KvOp;
using meta::PutOp;
using meta::RangeOp;
using meta::RangeReply;
using meta::Txn;
using meta::TxnOp;
using meta::TxnOutcome;
using meta::TxnReply;
using Op = Compare::Op;
using Target = Compare::Target;
using Kind = TxnOutcome::Kind;

const std::string kToTheEnd(1, '\0');

class KvContract : public ::testing::TestWithParam<Side> {
 protected:
  void SetUp() override {
    if (GetParam() == Side::kEtcd && !shared_etcd()) GTEST_SKIP() << "no etcd program";
    bed_.emplace(GetParam());
  }
  // body(kv, prefix) in a fiber
  void with_client(const std::function<void(meta::Kv&, const std::string&)>& body) {
    bed_->run([&] {
      auto client = bed_->client();
      body(**client, fresh_prefix());
    });
  }
  static TxnOutcome refused(meta::Kv& kv, const Txn& txn, Reason reason) {
    TxnOutcome outcome = kv.txn(txn, soon());
    EXPECT_EQ(outcome.kind, Kind::kRefused);
    EXPECT_EQ(reason_name(outcome.reason), reason_name(reason));
    return outcome;
  }
  static TxnOp nested(Txn txn) { return TxnOp{std::make_shared<const Txn>(std::move(txn))}; }

  std::optional<KvBed> bed_;
};

INSTANTIATE_TEST_SUITE_P(Kv, KvContract, ::testing::Values(Side::kSimulated, Side::kEtcd),
                         [](const auto& side) {
                           return side.param == Side::kSimulated ? "Simulated" : "Etcd";
                         });

// --- reading and writing ---

TEST_P(KvContract, PutCountsRevisionsAndVersions) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision first = put(kv, p + "a", "1");
    Revision second = put(kv, p + "a", std::string("two\0\xff", 5));
    EXPECT_EQ(second.v, first.v + 1);
    auto reply = kv.range(RangeOp{p + "a", {}}, Revision{}, soon());
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->kvs.size(), 1u);
    EXPECT_EQ(reply->kvs[0].key, p + "a");
    EXPECT_EQ(reply->kvs[0].value, std::string("two\0\xff", 5));
    EXPECT_EQ(reply->kvs[0].create_revision, first);
    EXPECT_EQ(reply->kvs[0].mod_revision, second);
    EXPECT_EQ(reply->kvs[0].version, 2);
    EXPECT_EQ(reply->kvs[0].lease, 0);
    EXPECT_EQ(reply->revision, second);
    done(kv.txn(ops_txn({DeleteOp{p + "a", {}}}), soon()));
    Revision third = put(kv, p + "a", "3");
    reply = kv.range(RangeOp{p + "a", {}}, Revision{}, soon());
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kvs.at(0).create_revision, third);
    EXPECT_EQ(reply->kvs.at(0).version, 1);
  });
}

TEST_P(KvContract, AbsentIsAnEmptyReply) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto reply = kv.range(RangeOp{p + "none", {}}, Revision{}, soon());
    ASSERT_TRUE(reply);
    EXPECT_TRUE(reply->kvs.empty());
    EXPECT_EQ(reply->count, 0);
    EXPECT_FALSE(reply->more);
  });
}

TEST_P(KvContract, RangesAreHalfOpenSortedAndLimited) {
  with_client([](meta::Kv& kv, const std::string& p) {
    for (const char* k : {"b", "a", "d", "c"}) put(kv, p + k, std::string("v") + k);
    auto keys = [&](RangeOp op) {
      auto reply = kv.range(op, Revision{}, soon());
      std::string text;
      if (!reply) return std::string("<error>");
      for (const auto& kv : reply->kvs) text += kv.key.substr(p.size()) + "=" + kv.value + " ";
      return text + std::to_string(reply->count) + (reply->more ? "+" : "");
    };
    EXPECT_EQ(keys({p, meta::prefix_end(p)}), "a=va b=vb c=vc d=vd 4");
    EXPECT_EQ(keys({p + "b", p + "d"}), "b=vb c=vc 2");
    EXPECT_EQ(keys({p, meta::prefix_end(p), 2}), "a=va b=vb 4+");
    EXPECT_EQ(keys({p, meta::prefix_end(p), 4}), "a=va b=vb c=vc d=vd 4");
    EXPECT_EQ(keys({p, meta::prefix_end(p), 0, true}), "a= b= c= d= 4");
    EXPECT_EQ(keys({p, meta::prefix_end(p), 0, false, true}), "4");
    EXPECT_EQ(keys({p + "c", p + "b"}), "0");
    put(kv, "\xff\xff" + p, "last");
    auto reply = kv.range({"\xff\xff" + p, kToTheEnd}, Revision{}, soon());
    ASSERT_TRUE(reply);
    ASSERT_GE(reply->kvs.size(), 1u);
    EXPECT_EQ(reply->kvs[0].key, "\xff\xff" + p);
  });
}

TEST_P(KvContract, RangeAtAnOldRevisionShowsThePast) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision first = put(kv, p + "a", "1");
    Revision second = put(kv, p + "b", "2");
    done(kv.txn(ops_txn({PutOp{p + "a", "3"}, DeleteOp{p + "b", {}}}), soon()));
    auto at = [&](Revision revision) {
      auto reply = kv.range({p, meta::prefix_end(p)}, revision, soon());
      std::string text;
      if (!reply) return std::string(reason_name(reply.error()));
      for (const auto& kv : reply->kvs) text += kv.value;
      return text;
    };
    EXPECT_EQ(at(first), "1");
    EXPECT_EQ(at(second), "12");
    EXPECT_EQ(at(Revision{second.v + 1}), "3");
    EXPECT_EQ(at(Revision{second.v + 1000}), "kInvalid");
  });
}

TEST_P(KvContract, ATransactionIsOneRevisionAndSeesItsOwnWrites) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision before = put(kv, p + "a", "old");
    TxnReply reply = done(kv.txn(ops_txn({RangeOp{p + "a", {}}, PutOp{p + "a", "new"},
                                          PutOp{p + "b", "b"}, RangeOp{p, meta::prefix_end(p)}}),
                                 soon()));
    EXPECT_TRUE(reply.succeeded);
    EXPECT_EQ(reply.revision.v, before.v + 1);
    ASSERT_EQ(reply.ops.size(), 4u);
    const auto& first = std::get<RangeReply>(reply.ops[0].v);
    EXPECT_EQ(first.kvs.at(0).value, "old");
    EXPECT_TRUE(std::holds_alternative<std::monostate>(reply.ops[1].v));
    const auto& last = std::get<RangeReply>(reply.ops[3].v);
    ASSERT_EQ(last.kvs.size(), 2u);
    EXPECT_EQ(last.kvs[0].value, "new");
    EXPECT_EQ(last.kvs[1].mod_revision.v, before.v + 1);
    EXPECT_EQ(last.kvs[0].mod_revision.v, before.v + 1);
  });
}

TEST_P(KvContract, WhatWritesNothingRaisesNoRevision) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision before = put(kv, p + "a", "1");
    EXPECT_EQ(done(kv.txn(ops_txn({RangeOp{p + "a", {}}}), soon())).revision, before);
    EXPECT_EQ(done(kv.txn(Txn{}, soon())).revision, before);
    TxnReply none = done(kv.txn(ops_txn({DeleteOp{p + "none", {}}}), soon()));
    EXPECT_EQ(none.revision, before);
    EXPECT_EQ(std::get<DeleteReply>(none.ops.at(0).v).deleted, 0);
    put(kv, p + "b", "2");
    TxnReply both = done(kv.txn(ops_txn({DeleteOp{p, meta::prefix_end(p)}}), soon()));
    EXPECT_EQ(both.revision.v, before.v + 2);
    EXPECT_EQ(std::get<DeleteReply>(both.ops.at(0).v).deleted, 2);
  });
}

// --- compares ---

TEST_P(KvContract, CompareOfAnAbsentKeySeesZeros) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto holds = [&](Compare compare) {
      Txn txn;
      txn.compares = {std::move(compare)};
      return done(kv.txn(txn, soon())).succeeded;
    };
    for (Target target : {Target::kVersion, Target::kCreateRevision, Target::kModRevision}) {
      EXPECT_TRUE(holds(compare_number(target, Op::kEqual, p + "none", 0)));
      EXPECT_FALSE(holds(compare_number(target, Op::kGreater, p + "none", 0)));
      EXPECT_TRUE(holds(compare_number(target, Op::kLess, p + "none", 1)));
      EXPECT_TRUE(holds(compare_number(target, Op::kNotEqual, p + "none", 7)));
      EXPECT_TRUE(holds(compare_number(target, Op::kLess, p, 1, meta::prefix_end(p))));
      EXPECT_FALSE(holds(compare_number(target, Op::kEqual, p, 1, meta::prefix_end(p))));
    }
    for (Op op : {Op::kEqual, Op::kNotEqual, Op::kLess, Op::kGreater}) {
      EXPECT_FALSE(holds(compare_value(op, p + "none", "")));
      EXPECT_FALSE(holds(compare_value(op, p, "", meta::prefix_end(p))));
    }
  });
}

TEST_P(KvContract, CompareOfARangeHoldsWhenItHoldsForEveryKey) {
  with_client([](meta::Kv& kv, const std::string& p) {
    std::string end = meta::prefix_end(p);
    Revision a = put(kv, p + "a", "x");
    Revision b = put(kv, p + "b", "x");
    auto holds = [&](Compare compare) {
      Txn txn;
      txn.compares = {std::move(compare)};
      return done(kv.txn(txn, soon())).succeeded;
    };
    EXPECT_TRUE(holds(compare_number(Target::kModRevision, Op::kLess, p, b.v + 1, end)));
    EXPECT_FALSE(holds(compare_number(Target::kModRevision, Op::kLess, p, b.v, end)));
    EXPECT_TRUE(holds(compare_number(Target::kModRevision, Op::kLess, p + "a", b.v, p + "b")));
    EXPECT_TRUE(holds(compare_number(Target::kCreateRevision, Op::kEqual, p + "a", a.v)));
    EXPECT_TRUE(holds(compare_number(Target::kVersion, Op::kEqual, p, 1, end)));
    EXPECT_TRUE(holds(compare_value(Op::kEqual, p, "x", end)));
    put(kv, p + "b", "y");
    EXPECT_FALSE(holds(compare_value(Op::kEqual, p, "x", end)));
    EXPECT_FALSE(holds(compare_value(Op::kNotEqual, p, "x", end)));
    EXPECT_TRUE(holds(compare_value(Op::kGreater, p, "w", end)));
    EXPECT_TRUE(holds(compare_value(Op::kLess, p + "a", "xa")));
  });
}

TEST_P(KvContract, TheFailureBranchRunsWhenAnyCompareFails) {
  with_client([](meta::Kv& kv, const std::string& p) {
    put(kv, p + "a", "1");
    Txn txn;
    txn.compares = {compare_value(Op::kEqual, p + "a", "1"),
                    compare_number(Target::kVersion, Op::kEqual, p + "a", 2)};
    txn.success = {PutOp{p + "a", "success"}};
    txn.failure = {RangeOp{p + "a", {}}, PutOp{p + "f", "failure"}};
    TxnReply reply = done(kv.txn(txn, soon()));
    EXPECT_FALSE(reply.succeeded);
    EXPECT_EQ(std::get<RangeReply>(reply.ops.at(0).v).kvs.at(0).value, "1");
    EXPECT_EQ(get(kv, p + "a"), "1");
    EXPECT_EQ(get(kv, p + "f"), "failure");
  });
}

TEST_P(KvContract, NestedTransactionsCompareTheStateBeforeAnyPut) {
  with_client([](meta::Kv& kv, const std::string& p) {
    put(kv, p + "a", "old");
    Txn inner;
    inner.compares = {compare_value(Op::kEqual, p + "a", "old")};
    inner.success = {PutOp{p + "in", "saw old"}, RangeOp{p + "a", {}}};
    inner.failure = {PutOp{p + "in", "saw new"}};
    TxnReply reply = done(kv.txn(ops_txn({PutOp{p + "a", "new"}, nested(inner)}), soon()));
    EXPECT_EQ(get(kv, p + "in"), "saw old");
    EXPECT_EQ(get(kv, p + "a"), "new");
    const auto& in = *std::get<std::shared_ptr<TxnReply>>(reply.ops.at(1).v);
    EXPECT_TRUE(in.succeeded);
    EXPECT_EQ(in.revision, reply.revision);
    EXPECT_EQ(std::get<RangeReply>(in.ops.at(1).v).kvs.at(0).value,
              "new");  // but reads see the puts
    Txn fails;
    fails.compares = {compare_number(Target::kVersion, Op::kEqual, p + "none", 3)};
    fails.success = {PutOp{p + "x", "1"}};
    reply = done(kv.txn(ops_txn({nested(fails), PutOp{p + "y", "1"}}), soon()));
    EXPECT_TRUE(reply.succeeded);
    EXPECT_FALSE(std::get<std::shared_ptr<TxnReply>>(reply.ops.at(0).v)->succeeded);
    EXPECT_EQ(get(kv, p + "x"), "<absent>");
    EXPECT_EQ(get(kv, p + "y"), "1");
  });
}

// --- what is refused as a whole ---

TEST_P(KvContract, At128OperationsIsTheEnd) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto puts = [&](int n) {
      std::vector<KvOp> ops;
      for (int i = 0; i < n; i++) ops.push_back(PutOp{p + std::to_string(i), "v"});
      return ops;
    };
    EXPECT_EQ(done(kv.txn(ops_txn(puts(128)), soon())).ops.size(), 128u);
    refused(kv, ops_txn(puts(129)), Reason::kTooManyOps);
    EXPECT_EQ(get(kv, p + "128"), "<absent>");
    Txn txn;
    for (int i = 0; i < 128; i++)
      txn.compares.push_back(compare_number(Target::kVersion, Op::kGreater, p + "0", 0));
    txn.success = puts(128);
    for (int i = 0; i < 128; i++) txn.failure.push_back(RangeOp{p + "0", {}});
    EXPECT_TRUE(done(kv.txn(txn, soon())).succeeded);  // each list counts for itself
    txn.compares.push_back(txn.compares[0]);
    refused(kv, txn, Reason::kTooManyOps);
  });
}

TEST_P(KvContract, ANestedTransactionHasWhatTheOuterOneLeaves) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto build = [&](int outer, int inner) {
      Txn in;
      for (int i = 0; i < inner; i++) in.success.push_back(PutOp{p + "i" + std::to_string(i), "v"});
      std::vector<KvOp> ops = {nested(in)};
      for (int i = 1; i < outer; i++) ops.push_back(PutOp{p + "o" + std::to_string(i), "v"});
      return ops_txn(std::move(ops));
    };
    done(kv.txn(build(28, 100), soon()));
    refused(kv, build(28, 101), Reason::kTooManyOps);
    refused(kv, build(29, 100), Reason::kTooManyOps);
    Txn compares;
    for (int i = 0; i < 128; i++)
      compares.compares.push_back(compare_number(Target::kVersion, Op::kEqual, p + "none", 0));
    refused(kv, ops_txn({nested(compares)}), Reason::kTooManyOps);
    compares.compares.pop_back();
    done(kv.txn(ops_txn({nested(compares)}), soon()));
  });
}

TEST_P(KvContract, AKeyIsWrittenOnceInATransaction) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision before = put(kv, p + "a", "kept");
    std::string end = meta::prefix_end(p);
    PutOp put_a{p + "a", "1"};
    refused(kv, ops_txn({put_a, put_a}), Reason::kInvalid);
    refused(kv, ops_txn({put_a, DeleteOp{p + "a", {}}}), Reason::kInvalid);
    refused(kv, ops_txn({DeleteOp{p + "a", {}}, put_a}), Reason::kInvalid);
    refused(kv, ops_txn({DeleteOp{p, end}, put_a}), Reason::kInvalid);
    refused(kv, ops_txn({put_a, nested(ops_txn({put_a}))}), Reason::kInvalid);
    refused(kv, ops_txn({put_a, nested(ops_txn({DeleteOp{p, end}}))}), Reason::kInvalid);
    refused(kv, ops_txn({nested(ops_txn({put_a})), DeleteOp{p + "a", {}}}), Reason::kInvalid);
    Txn in_failure;
    in_failure.failure = {put_a, put_a};
    refused(kv, in_failure, Reason::kInvalid);
    EXPECT_EQ(get(kv, p + "a"), "kept");
    // Allowed: the same key in both branches, deletes that overlap, a put outside the deleted
    // range.
    Txn both;
    both.success = {put_a};
    both.failure = {put_a};
    done(kv.txn(ops_txn({nested(both)}), soon()));
    TxnReply reply = done(
        kv.txn(ops_txn({DeleteOp{p, end}, DeleteOp{p + "a", {}}, PutOp{end, "outside"}}), soon()));
    EXPECT_EQ(std::get<DeleteReply>(reply.ops.at(0).v).deleted, 1);
    EXPECT_EQ(std::get<DeleteReply>(reply.ops.at(1).v).deleted, 0);
    EXPECT_EQ(reply.revision.v, before.v + 2);
  });
}

TEST_P(KvContract, AnEmptyKeyIsInvalid) {
  with_client([](meta::Kv& kv, const std::string&) {
    refused(kv, ops_txn({PutOp{"", "1"}}), Reason::kInvalid);
    refused(kv, ops_txn({DeleteOp{"", {}}}), Reason::kInvalid);
    Txn txn;
    txn.compares = {compare_number(Target::kVersion, Op::kEqual, "", 0)};
    refused(kv, txn, Reason::kInvalid);
    auto reply = kv.range(RangeOp{"", {}}, Revision{}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), Reason::kInvalid);
  });
}

TEST_P(KvContract, ARequestBeyondTheByteLimitIsRefused) {
  with_client([](meta::Kv& kv, const std::string& p) {
    refused(kv, put_txn(p + "a", std::string(1'600'000, 'x')), Reason::kTooManyOps);
    refused(kv, put_txn(p + "a", std::string(5'000'000, 'x')), Reason::kTooManyOps);
    EXPECT_EQ(get(kv, p + "a"), "<absent>");
    put(kv, p + "a", std::string(1'000'000, 'y'));
    EXPECT_EQ(get(kv, p + "a"), std::string(1'000'000, 'y'));
  });
}

TEST_P(KvContract, LargeRepliesArrive) {
  with_client([](meta::Kv& kv, const std::string& p) {
    for (int i = 0; i < 8; i++)
      put(kv, p + std::to_string(i), std::string(1'000'000, static_cast<char>('a' + i)));
    auto reply = kv.range({p, meta::prefix_end(p)}, Revision{}, soon());
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->kvs.size(), 8u);
    EXPECT_EQ(reply->kvs[7].value, std::string(1'000'000, 'h'));
    done(kv.txn(ops_txn({DeleteOp{p, meta::prefix_end(p)}}), soon()));
  });
}

TEST_P(KvContract, NothingHappensAfterTheDeadline) {
  with_client([](meta::Kv& kv, const std::string& p) {
    TxnOutcome outcome = kv.txn(put_txn(p + "a", "1"), rt::now());
    EXPECT_EQ(outcome.kind, Kind::kUnknown);
    auto reply = kv.range(RangeOp{p + "a", {}}, Revision{}, rt::now());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), Reason::kTimeout);
  });
}

// --- leases ---

TEST_P(KvContract, RevokingALeaseDeletesItsKeys) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto lease = kv.lease_grant(60s, soon());
    ASSERT_TRUE(lease);
    ASSERT_NE(*lease, 0);
    put(kv, p + "a", "1", *lease);
    put(kv, p + "b", "1", *lease);
    put(kv, p + "b", "2");  // detaches it
    auto reply = kv.range(RangeOp{p + "a", {}}, Revision{}, soon());
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kvs.at(0).lease, *lease);
    Recorder seen;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    ASSERT_TRUE(kv.lease_keepalive(*lease, soon()));
    ASSERT_TRUE(kv.lease_revoke(*lease, soon()));
    ASSERT_TRUE(seen.wait_events(1));
    EXPECT_EQ(seen.texts(), std::vector<std::string>{"delete " + p + "a"});
    EXPECT_EQ(get(kv, p + "a"), "<absent>");
    EXPECT_EQ(get(kv, p + "b"), "2");
    auto again = kv.lease_keepalive(*lease, soon());
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error(), Reason::kNotFound);
    again = kv.lease_revoke(*lease, soon());
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error(), Reason::kNotFound);
  });
}

TEST_P(KvContract, AllKeysOfALeaseGoInOneRevision) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto lease = kv.lease_grant(60s, soon());
    ASSERT_TRUE(lease);
    Recorder seen;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    for (const char* k : {"b", "a", "c"}) put(kv, p + k, "1", *lease);
    ASSERT_TRUE(kv.lease_revoke(*lease, soon()));
    ASSERT_TRUE(seen.wait_events(6));
    EXPECT_EQ(to_string(seen.events[3]), "delete " + p + "a");
    EXPECT_EQ(to_string(seen.events[5]), "delete " + p + "c");
    EXPECT_EQ(seen.events[3].kv.mod_revision, seen.events[5].kv.mod_revision);
  });
}

TEST_P(KvContract, ALeaseThatIsNotRenewedExpires) {
  with_client([](meta::Kv& kv, const std::string& p) {
    auto dies = kv.lease_grant(2s, soon()), lives = kv.lease_grant(2s, soon());
    ASSERT_TRUE(dies && lives);
    put(kv, p + "dies", "1", *dies);
    put(kv, p + "lives", "1", *lives);
    Recorder seen;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    Time begun = rt::now();
    for (int i = 0; i < 60 && seen.events.empty(); i++) {
      ASSERT_TRUE(kv.lease_keepalive(*lives, soon()));
      rt::sleep_for(500ms);
    }
    EXPECT_EQ(seen.texts(), std::vector<std::string>{"delete " + p + "dies"});
    EXPECT_GE(rt::now() - begun, 1s);
    EXPECT_EQ(get(kv, p + "lives"), "1");
    EXPECT_EQ(kv.lease_keepalive(*dies, soon()).error(), Reason::kNotFound);
    ASSERT_TRUE(kv.lease_revoke(*lives, soon()));
  });
}

TEST_P(KvContract, APutOnALeaseThatIsGoneIsRefused) {
  with_client([](meta::Kv& kv, const std::string& p) {
    refused(kv, ops_txn({PutOp{p + "a", "1"}, PutOp{p + "b", "1", 123456789}}), Reason::kNotFound);
    EXPECT_EQ(get(kv, p + "a"), "<absent>");
    Txn other_branch;  // only what would be done counts
    other_branch.success = {PutOp{p + "a", "1"}};
    other_branch.failure = {PutOp{p + "b", "1", 123456789}};
    EXPECT_TRUE(done(kv.txn(other_branch, soon())).succeeded);
  });
}

// --- watches ---

TEST_P(KvContract, AWatchFromNowSeesEverythingAfterItReturned) {
  with_client([](meta::Kv& kv, const std::string& p) {
    put(kv, p + "a", "before");
    Recorder seen;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    Revision first = put(kv, p + "a", "1");
    put(kv, meta::prefix_end(p), "outside");
    Revision second =
        done(kv.txn(ops_txn({PutOp{p + "c", "2"}, PutOp{p + "b", "2"}, DeleteOp{p + "a", {}}}),
                    soon()))
            .revision;
    ASSERT_TRUE(seen.wait_events(4));
    EXPECT_EQ(seen.texts(), (std::vector<std::string>{"put " + p + "a=1", "put " + p + "c=2",
                                                      "put " + p + "b=2", "delete " + p + "a"}));
    EXPECT_EQ(seen.events[0].kv.mod_revision, first);
    EXPECT_EQ(seen.events[0].kv.version, 2);
    EXPECT_EQ(seen.events[1].kv.create_revision, second);
    EXPECT_EQ(seen.events[3].kv.mod_revision, second);
    EXPECT_EQ(seen.events[3].kv.value, "");
    EXPECT_GE(seen.revision, second);
    for (const auto& batch : seen.batches)  // a revision is never split
      if (batch.events.back().kv.mod_revision == second) {
        EXPECT_GE(batch.events.size(), 3u);
      }
  });
}

TEST_P(KvContract, AWatchFromThePastReplaysIt) {
  with_client([](meta::Kv& kv, const std::string& p) {
    put(kv, p + "a", "0");
    Revision from = put(kv, p + "a", "1");
    put(kv, p + "b", "2");
    done(kv.txn(ops_txn({DeleteOp{p + "a", {}}}), soon()));
    Recorder seen, one_key;
    auto watch = kv.watch(p, meta::prefix_end(p), from, seen.on_batch(), seen.on_lost(), soon());
    auto other = kv.watch(p + "a", {}, from, one_key.on_batch(), one_key.on_lost(), soon());
    ASSERT_TRUE(watch && other);
    put(kv, p + "b", "3");
    ASSERT_TRUE(seen.wait_events(4));
    EXPECT_EQ(seen.texts(), (std::vector<std::string>{"put " + p + "a=1", "put " + p + "b=2",
                                                      "delete " + p + "a", "put " + p + "b=3"}));
    ASSERT_TRUE(one_key.wait_events(2));
    EXPECT_EQ(one_key.texts(), (std::vector<std::string>{"put " + p + "a=1", "delete " + p + "a"}));
  });
}

TEST_P(KvContract, AWatchFromTheFutureWaitsForIt) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision now = put(kv, p + "a", "0");
    Recorder seen;
    auto watch =
        kv.watch(p + "a", {}, Revision{now.v + 3}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    for (const char* v : {"1", "2", "3", "4"}) put(kv, p + "a", v);
    ASSERT_TRUE(seen.wait_events(2));
    EXPECT_EQ(seen.texts(), (std::vector<std::string>{"put " + p + "a=3", "put " + p + "a=4"}));
  });
}

TEST_P(KvContract, ADestroyedWatchIsSilent) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Recorder seen, other;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    auto kept =
        kv.watch(p, meta::prefix_end(p), Revision{}, other.on_batch(), other.on_lost(), soon());
    ASSERT_TRUE(watch && kept);
    put(kv, p + "a", "1");
    ASSERT_TRUE(seen.wait_events(1));
    put(kv, p + "a", "2");
    (*watch).reset();
    std::size_t had = seen.events.size();
    for (int i = 0; i < 20; i++) put(kv, p + "a", "3");
    ASSERT_TRUE(other.wait_events(22));
    EXPECT_EQ(seen.events.size(), had);
  });
}

TEST_P(KvContract, AWatchMayBeDestroyedByItsOwnCallback) {
  with_client([](meta::Kv& kv, const std::string& p) {
    std::unique_ptr<meta::Watch> watch;
    int calls = 0;
    Recorder other;
    auto made = kv.watch(
        p, meta::prefix_end(p), Revision{},
        [&](const meta::WatchBatch& batch) {
          if (batch.events.empty()) return;
          calls++;
          watch.reset();
        },
        [] {}, soon());
    ASSERT_TRUE(made);
    watch = *std::move(made);
    auto kept =
        kv.watch(p, meta::prefix_end(p), Revision{}, other.on_batch(), other.on_lost(), soon());
    ASSERT_TRUE(kept);
    for (int i = 0; i < 10; i++) put(kv, p + "a", "1");
    ASSERT_TRUE(other.wait_events(10));
    EXPECT_EQ(calls, 1);
  });
}

TEST_P(KvContract, ManyWatchesAndWritersAgreeOnTheOrder) {
  bed_->run([&] {
    std::string p = fresh_prefix();
    auto reader = bed_->client();
    auto writer_a = bed_->client(), writer_b = bed_->client();
    constexpr int kWatches = 20, kPuts = 50;
    std::vector<std::unique_ptr<meta::Watch>> watches;
    std::vector<Recorder> seen(kWatches);
    for (Recorder& recorder : seen) {
      auto watch = (*reader)->watch(p, meta::prefix_end(p), Revision{}, recorder.on_batch(),
                                    recorder.on_lost(), soon());
      ASSERT_TRUE(watch);
      watches.push_back(*std::move(watch));
    }
    rt::Group writers(bed_->runtime(), "writers");
    for (Client* client : {writer_a.get(), writer_b.get()})
      writers.spawn([&, client] {
        for (int i = 0; i < kPuts; i++) put(**client, p + std::to_string(i % 7), std::to_string(i));
      });
    writers.wait();
    for (Recorder& recorder : seen) ASSERT_TRUE(recorder.wait_events(2 * kPuts));
    for (Recorder& recorder : seen) {
      EXPECT_EQ(recorder.events.size(), 2u * kPuts);
      EXPECT_EQ(recorder.texts(), seen[0].texts());
    }
  });
}

// --- compaction ---

TEST_P(KvContract, CompactedHistoryIsGoneAndSaysSo) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision old = put(kv, p + "a", "1");
    put(kv, p + "a", "2");
    Revision kept = put(kv, p + "a", "3");
    ASSERT_TRUE(kv.compact(kept, soon()));
    EXPECT_TRUE(kv.compact(kept, soon()));
    EXPECT_TRUE(kv.compact(old, soon()));
    auto future = kv.compact(Revision{kept.v + 1000}, soon());
    ASSERT_FALSE(future);
    EXPECT_EQ(future.error(), Reason::kInvalid);
    auto reply = kv.range(RangeOp{p + "a", {}}, old, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error(), Reason::kCompacted);
    EXPECT_EQ(get(kv, p + "a"), "3");
    reply = kv.range(RangeOp{p + "a", {}}, kept, soon());
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kvs.at(0).value, "3");
  });
}

TEST_P(KvContract, AWatchFromCompactedHistoryIsLostOnce) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Revision old = put(kv, p + "a", "1");
    put(kv, p + "a", "2");
    Revision kept = put(kv, p + "a", "3");
    ASSERT_TRUE(kv.compact(kept, soon()));
    Recorder lost, fine;
    auto watch = kv.watch(p, meta::prefix_end(p), old, lost.on_batch(), lost.on_lost(), soon());
    ASSERT_TRUE(watch);
    ASSERT_TRUE(lost.wait_lost());
    auto again = kv.watch(p, meta::prefix_end(p), kept, fine.on_batch(), fine.on_lost(), soon());
    ASSERT_TRUE(again);
    put(kv, p + "a", "4");
    ASSERT_TRUE(fine.wait_events(2));
    EXPECT_EQ(fine.texts(), (std::vector<std::string>{"put " + p + "a=3", "put " + p + "a=4"}));
    EXPECT_EQ(fine.lost, 0);
    EXPECT_EQ(lost.lost, 1);
    EXPECT_TRUE(lost.events.empty());
  });
}

TEST_P(KvContract, ACompactionDoesNotDisturbAWatchThatIsUpToDate) {
  with_client([](meta::Kv& kv, const std::string& p) {
    Recorder seen;
    auto watch =
        kv.watch(p, meta::prefix_end(p), Revision{}, seen.on_batch(), seen.on_lost(), soon());
    ASSERT_TRUE(watch);
    for (int i = 0; i < 10; i++) ASSERT_TRUE(kv.compact(put(kv, p + "a", "1"), soon()));
    ASSERT_TRUE(seen.wait_events(10));
    EXPECT_EQ(seen.lost, 0);
  });
}

TEST_P(KvContract, StatusTellsVersionAndSize) {
  with_client([](meta::Kv& kv, const std::string& p) {
    put(kv, p + "a", std::string(100'000, 'x'));
    // etcd reports the size of its file, which follows the put within its commit interval.
    const Time end = soon();
    auto status = kv.status(end);
    while (status && status->db_bytes < 100'000 && rt::now() < end) {
      rt::sleep_for(20ms);
      status = kv.status(end);
    }
    ASSERT_TRUE(status);
    EXPECT_TRUE(status->version.starts_with("3.")) << status->version;
    EXPECT_GE(status->db_bytes, 100'000);
    EXPECT_TRUE(status->alarms.empty());
  });
}

}  // namespace
}  // namespace etcfs::testing

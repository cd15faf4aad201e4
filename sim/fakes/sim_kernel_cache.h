// The simulated kernel cache: records what the filesystem asks of it, and is such a cache: what was
// answered with a timeout is kept and may be answered again until it runs out or is taken away. The
// simulator's clients ask it first, so a name, attribute, page or listing that it still has after
// another node changed the thing shows as a wrong answer (I6).
//
// Model of FUSE's: write-through pages, no automatic invalidation by attributes, a listing kept per
// directory. Dropping happens at some moment within the call, not necessarily at its end; expiring
// names may be blocked by a parked request that holds the directory's kernel lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fs/cache/kernel_cache.h"
#include "fs/types.h"
#include "rt/rt.h"

namespace etcfs::sim {

struct SimKernelOptions {
  Nanos latency_max{0};        // of an invalidation; 0: it never blocks
  unsigned blocked_names = 0;  // per 10,000 calls of expire_names: the directory is locked
};

class SimKernelCache final : public fs::KernelCache {
 public:
  explicit SimKernelCache(rt::Runtime& runtime, SimKernelOptions options = {});

  // --- the seam
  bool expire_names(Ino directory, std::vector<std::string> names, Time deadline) override;
  void invalidate(Ino ino, std::uint64_t offset, std::uint64_t length) override;
  void invalidate_all(std::vector<Ino> inodes) override;
  void invalidate_attributes(Ino ino) override;
  void store_last_byte(Ino ino, std::uint64_t size, std::byte last) override;
  void prune(std::vector<Ino> inodes) override;

  // --- what was asked of it, for unit tests
  struct Call {
    enum class Type { kExpireNames, kInvalidate, kInvalidateAttributes, kStoreLastByte, kPrune };
    Type type;
    Ino ino;
    std::vector<std::string> names;
    std::uint64_t offset = 0, length = 0;
  };
  const std::vector<Call>& calls() const { return calls_; }
  void clear_calls() { calls_.clear(); }
  // Runs inside the calls (and may block): a test's way to do something in the middle of one.
  void on_call(std::function<void(const Call&)> fn) { hook_ = std::move(fn); }

  // --- the cache, as the client of the filesystem fills and asks it
  void took_entry(Ino parent, const std::string& name, const fs::Entry& entry);
  void took_attr(const fs::Attr& attr, Nanos timeout);
  void took_pages(Ino ino, std::uint64_t offset, const std::string& bytes, bool end_of_file);
  void wrote_pages(Ino ino, std::uint64_t offset, const std::string& bytes);
  using Listing = std::map<std::string, std::pair<Ino, fs::FileType>>;
  void took_listing(Ino ino, Listing listing);

  std::optional<Ino> find_name(Ino parent, const std::string& name) const;  // Ino{}: known absent
  std::optional<fs::Attr> find_attr(Ino ino) const;
  // The whole answer to a read, if every page of it and the attributes are cached.
  std::optional<std::string> find_bytes(Ino ino, std::uint64_t offset, std::size_t size) const;
  const Listing* find_listing(Ino ino) const;

  // Data or size of the file are being changed by a call of this node: the kernel serves neither
  // from its cache meanwhile (it holds the inode's lock, and its pages already have the new bytes).
  void begin_change(Ino ino);
  void end_change(Ino ino);

  void forget_name(Ino parent, const std::string& name);
  void forget_attr(Ino ino) { attrs_.erase(ino); }
  void forget_pages(Ino ino) { pages_.erase(ino); }
  void forget_listing(Ino ino) { listings_.erase(ino); }

 private:
  struct Name {
    Ino ino;
    Time until;
  };
  struct CachedAttr {
    fs::Attr attr;
    Time until;
  };
  void note(Call call);
  // Spends the latency, with `drop` at a random moment of it.
  void within_latency(const std::function<void()>& drop);
  void drop(Ino ino, std::uint64_t offset, std::uint64_t length);

  rt::Runtime& runtime_;
  SimKernelOptions options_;
  std::vector<Call> calls_;
  std::function<void(const Call&)> hook_;
  std::map<std::pair<Ino, std::string>, Name> names_;
  std::map<Ino, CachedAttr> attrs_;
  std::map<Ino, std::map<std::uint64_t, std::string>>
      pages_;  // by page; shorter than 4096: zeros follow
  std::map<Ino, Listing> listings_;
  std::map<Ino, unsigned> changing_;
};

}  // namespace etcfs::sim

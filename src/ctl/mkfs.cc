// mkfs: a new filesystem on a device: an identity in block 0, and three keys in etcd. Everything
// that could be lost is looked for first; the first byte is written when nothing more is to be
// refused but by a race, and the keys come last: they name the identity that is already on the
// device.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>

#include "block/identity.h"
#include "block/uring_device.h"
#include "ctl/commands.h"
#include "ctl/mkfs_device.h"
#include "ctl/mkfs_etcd.h"
#include "ctl/output.h"

namespace etcfs::ctl {
namespace {

constexpr std::uint64_t kSmallestArena = meta::kArenaChunkBlocks * kBlockBytes;  // 16 MiB
constexpr std::uint64_t kLargestArena = 64 * kGiB;
constexpr std::uint64_t kFewestArenas = 4;

std::uint64_t default_arena(std::uint64_t device_bytes) {
  return std::clamp<std::uint64_t>(std::bit_floor(device_bytes / 1024), kSmallestArena, kGiB);
}

class Mkfs {
 public:
  Mkfs(const Context& context, const MkfsOptions& options) : c_(context), o_(options) {}

  int run() {
    if (int status = look_at_device()) return status;
    if (int status = look_at_etcd()) return status;
    if (int status = write()) return status;
    report();
    return 0;
  }

 private:
  int look_at_device() {
    std::string why;
    auto bytes = device_bytes(o_.device, why);
    if (!bytes) return c_.fail(why);
    auto mounted = find_mount(o_.device, why);
    if (!mounted) return c_.fail(why);
    if (!mounted->empty())
      return c_.fail(fmt::format("{} is mounted ({}): unmount it first; --force does not help here",
                                 o_.device, *mounted));
    auto opened = block::UringDevice::open(o_.device, {.allow_file = true, .exclusive = true});
    if (!opened && opened.error() == Reason::kBusy)
      return c_.fail(
          fmt::format("{} is in use by another program or volume: free it first", o_.device));
    if (!opened)
      return c_.fail(fmt::format("{} cannot be opened for direct I/O in 4 KiB blocks: {}",
                                 o_.device, reason_text(opened.error())));
    device_ = std::move(*opened);
    super_.device_blocks = *bytes / kBlockBytes;
    const std::uint64_t arena = o_.arena_bytes.value_or(default_arena(*bytes));
    if (!std::has_single_bit(arena) || arena < kSmallestArena || arena > kLargestArena)
      return c_.fail(
          fmt::format("an arena of {} bytes: --arena-size takes a power of two from {} to {}",
                      arena, human_bytes(kSmallestArena), human_bytes(kLargestArena)));
    super_.arena_blocks = arena / kBlockBytes;
    if (*bytes < arena)
      return c_.fail(
          fmt::format("{} has {}, which is less than one arena of {}: take a larger device",
                      o_.device, human_bytes(*bytes), human_bytes(arena)));
    if (*bytes < kFewestArenas * arena && !o_.force)
      return c_.fail(
          fmt::format("{} has {}, which is less than {} arenas of {}: take a larger device, "
                      "a smaller --arena-size, or --force",
                      o_.device, human_bytes(*bytes), kFewestArenas, human_bytes(arena)));
    if (*bytes / arena >= UINT32_MAX) return c_.fail("too many arenas: take a larger --arena-size");
    auto signature = find_signature(o_.device, why);
    if (!signature) return c_.fail(why);
    if (!signature->what.empty() && !o_.force)
      return c_.fail(fmt::format("{} holds data: {} found on it; --force destroys it", o_.device,
                                 signature->what));
    signature_ = std::move(*signature);
    return 0;
  }

  int look_at_etcd() {
    auto taken = name_taken(c_.kv, c_.keys, c_.deadline());
    if (!taken) return c_.fail_etcd(taken.error());
    if (*taken && !o_.force)
      return c_.fail(
          fmt::format("a filesystem named '{}' exists: take another --fs, or --force "
                      "destroys it",
                      c_.common.fs_name));
    if (signature_.etcfs)
      if (int status = look_at_former_filesystem()) return status;
    taken_ = *taken;
    if (!taken_) return 0;
    return look_at_life(c_.keys, c_.common.fs_name, beats_);
  }

  // --force over the device of another filesystem in this etcd: not while that one lives.
  int look_at_former_filesystem() {
    const std::string hash = block::sha256(signature_.block0);
    auto names = list_filesystems(c_.kv, c_.deadline());
    if (!names) return c_.fail_etcd(names.error());
    for (const std::string& name : *names) {
      if (name == c_.common.fs_name) continue;
      const meta::Keys keys(name);
      meta::RangeOp op;
      op.key = keys.super();
      auto reply = c_.kv.range(op, Revision{}, c_.deadline());
      if (!reply) return c_.fail_etcd(reply.error());
      if (reply->kvs.empty()) continue;
      auto super = meta::decode_super(reply->kvs[0].value);
      if (!super || super->identity_hash != hash) continue;
      Revision ignored;
      if (int status = look_at_life(keys, name, ignored)) return status;
    }
    return 0;
  }

  int look_at_life(const meta::Keys& keys, const std::string& name, Revision& beats) {
    auto life = look_for_life(c_.kv, keys, o_.ttl, c_.deadline());
    if (!life) return c_.fail_etcd(life.error());
    if (!life->alive.empty())
      return c_.fail(
          fmt::format("filesystem '{}' is in use by node '{}': unmount it there first; "
                      "--force does not help here",
                      name, life->alive.front()));
    beats = life->beats;
    return 0;
  }

  int write() {
    const Nanos timeout = c_.deadline() - rt::now();
    if (taken_) {
      auto removed = remove_filesystem(c_.kv, c_.keys, beats_, timeout);
      if (!removed && removed.error() == Reason::kBusy)
        return c_.fail(fmt::format("a node of filesystem '{}' came to life: unmount it there first",
                                   c_.common.fs_name));
      if (!removed) return c_.fail_etcd(removed.error());
    }
    std::string why;
    if (!signature_.what.empty() && !signature_.etcfs)
      if (!wipe_signatures(o_.device, why)) return c_.fail(why);
    auto hash = block::write_identity(*device_);
    if (!hash)
      return c_.fail(
          fmt::format("{}: cannot write the identity: {}", o_.device, reason_text(hash.error())));
    super_.identity_hash = std::move(*hash);
    super_.overwrite = o_.overwrite;
    super_.created = rt::Runtime::current().wall_now();
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t random = rt::Runtime::current().random();
      super_.uuid.append(reinterpret_cast<const char*>(&random), sizeof random);
    }
    auto created = create_filesystem(c_.kv, c_.keys, super_, timeout);
    if (created) return 0;
    if (created.error() == Reason::kExists)
      return c_.fail(fmt::format("a filesystem named '{}' was made by somebody else meanwhile",
                                 c_.common.fs_name));
    return c_.fail_etcd(created.error());
  }

  void report() const {
    const bool in_place = super_.overwrite == meta::Overwrite::kInPlace;
    if (c_.common.json) {
      Json json;
      c_.out << json.begin_object()
                    .field("fs", c_.common.fs_name)
                    .field("uuid", uuid_text(super_.uuid))
                    .field("device", o_.device)
                    .field("device_bytes", super_.device_blocks * kBlockBytes)
                    .field("arena_bytes", super_.arena_blocks * kBlockBytes)
                    .field("arenas", std::uint64_t{super_.arenas()})
                    .field("overwrite", in_place ? "in-place" : "redirect")
                    .end()
                    .text();
      return;
    }
    std::string endpoints;
    for (const std::string& e : c_.common.endpoints)
      endpoints += (endpoints.empty() ? "" : ",") + e;
    c_.out << fmt::format(
                  "filesystem '{}' made on {}: {} in {} arenas of {}, overwrite {}, uuid {}\n",
                  c_.common.fs_name, o_.device, human_bytes(super_.device_blocks * kBlockBytes),
                  super_.arenas(), human_bytes(super_.arena_blocks * kBlockBytes),
                  in_place ? "in-place" : "redirect", uuid_text(super_.uuid))
           << fmt::format("mount it with: etcfs --etcd {} --fs {} --device {} MOUNTPOINT\n",
                          endpoints, c_.common.fs_name, o_.device);
  }

  const Context& c_;
  const MkfsOptions& o_;
  meta::Super super_;
  std::unique_ptr<block::UringDevice> device_;
  Signature signature_;
  bool taken_ = false;
  Revision beats_;
};

}  // namespace

int mkfs(const Context& context, const MkfsOptions& options) {
  return Mkfs(context, options).run();
}

}  // namespace etcfs::ctl

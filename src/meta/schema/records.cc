// Encoding of the records. encode(Inode) and encode(Dirent) run tens of thousands of times a
// second, so their messages are per thread and reused: every field is set each time and Clear() is
// never called (in proto3 it frees the submessages). No fiber switch can happen in here.
//
// Decoding judges: bytes from etcd are input. What a reader relies on to stay within its own bounds
// (known enums and file types, indices below 2^24, ordered ranges and extents that do not wrap,
// sizes of fixed fields) is tested here and answered with kCorrupt; what relates records to each
// other is check/'s.
#include "meta/schema/records.h"

#include <google/protobuf/arena.h>

#include <bit>

#include "etcfs.pb.h"
#include "meta/schema/keys.h"

namespace etcfs::meta {
namespace {

constexpr std::uint32_t kTypeMask = 0170000;

template <class M>
std::string serialize(const M& m) {
  std::string out;
  m.SerializeToString(&out);
  return out;
}
template <class M>
bool parse(M& m, std::string_view bytes) {
  return bytes.size() <= INT32_MAX &&
         m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

void set_time(pb::Timestamp* out, WallTime t) {
  out->set_sec(t.sec);
  out->set_nsec(t.nsec);
}
bool get_time(const pb::Timestamp& in, WallTime& out) {
  out = {in.sec(), in.nsec()};
  return out.nsec < 1'000'000'000;
}

void set_extent(pb::Extent* out, const Extent& e) {
  out->set_file_block(e.file_block);
  out->set_device_block(e.device_block);
  out->set_blocks(e.blocks);
  out->set_flags(e.flags);
  out->set_birth(e.birth);
}
template <class Repeated>
bool get_extents(const Repeated& in, std::vector<Extent>& out) {
  constexpr std::uint64_t kMaxBlock = std::uint64_t{1} << 52;  // of a 2^64 byte file or device
  out.reserve(static_cast<std::size_t>(in.size()));
  std::uint64_t end = 0;
  for (const auto& e : in) {
    out.push_back({e.file_block(), e.device_block(), e.blocks(), e.flags(), e.birth()});
    const Extent& x = out.back();
    if (x.blocks == 0 || x.blocks > kMaxBlock || x.file_block > kMaxBlock ||
        x.device_block > kMaxBlock)
      return false;
    if ((x.flags & ~Extent::kUnwritten) != 0 || x.file_block < end) return false;
    end = x.file_end();
  }
  return true;
}

template <class Repeated>
void set_ranges(Repeated* out, const std::vector<FileRange>& ranges) {
  for (const FileRange& r : ranges) {
    auto* o = out->Add();
    o->set_first(r.first);
    o->set_last(r.last);
    o->set_mode(static_cast<pb::LockMode>(r.mode));
  }
}
bool get_mode(int in, LockMode& out) {
  if (in < 0 || in > 2) return false;
  out = static_cast<LockMode>(in);
  return true;
}
template <class Repeated>
bool get_ranges(const Repeated& in, std::vector<FileRange>& out) {
  std::uint64_t next = 0;
  for (const auto& r : in) {
    FileRange f{r.first(), r.last(), LockMode::kNone};
    if (!get_mode(r.mode(), f.mode)) return false;
    if (f.first > f.last || f.last > kMaxIndex || f.first < next) return false;
    next = std::uint64_t{f.last} + 1;
    out.push_back(f);
  }
  return true;
}

bool known_type(std::uint32_t dt) {  // DT_FIFO, CHR, DIR, BLK, REG, LNK, SOCK
  return dt == 1 || dt == 2 || dt == 4 || dt == 6 || dt == 8 || dt == 10 || dt == 12;
}

}  // namespace

std::string encode(const Super& v) {
  pb::Super m;
  m.set_format_version(v.format_version);
  m.set_uuid(v.uuid);
  m.set_block_bytes(kBlockBytes);
  m.set_arena_blocks(v.arena_blocks);
  m.set_device_blocks(v.device_blocks);
  m.set_identity_hash(v.identity_hash);
  m.set_incompatible_features(v.incompatible_features);
  m.set_compatible_features(v.compatible_features);
  m.set_overwrite(static_cast<pb::Super::Overwrite>(v.overwrite));
  set_time(m.mutable_created(), v.created);
  return serialize(m);
}

Result<Super> decode_super(std::string_view bytes) {
  pb::Super m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  Super v;
  v.format_version = m.format_version();
  v.uuid = m.uuid();
  v.arena_blocks = m.arena_blocks();
  v.device_blocks = m.device_blocks();
  v.identity_hash = m.identity_hash();
  v.incompatible_features = m.incompatible_features();
  v.compatible_features = m.compatible_features();
  v.overwrite = static_cast<Overwrite>(m.overwrite());
  bool ok = get_time(m.created(), v.created) && v.format_version != 0 && v.uuid.size() == 16 &&
            v.identity_hash.size() == 32 && m.block_bytes() == kBlockBytes;
  ok = ok && std::has_single_bit(v.arena_blocks) && v.arena_blocks >= kArenaChunkBlocks &&
       v.device_blocks != 0 && v.device_blocks <= std::uint64_t{1} << 52 &&
       (v.device_blocks - 1) / v.arena_blocks < UINT32_MAX;
  ok = ok && (v.overwrite == Overwrite::kInPlace || v.overwrite == Overwrite::kRedirect);
  if (!ok) return Reason::kCorrupt;
  return v;
}

std::string encode(const Beat& v) {
  pb::Beat m;
  m.set_epoch(v.epoch.v);
  m.set_boot_id(v.boot_id);
  m.set_machine_id(v.machine_id);
  m.set_device_dev(v.device_dev);
  m.set_device_ino(v.device_ino);
  if (v.proven_from < v.epoch) m.set_proven_from(v.proven_from.v);
  return serialize(m);
}
Result<Beat> decode_beat(std::string_view bytes) {
  pb::Beat m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  if (m.proven_from() > m.epoch()) return Reason::kCorrupt;
  const Epoch epoch{m.epoch()};
  return Beat{epoch,          m.boot_id(),    m.machine_id(),
              m.device_dev(), m.device_ino(), m.proven_from() ? Epoch{m.proven_from()} : epoch};
}

std::string encode(const Live& v) {
  pb::Live m;
  m.set_epoch(v.epoch.v);
  m.set_host(v.host);
  m.set_address(v.address);
  m.set_version(v.version);
  m.set_mountpoint(v.mountpoint);
  set_time(m.mutable_started(), v.started);
  return serialize(m);
}
Result<Live> decode_live(std::string_view bytes) {
  pb::Live m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  Live v{Epoch{m.epoch()}, m.host(), m.address(), m.version(), m.mountpoint(), {}};
  if (!get_time(m.started(), v.started)) return Reason::kCorrupt;
  return v;
}

std::string encode(const Inode& v) {
  thread_local pb::Inode m;
  m.set_mode(v.mode);
  m.set_uid(v.uid);
  m.set_gid(v.gid);
  m.set_nlink(v.nlink);
  m.set_size(v.size);
  set_time(m.mutable_atime(), v.atime);
  set_time(m.mutable_mtime(), v.mtime);
  set_time(m.mutable_ctime(), v.ctime);
  set_time(m.mutable_btime(), v.btime);
  m.set_rdev(v.rdev);
  m.set_symlink(v.symlink);
  m.clear_xattrs();
  for (const auto& [name, value] : v.xattrs) {
    pb::Xattr* x = m.add_xattrs();
    x->set_name(name);
    x->set_value(value);
  }
  m.clear_extents();
  for (const Extent& e : v.extents) set_extent(m.add_extents(), e);
  m.set_external_extents(v.external_extents);
  m.set_parent(v.parent.v);
  m.set_birth_family(v.birth_family.v);
  m.set_birth_bound(v.birth_bound);
  m.set_next_cookie(v.next_cookie);
  return serialize(m);
}

Result<Inode> decode_inode(std::string_view bytes) {
  alignas(8) char block[4096];  // most inodes cost no allocation but their own strings
  google::protobuf::ArenaOptions options;
  options.initial_block = block;
  options.initial_block_size = sizeof block;
  google::protobuf::Arena arena(options);
  pb::Inode& m = *google::protobuf::Arena::CreateMessage<pb::Inode>(&arena);
  if (!parse(m, bytes)) return Reason::kCorrupt;
  Inode v;
  v.mode = m.mode();
  v.uid = m.uid();
  v.gid = m.gid();
  v.nlink = m.nlink();
  v.size = m.size();
  v.rdev = m.rdev();
  v.symlink = m.symlink();
  v.external_extents = m.external_extents();
  v.parent = Ino{m.parent()};
  v.birth_family = Family{m.birth_family()};
  v.birth_bound = m.birth_bound();
  v.next_cookie = m.next_cookie();
  bool ok = get_time(m.atime(), v.atime) && get_time(m.mtime(), v.mtime) &&
            get_time(m.ctime(), v.ctime) && get_time(m.btime(), v.btime);
  ok = ok && (v.mode >> 16) == 0 && known_type((v.mode & kTypeMask) >> 12) &&
       v.size <= kMaxFileBytes;
  ok = ok && v.birth_bound <= kMaxIndex + 1 && v.birth_family.v >> 40 == 0;
  ok = ok && get_extents(m.extents(), v.extents);
  v.xattrs.reserve(static_cast<std::size_t>(m.xattrs_size()));
  for (const pb::Xattr& x : m.xattrs()) {
    if (x.name().empty() || (!v.xattrs.empty() && x.name() <= v.xattrs.back().first)) ok = false;
    v.xattrs.emplace_back(x.name(), x.value());
  }
  if (!ok) return Reason::kCorrupt;
  return v;
}

std::string encode(const Dirent& v) {
  thread_local pb::Dirent m;
  m.set_ino(v.ino.v);
  m.set_type(v.type);
  m.set_cookie(v.cookie);
  return serialize(m);
}
Result<Dirent> decode_dirent(std::string_view bytes) {
  thread_local pb::Dirent m;
  if (!parse(m, bytes) || m.ino() == 0 || !known_type(m.type())) return Reason::kCorrupt;
  return Dirent{Ino{m.ino()}, m.type(), m.cookie()};
}

std::string encode(const LockRecord& v) {
  pb::LockRecord m;
  m.set_names(static_cast<pb::LockMode>(v.names));
  set_ranges(m.mutable_files(), v.files);
  set_ranges(m.mutable_in_place(), v.in_place);
  return serialize(m);
}
Result<LockRecord> decode_lock(std::string_view bytes) {
  pb::LockRecord m;
  LockRecord v;
  if (!parse(m, bytes) || !get_mode(m.names(), v.names) || !get_ranges(m.files(), v.files) ||
      !get_ranges(m.in_place(), v.in_place))
    return Reason::kCorrupt;
  return v;
}

std::string encode(const Arena& v) {
  pb::Arena m;
  m.set_owner(v.owner);
  m.set_owner_epoch(v.owner_epoch.v);
  m.set_free_blocks(v.free_blocks);
  return serialize(m);
}
Result<Arena> decode_arena(std::string_view bytes) {
  pb::Arena m;
  if (!parse(m, bytes) || (!m.owner().empty() && !valid_node_name(m.owner())))
    return Reason::kCorrupt;
  return Arena{m.owner(), Epoch{m.owner_epoch()}, m.free_blocks()};
}

std::string encode_epoch(Epoch v) {
  pb::EpochRecord m;
  m.set_epoch(v.v);
  return serialize(m);
}
Result<Epoch> decode_epoch(std::string_view bytes) {
  pb::EpochRecord m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  return Epoch{m.epoch()};
}

std::string encode_sequence(StepNo v) {
  pb::Sequence m;
  m.set_step(v.v);
  return serialize(m);
}
Result<StepNo> decode_sequence(std::string_view bytes) {
  pb::Sequence m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  return StepNo{m.step()};
}

std::string encode_extents(const std::vector<Extent>& v) {
  thread_local pb::ExtentChunk m;
  m.clear_extents();
  for (const Extent& e : v) set_extent(m.add_extents(), e);
  return serialize(m);
}
Result<std::vector<Extent>> decode_extents(std::string_view bytes) {
  pb::ExtentChunk m;
  std::vector<Extent> v;
  if (!parse(m, bytes) || !get_extents(m.extents(), v)) return Reason::kCorrupt;
  return v;
}

std::string encode_amap(std::string_view bits) {
  ETCFS_ASSERT(bits.size() == kArenaChunkBlocks / 8);
  thread_local pb::ArenaMap m;
  m.set_bits(bits.data(), bits.size());
  return serialize(m);
}
Result<std::string> decode_amap(std::string_view bytes) {
  pb::ArenaMap m;
  if (!parse(m, bytes) || m.bits().size() != kArenaChunkBlocks / 8) return Reason::kCorrupt;
  return std::move(*m.mutable_bits());
}

std::string encode_freed(const std::vector<DeviceRange>& v) {
  pb::Freed m;
  for (const DeviceRange& r : v) {
    pb::BlockRange* o = m.add_ranges();
    o->set_device_block(r.block);
    o->set_blocks(r.blocks);
  }
  return serialize(m);
}
Result<std::vector<DeviceRange>> decode_freed(std::string_view bytes) {
  constexpr std::uint64_t kMaxBlock = std::uint64_t{1} << 52;
  pb::Freed m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  std::vector<DeviceRange> v;
  for (const pb::BlockRange& r : m.ranges()) {
    if (r.blocks() == 0 || r.blocks() > kMaxBlock || r.device_block() > kMaxBlock)
      return Reason::kCorrupt;
    v.push_back({r.device_block(), r.blocks()});
  }
  return v;
}

std::string encode_family_counter(Family next) {
  pb::FamilyCounter m;
  m.set_next(next.v);
  return serialize(m);
}
Result<Family> decode_family_counter(std::string_view bytes) {
  pb::FamilyCounter m;
  if (!parse(m, bytes) || m.next() > std::uint64_t{1} << 40) return Reason::kCorrupt;
  return Family{m.next()};
}

std::string encode_hold(Epoch v) {
  pb::Hold m;
  m.set_epoch(v.v);
  return serialize(m);
}
Result<Epoch> decode_hold(std::string_view bytes) {
  pb::Hold m;
  if (!parse(m, bytes)) return Reason::kCorrupt;
  return Epoch{m.epoch()};
}

std::string encode_advisory(const NodeName& node, Epoch epoch) {
  pb::AdvisoryLocks m;
  m.set_node(node);
  m.set_epoch(epoch.v);
  return serialize(m);
}
Result<std::pair<NodeName, Epoch>> decode_advisory(std::string_view bytes) {
  pb::AdvisoryLocks m;
  if (!parse(m, bytes) || !valid_node_name(m.node())) return Reason::kCorrupt;
  return std::pair<NodeName, Epoch>{m.node(), Epoch{m.epoch()}};
}

}  // namespace etcfs::meta

// Spelling and parsing of keys. A parser accepts exactly what the speller writes: lower-case digits
// of the full width, non-empty names, nothing behind. So a key has one meaning, and what does not
// parse is reported by check/ as unknown.
#include "meta/schema/keys.h"

#include "base/assert.h"
#include "meta/kv.h"

namespace etcfs::meta {
namespace {

constexpr std::size_t kFamilyDigits = 10, kIndexDigits = 6, kInoDigits = 16, kEpochDigits = 16,
                      kArenaDigits = 8, kChunkDigits = 8;

void append_hex(std::string& out, std::uint64_t value, std::size_t digits) {
  ETCFS_ASSERT(digits == 16 || value >> (4 * digits) == 0);
  for (std::size_t i = digits; i-- > 0;) out += "0123456789abcdef"[value >> (4 * i) & 15];
}

bool valid_name(std::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  for (char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
          c == '_' || c == '-'))
      return false;
  return true;
}

// Takes a key apart from the left.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}
  bool literal(std::string_view text) {
    if (rest_.substr(0, text.size()) != text) return ok_ = false;
    rest_.remove_prefix(text.size());
    return true;
  }
  std::uint64_t hex(std::size_t digits) {
    if (rest_.size() < digits) return ok_ = false;
    std::uint64_t value = 0;
    for (char c : rest_.substr(0, digits)) {
      if (c >= '0' && c <= '9')
        value = value << 4 | static_cast<std::uint64_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
      else
        return ok_ = false;
    }
    rest_.remove_prefix(digits);
    return value;
  }
  std::string_view until_slash() {
    std::string_view part = rest_.substr(0, rest_.find('/'));
    rest_.remove_prefix(part.size());
    return part;
  }
  std::string_view rest() {
    std::string_view part = rest_;
    rest_ = {};
    return part;
  }
  void require(bool condition) { ok_ = ok_ && condition; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

Cursor open(const std::string& prefix, std::string_view kind, std::string_view key) {
  Cursor c(key);
  if (c.literal(prefix) && c.literal(kind)) c.literal("/");
  return c;
}

std::optional<Keys::HolderKey> parse_holder(const std::string& prefix, std::string_view kind,
                                            std::string_view key) {
  Cursor c = open(prefix, kind, key);
  Keys::HolderKey out;
  out.family = Family{c.hex(kFamilyDigits)};
  c.literal("/");
  out.node = NodeName(c.until_slash());
  c.require(valid_name(out.node));
  c.literal("/");
  out.epoch = Epoch{c.hex(kEpochDigits)};
  return c.done() ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<std::uint64_t> parse_number(const std::string& prefix, std::string_view kind,
                                          std::size_t digits, std::string_view key) {
  Cursor c = open(prefix, kind, key);
  std::uint64_t value = c.hex(digits);
  return c.done() ? std::optional(value) : std::nullopt;
}

}  // namespace

bool valid_node_name(std::string_view name) { return valid_name(name); }
bool valid_fs_name(std::string_view name) { return valid_name(name); }

Keys::Keys(std::string_view fs_name) : prefix_("/etcfs/" + std::string(fs_name) + "/") {
  ETCFS_ASSERT(valid_fs_name(fs_name));
}

std::string Keys::all(std::string_view kind) const {
  std::string out;
  out.reserve(prefix_.size() + 64);
  out += prefix_;
  out += kind;
  out += '/';
  return out;
}

std::string Keys::super() const { return prefix_ + "super"; }
std::string Keys::beat(std::string_view node) const { return all("beat") += node; }
std::string Keys::live(std::string_view node) const { return all("live") += node; }
std::string Keys::epoch(std::string_view node) const { return all("epoch") += node; }
std::string Keys::seq(std::string_view node) const { return all("seq") += node; }
std::string Keys::fence(std::string_view node) const { return all("fence") += node; }
std::string Keys::family_counter() const { return prefix_ + "counter/family"; }

std::string Keys::family_inodes(Family family) const {
  std::string out = all("i");
  append_hex(out, family.v, kFamilyDigits);
  return out += '/';
}
std::string Keys::inode(Ino ino) const {
  std::string out = family_inodes(ino.family());
  append_hex(out, ino.index(), kIndexDigits);
  return out;
}
std::string Keys::entries(Ino directory) const {
  std::string out = all("d");
  append_hex(out, directory.v, kInoDigits);
  return out += '/';
}
std::string Keys::dirent(Ino directory, std::string_view name) const {
  return entries(directory) += name;
}
std::string Keys::extents_of(Ino ino) const {
  std::string out = all("x");
  append_hex(out, ino.v, kInoDigits);
  return out += '/';
}
std::string Keys::extents(Ino ino, std::uint32_t chunk) const {
  std::string out = extents_of(ino);
  append_hex(out, chunk, kChunkDigits);
  return out;
}

std::string Keys::family_locks(Family family) const {
  std::string out = all("lock");
  append_hex(out, family.v, kFamilyDigits);
  return out += '/';
}
std::string Keys::family_wants(Family family) const {
  std::string out = all("want");
  append_hex(out, family.v, kFamilyDigits);
  return out += '/';
}
std::string Keys::lock(Family family, std::string_view node, Epoch epoch) const {
  std::string out = family_locks(family);
  out += node;
  out += '/';
  append_hex(out, epoch.v, kEpochDigits);
  return out;
}
std::string Keys::want(Family family, std::string_view node, Epoch epoch) const {
  std::string out = family_wants(family);
  out += node;
  out += '/';
  append_hex(out, epoch.v, kEpochDigits);
  return out;
}

std::string Keys::holds(Ino ino) const {
  std::string out = all("hold");
  append_hex(out, ino.v, kInoDigits);
  return out += '/';
}
std::string Keys::hold(Ino ino, std::string_view node) const { return holds(ino) += node; }
std::string Keys::family_holds_first(Family family) const {
  std::string out = all("hold");
  append_hex(out, Ino(family, 0).v, kInoDigits);
  return out;
}
std::string Keys::family_holds_end(Family family) const {
  if (family.v + 1 >= std::uint64_t{1} << 40) return prefix_end(all("hold"));
  return family_holds_first(Family{family.v + 1});
}
std::string Keys::plock(Ino ino) const {
  std::string out = all("plock");
  append_hex(out, ino.v, kInoDigits);
  return out;
}
std::string Keys::orphan(Ino ino) const {
  std::string out = all("orphan");
  append_hex(out, ino.v, kInoDigits);
  return out;
}

std::string Keys::arena(ArenaNo n) const {
  std::string out = all("arena");
  append_hex(out, n.v, kArenaDigits);
  return out;
}
std::string Keys::arena_map(ArenaNo n) const {
  std::string out = all("amap");
  append_hex(out, n.v, kArenaDigits);
  return out += '/';
}
std::string Keys::amap(ArenaNo n, std::uint32_t chunk) const {
  std::string out = arena_map(n);
  append_hex(out, chunk, kChunkDigits);
  return out;
}
std::string Keys::arena_freed(ArenaNo n) const {
  std::string out = all("freed");
  append_hex(out, n.v, kArenaDigits);
  return out += '/';
}
std::string Keys::freed(ArenaNo n, std::string_view unique) const {
  return arena_freed(n) += unique;
}

std::optional<Ino> Keys::parse_inode(std::string_view key) const {
  Cursor c = open(prefix_, "i", key);
  Family family{c.hex(kFamilyDigits)};
  c.literal("/");
  auto index = static_cast<std::uint32_t>(c.hex(kIndexDigits));
  return c.done() ? std::optional(Ino(family, index)) : std::nullopt;
}
std::optional<Keys::DirentKey> Keys::parse_dirent(std::string_view key) const {
  Cursor c = open(prefix_, "d", key);
  DirentKey out;
  out.directory = Ino{c.hex(kInoDigits)};
  c.literal("/");
  out.name = std::string(c.rest());
  c.require(!out.name.empty() && out.name.size() <= 255 && out.name != "." && out.name != ".." &&
            out.name.find('/') == std::string::npos && out.name.find('\0') == std::string::npos);
  return c.done() ? std::optional(std::move(out)) : std::nullopt;
}
std::optional<Keys::ExtentsKey> Keys::parse_extents(std::string_view key) const {
  Cursor c = open(prefix_, "x", key);
  ExtentsKey out;
  out.ino = Ino{c.hex(kInoDigits)};
  c.literal("/");
  out.chunk = static_cast<std::uint32_t>(c.hex(kChunkDigits));
  return c.done() ? std::optional(out) : std::nullopt;
}
std::optional<Keys::HolderKey> Keys::parse_lock(std::string_view key) const {
  return parse_holder(prefix_, "lock", key);
}
std::optional<Keys::HolderKey> Keys::parse_want(std::string_view key) const {
  return parse_holder(prefix_, "want", key);
}
std::optional<Keys::HoldKey> Keys::parse_hold(std::string_view key) const {
  Cursor c = open(prefix_, "hold", key);
  HoldKey out;
  out.ino = Ino{c.hex(kInoDigits)};
  c.literal("/");
  out.node = NodeName(c.rest());
  c.require(valid_name(out.node));
  return c.done() ? std::optional(std::move(out)) : std::nullopt;
}
std::optional<Ino> Keys::parse_plock(std::string_view key) const {
  auto v = parse_number(prefix_, "plock", kInoDigits, key);
  return v ? std::optional(Ino{*v}) : std::nullopt;
}
std::optional<Ino> Keys::parse_orphan(std::string_view key) const {
  auto v = parse_number(prefix_, "orphan", kInoDigits, key);
  return v ? std::optional(Ino{*v}) : std::nullopt;
}
std::optional<ArenaNo> Keys::parse_arena(std::string_view key) const {
  auto v = parse_number(prefix_, "arena", kArenaDigits, key);
  return v ? std::optional(ArenaNo{static_cast<std::uint32_t>(*v)}) : std::nullopt;
}
std::optional<Keys::AmapKey> Keys::parse_amap(std::string_view key) const {
  Cursor c = open(prefix_, "amap", key);
  AmapKey out;
  out.arena = ArenaNo{static_cast<std::uint32_t>(c.hex(kArenaDigits))};
  c.literal("/");
  out.chunk = static_cast<std::uint32_t>(c.hex(kChunkDigits));
  return c.done() ? std::optional(out) : std::nullopt;
}
std::optional<Keys::FreedKey> Keys::parse_freed(std::string_view key) const {
  Cursor c = open(prefix_, "freed", key);
  FreedKey out;
  out.arena = ArenaNo{static_cast<std::uint32_t>(c.hex(kArenaDigits))};
  c.literal("/");
  out.unique = std::string(c.rest());
  c.require(!out.unique.empty());
  return c.done() ? std::optional(std::move(out)) : std::nullopt;
}
std::optional<NodeName> Keys::parse_node(std::string_view kind, std::string_view key) const {
  Cursor c = open(prefix_, kind, key);
  NodeName node(c.rest());
  c.require(valid_name(node));
  return c.done() ? std::optional(std::move(node)) : std::nullopt;
}

}  // namespace etcfs::meta

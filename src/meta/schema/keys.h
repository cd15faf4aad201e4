// The only place that spells a key. Numbers are fixed-width lower-case hexadecimal, so that they sort:
// family 10 digits, index 6, ino 16, epoch 16, arena 8, chunk 8. Names are raw bytes and come last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace etcfs::meta {

bool valid_node_name(std::string_view name);   // [a-zA-Z0-9._-]{1,63}
bool valid_fs_name(std::string_view name);     // the same alphabet and length

class Keys {
 public:
  explicit Keys(std::string_view fs_name);     // prefix "/etcfs/<fs_name>/"
  const std::string& prefix() const { return prefix_; }

  std::string super() const;
  std::string beat(std::string_view node) const;
  std::string live(std::string_view node) const;
  std::string epoch(std::string_view node) const;
  std::string seq(std::string_view node) const;
  std::string fence(std::string_view node) const;
  std::string inode(Ino ino) const;
  std::string dirent(Ino directory, std::string_view name) const;
  std::string extents(Ino ino, std::uint32_t chunk) const;
  std::string lock(Family family, std::string_view node, Epoch epoch) const;
  std::string want(Family family, std::string_view node, Epoch epoch) const;
  std::string hold(Ino ino, std::string_view node) const;
  std::string plock(Ino ino) const;
  std::string orphan(Ino ino) const;
  std::string arena(ArenaNo n) const;
  std::string amap(ArenaNo n, std::uint32_t chunk) const;
  std::string freed(ArenaNo n, std::string_view unique) const;
  std::string family_counter() const;

  // Prefixes of contiguous ranges; scan with meta::prefix_end().
  std::string all(std::string_view kind) const;            // "<prefix><kind>/", e.g. "lock"
  std::string family_inodes(Family family) const;          // i/<family>/
  std::string entries(Ino directory) const;                // d/<ino>/
  std::string extents_of(Ino ino) const;                   // x/<ino>/
  std::string family_locks(Family family) const;
  std::string family_wants(Family family) const;
  std::string family_holds_first(Family family) const;     // hold/<first ino of family>
  std::string family_holds_end(Family family) const;       // hold/<first ino of the next family>
  std::string holds(Ino ino) const;
  std::string arena_map(ArenaNo n) const;
  std::string arena_freed(ArenaNo n) const;

  // Parsing: nullopt when the key is not of that kind or malformed.
  struct InodeKey { Ino ino; };
  struct DirentKey { Ino directory; std::string name; };
  struct ExtentsKey { Ino ino; std::uint32_t chunk = 0; };
  struct HolderKey { Family family; NodeName node; Epoch epoch; };   // lock/ and want/
  struct HoldKey { Ino ino; NodeName node; };
  struct AmapKey { ArenaNo arena; std::uint32_t chunk = 0; };
  struct FreedKey { ArenaNo arena; std::string unique; };
  std::optional<Ino> parse_inode(std::string_view key) const;
  std::optional<DirentKey> parse_dirent(std::string_view key) const;
  std::optional<ExtentsKey> parse_extents(std::string_view key) const;
  std::optional<HolderKey> parse_lock(std::string_view key) const;
  std::optional<HolderKey> parse_want(std::string_view key) const;
  std::optional<HoldKey> parse_hold(std::string_view key) const;
  std::optional<Ino> parse_plock(std::string_view key) const;
  std::optional<Ino> parse_orphan(std::string_view key) const;
  std::optional<ArenaNo> parse_arena(std::string_view key) const;
  std::optional<AmapKey> parse_amap(std::string_view key) const;
  std::optional<FreedKey> parse_freed(std::string_view key) const;
  // beat, live, epoch, seq, fence: "<prefix><kind>/<node>"
  std::optional<NodeName> parse_node(std::string_view kind, std::string_view key) const;

 private:
  std::string prefix_;
};

}  // namespace etcfs::meta

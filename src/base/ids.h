// Numbers that must not be mixed up. Each converts only explicitly from and to its raw value.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace etcfs {

template <class Tag, class Rep = std::uint64_t>
struct Id {
  Rep v{};
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : v(value) {}
  friend constexpr auto operator<=>(Id, Id) = default;
};

struct FamilyTag {};
struct EpochTag {};
struct RevisionTag {};
struct StepTag {};
struct ArenaTag {};
using Family = Id<FamilyTag>;                   // 40 bits; 0 is the rename lock, 1 the root
using Epoch = Id<EpochTag>;                     // per node name, only grows; 0 = none
using Revision = Id<RevisionTag, std::int64_t>; // etcd's store revision; 0 = none
using StepNo = Id<StepTag>;                     // position in a node's commit stream; first is 1
using ArenaNo = Id<ArenaTag, std::uint32_t>;

// Inode number: family << 24 | index. Index 0 is the directory that the family belongs to.
struct Ino {
  std::uint64_t v{};
  constexpr Ino() = default;
  constexpr explicit Ino(std::uint64_t value) : v(value) {}
  constexpr Ino(Family f, std::uint32_t index) : v(f.v << 24 | index) {}
  constexpr Family family() const { return Family{v >> 24}; }
  constexpr std::uint32_t index() const { return static_cast<std::uint32_t>(v & 0xffffff); }
  constexpr bool is_directory() const { return index() == 0; }
  friend constexpr auto operator<=>(Ino, Ino) = default;
};
inline constexpr std::uint32_t kMaxIndex = (1u << 24) - 1;
inline constexpr Family kRenameFamily{0};
inline constexpr Family kRootFamily{1};
inline constexpr Ino kRootIno{kRootFamily, 0};

using NodeName = std::string;  // [a-zA-Z0-9._-]{1,63}

}  // namespace etcfs

template <class Tag, class Rep>
struct std::hash<etcfs::Id<Tag, Rep>> {
  std::size_t operator()(etcfs::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.v);
  }
};
template <>
struct std::hash<etcfs::Ino> {
  std::size_t operator()(etcfs::Ino ino) const noexcept {
    return static_cast<std::size_t>((ino.v ^ ino.v >> 24) * 0x9e3779b97f4a7c15ull);
  }
};

// FamilyState: what this node knows of one family: the directory with its entries (covered by the
// lock's names part) and the inodes born in it (files part). Exists only while some part is held.
//
// Incomplete parts: entries and inodes may be known singly. A name or index that this node has
// removed stays in absent/deleted until the part is complete, because etcd may still show it: what
// memory knows always wins over what is read later.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "cluster/lock_service.h"
#include "fs/cache/inode_state.h"
#include "rt/rt.h"

namespace etcfs::fs {

inline constexpr std::size_t kLeastSweep = 4096;

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

struct DirEntry {
  Ino ino;
  std::uint64_t cookie = 0;
  std::uint8_t type = 0;  // DT_*
  Time kernel_until{};    // the kernel may answer this name from its cache until then
};

struct FamilyState {
  explicit FamilyState(Family f) : family(f) {}
  using Entries = std::unordered_map<std::string, DirEntry, StringHash, std::equal_to<>>;

  const Family family;

  // names part
  bool names_loaded = false;  // dir and some or all entries stand here
  InodeRef dir;               // null with names_loaded: there is no such directory
  Entries entries;
  bool entries_complete = false;
  std::unordered_set<std::string, StringHash, std::equal_to<>> absent;  // while incomplete
  unsigned single_loads = 0;
  bool listed = false;                                  // order is kept from the first listing on
  std::map<std::uint64_t, Entries::value_type*> order;  // by cookie
  std::unordered_map<std::string, Time, StringHash, std::equal_to<>> negatives;  // told the kernel
  std::size_t negatives_sweep = kLeastSweep;  // so many: those that have run out are removed
  Time names_until{};  // no name was handed out beyond
  Time attrs_given{};  // when attributes were last answered that the kernel may keep

  // files part
  bool files_loaded = false;
  bool files_complete = false;
  std::unordered_map<std::uint32_t, InodeRef> files;
  std::unordered_set<std::uint32_t> deleted;  // while incomplete
  std::map<std::pair<Ino, NodeName>, Epoch> holds;  // other nodes' open files, of current epochs
  std::set<Ino> lockable;  // seen under X: no other node has advisory locks on it
  // Indices below it stand under a committed birth bound, or under one that a lost step would take
  // away with the directory itself: only those are given, so that no number is ever given twice.
  std::uint32_t birth_safe = 0;
  std::uint32_t birth_next = 0;  // next index to be given by the directory whose birth family it is

  // release
  bool closing = false;      // zero timeouts
  bool closed = false;       // no operation starts under the files part
  unsigned passes = 0;       // passes over the kernel's pages of the present release
  unsigned pins = 0;         // operations under way across a blocking call
  unsigned writer_pins = 0;  // those of them that change something
  rt::Condition unpinned;
  std::uint64_t answered = 0;  // READs and WRITEs answered
  std::uint64_t generation =
      0;  // raised whenever a part is dropped: a load that began before is void
  Time last_used{};
  bool ahead = false;           // got by walking ahead and not used yet
  bool listing_cached = false;  // the kernel's listing, if it has one, is of this tenure
  bool walked = false;          // its subdirectories were queued for the walk

  bool held_elsewhere(Ino ino) const {  // another node has it open
    auto it = holds.lower_bound({ino, NodeName()});
    return it != holds.end() && it->first.first == ino;
  }
  DirEntry* find(std::string_view name) {
    auto it = entries.find(name);
    return it == entries.end() ? nullptr : &it->second;
  }
  void insert(std::string_view name, DirEntry entry) {
    auto [it, fresh] = entries.try_emplace(std::string(name), entry);
    if (!fresh) {
      if (listed) order.erase(it->second.cookie);
      it->second = entry;
    }
    if (listed) order[entry.cookie] = &*it;
    if (!entries_complete) absent.erase(std::string(name));
  }
  void erase(std::string_view name) {
    auto it = entries.find(name);
    if (it == entries.end()) return;
    if (listed) order.erase(it->second.cookie);
    entries.erase(it);
    if (!entries_complete) absent.emplace(name);
  }
  void keep_order() {
    if (listed) return;
    for (auto& e : entries) order[e.second.cookie] = &e;
    listed = true;
  }
  void drop_names() {
    generation++;
    names_loaded = entries_complete = listed = walked = listing_cached = false;
    order.clear();
    entries.clear();
    absent.clear();
    negatives.clear();
    single_loads = 0;
    if (dir) dir->gone = true;
    dir.reset();
  }
  void drop_files() {
    generation++;
    for (auto& [index, inode] : files) inode->gone = true;
    files.clear();
    deleted.clear();
    holds.clear();
    lockable.clear();
    // A second birth family: others may give its numbers from the bound on. (Where the family has
    // a directory, its record comes with the names and sets them.)
    if (!dir) birth_next = birth_safe = 0;
    files_loaded = files_complete = false;
  }
};

}  // namespace etcfs::fs

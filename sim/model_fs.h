// ModelFs: what a filesystem is supposed to be, in memory and in one piece: the oracle of the
// simulator. A state is a value; apply() says whether an outcome is a right answer to an operation
// in this state and what the state is then.
//
// Where POSIX or the protocol leaves a choice, each allowed answer is accepted:
// - of several violated preconditions, any may be reported;
// - an inode that is gone may answer kStale or kNotFound, and calls that change nothing others can
//   see may still succeed on it until it is reaped;
// - the data of a file that a crashed node had written and not synced may be any mixture, byte by
//   byte, of the versions since its last safe point ("uncertain"), until it has been read whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/op.h"

namespace etcfs::sim {

using Bytes = std::shared_ptr<const std::string>;

struct ModelInode {
  std::uint32_t mode = 0, uid = 0, gid = 0, nlink = 0;
  std::uint64_t rdev = 0;
  Ino parent;                          // directories
  std::map<std::string, Ino> entries;  // directories
  std::string symlink;
  std::map<std::string, std::string> xattrs;
  Bytes data = std::make_shared<std::string>();  // regular files
  std::vector<Bytes> versions;                   // not empty: uncertain, and these are the choices
  std::optional<WallTime> mtime;                 // where it is known exactly
  std::map<unsigned, unsigned> opens;            // handles by node
  std::map<std::uint64_t, unsigned> locks;       // advisory, whole file, exclusive: owner -> node

  bool is_dir() const { return (mode & 0170000) == 0040000; }
  bool is_regular() const { return (mode & 0170000) == 0100000; }
  bool is_symlink() const { return (mode & 0170000) == 0120000; }
  friend bool operator==(const ModelInode& a, const ModelInode& b);
};

class ModelFs {
 public:
  ModelFs();  // a root directory, mode 0755, of root

  // The state after `op` with this outcome; nullopt: the outcome is wrong here, `why` (if not null)
  // says what would have been right. outcome null: nobody learnt it (its node died); then nullopt
  // means that the operation cannot have had an effect.
  std::optional<ModelFs> apply(const Op& op, const Outcome* outcome, std::string* why) const;

  // A node died: its handles and advisory locks are gone.
  void drop_node(unsigned node);

  const ModelInode* find(Ino ino) const;
  ModelInode& change(Ino ino);  // copies on write
  bool uncertain() const;
  std::size_t size() const { return inodes_.size(); }
  std::string dump() const;  // the tree, for people
  friend bool operator==(const ModelFs& a, const ModelFs& b);

  // Does the operation change what others can see (other than data)? Data: write, truncate,
  // fallocate.
  static bool changes_tree(const Op& op);
  static bool changes_data(const Op& op);

 private:
  friend class Applier;
  std::map<Ino, std::shared_ptr<const ModelInode>> inodes_;
};

}  // namespace etcfs::sim

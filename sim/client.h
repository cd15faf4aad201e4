// Client: a process on one node. It issues one operation at a time: what the kernel's cache can
// answer is answered from there, everything else by the node's Filesystem, and all of it goes into
// the history.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/node.h"
#include "rt/random.h"
#include "sim/fakes/sim_kernel_cache.h"
#include "sim/history.h"
#include "sim/op.h"

namespace etcfs::sim {

class Client {
 public:
  struct Deps {
    unsigned node = 0;
    daemon::Node& daemon;
    SimKernelCache& kernel;
    History& history;
    bool use_cache = true;
  };
  Client(Deps deps, std::uint64_t seed);

  // One random operation, with the lookups that lead to it; several system calls at times (open,
  // write, close). Blocks. False: the node serves no more (it was fenced, or is stopping).
  bool step();
  // Reads everything that can be reached: listings, attributes, contents. Blocks.
  bool walk();
  bool syncfs();

  // The building block: false when the node serves no more; else the outcome.
  std::optional<Outcome> run(Op op);

 private:
  struct Open {
    Ino ino;
    fs::Handle handle = 0;
    int flags = 0;
  };
  std::optional<Outcome> from_cache(Op& op);
  Outcome ask(const Op& op);
  Outcome ask_open(const Op& op);
  Outcome ask_data(const Op& op);
  Outcome ask_xattr(const Op& op);
  Outcome ask_readdir(const Op& op);
  void learn(const Op& op, const Outcome& out);
  fs::Handle handle_of(Ino ino) const;

  // Path walking: the parent of a random path, and its last component.
  struct Place {
    Ino parent;
    std::string name;
  };
  std::string random_name();
  std::optional<Ino> find_child(Ino parent, const std::string& name);  // Ino{}: absent
  std::optional<Place> random_place();
  std::optional<Ino> random_directory();
  std::optional<Ino> random_child();  // any type
  bool pick(unsigned percent) { return random_.below(100) < percent; }
  bool alive(const std::optional<Outcome>& out) const { return out.has_value(); }
  Op make(OpKind kind, Ino ino, std::string name = {}) const;

  bool close_file(Ino ino);
  bool births();
  bool removals();
  bool renames();
  bool attributes();
  bool xattrs();
  bool opens();
  bool with_open_file();
  bool listings();
  bool walk_directory(Ino dir, std::vector<Ino>& directories);
  bool walk_file(Ino ino, fs::FileType type);

  Deps d_;
  rt::Random random_;
  fs::Caller caller_;
  const std::uint64_t owner_;           // of advisory locks: no other process has it
  std::map<std::uint64_t, Open> open_;  // by handle
  bool alive_ = true;
  fs::Entry entry_;  // of the last answer that had one
  Nanos attr_timeout_{};
  fs::OpenReply open_reply_;
  std::vector<Ino> victims_;  // inodes that the next removal or rename may touch
  std::optional<std::pair<Ino, fs::Handle>> closing_dir_;
};

}  // namespace etcfs::sim

// One transaction's worth of the commit stream: whole steps, repeated writes of a key folded (the
// last wins). The strings of the surviving writes are moved into the transaction and can be moved
// back, so that a batch which certainly was not applied can be regrouped without ever having been
// copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "meta/commit_stream.h"
#include "meta/kv.h"

namespace etcfs::meta {

class CommitBatch {
 public:
  struct Room {
    std::size_t ops = 0, bytes = 0;
  };

  CommitBatch();
  // Adds all of the step's mutations or none; false: they do not fit. The first step always fits.
  // The step must stay where it is until clear(). A key twice in one step is an assertion.
  bool add(Step& step, Room room);
  std::size_t steps() const { return steps_; }
  std::size_t ops() const { return winners_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t folded() const { return seen_ - winners_.size(); }

  void move_into(std::vector<KvOp>& ops);  // appends one operation per surviving write
  void move_back(std::vector<KvOp>& ops);  // undoes move_into() on the same vector
  void clear();

  static std::size_t cost(const Mutation& m) {  // bytes on the wire, about
    return m.key.size() + (m.value ? m.value->size() : 0) + kOverhead;
  }

 private:
  static constexpr std::size_t kOverhead = 24;
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  struct Winner {
    Mutation* mutation;
    std::size_t hash;
    std::uint32_t step, slot;
  };
  struct Undo {
    std::uint32_t index, step;
    Mutation* mutation;
  };

  std::uint32_t find_slot(std::size_t hash, const std::string& key) const;
  void grow();
  void roll_back(std::size_t first_new);

  std::vector<Winner> winners_;       // in order of the keys' first appearance
  std::vector<std::uint32_t> slots_;  // open addressing: index into winners_, power of two
  std::vector<Undo> undo_;            // of the step being added
  std::size_t steps_ = 0, bytes_ = 0, seen_ = 0;
};

}  // namespace etcfs::meta

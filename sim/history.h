// History: what the clients of a simulated cluster asked and were answered, and whether there is
// one order of all of it that ModelFs agrees with: every operation between its call and its return
// (linearizability, searched exhaustively), and at the crash of a node some suffix of its
// operations undone, none of which was known to be durable.
//
// The search keeps every state of the model that the events so far allow. Operations of one node
// take effect in the order in which they return, as Filesystem promises; data operations may take
// effect earlier. An operation that changes nothing is put at the first place where it fits, which
// loses no solution.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "sim/model_fs.h"

namespace etcfs::sim {

struct Record {
  Op op;
  std::optional<Outcome> outcome;          // none: its node died first
  std::uint64_t called = 0, returned = 0;  // positions in the order of events; returned 0: never
  StepNo step;                             // last step of the node's stream when it returned
};

class History {
 public:
  // Numbers the operation. The reference stays valid.
  Record& call(Op op);
  void returned(Record& record, Outcome outcome, StepNo step);
  // Nodes died, all at the same moment. After it, no other crash before a checkpoint().
  struct Crash {
    unsigned node = 0;
    StepNo committed;  // steps up to it were known to the node to be in etcd
  };
  void crashed(std::vector<Crash> crashes);
  // Nothing is under way, and a syncfs of each living node has returned: what happened before can
  // be undone by no crash.
  void checkpoint();
  // The node left cleanly: all it did is durable, its handles are closed.
  void left(unsigned node);

  const std::deque<Record>& records() const { return records_; }
  std::uint64_t hash() const { return hash_; }  // of all events

  struct Verdict {
    bool right = true;
    std::string text;             // what is wrong, with the operations before it
    std::size_t most_states = 0;  // how wide the search was
    ModelFs last;                 // one of the states at the end
  };
  Verdict check() const;

 private:
  struct Event {
    enum class Type { kCall, kReturn, kCrash, kLeft, kCheckpoint } type;
    Record* record = nullptr;
    unsigned node = 0;
    std::vector<Crash> crashes;
  };
  void mix(std::string_view bytes);
  void mix(std::uint64_t n);

  std::deque<Record> records_;
  std::vector<Event> events_;
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
  friend class Search;
};

}  // namespace etcfs::sim

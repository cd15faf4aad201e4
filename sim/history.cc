#include "sim/history.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>

namespace etcfs::sim {

void History::mix(std::string_view bytes) {
  for (unsigned char c : bytes) hash_ = (hash_ ^ c) * 0x100000001b3ull;
  mix(bytes.size());
}
void History::mix(std::uint64_t n) {
  for (int i = 0; i < 8; i++) hash_ = (hash_ ^ (n >> 8 * i & 0xff)) * 0x100000001b3ull;
}

Record& History::call(Op op) {
  op.number = records_.size() + 1;
  Record& record = records_.emplace_back();
  record.op = std::move(op);
  events_.push_back({Event::Type::kCall, &record, record.op.node, {}});
  record.called = events_.size();
  mix(to_string(record.op));
  return record;
}

void History::returned(Record& record, Outcome outcome, StepNo step) {
  ETCFS_ASSERT(!record.outcome);
  record.outcome = std::move(outcome);
  record.step = step;
  events_.push_back({Event::Type::kReturn, &record, record.op.node, {}});
  record.returned = events_.size();
  mix(to_string(record.op, *record.outcome));
}

void History::crashed(std::vector<Crash> crashes) {
  for (const Crash& c : crashes) mix(0xdead0000 + c.node);
  events_.push_back({Event::Type::kCrash, nullptr, 0, std::move(crashes)});
}

void History::checkpoint() { events_.push_back({Event::Type::kCheckpoint, nullptr, 0, {}}); }

void History::left(unsigned node) {
  events_.push_back({Event::Type::kLeft, nullptr, node, {}});
  mix(0x1eff0000 + node);
}

namespace {

// Operations that changed the state since the last checkpoint, in the order in which they did;
// shared between states.
struct Done {
  const Record* record;
  std::shared_ptr<const Done> before;
};

struct State {
  ModelFs fs;
  ModelFs base;  // at the last checkpoint
  std::vector<const Record*>
      early;  // have taken effect, have not returned; sorted by address-free number
  std::shared_ptr<const Done> done;
};

bool same(const State& a, const State& b) { return a.early == b.early && a.fs == b.fs; }

void insert_sorted(std::vector<const Record*>& list, const Record* record) {
  auto less = [](const Record* a, const Record* b) { return a->op.number < b->op.number; };
  list.insert(std::upper_bound(list.begin(), list.end(), record, less), record);
}

bool contains(const std::vector<const Record*>& list, const Record* record) {
  return std::find(list.begin(), list.end(), record) != list.end();
}

// Cannot change anything in any state, given what it was answered: where it stands does not matter.
// (A rename between two names of one file changes nothing either, but might later.)
bool changes_nothing(const Record& r) {
  if (!r.outcome) return false;
  if (r.outcome->error) return true;
  switch (r.op.kind) {
    case OpKind::kLookup:
    case OpKind::kGetattr:
    case OpKind::kReadlink:
    case OpKind::kRead:
    case OpKind::kLseek:
    case OpKind::kReaddir:
    case OpKind::kFsync:
    case OpKind::kFsyncdir:
    case OpKind::kStatfs:
    case OpKind::kSyncfs:
    case OpKind::kGetxattr:
    case OpKind::kListxattr:
      return true;
    default:
      return false;
  }
}

bool names_ino(const Record& r, Ino ino) {
  return r.op.ino == ino || r.op.ino2 == ino || (r.outcome && r.outcome->ino == ino);
}

}  // namespace

class Search {
 public:
  explicit Search(const History& history) : h_(history) { states_.push_back({}); }
  History::Verdict run();

 private:
  using States = std::vector<State>;
  static void add(States& states, State state);
  // The state with `record` having taken effect; nullopt when that cannot be.
  std::optional<State> effect(const State& state, const Record& record, std::string* why) const;
  // Lets everything take effect that fits and changes nothing.
  void absorb(State& state) const;
  bool may_precede(const Record& pending, const Record* returning) const;
  void explore(State state, const Record* target, States& reached, States& seen) const;
  void on_return(const Record& record);
  void on_crash(const std::vector<History::Crash>& crashes, std::uint64_t position);
  void on_checkpoint();
  void on_left(unsigned node);
  bool known_durable(const Record& r, StepNo committed, std::uint64_t position) const;
  bool data_safe(const Record& r, std::uint64_t position) const;
  // What may be left of the crashed nodes' work in one state.
  struct Loss {
    std::map<unsigned, std::size_t> keep;  // by node: how many of its operations on the tree stand
    std::set<const Record*> unsafe;        // data operations that may be there in part
  };
  std::optional<State> replay(const State& state, const Loss& loss) const;
  void choose(const State& state, const std::map<unsigned, std::size_t>& least,
              const std::map<unsigned, std::size_t>& most, Loss& loss, States& after) const;
  void fail(std::string text);

  const History& h_;
  States states_;
  std::vector<const Record*> pending_;  // called, not returned, in order of call
  std::set<Ino> born_;
  History::Verdict verdict_;
};

void Search::add(States& states, State state) {
  for (const State& other : states)
    if (same(other, state)) return;
  states.push_back(std::move(state));
}

std::optional<State> Search::effect(const State& state, const Record& record,
                                    std::string* why) const {
  auto fs = state.fs.apply(record.op, record.outcome ? &*record.outcome : nullptr, why);
  if (!fs) return std::nullopt;
  State after{std::move(*fs), state.base, state.early, state.done};
  insert_sorted(after.early, &record);
  if (!(after.fs == state.fs)) after.done = std::make_shared<Done>(Done{&record, state.done});
  return after;
}

void Search::absorb(State& state) const {
  for (const Record* p : pending_) {
    if (!changes_nothing(*p) || contains(state.early, p)) continue;
    auto after = effect(state, *p, nullptr);
    if (after && after->done == state.done) state = std::move(*after);
  }
}

// Operations on the tree take effect when they return.
bool Search::may_precede(const Record& pending, const Record* returning) const {
  return !returning || pending.op.node != returning->op.node ||
         !ModelFs::changes_tree(pending.op) || !pending.outcome;
}

// Reaches every state in which `target` has taken effect (null: every state) by letting pending
// operations take effect in any order.
void Search::explore(State state, const Record* target, States& reached, States& seen) const {
  absorb(state);
  for (const State& other : seen)
    if (same(other, state)) return;
  seen.push_back(state);
  if (!target || contains(state.early, target)) add(reached, state);
  if (target && contains(state.early, target)) return;
  for (const Record* p : pending_) {
    if (contains(state.early, p)) continue;
    if (p != target && !may_precede(*p, target)) continue;
    if (auto after = effect(state, *p, nullptr)) explore(std::move(*after), target, reached, seen);
  }
}

void Search::fail(std::string text) {
  verdict_.right = false;
  verdict_.text = std::move(text);
}

void Search::on_return(const Record& record) {
  States reached, seen;
  for (State& state : states_) explore(state, &record, reached, seen);
  std::erase(pending_, &record);
  if (reached.empty()) {
    std::string text = "no order explains " + to_string(record.op, *record.outcome);
    for (std::size_t i = 0; i < states_.size() && i < 3; i++) {
      std::string why;
      effect(states_[i], record, &why);
      text += "\n expected: " + why + "\n in the state\n" + states_[i].fs.dump();
    }
    return fail(std::move(text));
  }
  for (State& state : reached) std::erase(state.early, &record);
  States unique;
  for (State& state : reached) add(unique, std::move(state));
  states_ = std::move(unique);
  const OpKind kind = record.op.kind;
  const bool birth = kind == OpKind::kMkdir || kind == OpKind::kMknod || kind == OpKind::kSymlink;
  if (birth && !record.outcome->error && !born_.insert(record.outcome->ino).second)
    fail("an inode number was given twice: " + to_string(record.op, *record.outcome));
}

// A later sync, called after the operation had returned and itself returned before `position`.
bool Search::known_durable(const Record& r, StepNo committed, std::uint64_t position) const {
  if (!r.returned) return false;
  if (r.step <= committed) return true;
  for (const Record& s : h_.records_) {
    if (s.op.node != r.op.node || s.called < r.returned || !s.returned || s.returned > position ||
        s.outcome->error)
      continue;
    if (s.op.kind == OpKind::kSyncfs) return true;
    if ((s.op.kind == OpKind::kFsync || s.op.kind == OpKind::kFsyncdir) && names_ino(r, s.op.ino))
      return true;
  }
  return false;
}

// The data that the operation wrote was synced, or another node has seen it, or the file's family.
bool Search::data_safe(const Record& r, std::uint64_t position) const {
  if (!r.returned) return false;
  for (const Record& s : h_.records_) {
    if (s.called < r.returned || !s.returned || s.returned > position || s.outcome->error) continue;
    const bool own = s.op.node == r.op.node;
    if (own && s.op.kind == OpKind::kSyncfs) return true;
    if (s.op.ino != r.op.ino) continue;
    if (own && s.op.kind == OpKind::kFsync) return true;
    const bool looks =
        s.op.kind == OpKind::kRead || s.op.kind == OpKind::kGetattr || s.op.kind == OpKind::kWrite;
    if (!own && looks && !s.op.cached) return true;
  }
  return false;
}

// The history of `state` since the checkpoint again, without what the dead nodes did to the tree
// beyond what `loss` keeps of it. What they did to data and is unsafe may have reached the device
// in part.
std::optional<State> Search::replay(const State& state, const Loss& loss) const {
  std::vector<const Record*> order;
  for (const Done* d = state.done.get(); d; d = d->before.get()) order.push_back(d->record);
  std::reverse(order.begin(), order.end());
  State again{state.base, state.base, state.early, nullptr};
  std::map<Ino, std::vector<Bytes>> versions;
  std::map<unsigned, std::size_t> kept;
  for (const Record* r : order) {
    const bool dead = loss.keep.contains(r->op.node);
    const bool data = ModelFs::changes_data(r->op);
    if (dead && ModelFs::changes_tree(r->op) && ++kept[r->op.node] > loss.keep.at(r->op.node) &&
        !data)
      continue;
    const ModelInode* before = again.fs.find(r->op.ino);
    if (data && before && loss.unsafe.contains(r) && !versions.contains(r->op.ino))
      versions[r->op.ino] = {before->data};
    Ino renamed;  // over another: its data goes out before
    if (dead && r->op.kind == OpKind::kRename && before && before->entries.contains(r->op.name)) {
      const ModelInode* to = again.fs.find(r->op.ino2);
      if (to && to->entries.contains(r->op.name2) && r->op.rename == fs::RenameMode::kReplace)
        renamed = before->entries.at(r->op.name);
    }
    auto fs = again.fs.apply(r->op, r->outcome ? &*r->outcome : nullptr, nullptr);
    if (!fs && dead) continue;  // what it worked on was lost
    if (!fs) return std::nullopt;
    again.fs = std::move(*fs);
    again.done = std::make_shared<Done>(Done{r, again.done});
    const ModelInode* moved = again.fs.find(renamed);
    if (auto it = versions.find(renamed); it != versions.end() && moved) it->second = {moved->data};
    const ModelInode* after = again.fs.find(r->op.ino);
    if (auto it = versions.find(r->op.ino); it != versions.end() && after && data)
      it->second.push_back(after->data);
  }
  for (auto& [ino, list] : versions)
    if (again.fs.find(ino)) again.fs.change(ino).versions = list;
  for (auto& [node, n] : loss.keep) again.fs.drop_node(node);
  return again;
}

// Every combination of what each dead node may have lost.
void Search::choose(const State& state, const std::map<unsigned, std::size_t>& least,
                    const std::map<unsigned, std::size_t>& most, Loss& loss, States& after) const {
  for (auto& [node, n] : least) {
    if (loss.keep.contains(node)) continue;
    for (std::size_t keep = n; keep <= most.at(node); keep++) {
      loss.keep[node] = keep;
      choose(state, least, most, loss, after);
    }
    loss.keep.erase(node);
    return;
  }
  if (auto again = replay(state, loss)) add(after, std::move(*again));
}

void Search::on_crash(const std::vector<History::Crash>& crashes, std::uint64_t position) {
  std::map<unsigned, StepNo> committed;
  for (const History::Crash& c : crashes) committed[c.node] = c.committed;
  auto unreturned = [&](const Record* r) { return committed.contains(r->op.node) && !r->outcome; };
  States reached, seen, after;
  for (State& state : states_) explore(state, nullptr, reached, seen);
  std::erase_if(pending_, unreturned);
  for (State& state : reached) {
    std::erase_if(state.early, unreturned);
    std::map<unsigned, std::vector<const Record*>> own;  // latest first
    Loss loss;
    for (const Done* d = state.done.get(); d; d = d->before.get()) {
      if (!committed.contains(d->record->op.node)) continue;
      if (ModelFs::changes_tree(d->record->op)) own[d->record->op.node].push_back(d->record);
      if (ModelFs::changes_data(d->record->op) && !data_safe(*d->record, position))
        loss.unsafe.insert(d->record);
    }
    std::map<unsigned, std::size_t> least, most;
    for (auto& [node, steps] : committed) {
      least[node] = most[node] = own[node].size();
      for (const Record* r : own[node]) {
        if (known_durable(*r, steps, position)) break;
        least[node]--;
      }
    }
    choose(state, least, most, loss, after);
  }
  states_ = std::move(after);
  if (states_.empty()) fail("no suffix of what the dead nodes did can have been lost");
}

void Search::on_checkpoint() {
  for (State& state : states_) {
    state.base = state.fs;
    state.done = nullptr;
  }
}

void Search::on_left(unsigned node) {
  for (State& state : states_) state.fs.drop_node(node);
}

History::Verdict Search::run() {
  std::uint64_t position = 0;
  for (const History::Event& e : h_.events_) {
    position++;
    switch (e.type) {
      case History::Event::Type::kCall:
        pending_.push_back(e.record);
        break;
      case History::Event::Type::kReturn:
        on_return(*e.record);
        break;
      case History::Event::Type::kCrash:
        on_crash(e.crashes, position);
        break;
      case History::Event::Type::kLeft:
        on_left(e.node);
        break;
      case History::Event::Type::kCheckpoint:
        on_checkpoint();
        break;
    }
    verdict_.most_states = std::max(verdict_.most_states, states_.size());
    if (!verdict_.right) {
      verdict_.text += "\n the operations before it:";
      std::size_t n = 0;
      for (std::uint64_t p = position > 120 ? position - 120 : 0; p < position; p++, n++) {
        const History::Event& b = h_.events_[p];
        if (b.type == History::Event::Type::kReturn)
          verdict_.text += "\n  " + to_string(b.record->op, *b.record->outcome);
        if (b.type == History::Event::Type::kCrash)
          for (const History::Crash& c : b.crashes)
            verdict_.text +=
                fmt::format("\n  crash of node{} (committed {})", c.node, c.committed.v);
      }
      verdict_.text += "\n operations under way:";
      for (const Record* p : pending_)
        verdict_.text += "\n  " + (p->outcome ? to_string(p->op, *p->outcome) + " (later)"
                                              : to_string(p->op) + " (never answered)");
      return verdict_;
    }
  }
  verdict_.last = states_.front().fs;
  return verdict_;
}

History::Verdict History::check() const { return Search(*this).run(); }

}  // namespace etcfs::sim

#include "meta/commit_batch.h"

#include <functional>
#include <string_view>

#include "base/assert.h"

namespace etcfs::meta {

CommitBatch::CommitBatch() : slots_(512, kEmpty) {}

std::uint32_t CommitBatch::find_slot(std::size_t hash, const std::string& key) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const std::uint32_t index = slots_[slot];
    if (index == kEmpty) return static_cast<std::uint32_t>(slot);
    const Winner& w = winners_[index];
    if (w.hash == hash && w.mutation->key == key) return static_cast<std::uint32_t>(slot);
  }
}

// Reinserts in order of first appearance, so that roll_back() may still remove from the end.
void CommitBatch::grow() {
  slots_.assign(slots_.size() * 2, kEmpty);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t i = 0; i < winners_.size(); ++i) {
    std::size_t slot = winners_[i].hash & mask;
    while (slots_[slot] != kEmpty) slot = (slot + 1) & mask;
    slots_[slot] = i;
    winners_[i].slot = static_cast<std::uint32_t>(slot);
  }
}

bool CommitBatch::add(Step& step, Room room) {
  undo_.clear();
  const std::size_t first_new = winners_.size(), bytes_before = bytes_;
  const auto step_index = static_cast<std::uint32_t>(steps_);
  for (Mutation& m : step.mutations) {
    const std::size_t hash = std::hash<std::string_view>{}(m.key);
    const std::uint32_t slot = find_slot(hash, m.key);
    bytes_ += cost(m);
    if (const std::uint32_t index = slots_[slot]; index != kEmpty) {
      Winner& w = winners_[index];
      ETCFS_ASSERT(w.step != step_index);
      undo_.push_back({index, w.step, w.mutation});
      bytes_ -= cost(*w.mutation);
      w.mutation = &m;
      w.step = step_index;
    } else {
      slots_[slot] = static_cast<std::uint32_t>(winners_.size());
      winners_.push_back({&m, hash, step_index, slot});
      if (winners_.size() * 2 > slots_.size()) grow();
    }
  }
  if (steps_ > 0 && (winners_.size() > room.ops || bytes_ > room.bytes)) {
    roll_back(first_new);
    bytes_ = bytes_before;
    return false;
  }
  ++steps_;
  seen_ += step.mutations.size();
  return true;
}

void CommitBatch::roll_back(std::size_t first_new) {
  while (winners_.size() > first_new) {
    slots_[winners_.back().slot] = kEmpty;
    winners_.pop_back();
  }
  for (const Undo& u : undo_) {
    winners_[u.index].mutation = u.mutation;
    winners_[u.index].step = u.step;
  }
}

void CommitBatch::move_into(std::vector<KvOp>& ops) {
  for (Winner& w : winners_) {
    Mutation& m = *w.mutation;
    if (m.value)
      ops.emplace_back(PutOp{std::move(m.key), std::move(*m.value), 0});
    else
      ops.emplace_back(DeleteOp{std::move(m.key), {}});
  }
}

void CommitBatch::move_back(std::vector<KvOp>& ops) {
  ETCFS_ASSERT(ops.size() >= winners_.size());
  for (std::size_t i = 0; i < winners_.size(); ++i) {
    Mutation& m = *winners_[i].mutation;
    if (auto* put = std::get_if<PutOp>(&ops[i])) {
      m.key = std::move(put->key);
      m.value = std::move(put->value);
    } else {
      m.key = std::move(std::get<DeleteOp>(ops[i]).key);
    }
  }
}

void CommitBatch::clear() {
  for (const Winner& w : winners_) slots_[w.slot] = kEmpty;
  winners_.clear();
  steps_ = bytes_ = seen_ = 0;
}

}  // namespace etcfs::meta

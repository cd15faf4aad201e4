#include <algorithm>

#include "rt/runtime_impl.h"

namespace etcfs::rt {

void Group::Impl::add(Fiber* fiber) {
  fiber->group_next = nullptr;
  fiber->group_prev = tail;
  (tail ? tail->group_next : head) = fiber;
  tail = fiber;
  size++;
}

void Group::Impl::remove(Fiber* fiber) {
  ETCFS_ASSERT(size > 0);
  (fiber->group_prev ? fiber->group_prev->group_next : head) = fiber->group_next;
  (fiber->group_next ? fiber->group_next->group_prev : tail) = fiber->group_prev;
  size--;
}

Group::Group(Runtime& runtime, std::string name)
    : runtime_(runtime), impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
  if (Fiber* maker = runtime.impl().current) {
    impl_->parent = maker->group;
    impl_->parent->impl().children.push_back(this);
    impl_->killed = impl_->parent->killed();
  }
}

Group::~Group() {
  ETCFS_ASSERT(impl_->size == 0);
  ETCFS_ASSERT(impl_->waiters.empty());
  Group* const parent = impl_->parent;
  if (parent) std::erase(parent->impl().children, this);
  for (Group* child : impl_->children) {
    child->impl().parent = parent;
    if (parent) parent->impl().children.push_back(child);
  }
}

void Group::spawn(std::function<void()> body) { runtime_.spawn(*this, std::move(body)); }
bool Group::killed() const { return impl_->killed; }
std::size_t Group::size() const { return impl_->size; }

void Group::wait() {
  Fiber* const self = runtime_.self();
  ETCFS_ASSERT(self->group != this);
  while (impl_->size > 0) {
    impl_->waiters.push_back(self);
    self->waits_on = &impl_->waiters;
    runtime_.impl().block();
  }
}

void Group::kill() {
  Runtime::Impl& rt = runtime_.impl();
  std::vector<Group*> groups{this};
  for (std::size_t i = 0; i < groups.size(); i++) {
    const auto& children = groups[i]->impl().children;
    groups.insert(groups.end(), children.begin(), children.end());
  }
  std::vector<Fiber*> fibers;
  for (Group* group : groups) {
    group->impl().killed = true;
    for (Fiber* f = group->impl().head; f; f = f->group_next) {
      if (f->killed) continue;                           // an outer kill() unwinds it
      ETCFS_ASSERT(f->state != Fiber::State::kRunning);  // kill() from a fiber of the group
      fibers.push_back(f);
    }
  }
  // All are taken off all lists before any unwinds, so that what the first one destroys is waited
  // for by none of the others. Younger ones go first: what they refer to mostly lives in older
  // ones.
  std::sort(fibers.begin(), fibers.end(), [](Fiber* a, Fiber* b) { return a->id > b->id; });
  for (Fiber* fiber : fibers) {
    rt.detach(fiber);
    fiber->killed = true;
  }
  for (Fiber* fiber : fibers) rt.resume(fiber);
}

}  // namespace etcfs::rt

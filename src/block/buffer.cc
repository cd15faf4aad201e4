// Buffer memory. Duty: page-aligned memory for O_DIRECT and the data cache at the cost of a list
// operation, without the waste of aligned_alloc() for small sizes (4 KiB aligned to 4 KiB costs it
// 8 KiB) and without growing for ever.
//
// 4, 16 and 64 KiB come from slabs of 2 MiB, aligned to their size, whose first 4 KiB are the
// slab's header; a slab with no piece in use is kept in a bounded reserve and unmapped beyond it.
// 256 KiB and 1 MiB come from aligned_alloc() through bounded free lists; larger sizes straight
// from it. Only resident memory that was in use before is ever kept: at most kMaxEmptySlabs slabs a
// class and kMaxKept* buffers.
//
// Buffers may be allocated and freed on any OS thread: a spin lock guards the lists, held for a few
// instructions and never across a system call. Nothing here is ever destroyed, so buffers with
// static lifetime are safe. Under AddressSanitizer everything is plain malloc, so that misuse is
// seen.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/assert.h"
#include "block/device.h"

namespace etcfs::block {
namespace {

constexpr std::size_t kSlabBytes = 2 * kMiB;
constexpr std::size_t kSlabClasses = 3;  // 4K, 16K, 64K
constexpr std::size_t kClasses = 5;      // and 256K, 1M
constexpr std::size_t kMaxEmptySlabs[kSlabClasses] = {16, 4, 4};
constexpr std::size_t kMaxKept[kClasses] = {0, 0, 0, 64, 96};  // 16 MiB and 96 MiB

constexpr std::size_t class_bytes(std::size_t c) { return std::size_t{4096} << (2 * c); }

// The smallest class that holds `bytes`; kClasses when none does.
constexpr std::size_t class_of(std::size_t bytes) {
  std::size_t c = 0;
  while (c < kClasses && class_bytes(c) < bytes) ++c;
  return c;
}

struct Free {
  Free* next;
};

// Lives in the first page of its slab.
struct Slab {
  Slab* next = nullptr;  // among the slabs of the class that have a free piece
  Slab* prev = nullptr;
  Free* free = nullptr;  // pieces given back
  std::uint32_t used = 0;
  std::uint32_t fresh = 0;  // offset of the first piece never given out: its memory is untouched
  std::uint32_t piece = 0;  // bytes

  bool full() const { return free == nullptr && fresh + piece > kSlabBytes; }
};
static_assert(sizeof(Slab) <= kBlockBytes);

struct Class {
  Slab* open = nullptr;  // slabs with a free piece, those in use first
  std::size_t empty_slabs = 0;
  Free* kept = nullptr;  // the large classes
  std::size_t kept_count = 0;
};

constinit std::atomic_flag g_lock = ATOMIC_FLAG_INIT;
constinit Class g_classes[kClasses];

class SpinLock {
 public:
  SpinLock() {
    while (g_lock.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~SpinLock() { g_lock.clear(std::memory_order_release); }
};

void* must(void* p) {
  ETCFS_ASSERT(p != nullptr);  // allocate() never fails: out of address space is the end
  return p;
}

void link(Class& c, Slab* s) {
  s->prev = nullptr;
  s->next = c.open;
  if (c.open) c.open->prev = s;
  c.open = s;
}

void unlink(Class& c, Slab* s) {
  (s->prev ? s->prev->next : c.open) = s->next;
  if (s->next) s->next->prev = s->prev;
  s->next = s->prev = nullptr;
}

Slab* map_slab(std::size_t piece) {
  // Twice the size, to cut an aligned piece out of it.
  void* raw =
      ::mmap(nullptr, 2 * kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ETCFS_ASSERT(raw != MAP_FAILED);
  const auto at = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (at + kSlabBytes - 1) & ~(kSlabBytes - 1);
  if (aligned != at) ::munmap(raw, aligned - at);
  const std::size_t tail = at + kSlabBytes - aligned;
  if (tail != 0) ::munmap(reinterpret_cast<void*>(aligned + kSlabBytes), tail);
  // One fault for a whole slab instead of one a page; a kernel without huge pages refuses, no harm.
  ::madvise(reinterpret_cast<void*>(aligned), kSlabBytes, MADV_HUGEPAGE);
  auto* slab = new (reinterpret_cast<void*>(aligned)) Slab;
  slab->piece = static_cast<std::uint32_t>(piece);
  slab->fresh = static_cast<std::uint32_t>(piece);  // piece 0 is (or begins with) the header
  return slab;
}

std::byte* take_piece(Class& c) {
  Slab* s = c.open;
  if (s->used++ == 0) --c.empty_slabs;
  std::byte* p;
  if (s->free) {
    p = reinterpret_cast<std::byte*>(s->free);
    s->free = s->free->next;
  } else {
    p = reinterpret_cast<std::byte*>(s) + s->fresh;
    s->fresh += s->piece;
  }
  if (s->full()) unlink(c, s);
  return p;
}

std::byte* slab_allocate(std::size_t cls) {
  Class& c = g_classes[cls];
  {
    SpinLock lock;
    if (c.open) return take_piece(c);
  }
  Slab* fresh = map_slab(class_bytes(cls));
  SpinLock lock;
  link(c, fresh);
  ++c.empty_slabs;
  return take_piece(c);
}

void slab_free(std::size_t cls, std::byte* p) {
  Class& c = g_classes[cls];
  auto* s = reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(p) & ~(kSlabBytes - 1));
  Slab* surplus = nullptr;
  {
    SpinLock lock;
    ETCFS_ASSERT(s->piece == class_bytes(cls) && s->used > 0);
    const bool was_full = s->full();
    s->free = new (p) Free{s->free};
    if (was_full) link(c, s);
    if (--s->used == 0 && ++c.empty_slabs > kMaxEmptySlabs[cls]) {
      --c.empty_slabs;
      unlink(c, s);
      surplus = s;
    }
  }
  if (surplus) ::munmap(surplus, kSlabBytes);
}

std::byte* large_allocate(std::size_t cls, std::size_t bytes) {
  if (cls < kClasses) {
    Class& c = g_classes[cls];
    SpinLock lock;
    if (c.kept) {
      auto* p = reinterpret_cast<std::byte*>(c.kept);
      c.kept = c.kept->next;
      --c.kept_count;
      return p;
    }
    bytes = class_bytes(cls);
  }
  return static_cast<std::byte*>(must(std::aligned_alloc(kBlockBytes, bytes)));
}

void large_free(std::size_t cls, std::byte* p) {
  if (cls < kClasses) {
    Class& c = g_classes[cls];
    SpinLock lock;
    if (c.kept_count < kMaxKept[cls]) {
      c.kept = new (p) Free{c.kept};
      ++c.kept_count;
      return;
    }
  }
  std::free(p);
}

#ifdef ETCFS_ASAN
constexpr bool kPool = false;
#else
constexpr bool kPool = true;
#endif

void release(std::byte* p, std::size_t bytes) {
  if (p == nullptr) return;
  if (!kPool) return std::free(p);
  const std::size_t cls = class_of(bytes);
  if (cls < kSlabClasses) return slab_free(cls, p);
  large_free(cls, p);
}

}  // namespace

Buffer Buffer::allocate(std::size_t bytes) {
  Buffer b;
  b.size_ = (std::max<std::size_t>(bytes, 1) + kBlockBytes - 1) & ~(kBlockBytes - 1);
  if (!kPool) {
    b.data_ = static_cast<std::byte*>(must(std::aligned_alloc(kBlockBytes, b.size_)));
    return b;
  }
  const std::size_t cls = class_of(b.size_);
  b.data_ = cls < kSlabClasses ? slab_allocate(cls) : large_allocate(cls, b.size_);
  return b;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Buffer::~Buffer() { release(data_, size_); }

}  // namespace etcfs::block

#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace etcfs {
void assertion_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "assertion failed: %s at %s:%d\n", what, file, line);
  std::fflush(stderr);
  std::abort();
}
}  // namespace etcfs

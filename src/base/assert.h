// Assertions stay on in release builds: they guard our own logic, never input, disk or network data.
#pragma once

namespace etcfs {
[[noreturn]] void assertion_failed(const char* what, const char* file, int line);
}

#define ETCFS_ASSERT(cond) \
  (__builtin_expect(!!(cond), 1) ? void(0) : ::etcfs::assertion_failed(#cond, __FILE__, __LINE__))

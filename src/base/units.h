// Units of size and time used everywhere.
#pragma once

#include <chrono>
#include <cstdint>

namespace etcfs {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr unsigned kBlockShift = 12;
inline constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
inline constexpr std::uint64_t kMaxFileBytes = INT64_MAX;

constexpr std::uint64_t blocks_of(std::uint64_t bytes) {  // rounded up
  return (bytes >> kBlockShift) + ((bytes & (kBlockBytes - 1)) != 0);
}

using Nanos = std::chrono::nanoseconds;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""us;

// Boot-time clock (CLOCK_BOOTTIME in the daemon, virtual in the simulator). Never compared across hosts.
struct BootClock {
  using duration = Nanos;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;
};
using Time = BootClock::time_point;

// Wall-clock time as POSIX keeps it in an inode; ns is always in [0, 1e9), sec may be negative.
struct WallTime {
  std::int64_t sec = 0;
  std::uint32_t nsec = 0;
  friend auto operator<=>(const WallTime&, const WallTime&) = default;
};

}  // namespace etcfs

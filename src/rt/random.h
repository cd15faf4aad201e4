// A small fast generator (xoshiro256** by Blackman and Vigna, public domain algorithm), seeded
// through splitmix64. Not for secrets. The same seed gives the same sequence on every machine.
#pragma once

#include <cstdint>

namespace etcfs::rt {

class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (auto& word : s_) {
      seed += 0x9e3779b97f4a7c15ull;
      std::uint64_t z = seed;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ z >> 27) * 0x94d049bb133111ebull;
      word = z ^ z >> 31;
    }
  }
  std::uint64_t next() {
    const std::uint64_t result = rotate(s_[1] * 5, 7) * 9;
    const std::uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = rotate(s_[3], 45);
    return result;
  }
  // Uniform in [0, n), n > 0: multiplication with rejection of the few uneven values.
  std::uint64_t below(std::uint64_t n) {
    unsigned __int128 m = static_cast<unsigned __int128>(next()) * n;
    if (static_cast<std::uint64_t>(m) < n) {
      const std::uint64_t uneven = (0 - n) % n;
      while (static_cast<std::uint64_t>(m) < uneven) m = static_cast<unsigned __int128>(next()) * n;
    }
    return static_cast<std::uint64_t>(m >> 64);
  }

 private:
  static std::uint64_t rotate(std::uint64_t x, int k) { return x << k | x >> (64 - k); }
  std::uint64_t s_[4];
};

}  // namespace etcfs::rt

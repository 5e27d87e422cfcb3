// Counter-based randomness: `engine/rng.py` is the reference.
#pragma once

#include <cstdint>

enum Purpose : uint64_t { DRAFT = 1, ACCEPT = 2, EMIT = 3 };

// What the uniforms of some rows depend on.
struct Keys {
  const uint64_t* seeds;
  const int64_t* rounds;
  const int64_t* positions;
};

static inline uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

static inline double uniform(const Keys& keys, int64_t row, int64_t ahead, Purpose purpose) {
  uint64_t state = mix(keys.seeds[row]);
  state = mix(state ^ static_cast<uint64_t>(keys.rounds[row]));
  state = mix(state ^ static_cast<uint64_t>(keys.positions[row] + ahead));
  state = mix(state ^ purpose);
  return static_cast<double>(state >> 11) * 0x1p-53;
}

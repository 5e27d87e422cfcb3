// Vectors of floats as wide as the processor's registers, in GCC's language extension.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
static inline void store(float* to, Vec x) { *reinterpret_cast<Vec*>(to) = x; }
static inline Vec broadcast(float x) { return x - Vec{}; }

static inline Vec select(Ints condition, Vec yes, Vec no) {
  return condition ? yes : no;
}

// exp(x) to about one unit in the last place: 2^n times a polynomial on [-ln2/2, ln2/2] (the
// degree-6 minimax polynomial of Cephes, Moshier 1989). 0 below -87.3, saturated above 88.
static inline Vec exponential(Vec x) {
  const Vec low = broadcast(-87.3f), high = broadcast(88.0f);
  Ints vanishes = x < low;
  x = select(vanishes, low, x);
  x = select(x > high, high, x);
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
  const Vec magic = broadcast(12582912.0f);
  Vec shifted = x * 1.44269504088896341f + magic;
  Vec n = shifted - magic;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  Ints exponent = ((Ints)shifted - (Ints)magic) << 23;
  return select(vanishes, Vec{}, (Vec)((Ints)p + exponent));
}

// Lane i of the result is lane I[i] of a and b, one after the other.
template <int... I>
static inline Vec shuffle(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(a, b, Ints{I...});
}

// Neighbours within each four lanes: [a0+a1, a2+a3, b0+b1, b2+b3, a4+a5, ...].
template <int... I>
static inline Vec add_pairs(Vec a, Vec b, std::integer_sequence<int, I...>) {
  using Even = std::integer_sequence<int, (I / 4 * 4 + I % 2 * 2 + (I % 4 < 2 ? 0 : LANES))...>;
  using Odd = std::integer_sequence<int, (I / 4 * 4 + I % 2 * 2 + (I % 4 < 2 ? 1 : LANES + 1))...>;
  return shuffle(a, b, Even()) + shuffle(a, b, Odd());
}

// Neighbouring fours of lanes: [a0..3 + a4..7, ..., b0..3 + b4..7, ...].
template <int... I>
static inline Vec add_fours(Vec a, Vec b, std::integer_sequence<int, I...>) {
  using Even = std::integer_sequence<int, (I / 4 * 8 + I % 4)...>;
  using Odd = std::integer_sequence<int, (I / 4 * 8 + I % 4 + 4)...>;
  return shuffle(a, b, Even()) + shuffle(a, b, Odd());
}

// Lane i of the result is the sum over the lanes of vector i, given as pairs[j] = the neighbours
// (`add_neighbours`) of vectors 2j and 2j + 1. Overwrites its argument.
static inline Vec add_neighbours(Vec a, Vec b) {
  return add_pairs(a, b, std::make_integer_sequence<int, LANES>());
}

static inline Vec add_across(Vec pairs[LANES / 2]) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES / 4; i++) pairs[i] = add_neighbours(pairs[2 * i], pairs[2 * i + 1]);
  for (int count = LANES / 4; count > 1; count /= 2)
#pragma GCC unroll 16
    for (int i = 0; i < count / 2; i++)
      pairs[i] =
          add_fours(pairs[2 * i], pairs[2 * i + 1], std::make_integer_sequence<int, LANES>());
  return pairs[0];
}

// The sum over the lanes, always in the same order.
static inline float add_lanes(Vec x) {
  float sum = 0.0f;
  for (int i = 0; i < LANES; i++) sum += x[i];
  return sum;
}

// A sum in double. From memory, since compilers split wider vectors badly.
struct DoubleSum {
  double lanes[LANES] = {};
  void add(const float* from) {
    for (int lane = 0; lane < LANES; lane++) lanes[lane] += from[lane];
  }
  double total() const {
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
  }
};

// Bit i tells whether lane i of a comparison is true.
static inline uint32_t true_lanes(Ints x) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)x);
#elif defined(__AVX__) && !defined(__AVX512F__)
  return _mm256_movemask_ps((__m256)x);
#else
  uint32_t bits = 0;
  for (int i = 0; i < LANES; i++) bits |= static_cast<uint32_t>(x[i] < 0) << i;
  return bits;
#endif
}

// The largest lane; NaN counts for nothing.
static inline float max_lane(Vec x) {
  float largest = -INFINITY;
  for (int i = 0; i < LANES; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

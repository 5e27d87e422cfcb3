// The value down to which the largest ones have to be taken to reach a wanted amount: a mass for
// nuclei, a number for the k largest.
//
// Instead of a sort, several thresholds at once narrow down where that value lies, until few
// values are left to be looked at one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"

constexpr int64_t STRIDE = 8 * LANES;       // values that are looked at before a decision is taken
constexpr int NUM_CUTS = 7;                 // thresholds at once
constexpr int64_t FEW = 1024;               // values that are looked at one by one
constexpr int64_t SUMMED = 256 * LANES;     // values that are summed in float
constexpr double SUM_ERROR = 4e-5;          // of such sums, relative, at most

// What a value counts for, and how many values >= low an amount can be made of.
struct Mass {
  static Vec of(Vec values) { return values; }
  static double of(float value) { return value; }
  static double most_values(double amount, float low) { return amount / low; }
};

struct Number {
  static Vec of(Vec) { return broadcast(1.0f); }
  static double of(float) { return 1.0; }
  static double most_values(double amount, float) { return amount; }
};

// Floats in their order as integers in the same order.
static inline int64_t rank_of(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

static inline float value_of(int64_t rank) {
  int32_t bits = rank < 0 ? rank ^ 0x7fffffff : rank;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The largest value in each lane of every stride: most strides hold nothing of interest, and what
// is known about them need not be looked at again.
class Peaks {
 public:
  void clear() { peaks_.clear(); }
  void add(Vec highest) {
    peaks_.resize(peaks_.size() + LANES);
    store(peaks_.data() + peaks_.size() - LANES, highest);
  }
  // Whether the stride that begins at `start` has a value >= least; without peaks it may.
  bool reach(int64_t start, float least) const {
    size_t at = start / STRIDE * LANES;
    return at >= peaks_.size() || true_lanes(load(peaks_.data() + at) >= broadcast(least));
  }

 private:
  std::vector<float> peaks_;
};

// Amounts of the values >= cut, for every cut; the cuts ascend.
template <typename Amount>
static void weigh(const float* x, int64_t size, const Peaks& peaks, const float cuts[NUM_CUTS],
                  double amounts[NUM_CUTS]) {
  DoubleSum sums[NUM_CUTS];
  int64_t i = 0;
  while (i + STRIDE <= size) {
    if (!peaks.reach(i, cuts[0])) {
      i += STRIDE;
      continue;
    }
    int64_t end = i + STRIDE, furthest = std::min(i + SUMMED, size) - STRIDE;
    while (end <= furthest && peaks.reach(end, cuts[0])) end += STRIDE;
    Vec parts[NUM_CUTS] = {};
    for (; i < end; i += LANES) {
      Vec values = load(x + i);
#pragma GCC unroll 7
      for (int cut = 0; cut < NUM_CUTS; cut++)
        parts[cut] += select(values >= broadcast(cuts[cut]), Amount::of(values), Vec{});
    }
    for (int cut = 0; cut < NUM_CUTS; cut++) {
      float part[LANES];
      store(part, parts[cut]);
      sums[cut].add(part);
    }
  }
  for (int cut = 0; cut < NUM_CUTS; cut++) {
    amounts[cut] = sums[cut].total();
    for (int64_t j = i; j < size; j++)
      if (x[j] >= cuts[cut]) amounts[cut] += Amount::of(x[j]);
  }
}

// Puts the values in [low, high) aside, in order; returns the amount of those >= high.
template <typename Amount>
static double set_aside(const float* x, int64_t size, const Peaks& peaks, float low, float high,
                        std::vector<float>& kept) {
  kept.clear();
  DoubleSum above;
  int64_t i = 0;
  for (; i + STRIDE <= size; i += STRIDE) {
    if (!peaks.reach(i, low)) continue;
    Ints has_any{}, has_above{};
    for (int64_t j = i; j < i + STRIDE; j += LANES) {
      has_above |= load(x + j) >= broadcast(high);
      has_any |= load(x + j) >= broadcast(low);
    }
    if (!true_lanes(has_any)) continue;
    for (int64_t j = i; j < i + STRIDE; j += LANES) {
      Vec values = load(x + j);
      Ints is_above = values >= broadcast(high);
      uint32_t inside = true_lanes((values >= broadcast(low)) & ~is_above);
      for (; inside; inside &= inside - 1) kept.push_back(x[j + __builtin_ctz(inside)]);
      if (!true_lanes(has_above)) continue;
      float amounts[LANES];
      store(amounts, select(is_above, Amount::of(values), Vec{}));
      above.add(amounts);
    }
  }
  double rest = 0.0;
  for (; i < size; i++) {
    if (x[i] >= high) rest += Amount::of(x[i]);
    if (x[i] >= low && x[i] < high) kept.push_back(x[i]);
  }
  return above.total() + rest;
}

struct Selected {
  float least;    // the smallest value that belongs to it
  double amount;  // of all values from it on
};

// Among few values, beside an amount above them: a quickselect by amount. Reorders them.
template <typename Amount>
static Selected select_few(float* from, float* to, double above, double wanted) {
  const auto amount_of = [](const float* begin, const float* end) {
    double total = 0.0;
    for (; begin < end; begin++) total += Amount::of(*begin);
    return total;
  };
  while (true) {
    float a = from[0], b = from[(to - from) / 2], c = to[-1];
    float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    float* greater = std::partition(from, to, [pivot](float x) { return x > pivot; });
    double amount = above + amount_of(from, greater);
    if (amount >= wanted) {
      to = greater;
      continue;
    }
    float* equal = std::partition(greater, to, [pivot](float x) { return x == pivot; });
    above = amount + amount_of(greater, equal);
    if (above >= wanted || equal == to) return {pivot, above};
    from = equal;
  }
}

// The largest t such that the values >= t have the wanted amount. All values are at most `most`,
// and those >= `least` have that amount.
template <typename Amount>
static Selected select_largest(const float* x, int64_t size, const Peaks& peaks, double wanted,
                               float least, float most) {
  static thread_local std::vector<float> kept;
  int64_t low = rank_of(least), high = rank_of(most) + 1;
  double from_low = INFINITY, from_high = 0.0;
  bool narrows = true;
  while (narrows && Amount::most_values(from_low - from_high, value_of(low)) > FEW) {
    int64_t ranks[NUM_CUTS];
    float cuts[NUM_CUTS];
    double amounts[NUM_CUTS];
    for (int cut = 0; cut < NUM_CUTS; cut++) {
      ranks[cut] = low + (high - low) * (cut + 1) / (NUM_CUTS + 1);
      cuts[cut] = value_of(ranks[cut]);
    }
    weigh<Amount>(x, size, peaks, cuts, amounts);
    narrows = false;
    for (int cut = 0; cut < NUM_CUTS; cut++) {
      bool has_enough = amounts[cut] >= wanted * (1.0 + SUM_ERROR);
      bool has_too_little = amounts[cut] < wanted * (1.0 - SUM_ERROR);
      if (has_enough && ranks[cut] > low) {
        low = ranks[cut];
        from_low = amounts[cut];
        narrows = true;
      }
      if (has_too_little && ranks[cut] < high) {
        high = ranks[cut];
        from_high = amounts[cut];
        narrows = true;
      }
    }
  }
  double amount = set_aside<Amount>(x, size, peaks, value_of(low), value_of(high), kept);
  return select_few<Amount>(kept.data(), kept.data() + kept.size(), amount, wanted);
}

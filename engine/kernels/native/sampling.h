// From logits to distributions, and from distributions to tokens, row by row.
//
// Each row is handled by one thread in one order: results do not depend on the other rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "vectors.h"

constexpr int64_t STRIDE = 8 * LANES;  // values that are looked at before a decision is taken

// The largest of a row, first one first; false if that is NaN or infinite, or the row holds NaN.
static bool find_best(const float* x, int64_t size, float& largest, int64_t& index) {
  Vec highest = broadcast(-INFINITY);
  Ints is_nan{};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    Vec values = load(x + i);
    is_nan |= values != values;
    highest = select(values > highest, values, highest);
  }
  largest = max_lane(highest);
  bool has_nan = any_lane(is_nan);
  for (; i < size; i++) {
    has_nan |= x[i] != x[i];
    largest = x[i] > largest ? x[i] : largest;
  }
  if (has_nan || !std::isfinite(largest)) return false;
  for (index = 0; index + STRIDE <= size; index += STRIDE) {
    Ints found{};
    for (int64_t j = index; j < index + STRIDE; j += LANES) found |= load(x + j) == largest;
    if (any_lane(found)) break;
  }
  while (x[index] != largest) index++;
  return true;
}

// The best token of every row; returns how many rows have none.
static int64_t find_best_tokens(const float* logits, int64_t rows, int64_t size, int64_t* tokens) {
  int64_t num_broken = 0;
#pragma omp parallel for schedule(static) reduction(+ : num_broken) if (rows > 1)
  for (int64_t row = 0; row < rows; row++) {
    float largest;
    num_broken += !find_best(logits + row * size, size, largest, tokens[row]);
  }
  return num_broken;
}

// Sum in double, in blocks of lanes.
static double mass_of(const float* weights, int64_t size) {
  double sums[LANES] = {};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES)
    for (int lane = 0; lane < LANES; lane++) sums[lane] += weights[i + lane];
  double total = 0.0;
  for (; i < size; i++) total += weights[i];
  for (int lane = 0; lane < LANES; lane++) total += sums[lane];
  return total;
}

// The smallest weight of the nucleus: the largest t such that the weights >= t have the wanted
// mass. Selection by mass (a weighted quickselect); reorders `from`.
static float nucleus_threshold(float* from, float* to, double wanted) {
  double above = 0.0;
  while (true) {
    float a = from[0], b = from[(to - from) / 2], c = to[-1];
    float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    float* greater = std::partition(from, to, [pivot](float x) { return x > pivot; });
    double mass = above + mass_of(from, greater - from);
    if (mass >= wanted) {
      to = greater;
      continue;
    }
    float* equal = std::partition(greater, to, [pivot](float x) { return x == pivot; });
    above = mass + static_cast<double>(pivot) * (equal - greater);
    if (above >= wanted || equal == to) return pivot;
    from = equal;
  }
}

// The weights above a floor, in order.
static void collect(const float* weights, int64_t size, float floor, std::vector<float>& kept) {
  kept.clear();
  for (int64_t i = 0; i < size; i += STRIDE) {
    int64_t end = std::min(size, i + STRIDE);
    if (end - i == STRIDE) {
      Ints heavy{};
      for (int64_t j = i; j < end; j += LANES) heavy |= load(weights + j) > broadcast(floor);
      if (!any_lane(heavy)) continue;
    }
    for (int64_t j = i; j < end; j++)
      if (weights[j] > floor) kept.push_back(weights[j]);
  }
}

// Sets the weights outside the nucleus to zero; the others may have any scale.
static void keep_nucleus(float* weights, int64_t size, double top_p) {
  static thread_local std::vector<float> kept;
  double total = mass_of(weights, size), wanted = top_p * total;
  // All that is lighter than what may be left out, divided by the row's size, can be left out. Few
  // weights are that heavy as a rule, so a higher floor is tried first.
  double floor = (total - wanted) / 64;
  double lowest = (total - wanted) / size * 0.5;
  do {
    collect(weights, size, static_cast<float>(std::max(floor, lowest)), kept);
    if (floor <= lowest || mass_of(kept.data(), kept.size()) >= wanted) break;
    floor /= 32;
  } while (true);
  float threshold = nucleus_threshold(kept.data(), kept.data() + kept.size(), wanted);
  for (int64_t i = 0; i < size; i++) weights[i] = weights[i] >= threshold ? weights[i] : 0.0f;
}

static float top_k_threshold(const float* x, int64_t size, int64_t top_k) {
  static thread_local std::vector<float> copy;
  copy.assign(x, x + size);
  std::nth_element(copy.begin(), copy.begin() + (top_k - 1), copy.end(), std::greater<float>());
  return copy[top_k - 1];
}

struct Processing {
  const int64_t* sources;  // row of the logits
  const float* temperatures;
  const int64_t* top_ks;
  const double* top_ps;
};

static bool process_row(const float* x, int64_t size, float temperature, int64_t top_k,
                        double top_p, float* out) {
  float largest;
  int64_t best;
  if (!find_best(x, size, largest, best)) return false;
  if (temperature == 0.0f) {
    std::fill(out, out + size, 0.0f);
    out[best] = 1.0f;
    return true;
  }
  bool cuts = top_k > 0 && top_k < size;
  float lowest = cuts ? top_k_threshold(x, size, top_k) : -INFINITY;
  float inverse = 1.0f / temperature;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    Vec values = load(x + i);
    Vec weights = exponential((values - largest) * inverse);
    store(out + i, select(values >= broadcast(lowest), weights, Vec{}));
  }
  for (; i < size; i++) {
    float weight = exponential(broadcast((x[i] - largest) * inverse))[0];
    out[i] = x[i] >= lowest ? weight : 0.0f;
  }
  if (top_p < 1.0) keep_nucleus(out, size, top_p);
  float scale = static_cast<float>(1.0 / mass_of(out, size));
  for (int64_t j = 0; j < size; j++) out[j] *= scale;
  return true;
}

// Distributions of chosen rows of the logits; returns how many rows have none.
static int64_t process_rows(const Processing& how, const float* logits, int64_t rows, int64_t size,
                            float* probs) {
  int64_t num_broken = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : num_broken) if (rows > 1)
  for (int64_t row = 0; row < rows; row++)
    num_broken += !process_row(logits + how.sources[row] * size, size, how.temperatures[row],
                               how.top_ks[row], how.top_ps[row], probs + row * size);
  return num_broken;
}

// What a draw is made from, never stored: p, or what is left of it where a draft took mass.
struct Whole {
  const float* p;
  float at(int64_t i) const { return p[i]; }
};

struct Residual {
  const float* p;
  const float* q;
  float at(int64_t i) const { return std::max(p[i] - q[i], 0.0f); }
};

// Inverse-CDF sampling with u in [0, 1); -1 if there is no mass. Sums of blocks come first, so that
// the exact position is looked for in one block only. No weight of zero is ever taken.
template <typename Weights>
static int64_t sample(const Weights& weights, int64_t size, double u) {
  constexpr int64_t STEP = 512;
  static thread_local std::vector<double> masses;
  masses.clear();
  double total = 0.0;
  for (int64_t start = 0; start < size; start += STEP) {
    int64_t end = std::min(size, start + STEP), i = start;
    double sums[LANES] = {};
    for (; i + LANES <= end; i += LANES)
      for (int lane = 0; lane < LANES; lane++) sums[lane] += weights.at(i + lane);
    double mass = 0.0;
    for (; i < end; i++) mass += weights.at(i);
    for (int lane = 0; lane < LANES; lane++) mass += sums[lane];
    masses.push_back(mass);
    total += mass;
  }
  if (!(total > 0.0)) return -1;
  double point = u * total, before = 0.0;
  int64_t chosen = 0, final_block = masses.size() - 1;
  while (!(masses[final_block] > 0.0)) final_block--;
  while (chosen < final_block && before + masses[chosen] <= point) before += masses[chosen++];
  // Where rounding lifts the point to the end, the last token with mass is taken.
  int64_t end = std::min(size, (chosen + 1) * STEP), last = -1;
  for (int64_t i = chosen * STEP; i < end; i++) {
    float weight = weights.at(i);
    if (!(weight > 0.0f)) continue;
    last = i;
    before += weight;
    if (before > point) break;
  }
  return last;
}

// A token of p, of norm(max(p - q, 0)), or (q null) of p less a draft that was certain.
static int64_t draw_token(const float* p, const float* q, int64_t draft, int64_t size, double u) {
  static thread_local std::vector<float> left;
  if (draft < 0) return sample(Whole{p}, size, u);
  if (q) return sample(Residual{p, q}, size, u);
  left.assign(p, p + size);
  left[draft] = std::max(left[draft] - 1.0f, 0.0f);
  return sample(Whole{left.data()}, size, u);
}

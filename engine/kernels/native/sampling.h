// From logits to distributions, and from distributions to tokens, row by row.
//
// Each row is handled by one thread in one order: results do not depend on the other rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rng.h"
#include "select.h"
#include "vectors.h"

// The largest of a row; false if that is NaN or infinite, or the row holds NaN.
static bool find_largest(const float* x, int64_t size, float& largest) {
  Vec highest = broadcast(-INFINITY);
  Ints is_nan{};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    Vec values = load(x + i);
    is_nan |= values != values;
    highest = select(values > highest, values, highest);
  }
  largest = max_lane(highest);
  bool has_nan = true_lanes(is_nan) != 0;
  for (; i < size; i++) {
    has_nan |= x[i] != x[i];
    largest = x[i] > largest ? x[i] : largest;
  }
  return !has_nan && std::isfinite(largest);
}

// Where a value is found first; the row holds it.
static int64_t find_first(const float* x, int64_t size, float value) {
  int64_t index = 0;
  for (; index + STRIDE <= size; index += STRIDE) {
    Ints found{};
    for (int64_t j = index; j < index + STRIDE; j += LANES) found |= load(x + j) == value;
    if (true_lanes(found)) break;
  }
  while (x[index] != value) index++;
  return index;
}

// The best token of every row; returns how many rows have none.
static int64_t find_best_tokens(const float* logits, int64_t rows, int64_t size, int64_t* tokens) {
  int64_t num_broken = 0;
#pragma omp parallel for schedule(static) reduction(+ : num_broken) if (rows > 1)
  for (int64_t row = 0; row < rows; row++) {
    const float* x = logits + row * size;
    float largest;
    if (find_largest(x, size, largest))
      tokens[row] = find_first(x, size, largest);
    else
      num_broken++;
  }
  return num_broken;
}

struct Processing {
  const int64_t* sources;  // row of the logits
  const float* temperatures;
  const int64_t* top_ks;
  const double* top_ps;
};

// A row of probabilities and what a draw can skip of it.
struct Distribution {
  float* p;
  Peaks peaks;         // of the weights they were made from
  float least = 0.0f;  // the smallest of these that was kept
};

// exp((x - largest) / temperature) where x >= lowest, else 0.
static void weigh_row(const float* x, int64_t size, float largest, float lowest,
                      float temperature, float* out) {
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
}

// The sum of all weights, and the peaks of their strides.
static double mass_of(const float* weights, int64_t size, Peaks& peaks) {
  DoubleSum sums;
  double rest = 0.0;
  int64_t i = 0;
  for (; i + STRIDE <= size; i += STRIDE) {
    Vec sum = load(weights + i), highest = sum;
    for (int64_t j = i + LANES; j < i + STRIDE; j += LANES) {
      Vec values = load(weights + j);
      sum += values;
      highest = select(values > highest, values, highest);
    }
    float part[LANES];
    store(part, sum);
    sums.add(part);
    peaks.add(highest);
  }
  for (; i < size; i++) rest += weights[i];
  return sums.total() + rest;
}

static bool process_row(const float* x, int64_t size, float temperature, int64_t top_k,
                        double top_p, Distribution& to) {
  float largest, *out = to.p;
  to.peaks.clear();
  if (!find_largest(x, size, largest)) return false;
  if (temperature == 0.0f) {
    std::fill(out, out + size, 0.0f);
    out[find_first(x, size, largest)] = 1.0f;
    return true;
  }
  float lowest = -INFINITY;
  if (top_k > 0 && top_k < size)
    lowest = select_largest<Number>(x, size, to.peaks, top_k, lowest, largest).least;
  weigh_row(x, size, largest, lowest, temperature, out);
  double total = mass_of(out, size, to.peaks);
  float least = 0.0f;
  if (top_p < 1.0) {
    double wanted = top_p * total;
    // What is lighter than this is, all together, less than what may be left out.
    float lightest = static_cast<float>((total - wanted) / size * 0.5);
    Selected nucleus = select_largest<Mass>(out, size, to.peaks, wanted, lightest, 2.0f);
    least = nucleus.least;
    total = nucleus.amount;
  }
  to.least = least;
  float scale = static_cast<float>(1.0 / total);
  for (int64_t i = 0; i < size; i++) out[i] = out[i] >= least ? out[i] * scale : 0.0f;
  return true;
}

// What a draw is made from, never stored: p, or what is left of it where a draft took mass.
struct Whole {
  const float* p;
  float at(int64_t i) const { return p[i]; }
  bool is_empty(int64_t, int64_t) const { return false; }
};

struct Made {
  const Distribution& made;
  float at(int64_t i) const { return made.p[i]; }
  bool is_empty(int64_t from, int64_t end) const {
    for (int64_t i = from; i < end; i += STRIDE)
      if (made.peaks.reach(i, made.least)) return false;
    return true;
  }
};

struct Residual {
  const float* p;
  const float* q;
  float at(int64_t i) const { return std::max(p[i] - q[i], 0.0f); }
  bool is_empty(int64_t, int64_t) const { return false; }
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
    if (weights.is_empty(start, end)) {
      masses.push_back(0.0);
      continue;
    }
    DoubleSum sums;
    for (; i + LANES <= end; i += LANES) {
      float taken[LANES];
      for (int lane = 0; lane < LANES; lane++) taken[lane] = weights.at(i + lane);
      sums.add(taken);
    }
    double mass = sums.total();
    for (; i < end; i++) mass += weights.at(i);
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

// Distributions of chosen rows of the logits; returns how many rows have none.
static int64_t process_rows(const Processing& how, const float* logits, int64_t rows, int64_t size,
                            float* probs) {
  int64_t num_broken = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : num_broken) if (rows > 1)
  for (int64_t row = 0; row < rows; row++) {
    static thread_local Distribution to;
    to.p = probs + row * size;
    num_broken += !process_row(logits + how.sources[row] * size, size, how.temperatures[row],
                               how.top_ks[row], how.top_ps[row], to);
  }
  return num_broken;
}

// A token of every row of p, `stride` floats apart; -1 for rows without mass.
static void sample_rows(const float* p, int64_t stride, int64_t rows, int64_t size,
                        const double* uniforms, int64_t* tokens) {
#pragma omp parallel for schedule(dynamic) if (rows > 1)
  for (int64_t row = 0; row < rows; row++)
    tokens[row] = sample(Whole{p + row * stride}, size, uniforms[row]);
}

// Where distributions go: rows `stride` floats apart, and column j of the logits to `columns[j]`
// if there is such a map. What no column goes to stays as it is.
struct Destination {
  float* probs;
  int64_t stride;
  const int64_t* columns;
};

// A column of every row of the logits, and what it was drawn from; returns how many rows have none.
static int64_t draw_rows(const Processing& how, const float* logits, int64_t rows, int64_t size,
                         const Keys& keys, const Destination& to, int64_t* tokens) {
  int64_t num_broken = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : num_broken) if (rows > 1)
  for (int64_t row = 0; row < rows; row++) {
    static thread_local std::vector<float> kept;
    float* out = to.probs + row * to.stride;
    if (to.columns) kept.resize(size);
    static thread_local Distribution made;
    made.p = to.columns ? kept.data() : out;
    const float* x = logits + how.sources[row] * size;
    tokens[row] = -1;
    if (process_row(x, size, how.temperatures[row], how.top_ks[row], how.top_ps[row], made))
      tokens[row] = sample(Made{made}, size, uniform(keys, row, 0, DRAFT));
    else
      num_broken++;
    if (to.columns)
      for (int64_t j = 0; j < size; j++) out[to.columns[j]] = made.p[j];
  }
  return num_broken;
}

// What a linear layer consists of, and the steps around its product.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

constexpr int64_t PANEL = 2 * LANES;  // outputs whose weights lie together
constexpr int64_t WORTH_THREADS = 1 << 15;  // multiplications that pay for waking the threads

struct Linear {
  const void* panels;
  const float* bias;  // [num_out] or null
  const float* norm;  // [num_in] or null: weight of an RMSNorm over x
  int64_t num_in;
  int64_t num_out;
  int64_t is_bfloat16;
  int64_t is_gated;  // silu(gate) * up of weights [2 num_out, num_in]: gate rows first
  float eps;
  // A panel of a gated layer holds the gates and the ups of as many outputs as a vector.
  int64_t panel_outputs() const { return is_gated ? LANES : PANEL; }
  int64_t num_panels() const { return (num_out + panel_outputs() - 1) / panel_outputs(); }
};

static inline bool is_worth_threads(const Linear& linear, int64_t rows) {
  return rows * linear.num_in * linear.num_out > WORTH_THREADS;
}

static inline Vec gated(Vec gate, Vec up) {
  Vec shut = gate * 0.0f * up;  // zero, or NaN where a factor is not finite
  return select(gate < broadcast(-88.0f), shut, gate / (1.0f + exponential(-gate)) * up);
}

// What follows a vector of sums: bias and residual, both may be null. `out` may be `residual`.
static inline void finish(Vec sums, const float* bias, const float* residual, float* out) {
  if (bias) sums += load(bias);
  if (residual) sums += load(residual);
  store(out, sums);
}

// From one row's sums of a panel to outputs: gate, bias, residual. The last panel may have fewer.
static inline void finish_row(const Linear& linear, const float* sums, int64_t panel,
                              const float* residual, int64_t row, float* out) {
  int64_t width = linear.panel_outputs(), first = panel * width;
  const float* bias = linear.bias ? linear.bias + first : nullptr;
  if (residual) residual += row * linear.num_out + first;
  out += row * linear.num_out + first;
  Vec one = load(sums), other = load(sums + LANES);
  if (linear.is_gated) one = gated(one, other);
  if (first + width <= linear.num_out) {
    finish(one, bias, residual, out);
    if (!linear.is_gated)
      finish(other, bias ? bias + LANES : nullptr, residual ? residual + LANES : nullptr,
             out + LANES);
    return;
  }
  float rest[PANEL];
  store(rest, one);
  store(rest + LANES, other);
  for (int64_t i = 0; i < linear.num_out - first; i++) {
    if (bias) rest[i] += bias[i];
    out[i] = residual ? rest[i] + residual[i] : rest[i];
  }
}

static void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* out) {
  Vec squares{};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) squares += load(x + i) * load(x + i);
  for (; i < size; i++) rest += x[i] * x[i];
  float scale = 1.0f / std::sqrt((add_lanes(squares) + rest) / size + eps);
  for (int64_t j = 0; j < size; j++) out[j] = x[j] * scale * weight[j];
}

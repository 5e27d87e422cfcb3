// y = x W^T with few rows of x: the weights stream from memory once, in the order they are used.
//
// The outputs are cut into panels of two vectors. A panel holds, for every input k, the weights of
// its outputs side by side; bfloat16 weights lie in pairs, so that a shift and a mask make two
// vectors of one load. bfloat16 is storage only: all arithmetic is float32, and exact for weights
// that are bfloat16 numbers.
//
// Every output is one chain of fused multiply-adds over k in ascending order. It does not depend
// on the number of rows, of threads, or on which rows come along: results are equal to the bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

constexpr int64_t PANEL = 2 * LANES;  // outputs of a panel
constexpr int MAX_TILE = 6;           // rows whose sums fit the registers beside the weights
constexpr int64_t ROWS_AT_ONCE = 126;  // a multiple of MAX_TILE; bounds the partial sums
constexpr int64_t INPUTS_AT_ONCE = 1536;  // a panel's part that stays in the second-level cache
constexpr int64_t AHEAD = 128;        // inputs to prefetch ahead
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
};

struct Bfloat16Panel {
  static constexpr int64_t BYTES = 2;
  const uint32_t* words;
  Bfloat16Panel(const void* panels, int64_t panel, int64_t num_in)
      : words(static_cast<const uint32_t*>(panels) + panel * num_in * LANES) {}
  const void* at(int64_t k) const { return words + k * LANES; }
  void weights(int64_t k, Vec& first, Vec& second) const {
    Words pairs = *reinterpret_cast<const Words*>(words + k * LANES);
    first = (Vec)(pairs << 16);
    second = (Vec)(pairs & 0xffff0000u);
  }
};

struct Float32Panel {
  static constexpr int64_t BYTES = 4;
  const float* floats;
  Float32Panel(const void* panels, int64_t panel, int64_t num_in)
      : floats(static_cast<const float*>(panels) + panel * num_in * PANEL) {}
  const void* at(int64_t k) const { return floats + k * PANEL; }
  void weights(int64_t k, Vec& first, Vec& second) const {
    first = load(floats + k * PANEL);
    second = load(floats + k * PANEL + LANES);
  }
};

// Sums of R rows over the inputs from `k` to `end`, added to `partial` [R, PANEL] in place.
template <int R, bool PREFETCH, typename Panel>
static inline void multiply_tile(const Panel& panel, const float* x, int64_t num_in, int64_t k,
                                 int64_t end, float* partial) {
  Vec sums[R][2];
  const float* rows[R];
  for (int r = 0; r < R; r++) {
    sums[r][0] = load(partial + r * PANEL);
    sums[r][1] = load(partial + r * PANEL + LANES);
    rows[r] = x + r * num_in;
  }
  for (; k < end; k++) {
    Vec first, second;
    panel.weights(k, first, second);
    if (PREFETCH) __builtin_prefetch(panel.at(k + AHEAD));
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      Vec input = broadcast(rows[r][k]);
      sums[r][0] += input * first;
      sums[r][1] += input * second;
    }
  }
  for (int r = 0; r < R; r++) {
    store(partial + r * PANEL, sums[r][0]);
    store(partial + r * PANEL + LANES, sums[r][1]);
  }
}

template <bool PREFETCH, typename Panel>
static inline void multiply(int64_t rows, const Panel& panel, const float* x, int64_t num_in,
                            int64_t k, int64_t end, float* partial) {
  switch (rows) {
    case 1: return multiply_tile<1, PREFETCH>(panel, x, num_in, k, end, partial);
    case 2: return multiply_tile<2, PREFETCH>(panel, x, num_in, k, end, partial);
    case 3: return multiply_tile<3, PREFETCH>(panel, x, num_in, k, end, partial);
    case 4: return multiply_tile<4, PREFETCH>(panel, x, num_in, k, end, partial);
    case 5: return multiply_tile<5, PREFETCH>(panel, x, num_in, k, end, partial);
    default: return multiply_tile<6, PREFETCH>(panel, x, num_in, k, end, partial);
  }
}

static inline Vec gated(Vec gate, Vec up) {
  Vec shut = gate * 0.0f * up;  // zero, or NaN where a factor is not finite
  return select(gate < broadcast(-88.0f), shut, gate / (1.0f + exponential(-gate)) * up);
}

// From sums to outputs: bias, gate, residual; the last panel may have fewer outputs.
static inline void finish_row(const Linear& linear, const float* sums, int64_t first,
                              const float* residual, float* out) {
  float results[PANEL];
  int64_t width = linear.is_gated ? LANES : PANEL;
  int64_t count = std::min(width, linear.num_out - first);
  if (linear.is_gated) {
    store(results, gated(load(sums), load(sums + LANES)));
  } else {
    store(results, load(sums));
    store(results + LANES, load(sums + LANES));
  }
  for (int64_t i = 0; i < count; i++) {
    float y = results[i];
    if (linear.bias) y += linear.bias[first + i];
    if (residual) y += residual[first + i];
    out[first + i] = y;
  }
}

template <typename Panel>
static void multiply_panel(const Linear& linear, int64_t index, const float* x, int64_t num_rows,
                           const float* residual, float* out) {
  float partial[ROWS_AT_ONCE * PANEL];
  Panel panel(linear.panels, index, linear.num_in);
  int64_t width = linear.is_gated ? LANES : PANEL;
  std::fill(partial, partial + num_rows * PANEL, 0.0f);
  int64_t num_tiles = (num_rows + MAX_TILE - 1) / MAX_TILE;
  for (int64_t k = 0; k < linear.num_in; k += INPUTS_AT_ONCE) {
    int64_t end = std::min(linear.num_in, k + INPUTS_AT_ONCE);
    for (int64_t tile = 0; tile < num_tiles; tile++) {
      int64_t row = num_rows * tile / num_tiles, next = num_rows * (tile + 1) / num_tiles;
      const float* inputs = x + row * linear.num_in;
      float* sums = partial + row * PANEL;
      if (tile == 0)
        multiply<true>(next - row, panel, inputs, linear.num_in, k, end, sums);
      else
        multiply<false>(next - row, panel, inputs, linear.num_in, k, end, sums);
    }
  }
  for (int64_t row = 0; row < num_rows; row++) {
    int64_t at = row * linear.num_out;
    finish_row(linear, partial + row * PANEL, index * width, residual ? residual + at : nullptr,
               out + at);
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

// x [rows, num_in] -> out [rows, num_out]; residual [rows, num_out] or null; out may be residual.
static void run_linear(const Linear& linear, const float* x, int64_t rows, const float* residual,
                       float* out) {
  static thread_local std::vector<float> kept;
  const float* inputs = x;
  if (linear.norm) {
    kept.resize(rows * linear.num_in);
    inputs = kept.data();
  }
  float* normed = kept.data();
  int64_t width = linear.is_gated ? LANES : PANEL;
  int64_t num_panels = (linear.num_out + width - 1) / width;
#pragma omp parallel if (rows * linear.num_in * linear.num_out > WORTH_THREADS)
  {
    if (linear.norm) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < rows; row++)
        rms_norm(x + row * linear.num_in, linear.norm, linear.num_in, linear.eps,
                 normed + row * linear.num_in);
    }
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
      int64_t count = std::min(ROWS_AT_ONCE, rows - row);
      const float* added = residual ? residual + row * linear.num_out : nullptr;
#pragma omp for schedule(static) nowait
      for (int64_t panel = 0; panel < num_panels; panel++) {
        const float* from = inputs + row * linear.num_in;
        float* to = out + row * linear.num_out;
        if (linear.is_bfloat16)
          multiply_panel<Bfloat16Panel>(linear, panel, from, count, added, to);
        else
          multiply_panel<Float32Panel>(linear, panel, from, count, added, to);
      }
    }
  }
}

// Panels of weights [rows, num_in], where rows = num_out, or 2 num_out if gated. Outputs that fill
// the last panel up are zero.
static void pack_linear(const Linear& linear, const float* weight, void* panels) {
  int64_t width = linear.is_gated ? LANES : PANEL;
  int64_t second = linear.is_gated ? linear.num_out : LANES;
  int64_t num_panels = (linear.num_out + width - 1) / width;
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < num_panels; panel++)
    for (int64_t k = 0; k < linear.num_in; k++)
      for (int lane = 0; lane < LANES; lane++) {
        int64_t out = panel * width + lane;
        float values[2] = {0.0f, 0.0f};
        if (out < linear.num_out) values[0] = weight[out * linear.num_in + k];
        bool inside = linear.is_gated ? out < linear.num_out : out + LANES < linear.num_out;
        if (inside) values[1] = weight[(out + second) * linear.num_in + k];
        int64_t at = panel * linear.num_in + k;
        if (linear.is_bfloat16) {
          uint32_t bits[2];
          __builtin_memcpy(bits, values, sizeof bits);
          static_cast<uint32_t*>(panels)[at * LANES + lane] = bits[0] >> 16 | (bits[1] & 0xffff0000u);
        } else {
          static_cast<float*>(panels)[at * PANEL + lane] = values[0];
          static_cast<float*>(panels)[at * PANEL + LANES + lane] = values[1];
        }
      }
}

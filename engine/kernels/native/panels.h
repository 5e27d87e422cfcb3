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
#include <cstdint>

#include "layer.h"

constexpr int MAX_TILE = 6;               // rows whose sums fit the registers beside the weights
constexpr int64_t INPUTS_AT_ONCE = 1536;  // a panel's part that stays in the second-level cache
constexpr int64_t FETCHED_INPUTS = 128;            // inputs to prefetch ahead
constexpr int64_t ROWS_AT_ONCE = 126;     // a multiple of MAX_TILE; bounds the partial sums

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
    if (PREFETCH) __builtin_prefetch(panel.at(k + FETCHED_INPUTS));
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

// Sums of all rows over one panel, then its outputs.
template <typename Panel>
static void multiply_panel(const Linear& linear, int64_t index, const float* x, int64_t num_rows,
                           const float* residual, float* out) {
  float partial[ROWS_AT_ONCE * PANEL];
  Panel panel(linear.panels, index, linear.num_in);
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
  for (int64_t row = 0; row < num_rows; row++)
    finish_row(linear, partial + row * PANEL, index, residual, row, out);
}

// A whole linear layer: the norm before, the product, and what comes after it, over all threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layer.h"
#include "panels.h"
#include "tiles.h"

static void run_panels(const Linear& linear, const float* x, int64_t rows, const float* residual,
                       float* out) {
  static thread_local std::vector<float> kept;
  const float* inputs = x;
  if (linear.norm) {
    kept.resize(rows * linear.num_in);
    inputs = kept.data();
  }
  float* normed = kept.data();
#pragma omp parallel if (is_worth_threads(linear, rows))
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
      for (int64_t panel = 0; panel < linear.num_panels(); panel++) {
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

// x [rows, num_in] -> out [rows, num_out]; residual [rows, num_out] or null; out may be residual.
static void run_linear(const Linear& linear, const float* x, int64_t rows, const float* residual,
                       float* out) {
  if (uses_tiles(linear))
    run_tiles(linear, x, rows, residual, out);
  else
    run_panels(linear, x, rows, residual, out);
}

// Numbers of a panel's weights.
static int64_t panel_size(const Linear& linear) {
  int64_t inputs = uses_tiles(linear) ? num_blocks(linear.num_in) * TILE_INPUTS : linear.num_in;
  return inputs * PANEL;
}

// Bytes of the packed weights.
static int64_t packed_size(const Linear& linear) {
  return linear.num_panels() * panel_size(linear) * (linear.is_bfloat16 ? 2 : 4);
}

// Where a panel's weight lies, counted in numbers: of input k and of the output in `lane` of the
// panel's first or second vector.
static inline int64_t place_in_panel(const Linear& linear, int64_t k, int64_t second,
                                     int64_t lane) {
  if (uses_tiles(linear)) return place_in_tiles(k, second, lane);
  return k * PANEL + (linear.is_bfloat16 ? lane * 2 + second : second * LANES + lane);
}

static inline uint16_t bfloat16_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits >> 16;
}

// Packs weights [rows, num_in], where rows = num_out, or 2 num_out if gated. Outputs that fill the
// last panel up and inputs that fill the last block up are not written: `panels` must hold zeros.
static void pack_linear(const Linear& linear, const float* weight, void* panels) {
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < linear.num_panels(); panel++)
    for (int64_t i = 0; i < PANEL; i++) {
      int64_t second = i / LANES, lane = i % LANES;
      int64_t out = panel * linear.panel_outputs() + (linear.is_gated ? lane : i);
      if (out >= linear.num_out) continue;
      int64_t row = linear.is_gated ? out + second * linear.num_out : out;
      for (int64_t k = 0; k < linear.num_in; k++) {
        float value = weight[row * linear.num_in + k];
        int64_t place = panel * panel_size(linear) + place_in_panel(linear, k, second, lane);
        if (linear.is_bfloat16)
          static_cast<uint16_t*>(panels)[place] = bfloat16_bits(value);
        else
          static_cast<float*>(panels)[place] = value;
      }
    }
}

// y = x W^T on the processor's matrix unit (Intel AMX), for weights that are bfloat16 numbers.
//
// The unit multiplies bfloat16 numbers exactly and adds in float32. An input is taken apart into
// three bfloat16 numbers whose sum it is (8 + 8 + 8 of its 24 bits), so that three products give
// the arithmetic of float32; numbers below 2^-126 count as zero.
//
// Every output is one chain of additions over k in ascending order. It does not depend on the
// number of rows, of threads, or on which rows come along: results are equal to the bit.
#pragma once

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__AVX512F__) && defined(__linux__)
#define WITH_TILES 1
#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layer.h"

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t TILE_INPUTS = 32;
constexpr int64_t TILE = TILE_ROWS * TILE_INPUTS;  // bfloat16 numbers of a tile
constexpr int64_t NUM_PARTS = 3;
constexpr int64_t ROW_BYTES = 2 * TILE_INPUTS;
constexpr int64_t PANEL_BLOCK = 2 * TILE;          // weights of a panel's block of inputs
constexpr int64_t GROUP_BLOCK = NUM_PARTS * TILE;  // inputs of a group of rows in a block
constexpr int64_t AHEAD = 8 * PANEL_BLOCK;         // weights on their way to the cache
constexpr int64_t TILED_ROWS = 128;                // whose parts stay in the second-level cache

static inline int64_t num_blocks(int64_t num_in) {
  return (num_in + TILE_INPUTS - 1) / TILE_INPUTS;
}

// Where a weight lies in its panel, counted in numbers: inputs in blocks; in a block the panel's
// two vectors of outputs one after the other, each with pairs of inputs side by side.
static inline int64_t place_in_tiles(int64_t k, int64_t second, int64_t lane) {
  int64_t block = k / TILE_INPUTS, pair = k % TILE_INPUTS / 2;
  return block * PANEL_BLOCK + second * TILE + pair * TILE_INPUTS + lane * 2 + k % 2;
}

#ifdef WITH_TILES

static_assert(LANES == TILE_ROWS, "a vector is as wide as a tile");

// Linux hands the unit's registers out to processes that ask.
static bool ask_for_tiles() {
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
static const bool HAS_TILES = ask_for_tiles();

static inline bool uses_tiles(const Linear& linear) { return HAS_TILES && linear.is_bfloat16; }

// How rows are dealt out to tiles: as evenly as can be, since a tile costs what its rows cost.
struct Groups {
  int64_t count;
  int64_t rows;  // of each, but perhaps the last
  explicit Groups(int64_t num_rows)
      : count((num_rows + TILE_ROWS - 1) / TILE_ROWS), rows((num_rows + count - 1) / count) {}
};

static inline const uint16_t* tiled_panel(const Linear& linear, int64_t panel) {
  return static_cast<const uint16_t*>(linear.panels) +
         panel * num_blocks(linear.num_in) * PANEL_BLOCK;
}

typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

// Three bfloat16 numbers whose sum is x: its leading bits, those after them, and the rest.
static inline void take_apart(Vec x, Halves parts[NUM_PARTS]) {
  Ints is_finite = (Ints)(((Words)x & 0x7f800000u) != 0x7f800000u);
  // A NaN whose leading bits are those of infinity stays one.
  Ints is_nan = x != x;
  for (int part = 0; part < NUM_PARTS; part++) {
    Words leading = (Words)x & 0xffff0000u;
    if (part == 0) leading |= (Words)is_nan & 0x00400000u;
    parts[part] = __builtin_convertvector(leading >> 16, Halves);
    x = select(is_finite, x - (Vec)leading, Vec{});
  }
}

// A row of inputs, after the layer's norm, into its place in the tiles [group, block, part, row,
// input].
static void lay_out(const Linear& linear, const float* x, const Groups& groups, int64_t row,
                    uint16_t* tiles) {
  static thread_local std::vector<float> padded;
  int64_t blocks = num_blocks(linear.num_in), group = row / groups.rows, at = row % groups.rows;
  padded.resize(blocks * TILE_INPUTS);
  std::fill(padded.begin() + linear.num_in, padded.end(), 0.0f);
  if (linear.norm)
    rms_norm(x, linear.norm, linear.num_in, linear.eps, padded.data());
  else
    std::copy(x, x + linear.num_in, padded.begin());
  for (int64_t block = 0; block < blocks; block++) {
    uint16_t* tile = tiles + (group * blocks + block) * NUM_PARTS * TILE + at * TILE_INPUTS;
    for (int64_t i = 0; i < TILE_INPUTS; i += LANES) {
      Halves parts[NUM_PARTS];
      take_apart(load(padded.data() + block * TILE_INPUTS + i), parts);
      for (int64_t part = 0; part < NUM_PARTS; part++)
        *reinterpret_cast<Halves*>(tile + part * TILE + i) = parts[part];
    }
  }
}

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  // Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
  explicit TileShapes(int64_t num_rows) {
    for (int tile = 0; tile < 8; tile++) {
      row_bytes[tile] = 2 * TILE_INPUTS;
      rows[tile] = tile < 6 ? num_rows : TILE_ROWS;
    }
  }
  // The compiler's own intrinsic does not say that it reads all of them.
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this)); }
};

// Weights on their way to the second-level cache while those before them are multiplied: a few
// lines after every product, since a processor waits when it is asked for many at once.
class Stream {
 public:
  // All weights of a thread, which multiplies each panel `times` times.
  Stream(const uint16_t* begin, const uint16_t* end, int64_t times)
      : next_(begin), end_(end), lines_((LINES + PRODUCTS * times - 1) / (PRODUCTS * times)) {
    allow(begin + AHEAD);
    fetch(AHEAD / LINE);
  }
  // Weights from `limit` on have to wait: too many would drive others out.
  void allow(const uint16_t* limit) { limit_ = std::min(limit, end_); }
  void fetch() { fetch(lines_); }

 private:
  static constexpr int64_t LINE = 32;  // bfloat16 numbers
  static constexpr int64_t LINES = PANEL_BLOCK / LINE;
  static constexpr int64_t PRODUCTS = 2 * NUM_PARTS;  // of a block with one group or two

  void fetch(int64_t lines) {
    for (int64_t line = 0; line < lines && next_ < limit_; line++, next_ += LINE)
      __builtin_prefetch(next_, 0, 2);
  }

  const uint16_t* next_;
  const uint16_t* end_;
  const uint16_t* limit_;
  int64_t lines_;
};

// Sums of one group of rows, or two, times a panel's weights.
template <bool TWO>
static inline void multiply_groups(const uint16_t* inputs, const uint16_t* weights, int64_t blocks,
                                   int64_t rows, Stream& stream, float* sums) {
  const uint16_t* others = inputs + blocks * GROUP_BLOCK;
  _tile_zero(0);
  _tile_zero(1);
  if (TWO) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t block = 0; block < blocks; block++) {
    _tile_loadd(6, weights + block * PANEL_BLOCK, ROW_BYTES);
    _tile_loadd(7, weights + block * PANEL_BLOCK + TILE, ROW_BYTES);
#pragma GCC unroll 3
    for (int64_t part = 0; part < NUM_PARTS; part++) {
      int64_t at = block * GROUP_BLOCK + part * TILE;
      _tile_loadd(4, inputs + at, ROW_BYTES);
      _tile_dpbf16ps(0, 4, 6);
      stream.fetch();
      _tile_dpbf16ps(1, 4, 7);
      if (TWO) {
        _tile_loadd(5, others + at, ROW_BYTES);
        _tile_dpbf16ps(2, 5, 6);
      }
      stream.fetch();
      if (TWO) _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int64_t SUM_BYTES = PANEL * sizeof(float);
  _tile_stored(0, sums, SUM_BYTES);
  _tile_stored(1, sums + LANES, SUM_BYTES);
  if (TWO) {
    _tile_stored(2, sums + rows * PANEL, SUM_BYTES);
    _tile_stored(3, sums + rows * PANEL + LANES, SUM_BYTES);
  }
}

// The panels from `first` to `end` times all rows, by one thread whose tiles have their shapes.
static void multiply_tiles(const Linear& linear, int64_t first, int64_t end, const Groups& groups,
                           const uint16_t* inputs, int64_t num_rows, Stream& stream,
                           const float* residual, float* out) {
  float sums[2 * TILE_ROWS * PANEL];
  int64_t blocks = num_blocks(linear.num_in);
  for (int64_t panel = first; panel < end; panel++) {
    const uint16_t* weights = tiled_panel(linear, panel);
    // The next panel may come, or what is close ahead if panels are small.
    stream.allow(weights + std::max(2 * blocks * PANEL_BLOCK, AHEAD));
    for (int64_t group = 0; group < groups.count; group += 2) {
      const uint16_t* from = inputs + group * blocks * GROUP_BLOCK;
      if (group + 1 < groups.count)
        multiply_groups<true>(from, weights, blocks, groups.rows, stream, sums);
      else
        multiply_groups<false>(from, weights, blocks, groups.rows, stream, sums);
      int64_t row = group * groups.rows, last = std::min(num_rows, row + 2 * groups.rows);
      for (const float* at = sums; row < last; row++, at += PANEL)
        finish_row(linear, at, panel, residual, row, out);
    }
  }
}

// x [rows, num_in] -> out [rows, num_out]; `tiles` holds the inputs taken apart.
static void run_tiles(const Linear& linear, const float* x, int64_t rows, const float* residual,
                      float* out) {
  static thread_local std::vector<uint16_t> kept;
  int64_t size = num_blocks(linear.num_in) * GROUP_BLOCK;
  kept.resize(Groups(std::min(rows, TILED_ROWS)).count * size);
  uint16_t* tiles = kept.data();
#pragma omp parallel if (is_worth_threads(linear, rows))
  for (int64_t done = 0; done < rows; done += TILED_ROWS) {
    int64_t count = std::min(TILED_ROWS, rows - done), thread = omp_get_thread_num();
    int64_t first = linear.num_panels() * thread / omp_get_num_threads();
    int64_t end = linear.num_panels() * (thread + 1) / omp_get_num_threads();
    const Groups groups(count);
    Stream stream(tiled_panel(linear, first), tiled_panel(linear, end), (groups.count + 1) / 2);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < count; row++)
      lay_out(linear, x + (done + row) * linear.num_in, groups, row, tiles);
    const TileShapes shapes(groups.rows);
    shapes.load();
    multiply_tiles(linear, first, end, groups, tiles, count, stream,
                   residual ? residual + done * linear.num_out : nullptr,
                   out + done * linear.num_out);
    _tile_release();
#pragma omp barrier
  }
}

#else

constexpr bool HAS_TILES = false;
static inline bool uses_tiles(const Linear&) { return false; }
static inline void run_tiles(const Linear&, const float*, int64_t, const float*, float*) {}

#endif

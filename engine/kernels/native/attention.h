// Rotary positions and causal attention of new tokens over their rows' cached keys and values.
//
// Keys are taken in blocks that begin at multiples of BLOCK, with a running maximum and sum
// (Milakov and Gimelshein 2018; Dao et al. 2022). The result of a query depends on its own context
// alone, not on batch mates, on the other queries of its row or on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

constexpr int64_t BLOCK = 32;          // keys and values of a block stay in the first-level cache
constexpr int64_t CACHE_LINE = 16;     // floats
constexpr int64_t MAX_QUERIES = 32;    // that share a pass over the context
constexpr int64_t WORTH_SHARING = 1 << 14;  // multiplications that pay for waking the threads

struct Attention {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t layer_stride;  // floats from one layer's keys to the next one's
  int64_t slot_stride;   // floats from one slot's keys to the next one's
  int64_t head_stride;   // floats from one head's keys to the next one's
  int64_t num_rows;
  const int64_t* row_ends;   // [num_rows], cumulative, into the tokens
  const int64_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens]
  const float* cos;          // [max_len, head_dim / 2]
  const float* sin;
  float* keys;  // of the first layer
  float* values;
};

struct Query {
  const float* vector;
  float* out;
  int64_t length;  // keys it sees
  float largest;
  float total;
};

static inline void rotate(const float* x, const float* cos, const float* sin, int64_t head_dim,
                          float scale, float* out) {
  int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float first = x[i], second = x[i + half];
    out[i] = (first * cos[i] - second * sin[i]) * scale;
    out[i + half] = (second * cos[i] + first * sin[i]) * scale;
  }
}

// Keys or values that are needed next, on their way to the second-level cache: a few lines at a
// time, since a processor waits when it is asked for many at once.
class Fetch {
 public:
  // Part `index` of `parts`, in `ticks` steps.
  Fetch(const float* from, int64_t count, int64_t index, int64_t parts, int64_t ticks)
      : next_(from + count * index / parts), end_(from + count * (index + 1) / parts),
        step_((end_ - next_ + ticks - 1) / ticks) {}
  void tick() {
    const float* end = std::min(next_ + step_, end_);
    for (; next_ < end; next_ += CACHE_LINE) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const float* next_;
  const float* end_;
  int64_t step_;
};

// A block of a head's keys and values.
struct Ahead {
  const float* keys = nullptr;
  const float* values = nullptr;
  int64_t count = 0;  // floats of each
};

template <int VECTORS>
static inline Vec dot(const float* query, const float* key, int64_t head_dim) {
  Vec sum = load(query) * load(key);
  if (VECTORS > 0) {
#pragma GCC unroll 16
    for (int v = 1; v < VECTORS; v++) sum += load(query + v * LANES) * load(key + v * LANES);
  } else {
    for (int64_t d = LANES; d < head_dim; d += LANES) sum += load(query + d) * load(key + d);
  }
  return sum;
}

// scores[j] = query . key j, for `count` keys; what lies beyond up to the next whole vector is
// computed from the last key.
template <int VECTORS>
static inline void score(const float* query, const float* keys, int64_t count, int64_t head_dim,
                         Fetch& fetch, float* scores) {
  for (int64_t j = 0; j < count; j += LANES) {
    Vec pairs[LANES / 2];
#pragma GCC unroll 8
    for (int pair = 0; pair < LANES / 2; pair++) {
      fetch.tick();
      const float* first = keys + std::min(j + 2 * pair, count - 1) * head_dim;
      const float* second = keys + std::min(j + 2 * pair + 1, count - 1) * head_dim;
      pairs[pair] = add_neighbours(dot<VECTORS>(query, first, head_dim),
                                   dot<VECTORS>(query, second, head_dim));
    }
    store(scores + j, add_across(pairs));
  }
}

// out = out * decay + sum over j of weights[j] * value j, on VECTORS vectors of a head.
template <int VECTORS>
static inline void blend(const float* weights, const float* values, int64_t count,
                         int64_t head_dim, float decay, Fetch& fetch, float* out) {
  Vec sums[VECTORS];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++) sums[v] = load(out + v * LANES) * decay;
  for (int64_t j = 0; j < count; j++) {
    fetch.tick();
    Vec weight = broadcast(weights[j]);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sums[v] += weight * load(values + j * head_dim + v * LANES);
  }
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++) store(out + v * LANES, sums[v]);
}

static void take_block(Query& query, const float* keys, const float* values, int64_t count,
                       int64_t head_dim, Fetch next_keys, Fetch next_values) {
  float scores[BLOCK];
  switch (head_dim / LANES) {
    case 4: score<4>(query.vector, keys, count, head_dim, next_keys, scores); break;
    case 8: score<8>(query.vector, keys, count, head_dim, next_keys, scores); break;
    default: score<0>(query.vector, keys, count, head_dim, next_keys, scores);
  }
  for (int64_t j = count; j < BLOCK; j++) scores[j] = -INFINITY;
  Vec highest = broadcast(query.largest);
  for (int64_t j = 0; j < BLOCK; j += LANES)
    highest = select(load(scores + j) > highest, load(scores + j), highest);
  float largest = max_lane(highest);
  Vec sums{};
  for (int64_t j = 0; j < BLOCK; j += LANES) {
    Vec weights = exponential(load(scores + j) - largest);
    store(scores + j, weights);
    sums += weights;
  }
  float decay = query.total == 0.0f ? 0.0f : exponential(broadcast(query.largest - largest))[0];
  query.total = query.total * decay + add_lanes(sums);
  query.largest = largest;
  int64_t d = 0;
  for (; d + 8 * LANES <= head_dim; d += 8 * LANES)
    blend<8>(scores, values + d, count, head_dim, decay, next_values, query.out + d);
  for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
    blend<4>(scores, values + d, count, head_dim, decay, next_values, query.out + d);
  for (; d < head_dim; d += LANES)
    blend<1>(scores, values + d, count, head_dim, decay, next_values, query.out + d);
}

// Queries that read the same keys and values; `after` is what the thread reads next.
static void attend_queries(Query* queries, int64_t num_queries, const float* keys,
                           const float* values, int64_t head_dim, Ahead after) {
  int64_t longest = 0;
  for (int64_t i = 0; i < num_queries; i++) {
    longest = std::max(longest, queries[i].length);
    std::fill(queries[i].out, queries[i].out + head_dim, 0.0f);
  }
  for (int64_t start = 0; start < longest; start += BLOCK) {
    int64_t at = start * head_dim, next = start + BLOCK;
    Ahead ahead = after;
    if (next < longest)
      ahead = {keys + next * head_dim, values + next * head_dim,
               std::min(BLOCK, longest - next) * head_dim};
    for (int64_t i = 0; i < num_queries; i++) {
      int64_t count = std::min(BLOCK, queries[i].length - start);
      if (count > 0)
        take_block(queries[i], keys + at, values + at, count, head_dim,
                   {ahead.keys, ahead.count, i, num_queries, BLOCK / 2},
                   {ahead.values, ahead.count, i, num_queries, BLOCK});
    }
  }
  for (int64_t i = 0; i < num_queries; i++)
    for (int64_t d = 0; d < head_dim; d++) queries[i].out[d] /= queries[i].total;
}

// Some tokens of a row with some heads of a group: all read the same keys and values.
struct Task {
  int64_t first_token;
  int64_t num_tokens;
  int64_t first_head;
  int64_t num_heads;
  int64_t length;   // keys that the last of its tokens sees
  int64_t work;     // key-query pairs of this task and all before
};

static void plan(const Attention& attention, std::vector<Task>& tasks) {
  int64_t group = attention.num_heads / attention.num_kv_heads;
  // Few rows: the heads of a group go to different threads, at the price of reading keys twice.
  bool is_shared = attention.num_rows * attention.num_kv_heads >= 4 * omp_get_max_threads() &&
                   group <= MAX_QUERIES;
  int64_t num_heads = is_shared ? group : 1, num_tokens = MAX_QUERIES / num_heads;
  int64_t first = 0, work = 0;
  tasks.clear();
  for (int64_t row = 0; row < attention.num_rows; row++) {
    int64_t end = attention.row_ends[row];
    for (int64_t token = first; token < end; token += num_tokens)
      for (int64_t head = 0; head < attention.num_heads; head += num_heads) {
        int64_t count = std::min(num_tokens, end - token);
        int64_t length = attention.positions[token + count - 1] + 1;
        work += count * num_heads * length;
        tasks.push_back({token, count, head, num_heads, length, work});
      }
    first = end;
  }
}

// Where the keys and values of a task begin.
static int64_t cached_at(const Attention& attention, const Task& task) {
  int64_t group = attention.num_heads / attention.num_kv_heads;
  return attention.slots[task.first_token] * attention.slot_stride +
         task.first_head / group * attention.head_stride;
}

static void run_task(const Attention& attention, const Task& task, const float* rotated,
                     const float* keys, const float* values, Ahead after, float* out) {
  Query queries[MAX_QUERIES];
  int64_t dim = attention.head_dim, count = 0, cached = cached_at(attention, task);
  for (int64_t i = 0; i < task.num_tokens; i++)
    for (int64_t head = task.first_head; head < task.first_head + task.num_heads; head++) {
      int64_t token = task.first_token + i, at = (token * attention.num_heads + head) * dim;
      queries[count++] = {rotated + at, out + at, attention.positions[token] + 1, -INFINITY, 0.0f};
    }
  attend_queries(queries, count, keys + cached, values + cached, dim, after);
}

// A thread's share of the tasks: those whose work ends within its share of all work.
static void run_tasks(const Attention& attention, const std::vector<Task>& tasks,
                      const float* rotated, const float* keys, const float* values, float* out) {
  int64_t thread = omp_get_thread_num(), num_threads = omp_get_num_threads();
  int64_t total = tasks.back().work, dim = attention.head_dim;
  for (size_t index = 0; index < tasks.size(); index++) {
    const Task& task = tasks[index];
    if (std::min((task.work - 1) * num_threads / total, num_threads - 1) != thread) continue;
    Ahead after;
    if (index + 1 < tasks.size()) {
      const Task& next = tasks[index + 1];
      int64_t cached = cached_at(attention, next);
      after = {keys + cached, values + cached, std::min(BLOCK, next.length) * dim};
    }
    run_task(attention, task, rotated, keys, values, after, out);
  }
}

// The rotated queries of a token; its keys and values go to the cache.
static void take_in(const Attention& attention, int64_t token, const float* qkv, float* rotated,
                    float* keys, float* values) {
  int64_t dim = attention.head_dim, num_heads = attention.num_heads;
  int64_t num_kv = attention.num_kv_heads, position = attention.positions[token];
  const float* heads = qkv + token * (num_heads + 2 * num_kv) * dim;
  const float* cos = attention.cos + position * dim / 2;
  const float* sin = attention.sin + position * dim / 2;
  int64_t cached = attention.slots[token] * attention.slot_stride + position * dim;
  float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t head = 0; head < num_heads; head++)
    rotate(heads + head * dim, cos, sin, dim, scale, rotated + (token * num_heads + head) * dim);
  for (int64_t head = 0; head < num_kv; head++) {
    int64_t at = cached + head * attention.head_stride;
    const float* value = heads + (num_heads + num_kv + head) * dim;
    rotate(heads + (num_heads + head) * dim, cos, sin, dim, 1.0f, keys + at);
    std::copy(value, value + dim, values + at);
  }
}

// qkv [tokens, num_heads + 2 num_kv_heads, head_dim] -> out [tokens, num_heads, head_dim]; writes
// the tokens' keys and values into the layer's cache first.
static void run_attention(const Attention& attention, const float* qkv, int64_t layer,
                          float* out) {
  static thread_local std::vector<float> kept;
  static thread_local std::vector<Task> planned;
  int64_t num_tokens = attention.row_ends[attention.num_rows - 1];
  int64_t width = attention.num_heads * attention.head_dim;
  kept.resize(num_tokens * width);
  plan(attention, planned);
  float* rotated = kept.data();
  float* keys = attention.keys + layer * attention.layer_stride;
  float* values = attention.values + layer * attention.layer_stride;
  const std::vector<Task>& tasks = planned;
#pragma omp parallel if (tasks.back().work * attention.head_dim > WORTH_SHARING)
  {
#pragma omp for schedule(static)
    for (int64_t token = 0; token < num_tokens; token++)
      take_in(attention, token, qkv, rotated, keys, values);
    run_tasks(attention, tasks, rotated, keys, values, out);
  }
}

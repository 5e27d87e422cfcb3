// The ratio rule and the delta rule, row by row, without ever storing the target's distributions:
// each is made where a thread needs it, and those after the first rejection are never made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rng.h"
#include "sampling.h"

struct Verification {
  int64_t num_rows;
  int64_t longest;             // drafts of a row at most
  const int64_t* first_rows;   // [rows], where each row's logits begin
  const int64_t* num_drafts;   // [rows]
  const int64_t* drafts;       // [rows, longest]
  const float* drawn_from;     // distributions of the drafts; null if they were certain
  const int64_t* drawn_at;     // [rows], floats from there to each row's first one
  const float* temperatures;   // [rows]
  const int64_t* top_ks;       // [rows]
  const double* top_ps;        // [rows]
  Keys keys;                   // of the position after each row's tokens
  int64_t* accepted;           // [rows], results from here on
  int64_t* emitted;            // [rows], the token after the accepted ones
  float* probs;                // [rows, longest + 1], of each token that became output
};

struct Outcome {
  int64_t num_broken = 0;     // rows whose logits make no distribution
  int64_t num_fallbacks = 0;  // rows where rounding left nothing to draw from
};

static void verify_row(const Verification& asked, const float* logits, int64_t size, int64_t row,
                       Outcome& outcome) {
  static thread_local std::vector<float> kept;
  static thread_local Distribution made;
  kept.resize(size);
  float* p = made.p = kept.data();
  int64_t first = row * asked.longest, num_drafts = asked.num_drafts[row];
  float* probs = asked.probs + row * (asked.longest + 1);
  for (int64_t count = 0;; count++) {
    const float* x = logits + (asked.first_rows[row] + count) * size;
    if (!process_row(x, size, asked.temperatures[row], asked.top_ks[row], asked.top_ps[row],
                     made)) {
      outcome.num_broken++;
      return;
    }
    int64_t token = -1;
    double u = uniform(asked.keys, row, count, EMIT);
    if (count < num_drafts) {
      int64_t draft = asked.drafts[first + count];
      const float* q = nullptr;
      if (asked.drawn_from) q = asked.drawn_from + asked.drawn_at[row] + count * size;
      double offered = q ? q[draft] : 1.0;
      if (uniform(asked.keys, row, count, ACCEPT) * offered < p[draft]) {
        probs[count] = p[draft];
        continue;
      }
      token = draw_token(p, q, draft, size, u);
      outcome.num_fallbacks += token < 0;
    }
    if (token < 0) token = sample(Made{made}, size, u);
    asked.accepted[row] = count;
    asked.emitted[row] = token;
    probs[count] = p[token];
    return;
  }
}

static Outcome verify_rows(const Verification& asked, const float* logits, int64_t size) {
  int64_t num_broken = 0, num_fallbacks = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : num_broken, num_fallbacks) \
    if (asked.num_rows > 1)
  for (int64_t row = 0; row < asked.num_rows; row++) {
    Outcome outcome;
    verify_row(asked, logits, size, row, outcome);
    num_broken += outcome.num_broken;
    num_fallbacks += outcome.num_fallbacks;
  }
  return {num_broken, num_fallbacks};
}

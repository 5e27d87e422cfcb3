// Whole decoder layers, one after the other: what a step does most, without a call for each part.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"

struct DecoderLayer {
  const Linear* qkv;
  const Linear* attention_out;
  const Linear* gate_up;
  const Linear* down;
};

// hidden [tokens, size], in place, through the layers from `first` to `end`.
static void run_layers(const DecoderLayer* layers, int64_t first, int64_t end,
                       const Attention& attention, float* hidden) {
  static thread_local std::vector<float> projected, attended, gated;
  int64_t tokens = attention.row_ends[attention.num_rows - 1];
  for (int64_t index = first; index < end; index++) {
    const DecoderLayer& layer = layers[index];
    projected.resize(tokens * layer.qkv->num_out);
    attended.resize(tokens * layer.attention_out->num_in);
    gated.resize(tokens * layer.gate_up->num_out);
    run_linear(*layer.qkv, hidden, tokens, nullptr, projected.data());
    run_attention(attention, projected.data(), index, attended.data());
    run_linear(*layer.attention_out, attended.data(), tokens, hidden, hidden);
    run_linear(*layer.gate_up, hidden, tokens, nullptr, gated.data());
    run_linear(*layer.down, gated.data(), tokens, hidden, hidden);
  }
}

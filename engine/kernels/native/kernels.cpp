// What the library offers to `library.py`: plain C functions over float32 memory.
#include "attention.h"
#include "decoder.h"
#include "linear.h"
#include "sampling.h"

extern "C" {

int64_t lanes() { return LANES; }

int64_t has_tiles() { return HAS_TILES; }

// Bytes of the panels of a linear layer.
int64_t packed_bytes(const Linear* linear) { return packed_size(*linear); }

void pack(const Linear* linear, const float* weight, void* panels) {
  pack_linear(*linear, weight, panels);
}

void multiply(const Linear* linear, const float* x, int64_t rows, const float* residual,
              float* out) {
  run_linear(*linear, x, rows, residual, out);
}

void attend(const Attention* attention, const float* qkv, int64_t layer, float* out) {
  run_attention(*attention, qkv, layer, out);
}

void decode(const DecoderLayer* layers, int64_t first, int64_t end, const Attention* attention,
            float* hidden) {
  run_layers(layers, first, end, *attention, hidden);
}

int64_t best_tokens(const float* logits, int64_t rows, int64_t size, int64_t* tokens) {
  return find_best_tokens(logits, rows, size, tokens);
}

int64_t process(const Processing* how, const float* logits, int64_t rows, int64_t size,
                float* probs) {
  return process_rows(*how, logits, rows, size, probs);
}

int64_t draw(const float* p, const float* q, int64_t draft, int64_t size, double u) {
  return draw_token(p, q, draft, size, u);
}
}

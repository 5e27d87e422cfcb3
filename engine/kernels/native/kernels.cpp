// What the library offers to `library.py`: plain C functions over float32 memory.
#include <malloc.h>

#include "attention.h"
#include "decoder.h"
#include "linear.h"
#include "sampling.h"
#include "verify.h"

extern "C" {

int64_t lanes() { return LANES; }

int64_t has_tiles() { return HAS_TILES; }

// Every round needs tens of megabytes anew. As a rule the allocator gives such pieces back to the
// kernel at once, which then clears their pages each time: let it keep them.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

// Gives back what is free now: after something large that does not come again.
void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

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

void sample(const float* p, int64_t stride, int64_t rows, int64_t size, const double* uniforms,
            int64_t* tokens) {
  sample_rows(p, stride, rows, size, uniforms, tokens);
}

int64_t draw(const Processing* how, const float* logits, int64_t rows, int64_t size,
             const Keys* keys, const Destination* to, int64_t* tokens) {
  return draw_rows(*how, logits, rows, size, *keys, *to, tokens);
}

int64_t residual(const float* p, const float* q, int64_t draft, int64_t size, double u) {
  return draw_token(p, q, draft, size, u);
}

void verify(const Verification* asked, const float* logits, int64_t size, Outcome* outcome) {
  *outcome = verify_rows(*asked, logits, size);
}
}

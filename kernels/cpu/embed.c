/* embed.c - rows of the embedding by token, and their gradient. */
#include "cpu.h"
#include "simd.h"

ms_status MS_KERNEL(embed)(ms_stream *s, ms_act y, const int32_t *token, const void *w, int w_dtype,
                           int64_t tokens, int64_t width, int64_t first, int64_t vocab,
                           float scale) {
  MS_TAKES_F32("embed", y);
#pragma omp parallel for schedule(static) if (tokens * width > MS_SERIAL)
  for (int64_t t = 0; t < tokens; t++) {
    int64_t row = token[t] - first;
    int has = row >= 0 && row < vocab;
    for (int64_t c = 0; c < width; c += VF_LANES) {
      int64_t n = width - c < VF_LANES ? width - c : VF_LANES;
      vf x = has ? vf_load_weight(w, w_dtype, row * width + c, n) * scale : vf_set(0);
      vf_store_n(f32(y) + t * width + c, x, n);
    }
  }
  return MS_OK;
}

/* A token may come up many times: threads share the width, never the tokens, so that every
 * element is summed in order of t. */
enum { SLICE = 64 };

static void add_slice(float *dw, const float *dy, const int32_t *token, int64_t tokens,
                      int64_t width, int64_t n, int64_t first, int64_t vocab, float scale) {
  for (int64_t t = 0; t < tokens; t++) {
    int64_t row = token[t] - first;
    if (row < 0 || row >= vocab) continue;
    float *p = dw + row * width;
    const float *d = dy + t * width;
    for (int64_t c = 0; c < n; c++) p[c] += scale * d[c];
  }
}

ms_status MS_KERNEL(embed_dw)(ms_stream *s, float *dw, ms_act dy, const int32_t *token,
                              int64_t tokens, int64_t width, int64_t first, int64_t vocab,
                              float scale) {
  MS_TAKES_F32("embed_dw", dy);
#pragma omp parallel for schedule(static) if (tokens * width > MS_SERIAL)
  for (int64_t c = 0; c < width; c += SLICE)
    add_slice(dw + c, f32(dy) + c, token, tokens, width, width - c < SLICE ? width - c : SLICE,
              first, vocab, scale);
  return MS_OK;
}

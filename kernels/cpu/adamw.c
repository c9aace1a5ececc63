/* adamw.c - the optimiser's update, element by element. */
#include <math.h>

#include "cpu.h"
#include "simd.h"

/* What does not depend on the element, computed in double and rounded once. */
typedef struct rates {
  vf keep, first, second, second_rest, root, eps, step, scale;
} rates;

static inline void update(float *w, uint16_t *low, float *m, float *v, const float *g, int64_t n,
                          const rates *r) {
  vf d = vf_load_n(g, n) * r->scale;
  vf mean = vf_load_n(m, n), square = vf_load_n(v, n);
  mean = vf_fma(r->first, d - mean, mean);
  square = vf_fma(r->second_rest, d * d, square * r->second);
  vf x = vf_load_n(w, n) * r->keep - r->step * mean / (vf_sqrt(square) / r->root + r->eps);
  vf_store_n(m, mean, n);
  vf_store_n(v, square, n);
  vf_store_n(w, x, n);
  if (low) vf_store_bf16_n(low, x, n);
}

ms_status MS_KERNEL(adamw)(ms_stream *s, float *w, uint16_t *low, float *m, float *v,
                           const float *g, int64_t n, double lr, double beta1, double beta2,
                           double eps, double decay, double scale, double c1, double c2) {
  rates r = {.keep = vf_set((float)(1 - lr * decay)),
             .first = vf_set((float)(1 - beta1)),
             .second = vf_set((float)beta2),
             .second_rest = vf_set((float)(1 - beta2)),
             .root = vf_set((float)sqrt(c2)),
             .eps = vf_set((float)eps),
             .step = vf_set((float)(lr / c1)),
             .scale = vf_set((float)scale)};
#pragma omp parallel for schedule(static) if (n > MS_SERIAL)
  for (int64_t i = 0; i < n; i += VF_LANES)
    update(w + i, low ? low + i : NULL, m + i, v + i, g + i, n - i < VF_LANES ? n - i : VF_LANES,
           &r);
  return MS_OK;
}

/* rope.c - rotary position embedding, in place. */
#include "cpu.h"
#include "simd.h"

/* One head: pairs (i, i + half) turn by the angle of i; what lies past 2 half stays. */
static inline void rotate(float *x, const float *cosine, const float *sine, int32_t half,
                          float sign) {
  for (int32_t i = 0; i < half; i += VF_LANES) {
    int32_t n = half - i < VF_LANES ? half - i : VF_LANES;
    vf c = vf_load_n(cosine + i, n), s = vf_load_n(sine + i, n) * sign;
    vf a = vf_load_n(x + i, n), b = vf_load_n(x + half + i, n);
    vf_store_n(x + i, vf_fnma(b, s, a * c), n);
    vf_store_n(x + half + i, vf_fma(a, s, b * c), n);
  }
}

ms_status MS_KERNEL(rope)(ms_stream *s, ms_act x, const int32_t *position, const float *cosine,
                          const float *sine, int64_t tokens, int32_t heads, int32_t head_dim,
                          int32_t rotary, int sign) {
  MS_TAKES_F32("rope", x);
  int32_t half = rotary / 2;
#pragma omp parallel for schedule(static) if (tokens * heads * head_dim > MS_SERIAL)
  for (int64_t t = 0; t < tokens; t++) {
    int64_t row = (int64_t)position[t] * half;
    for (int32_t h = 0; h < heads; h++)
      rotate(f32(x) + (t * heads + h) * head_dim, cosine + row, sine + row, half, (float)sign);
  }
  return MS_OK;
}

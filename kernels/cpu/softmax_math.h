/* softmax_math.h - exp and log as softmaxes need them: of arguments <= 0, with e^x - 1 and
 * log(1 + y) accurate relative to themselves, so that equal distributions differ by exactly 0. */
#ifndef MS_CPU_SOFTMAX_MATH_H
#define MS_CPU_SOFTMAX_MATH_H
#include <math.h>

#include "simd.h"

VF_INLINE vf vf_zero(void) { return vf_set(0); }

VF_INLINE int vi_any(vi a) {
#if VF_LANES == 16
  return _mm512_test_epi32_mask((__m512i)a, (__m512i)a) != 0;
#elif VF_LANES == 8
  return _mm256_movemask_ps((__m256)a) != 0;
#else
  return (a[0] | a[1] | a[2] | a[3]) != 0;
#endif
}

/* The first n elements, the other lanes `fill`. */
VF_INLINE vf vf_load_fill(const float *p, int64_t n, float fill) {
  return n >= VF_LANES ? vf_load(p)
                       : vf_select(vi_index() < vi_set((int32_t)n), vf_load_n(p, n), vf_set(fill));
}

VF_INLINE void vf_store_part(float *p, vf x, int64_t n) {
  if (n >= VF_LANES)
    vf_store(p, x);
  else
    vf_store_n(p, x, n);
}

/* x = n ln 2 + f with |f| <= ln(2)/2: 2^n, and e^f - 1 by its Taylor series (what is cut off is
 * below 2e-8 of it). x <= 0; under EXP_FLOOR it is taken as that; NaN stays. */
#define EXP_FLOOR (-87.0f)
VF_INLINE vf exp_parts(vf x, vf *pow2) {
  vf c = vf_max(vf_set(EXP_FLOOR), x);
  vf n = vf_round(c * vf_set(1.44269504088896341f));
  vf f = vf_fnma(n, vf_set(0x1.62e4p-1f), c);
  f = vf_fnma(n, vf_set(0x1.7f7d1cp-20f), f);
  vf p = vf_set(1.0f / 5040);
  p = vf_fma(p, f, vf_set(1.0f / 720));
  p = vf_fma(p, f, vf_set(1.0f / 120));
  p = vf_fma(p, f, vf_set(1.0f / 24));
  p = vf_fma(p, f, vf_set(1.0f / 6));
  p = vf_fma(p, f, vf_set(0.5f));
  *pow2 = vf_scale(vf_set(1.0f), n);
  return vf_fma(f * f, p, f);
}

/* e^x for x <= 0; 0 below EXP_FLOOR. */
VF_INLINE vf exp_negative(vf x) {
  vf pow2, m = exp_parts(x, &pow2);
  return vf_select(x < vf_set(EXP_FLOOR), vf_zero(), vf_fma(m, pow2, pow2));
}

/* 2^t for t <= 0, 0 at -inf; NaN stays. The polynomial is fitted to 2^f on |f| <= 1/2 with value 1
 * at 0, relative error 2e-8. This one is for the long passes: t = x log2(e) is rounded once, so the
 * result is known to |t| half-ulps. */
VF_INLINE vf exp2_negative(vf t) {
#if VF_LANES == 16
  vf c = vf_max(vf_set(-300.0f), t); /* vscalefps takes care of what underflows */
  vf n = _mm512_roundscale_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  vf c = vf_max(vf_set(-126.0f), t);
  vf n = vf_round(c);
#endif
  vf f = c - n;
  vf p = vf_set(0x1.41fbbcp-13f);
  p = vf_fma(p, f, vf_set(0x1.5f3e54p-10f));
  p = vf_fma(p, f, vf_set(0x1.3b2d4cp-7f));
  p = vf_fma(p, f, vf_set(0x1.c6aee8p-5f));
  p = vf_fma(p, f, vf_set(0x1.ebfbdcp-3f));
  p = vf_fma(p, f, vf_set(0x1.62e430p-1f));
  p = vf_fma(p, f, vf_set(1.0f));
#if VF_LANES == 16
  return _mm512_scalef_ps(p, n);
#else
  vi dead = t < vf_set(-126.0f);
  vf pow2 = (vf)((__builtin_convertvector(n, vi) + 127) << 23);
  return (vf)(~dead & (vi)(p * pow2));
#endif
}

/* e^x and e^x - 1 for x <= 0. */
VF_INLINE vf exp_expm1(vf x, vf *expm1) {
  vf pow2, m = exp_parts(x, &pow2);
  vi low = x < vf_set(EXP_FLOOR);
  *expm1 = vf_select(low, vf_set(-1.0f), vf_fma(m, pow2, pow2 - 1.0f));
  return vf_select(low, vf_zero(), vf_fma(m, pow2, pow2));
}

/* cap tanh(x / cap), and its derivative. tanh |u| = -expm1(-2|u|) / (1 + e^(-2|u|)), its derivative
 * 4 e^(-2|u|) / (1 + ..)^2. */
VF_INLINE vf soft_cap(vf x, float cap, vf *slope) {
  vf u = x * vf_set(1 / cap), m;
  vf e = exp_expm1(vf_set(-2.0f) * vf_abs(u), &m), one = vf_set(1.0f);
  vf t = m / (one + e) * vf_set(cap);
  *slope = vf_set(4.0f) * e / ((one + e) * (one + e));
  return vf_select(u < vf_zero(), t, vf_zero() - t);
}

/* log(w) for w = 1 + y in (0, 1], given both: near 1 the exact y is used. w = 2^k m with m in
 * [sqrt(1/2), sqrt(2)), and the polynomial of simd.h for log m. */
VF_INLINE vf log_1p(vf w, vf y) {
  vi bits = (vi)w;
  vi k = (bits - 0x3f3504f3) >> 23;
  vf f = vf_select(k == vi_set(0), y, (vf)(bits - (k << 23)) - 1.0f);
  vf ff = f * f;
  vf r = vf_fma(ff * f, vf_log_polynomial(f), vf_fma(ff, vf_set(-0.5f), f));
  return vf_fma(__builtin_convertvector(k, vf), vf_set(0.693147180559945309f), r);
}

#endif

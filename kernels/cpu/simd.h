/* simd.h - vectors of f32, so that each kernel is written once for every instruction set.
 *
 * A `vf` has VF_LANES floats: 16 with AVX-512, 8 with AVX2, 4 in portable C (GCC's vector types, no
 * intrinsics). + - * / and comparisons are the compiler's; a comparison gives a `vi` mask of 0 and
 * -1 per lane. Loads and stores need no alignment; the `_n` forms touch only the first n lanes
 * (0 <= n <= VF_LANES), the others read as 0. A lane's result never depends on its neighbours or
 * on its place, so tails give the same bits as full vectors.
 *
 * vf_fma rounds once on AVX2 and AVX-512 and twice in portable C: instruction sets differ in the
 * last bits, runs on one do not. */
#ifndef MS_SIMD_H
#define MS_SIMD_H
#include <stdint.h>
#include <string.h>

#include "../../core/base/types.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define VF_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define VF_LANES 8
#else
#define VF_LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * VF_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * VF_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * VF_LANES), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(4 * VF_LANES), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * VF_LANES)));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * VF_LANES), aligned(2), may_alias));

#define VF_INLINE static inline __attribute__((always_inline, unused))

/* ---- constants and lanes ---- */

VF_INLINE vf vf_set(float x) {
#if VF_LANES == 16
  return _mm512_set1_ps(x);
#elif VF_LANES == 8
  return _mm256_set1_ps(x);
#else
  return (vf){x, x, x, x};
#endif
}
VF_INLINE vi vi_set(int32_t x) { return (vi){} + x; }
/* 0, 1, 2, ... */
VF_INLINE vi vi_index(void) {
#if VF_LANES == 16
  return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif VF_LANES == 8
  return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
  return (vi){0, 1, 2, 3};
#endif
}
/* mask ? a : b; the mask's lanes are 0 or -1. */
VF_INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* ---- memory ---- */

VF_INLINE vf vf_load(const float *p) { return *(const vf_unaligned *)p; }
VF_INLINE void vf_store(float *p, vf x) { *(vf_unaligned *)p = x; }
VF_INLINE vi vi_load(const int32_t *p) { return *(const vi_unaligned *)p; }
VF_INLINE void vi_store(int32_t *p, vi x) { *(vi_unaligned *)p = x; }

VF_INLINE vf vf_load_n(const float *p, int64_t n) {
#if VF_LANES == 16
  return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif VF_LANES == 8
  return _mm256_maskload_ps(p, (__m256i)(vi_index() < vi_set((int32_t)n)));
#else
  vf x = {};
  for (int64_t i = 0; i < n; i++) x[i] = p[i];
  return x;
#endif
}

VF_INLINE void vf_store_n(float *p, vf x, int64_t n) {
#if VF_LANES == 16
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
#elif VF_LANES == 8
  _mm256_maskstore_ps(p, (__m256i)(vi_index() < vi_set((int32_t)n)), x);
#else
  for (int64_t i = 0; i < n; i++) p[i] = x[i];
#endif
}

/* bf16 is the upper half of an f32. */
VF_INLINE vf vf_widen(vh h) {
#if VF_LANES == 16
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif VF_LANES == 8
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
  return (vf)(__builtin_convertvector(h, vi) << 16);
#endif
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_widen(*(const vh_unaligned *)p); }
VF_INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
  vh h = {};
  memcpy(&h, p, 2 * (size_t)n);
  return vf_widen(h);
}
/* To bf16, to nearest, ties to even; NaN stays NaN. */
VF_INLINE vh vf_narrow(vf x) {
  vi u = (vi)x, rounded = u + 0x7fff + ((u >> 16) & 1);
  vi nan = (vi)(x != x);
  vi y = (nan & (u | 0x400000)) | (~nan & rounded);
#if VF_LANES == 16
  return (vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)y, 16));
#else
  return __builtin_convertvector((y >> 16) & 0xffff, vh);
#endif
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf x) { *(vh_unaligned *)p = vf_narrow(x); }
VF_INLINE void vf_store_bf16_n(uint16_t *p, vf x, int64_t n) {
  vh h = vf_narrow(x);
  memcpy(p, &h, 2 * (size_t)n);
}

/* Where element i of f32 or bf16 weights lies. */
VF_INLINE const void *vf_weight_at(const void *w, int dtype, int64_t i) {
  return (const char *)w + i * (dtype == MS_F32 ? 4 : 2);
}
/* A weight vector's lanes i .. i+n of either dtype, f32 or bf16. */
VF_INLINE vf vf_load_weight(const void *w, int dtype, int64_t i, int64_t n) {
  if (dtype == MS_BF16) {
    const uint16_t *p = (const uint16_t *)w + i;
    return n >= VF_LANES ? vf_load_bf16(p) : vf_load_bf16_n(p, n);
  }
  const float *p = (const float *)w + i;
  return n >= VF_LANES ? vf_load(p) : vf_load_n(p, n);
}

/* ---- arithmetic ---- */

/* a * b + c */
VF_INLINE vf vf_fma(vf a, vf b, vf c) {
#if VF_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif VF_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
/* c - a * b */
VF_INLINE vf vf_fnma(vf a, vf b, vf c) {
#if VF_LANES == 16
  return _mm512_fnmadd_ps(a, b, c);
#elif VF_LANES == 8
  return _mm256_fnmadd_ps(a, b, c);
#else
  return c - a * b;
#endif
}
/* The larger; the second operand where either is NaN. */
VF_INLINE vf vf_max(vf a, vf b) {
#if VF_LANES == 16
  return _mm512_max_ps(a, b);
#elif VF_LANES == 8
  return _mm256_max_ps(a, b);
#else
  return vf_select(a > b, a, b);
#endif
}
VF_INLINE vf vf_min(vf a, vf b) {
#if VF_LANES == 16
  return _mm512_min_ps(a, b);
#elif VF_LANES == 8
  return _mm256_min_ps(a, b);
#else
  return vf_select(a < b, a, b);
#endif
}
VF_INLINE vf vf_sqrt(vf x) {
#if VF_LANES == 16
  return _mm512_sqrt_ps(x);
#elif VF_LANES == 8
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < VF_LANES; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
VF_INLINE vf vf_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }

/* All lanes added, by halves: lane i with lane i + width / 2, and so on. */
VF_INLINE float vf_sum(vf x) {
#if VF_LANES == 16
  return _mm512_reduce_add_ps(x);
#elif VF_LANES == 8
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}
/* The largest lane. A NaN may be passed over: callers that care look for it themselves. */
VF_INLINE float vf_hmax(vf x) {
#if VF_LANES == 16
  return _mm512_reduce_max_ps(x);
#elif VF_LANES == 8
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
#else
  float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
#endif
}

/* Transposes VF_LANES vectors in place: lane j of x[i] and lane i of x[j] change places. Step s
 * exchanges the off-diagonal blocks of size s. */
VF_INLINE void vf_transpose(vf *x) {
#pragma GCC unroll 4
  for (int s = 1; s < VF_LANES; s *= 2) {
    vi odd = (vi_index() & s) != 0, lane = vi_index();
    vi low = (odd & (lane - s + VF_LANES)) | (~odd & lane);
    vi high = (odd & (lane + VF_LANES)) | (~odd & (lane + s));
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++)
      if (!(i & s)) {
        vf a = x[i], b = x[i + s];
        x[i] = __builtin_shuffle(a, b, low);
        x[i + s] = __builtin_shuffle(a, b, high);
      }
  }
}

/* Sums of all lanes of VF_LANES vectors: lane i is that of x[i]. Each adds lanes 1 apart, then 2 apart,
 * and so on; x is overwritten. */
VF_INLINE vf vf_sums(vf *x) {
#pragma GCC unroll 4
  for (int s = 1; s < VF_LANES; s *= 2) {
    vi lane = vi_index(), odd = (lane & s) != 0;
    vi kept = lane + (odd & VF_LANES), moved = (lane ^ s) + (odd & VF_LANES);
#pragma GCC unroll 16
    for (int i = 0; i + s < VF_LANES; i++)
      if (i % (2 * s) == 0)
        x[i] = __builtin_shuffle(x[i], x[i + s], kept) + __builtin_shuffle(x[i], x[i + s], moved);
  }
  return x[0];
}

/* To nearest, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits of the fraction. */
VF_INLINE vf vf_round(vf x) {
  vf magic = vf_set(12582912.0f);
  return (x + magic) - magic;
}

/* x * 2^n for integral n in [-252, 254]; in two steps, since one power may not be a float. */
VF_INLINE vf vf_scale(vf x, vf n) {
#if VF_LANES == 16
  return _mm512_scalef_ps(x, n);
#else
  vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
  vf a = (vf)((half + 127) << 23), b = (vf)((whole - half + 127) << 23);
  return x * a * b;
#endif
}

/* e^x within about 1 ulp; exactly 1 at 0, 0 at -inf and below -104, inf from 88.73 on, gradual
 * underflow between, NaN stays NaN. e^x = 2^n e^r with |r| <= ln(2)/2, and a polynomial for e^r
 * (coefficients as in Cephes' expf); ln(2) in two parts, of which the first times n is exact. */
VF_INLINE vf vf_exp(vf x) {
  x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
  vf n = vf_round(x * vf_set(1.44269504088896341f));
  vf r = vf_fnma(n, vf_set(-2.12194440e-4f), vf_fnma(n, vf_set(0.693359375f), x));
  vf p = vf_set(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set(5.0000001201e-1f));
  p = vf_fma(p, r * r, r) + 1.0f;
  return vf_scale(p, n);
}

/* e^x for weights of a softmax, whose largest x is near 0: 0 below -60. What is 1e-26 of the whole
 * is nothing in f32, and arithmetic on subnormal numbers takes a hundred cycles each. */
VF_INLINE vf vf_exp_weight(vf x) {
  vi tiny = (vi)(x < vf_set(-60.0f));
  return vf_select(tiny, vf_set(0), vf_exp(vf_select(tiny, vf_set(0), x)));
}

/* P of ln(1 + m) = m - m^2/2 + m^3 P(m), 1 + m in [sqrt(1/2), sqrt(2)), as in Cephes' logf. */
VF_INLINE vf vf_log_polynomial(vf m) {
  vf p = vf_set(7.0376836292e-2f);
  p = vf_fma(p, m, vf_set(-1.1514610310e-1f));
  p = vf_fma(p, m, vf_set(1.1676998740e-1f));
  p = vf_fma(p, m, vf_set(-1.2420140846e-1f));
  p = vf_fma(p, m, vf_set(1.4249322787e-1f));
  p = vf_fma(p, m, vf_set(-1.6668057665e-1f));
  p = vf_fma(p, m, vf_set(2.0000714765e-1f));
  p = vf_fma(p, m, vf_set(-2.4999993993e-1f));
  return vf_fma(p, m, vf_set(3.3333331174e-1f));
}

/* ln x within about 1 ulp; -inf at 0, NaN below 0 and for NaN, inf at inf; subnormals too.
 * x = 2^n (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)). */
VF_INLINE vf vf_log(vf x) {
  vi tiny = (vi)(x < vf_set(0x1p-126f));
  vf scaled = vf_select(tiny, x * vf_set(0x1p25f), x);
  vi u = (vi)scaled - 0x3f3504f3; /* sqrt(1/2): the exponent then counts from there */
  vf n = __builtin_convertvector(u >> 23, vf) - (vf)(tiny & (vi)vf_set(25.0f));
  vf m = (vf)((u & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vf z = m * m;
  vf y = vf_fma(n, vf_set(-2.12194440e-4f), vf_log_polynomial(m) * m * z);
  y = vf_fma(vf_set(-0.5f), z, y);
  y = vf_fma(n, vf_set(0.693359375f), m + y);
  vf inf = vf_set(__builtin_inff());
  y = vf_select(x == inf, x, y);
  y = vf_select((vi)(x == vf_set(0)), -inf, y);
  return vf_select((vi)(x >= vf_set(0)), y, vf_set(__builtin_nanf("")));
}

#endif

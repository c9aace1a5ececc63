/* cast.c - conversions between f32, bf16 and f16, to nearest, ties to even. */
#include <math.h>
#include <string.h>

#include "cpu.h"

static inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float of_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static inline float from_bf16(uint16_t h) { return of_bits((uint32_t)h << 16); }

static inline uint16_t to_bf16(float x) {
  uint32_t u = bits_of(x);
  uint32_t nan = (u | 0x400000u) >> 16; /* kept a NaN: rounding could carry it to infinity */
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float from_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 0x3ffu;
  if (e == 31) return of_bits(sign | 0x7f800000u | m << 13);
  if (e == 0) return of_bits(sign | bits_of((float)m * 0x1p-24f));
  return of_bits(sign | (e + 112) << 23 | m << 13);
}

static inline uint16_t to_f16(float x) {
  uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
  if (a < 0x38800000u) /* subnormal: adding 0.5 leaves the rounded value in the low bits */
    return (uint16_t)(sign | (bits_of(of_bits(a) + 0.5f) - 0x3f000000u));
  a += 0xfffu + (a >> 13 & 1) - 0x38000000u;
  return (uint16_t)(sign | a >> 13);
}

#define LOOP(Y, X, EXPR)                                                                          \
  do {                                                                                            \
    Y *yy = y;                                                                                    \
    const X *xx = x;                                                                              \
    _Pragma("omp parallel for simd schedule(static) if (n > 1 << 16)") for (int64_t i = 0; i < n; \
                                                                            i++) {                \
      X v = xx[i];                                                                                \
      yy[i] = EXPR;                                                                               \
    }                                                                                             \
    return MS_OK;                                                                                 \
  } while (0)

ms_status MS_KERNEL(cast)(ms_stream *s, void *y, int y_dtype, const void *x, int x_dtype,
                          int64_t n) {
  switch (y_dtype << 4 | x_dtype) {
    case MS_F32 << 4 | MS_F32: LOOP(float, float, v);
    case MS_F32 << 4 | MS_BF16: LOOP(float, uint16_t, from_bf16(v));
    case MS_F32 << 4 | MS_F16: LOOP(float, uint16_t, from_f16(v));
    case MS_BF16 << 4 | MS_F32: LOOP(uint16_t, float, to_bf16(v));
    case MS_BF16 << 4 | MS_BF16: LOOP(uint16_t, uint16_t, v);
    case MS_BF16 << 4 | MS_F16: LOOP(uint16_t, uint16_t, to_bf16(from_f16(v)));
    case MS_F16 << 4 | MS_F32: LOOP(uint16_t, float, to_f16(v));
    case MS_F16 << 4 | MS_BF16: LOOP(uint16_t, uint16_t, to_f16(from_bf16(v)));
    case MS_F16 << 4 | MS_F16: LOOP(uint16_t, uint16_t, v);
    default: return MS_FAIL(MS_EUNSUPPORTED, "cast: from dtype %d to %d", x_dtype, y_dtype);
  }
}

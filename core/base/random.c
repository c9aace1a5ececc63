/* random.c - Philox4x32-10 and what is drawn from it. */
#include "random.h"

#include <math.h>

#include "../moonstill.h"
#include "error.h"

static inline void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1) {
  uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
  uint32_t y0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, y2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
  c[1] = (uint32_t)b;
  c[3] = (uint32_t)a;
  c[0] = y0;
  c[2] = y2;
}

void ms_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t *word) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                   (uint32_t)(stream >> 32)};
  for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) philox_round(c, k0, k1);
  for (int i = 0; i < 4; i++) word[i] = c[i];
}

float ms_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t w[4];
  ms_philox(seed, stream, index / 4, w);
  return (float)(w[index % 4] >> 8) * 0x1p-24f;
}

/* Elements 4 block .. 4 block + 3: two pairs by Box-Muller from the four words of one counter. */
static void normal_block(float y[4], uint64_t block, uint64_t seed, uint64_t stream) {
  uint32_t w[4];
  ms_philox(seed, stream, block, w);
  for (int i = 0; i < 4; i += 2) {
    /* (0, 1]: the logarithm needs it */
    double u = ((double)w[i] + 1.0) * 0x1p-32, angle = 2 * M_PI * (double)w[i + 1] * 0x1p-32;
    double r = sqrt(-2 * log(u));
    y[i] = (float)(r * cos(angle));
    y[i + 1] = (float)(r * sin(angle));
  }
}

void ms_normal(float *y, int64_t n, uint64_t first, uint64_t seed, uint64_t stream) {
  float block[4];
  for (int64_t i = 0; i < n;) {
    uint64_t at = first + (uint64_t)i;
    normal_block(block, at / 4, seed, stream);
    for (uint64_t k = at % 4; k < 4 && i < n; k++) y[i++] = block[k];
  }
}

/* A uniform integer below n, without bias: words of one sequence are drawn until one fits. */
static uint32_t below(uint32_t n, uint64_t seed, uint64_t stream, uint64_t *index) {
  uint32_t limit = UINT32_MAX - UINT32_MAX % n;
  for (;;) {
    uint32_t w[4];
    ms_philox(seed, stream, (*index)++, w);
    for (int i = 0; i < 4; i++)
      if (w[i] < limit) return w[i] % n;
  }
}

ms_status ms_permutation(uint64_t seed, uint64_t epoch, int32_t n, int32_t *order) {
  MS_REQUIRE(n >= 0, "permutation: %d elements", n);
  /* streams below 2^63 are the users'; the shuffle's are above */
  uint64_t stream = epoch | (1ull << 63), index = 0;
  for (int32_t i = 0; i < n; i++) order[i] = i;
  for (int32_t i = n - 1; i > 0; i--) {
    int32_t j = (int32_t)below((uint32_t)i + 1, seed, stream, &index), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
  return MS_OK;
}

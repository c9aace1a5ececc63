/* hash.c - a model by its value: what tells two models apart that would compute other numbers.
 *
 * Of each tensor the elements' hashes, each of a value and its place in the whole tensor, are summed. Sums do
 * not depend on who adds what, so a model that is cut over ranks has the hash of one that is whole. */
#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"
#include "../group/group.h"
#include "gradients.h"
#include "layout.h"

/* Two numbers that differ with every element's value and place, up to chance. */
typedef struct sums {
  uint64_t a, b;
} sums;

static inline void add(sums *s, uint64_t place, uint64_t bits) {
  uint64_t x = (place + 1) * 0x9e3779b97f4a7c15 ^ bits * 0xd6e8feb86659fd93;
  x = (x ^ x >> 32) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 29) * 0xc4ceb9fe1a85ec53;
  x ^= x >> 32;
  s->a += x;
  s->b += (x ^ x >> 31) * 0x9fb21c651e98df25;
}

enum { SERIAL = 1 << 14 }; /* elements for which threads are not worth while */

/* n elements that lie side by side in the whole tensor, from `place` on. */
static void add_row(sums *s, uint64_t place, const void *x, int dtype, int64_t n) {
  const uint32_t *wide = x;
  const uint16_t *narrow = x;
  uint64_t a = 0, b = 0;
#pragma omp parallel for schedule(static) reduction(+ : a, b) if (n > SERIAL)
  for (int64_t i = 0; i < n; i++) {
    sums one = {0, 0};
    add(&one, place + (uint64_t)i, dtype == MS_BF16 ? narrow[i] : wide[i]);
    a += one.a;
    b += one.b;
  }
  s->a += a;
  s->b += b;
}

enum { CHUNK = 1 << 18 }; /* elements */

/* Through a buffer in the cache, since the weights may be on another device. */
static ms_status add_piece(const ms_model *m, const ms_parameter *p, const ms_piece *piece,
                           void *buffer, sums *s) {
  size_t size = ms_dtype_size(m->dtype);
  int64_t count = piece->rows.rows * piece->rows.cols, cols = piece->rows.cols;
  for (int64_t i = 0, n; i < count; i += n) {
    n = count - i < CHUNK ? count - i : CHUNK;
    MS_TRY(MS_OP(m->dev, read, buffer, (const char *)p->w + (size_t)(piece->at + i) * size,
                 (size_t)n * size));
    for (int64_t done = 0, k; done < n; done += k) {
      k = cols - (i + done) % cols;
      if (k > n - done) k = n - done;
      add_row(s, (uint64_t)ms_rows_place(&piece->rows, i + done),
              (char *)buffer + (size_t)done * size, m->dtype, k);
    }
  }
  return MS_OK;
}

/* What this rank owns. */
static ms_status add_own(const ms_model *m, sums *sum) {
  void *buffer;
  ms_status st = MS_OK;
  MS_TRY(ms_weights_settle(m));
  MS_TRY(ms_alloc_undefined(CHUNK * sizeof(float), "model: hash", &buffer));
  for (int32_t i = 0; i < m->parameters; i++) {
    ms_piece piece[MS_MAX_PIECES];
    int n = ms_share_pieces(m, i, 0, m->parameter[i].count, piece);
    for (int k = 0; k < n; k++)
      if (piece[k].owned)
        MS_TRY_OR(end, add_piece(m, &m->parameter[i], &piece[k], buffer, &sum[i]));
  }
end:
  ms_free(buffer);
  return st;
}

/* Adds up what all ranks have, in halves, which no number of ranks makes overflow. */
static ms_status add_ranks(ms_group *g, int32_t n, sums *sum) {
  void *p;
  if (g->size == 1) return MS_OK;
  MS_TRY(ms_alloc((size_t)n * 4 * sizeof(int64_t), "model: hash", &p));
  int64_t *half = p;
  for (int32_t i = 0; i < n; i++) {
    half[4 * i] = (int64_t)(sum[i].a & UINT32_MAX), half[4 * i + 1] = (int64_t)(sum[i].a >> 32);
    half[4 * i + 2] = (int64_t)(sum[i].b & UINT32_MAX), half[4 * i + 3] = (int64_t)(sum[i].b >> 32);
  }
  ms_status st = g->ops->all_reduce(g, NULL, half, MS_I64, 4 * (int64_t)n, MS_SUM, NULL);
  for (int32_t i = 0; i < n; i++) {
    sum[i].a = (uint64_t)half[4 * i] + ((uint64_t)half[4 * i + 1] << 32);
    sum[i].b = (uint64_t)half[4 * i + 2] + ((uint64_t)half[4 * i + 3] << 32);
  }
  ms_free(p);
  return st;
}

static ms_status digest(const char *config, int32_t n, const sums *sum, char **text) {
  XXH3_state_t *state = XXH3_createState();
  if (!state) return MS_FAIL(MS_ENOMEM, "model: no memory to hash it");
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, config, strlen(config));
  XXH3_128bits_update(state, sum, (size_t)n * sizeof *sum);
  XXH128_hash_t h = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return ms_text_format(text, "%016llx%016llx", (unsigned long long)h.high64,
                        (unsigned long long)h.low64);
}

ms_status ms_model_hash(const ms_model *m, char **text) {
  ms_group *parts = m->share.group;
  char *config = NULL;
  void *sum = NULL;
  *text = NULL;
  ms_status st = ms_model_config(m, &config);
  if (st == MS_OK) st = ms_alloc((size_t)m->parameters * sizeof(sums), "model: hash", &sum);
  if (st == MS_OK) st = add_own(m, sum);
  st = ms_group_agree(parts, st);
  if (st == MS_OK) st = ms_group_agree(parts, add_ranks(parts, m->parameters, sum));
  if (st == MS_OK) st = digest(config, m->parameters, sum, text);
  ms_free(sum);
  ms_text_free(config);
  return st;
}

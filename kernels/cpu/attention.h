/* attention.h - what the forward and backward pass of attention share.
 *
 * A tile is up to TILE queries of one head against up to TILE keys. Vectors run across queries:
 * scores are kept as [key][query], so the softmax over keys needs no sum across lanes, keys and
 * values are read where they lie, one number at a time for 64 queries, and only the tile's queries
 * are transposed, once. Everything below is for one thread. */
#ifndef MS_ATTENTION_H
#define MS_ATTENTION_H
#include <math.h>

#include "cpu.h"
#include "softmax_math.h"

enum { TILE = 64, WIDE = TILE / VF_LANES };

#if VF_LANES == 16
enum { BLOCK_ROWS = 6, BLOCK_COLS = 4 }; /* of 32 registers: 24 sums */
#else
enum { BLOCK_ROWS = 6, BLOCK_COLS = 2 }; /* of 16 registers: 12 sums */
#endif

/* out[r][lanes] (+)= sum over i < inner of a[r * a_row + i * a_step] * b[i][lanes]. */
typedef struct tile_product {
  float *out;
  const float *a, *b;
  int64_t out_row, a_row, a_step, b_row;
  int rows, inner, lanes, add;
} tile_product;

/* One block of it. What is there is added to once, by the whole sum: over long sequences errors grow
 * with the number of tiles and not of keys. `cols` is a constant where this is inlined; its last
 * vector has `last` lanes. */
VF_INLINE void block_product(const tile_product *p, int r0, int c0, int cols, int last) {
  const float *a[BLOCK_ROWS], *b = p->b + c0 * VF_LANES;
  int64_t step = p->a_step, b_row = p->b_row, out_row = p->out_row;
  float *out = p->out + r0 * out_row + c0 * VF_LANES;
  int rows = p->rows - r0, inner = p->inner, add = p->add;
  vf sum[BLOCK_ROWS][BLOCK_COLS];
#pragma GCC unroll 6
  for (int r = 0; r < BLOCK_ROWS; r++) { /* past the last row it is taken again, and not stored */
    a[r] = p->a + (r0 + (r < rows ? r : rows - 1)) * p->a_row;
#pragma GCC unroll 4
    for (int c = 0; c < cols; c++) sum[r][c] = vf_set(0);
  }
  for (int i = 0; i < inner; i++, b += b_row) {
    vf v[BLOCK_COLS];
    for (int c = 0; c < cols; c++) v[c] = vf_load(b + c * VF_LANES);
    for (int r = 0; r < BLOCK_ROWS; r++) {
      vf x = vf_set(a[r][i * step]);
      for (int c = 0; c < cols; c++) sum[r][c] = vf_fma(x, v[c], sum[r][c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < BLOCK_ROWS; r++)
    if (r < rows) {
#pragma GCC unroll 4
      for (int c = 0; c < cols; c++) {
        int n = c == cols - 1 ? last : VF_LANES;
        float *to = out + r * out_row + c * VF_LANES;
        vf_store_n(to, add ? vf_load_n(to, n) + sum[r][c] : sum[r][c], n);
      }
    }
}

/* `lanes` counts floats of a row that are stored; b is read in whole vectors. */
static void multiply_tile(const tile_product *p) {
  int wide = (p->lanes + VF_LANES - 1) / VF_LANES, tail = p->lanes - (wide - 1) * VF_LANES;
  for (int c = 0; c < wide; c += BLOCK_COLS) {
    int last = wide - c <= BLOCK_COLS ? tail : VF_LANES;
    for (int r = 0; r < p->rows; r += BLOCK_ROWS) switch (wide - c) {
        case 1: block_product(p, r, c, 1, last); break;
#if VF_LANES == 16
        case 2: block_product(p, r, c, 2, last); break;
        case 3: block_product(p, r, c, 3, last); break;
#endif
        default: block_product(p, r, c, BLOCK_COLS, last);
      }
  }
}

/* y[c][q] = scale * x[q][c] for `rows` queries; lanes up to the next whole vector become 0. */
static void transpose_in(float *y, const float *x, int64_t x_row, int rows, int dim, float scale) {
  for (int q0 = 0; q0 < rows; q0 += VF_LANES)
    for (int c0 = 0; c0 < dim; c0 += VF_LANES) {
      vf v[VF_LANES];
      int n = dim - c0 < VF_LANES ? dim - c0 : VF_LANES;
      for (int i = 0; i < VF_LANES; i++)
        v[i] = q0 + i < rows ? vf_load_n(x + (q0 + i) * x_row + c0, n) * scale : vf_set(0);
      vf_transpose(v);
      for (int i = 0; i < n; i++) vf_store(y + (c0 + i) * TILE + q0, v[i]);
    }
}

/* y[q][c] = x[c][q]. */
static void transpose_out(float *y, int64_t y_row, const float *x, int rows, int dim) {
  for (int q0 = 0; q0 < rows; q0 += VF_LANES)
    for (int c0 = 0; c0 < dim; c0 += VF_LANES) {
      vf v[VF_LANES];
      int n = dim - c0 < VF_LANES ? dim - c0 : VF_LANES;
      for (int i = 0; i < VF_LANES; i++)
        v[i] = i < n ? vf_load(x + (c0 + i) * TILE + q0) : vf_set(0);
      vf_transpose(v);
      for (int i = 0; i < VF_LANES && q0 + i < rows; i++)
        vf_store_n(y + (q0 + i) * y_row + c0, v[i], n);
    }
}

/* Rows of one head as they are best read. Multiples of 1 KB apart they would evict each other from
 * the first-level cache: they are copied together. Sets the distance of rows. */
static inline const float *near_rows(float *copy, const float *x, int64_t x_row, int rows, int dim,
                                     int64_t *row) {
  *row = x_row;
  if (x_row % 256 || x_row == dim) return x;
  *row = dim;
  for (int i = 0; i < rows; i++)
    for (int c = 0; c < dim; c += VF_LANES) {
      int n = dim - c < VF_LANES ? dim - c : VF_LANES;
      vf_store_n(copy + i * dim + c, vf_load_n(x + i * x_row + c, n), n);
    }
  return copy;
}

/* Which of 16 (8, 4) queries from `query` see `key`: not before it, and within the window. */
VF_INLINE vi visible(int64_t key, int64_t query, int32_t window) {
  vi after = vi_index() + (int32_t)(query - key);
  vi seen = after >= 0;
  return window ? seen & (after < window) : seen;
}

/* Whether some pair of queries t .. t+rows-1 and keys k .. k+keys-1 is invisible. */
static inline int needs_mask(int64_t t, int rows, int64_t k, int keys, int32_t window) {
  return k + keys - 1 > t || (window && t + rows - 1 - k >= window);
}

/* The first key that query t of a segment from `start` sees. */
static inline int64_t first_key(int64_t t, int64_t start, int32_t window) {
  return window && t - window + 1 > start ? t - window + 1 : start;
}

#endif

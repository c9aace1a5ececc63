/* gemm.c - the matrix products of training.
 *
 * y = a b, by blocks: a block of each operand is copied into panels, in which its elements lie in
 * the order of their use, and a tile of y, ROWS by COLS, is summed in registers. bf16 weights are
 * widened while they are copied. Operands that are used by few tiles are read where they lie.
 *
 * Threads take rectangles of y and copy for themselves: waiting for each other and reading what
 * another core has written costs more than copying twice. An element of y is one sum over k, in
 * order, in pieces that depend on k alone: its bits depend neither on the number of threads nor on
 * the rows and columns beside it. */
#include <omp.h>

#include "../../core/base/memory.h"
#include "cpu.h"
#include "simd.h"

/* As many rows as leave registers for two vectors of b and one element of a. */
#if VF_LANES == 16
enum { ROWS = 14 };
#define EACH_ROWS(DO) \
  DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14)
#elif VF_LANES == 8
enum { ROWS = 6 };
#define EACH_ROWS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
#else
enum { ROWS = 4 };
#define EACH_ROWS(DO) DO(1) DO(2) DO(3) DO(4)
#endif
enum { COLS = 2 * VF_LANES };

/* Sizes of blocks, as the literature on matrix products names them: a block of a is BLOCK_M by BLOCK_K,
 * one of b BLOCK_K by BLOCK_N. A panel of b, BLOCK_K by COLS, stays in the second-level cache. */
enum { BLOCK_M = 512, BLOCK_N = 1024, BLOCK_K = 512 };

/* Measured. Work is counted in multiplications of two elements. */
enum {
  GROUP = 4, /* so many panels of a are multiplied with a panel of b while it is in a cache */
  SHORT = 4 * COLS, /* for k up to this, storing y takes longer than computing it */
  IN_PLACE = 128,   /* up to so many rows of a, a small b is read in place: copying it costs more */
  SERIAL = 1 << 19, /* a product with less work than this runs on one thread */
  LARGE = 1 << 30,  /* with more work than this for a thread, rectangles are cut smaller */
  COPYING = 32,     /* copying an element costs as much as so much work */
  SHARING = 3000    /* so does a row of y that two threads write parts of */
};

/* An operand: element (i, t), i along y's rows or columns and t along k, is at i * step + t or, where
 * `along`, at i + t * step. */
typedef struct operand {
  const void *p;
  int64_t step;
  int dtype, along;
} operand;

/* y[m,n] = a b, or y += a b. */
typedef struct product {
  operand a, b;
  float *y;
  int64_t m, n, k;
  int add;
} product;

/* A part of the product: rows i0.. i0+m and so on; panels of a are `rows` high. `a` and `b` have the
 * copies, or are NULL where the operand is read where it lies. */
typedef struct block {
  int64_t i0, m, j0, n, t0, k, rows;
  float *a, *b;
} block;

static int64_t pieces(int64_t length, int64_t most) { return (length + most - 1) / most; }
/* The size of equal pieces of at most `most`. */
static int64_t even(int64_t length, int64_t most) { return pieces(length, pieces(length, most)); }

/* ---- panels ---- */

/* Between panels there is room for a vector: a row's last store may go beyond the row. */
static int64_t panel_size(int64_t k, int64_t width) { return k * width + VF_LANES; }

static const void *element(const operand *x, int64_t i, int64_t t) {
  return vf_weight_at(x->p, x->dtype, x->along ? i + t * x->step : i * x->step + t);
}

/* What to copy: elements i0.. i0+n and t0.. t0+k of x, into panels of `width`, which is at most
 * VF_LANES or a multiple. What fills up the last one meets no element of y. */
typedef struct copy {
  const operand *x;
  int64_t i0, n, t0, k, width;
  float *panels;
} copy;

/* Elements that lie along y's rows or columns: a row of several panels is read at a time. Rows are
 * stored in order, for the end of one may cover the start of the next. `vectors` of a row of a panel
 * is a constant where this is inlined. */
VF_INLINE void copy_rows(const copy *c, int dtype, int64_t panels, int vectors) {
  int64_t size = dtype == MS_F32 ? 4 : 2, ahead = 8 * c->x->step * size;
  int64_t apart = panel_size(c->k, c->width), whole = c->n / c->width;
  int64_t full = vectors == 1 ? c->width : VF_LANES;
  for (int64_t t = 0; t < c->k; t++) {
    const char *from = element(c->x, c->i0, c->t0 + t);
    float *to = c->panels + t * c->width;
    for (int64_t j = 0; j < whole; j++, from += c->width * size, to += apart)
      for (int i = 0; i < vectors; i++) {
        __builtin_prefetch(from + i * VF_LANES * size + ahead);
        vf_store(to + i * VF_LANES, vf_load_weight(from, dtype, i * VF_LANES, full));
      }
    for (int i = 0; i < vectors && whole < panels; i++) {
      int64_t n = c->n - whole * c->width - i * VF_LANES;
      vf_store(to + i * VF_LANES, n > 0 ? vf_load_weight(from, dtype, i * VF_LANES, n) : vf_set(0));
    }
  }
}

/* Turns VF_LANES rows of `deep` elements, of which `rows` are there: beyond, the last one stands for
 * the others, and ends in lanes of which nothing is stored. `deep` and dtype are constants where inlined. */
VF_INLINE void turn(float *to, int64_t width, const char *from, int64_t step, int dtype,
                    int64_t rows, int64_t deep) {
  vf v[VF_LANES];
#pragma GCC unroll 16
  for (int r = 0; r < VF_LANES; r++) {
    __builtin_prefetch(from + 8 * VF_LANES);
    v[r] = vf_load_weight(from, dtype, 0, deep);
    if (r + 1 < rows) from += step;
  }
  vf_transpose(v);
#pragma GCC unroll 16
  for (int r = 0; r < VF_LANES; r++)
    if (r < deep) vf_store(to + r * width, v[r]);
}

/* Elements that lie along k. */
VF_INLINE void copy_columns(const copy *c, int dtype, int64_t panel) {
  float *to = c->panels + panel * panel_size(c->k, c->width);
  int64_t size = dtype == MS_F32 ? 4 : 2, step = c->x->step * size;
  int64_t left = ms_min(c->n - panel * c->width, c->width);
  for (int64_t i = left; i < c->width; i += VF_LANES)
    for (int64_t t = 0; t < c->k; t++)
      vf_store_n(to + t * c->width + i, vf_set(0), ms_min(c->width - i, VF_LANES));
  for (int64_t i = 0; i < left; i += VF_LANES) {
    const char *from = element(c->x, c->i0 + panel * c->width + i, c->t0);
    int64_t t = 0;
    for (; t + VF_LANES <= c->k; t += VF_LANES)
      turn(to + t * c->width + i, c->width, from + t * size, step, dtype, left - i, VF_LANES);
    if (t < c->k)
      turn(to + t * c->width + i, c->width, from + t * size, step, dtype, left - i, c->k - t);
  }
}

static void copy_panels(const copy *c, int64_t panels) {
  if (!c->x->along)
    for (int64_t j = 0; j < panels; j++) {
      if (c->x->dtype == MS_F32)
        copy_columns(c, MS_F32, j);
      else
        copy_columns(c, MS_BF16, j);
    }
  else if (c->width != COLS)
    copy_rows(c, MS_F32, panels, 1);
  else if (c->x->dtype == MS_F32)
    copy_rows(c, MS_F32, panels, 2);
  else
    copy_rows(c, MS_BF16, panels, 2);
}

/* ---- tiles ---- */

/* A panel as a tile reads it: element (i, t) is at i * across + t * along. */
typedef struct panel {
  const float *p;
  int64_t across, along;
} panel;

/* y[rows, cols] (+)= sum. `rows` is a constant where this is inlined, here and below. */
VF_INLINE void put_tile(int rows, vf sum[ROWS][2], float *y, int64_t stride, int64_t cols,
                        int add) {
  int64_t n0 = ms_min(cols, VF_LANES), n1 = cols - n0;
  if (cols == COLS)
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++, y += stride) {
      vf_store(y, add ? vf_load(y) + sum[r][0] : sum[r][0]);
      vf_store(y + VF_LANES, add ? vf_load(y + VF_LANES) + sum[r][1] : sum[r][1]);
    }
  else
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++, y += stride) {
      float *p = y + VF_LANES;
      vf_store_n(y, add ? vf_load_n(y, n0) + sum[r][0] : sum[r][0], n0);
      if (n1) vf_store_n(p, add ? vf_load_n(p, n1) + sum[r][1] : sum[r][1], n1);
    }
}

/* y[rows, cols] (+)= a panel of a times one of b. a.across, where it is 1, is a constant, too. Every
 * third row has a pointer: there are not registers for all. */
VF_INLINE void multiply_panels(int rows, panel a, panel b, int64_t k, float *y, int64_t stride,
                               int64_t cols, int add) {
  enum { THIRD = (ROWS + 2) / 3, AHEAD = 12 };
  vf sum[ROWS][2] = {};
  const float *q[THIRD];
  for (int i = 0; i < THIRD; i++) q[i] = a.p + 3 * i * a.across;
  /* Flat tiles of short sums do not last as long as it takes to fetch y: so early for a later one. */
  const float *to = VF_LANES < 16 && k <= SHORT ? y + 2 * COLS : y;
  for (int r = 0; r < rows; r++, to += stride) {
    __builtin_prefetch(to, 1);
    if (VF_LANES == 16) __builtin_prefetch(to + VF_LANES, 1);
  }
  for (int64_t t = 0; t < k; t++, b.p += b.along) {
    __builtin_prefetch(q[0] + AHEAD * a.along);
    __builtin_prefetch(b.p + AHEAD * b.along);
    __builtin_prefetch(b.p + AHEAD * b.along + VF_LANES);
    vf b0 = vf_load(b.p), b1 = vf_load(b.p + VF_LANES);
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
      vf x = vf_set(q[r / 3][r % 3 * a.across]);
      sum[r][0] = vf_fma(x, b0, sum[r][0]);
      sum[r][1] = vf_fma(x, b1, sum[r][1]);
    }
#pragma GCC unroll 5
    for (int i = 0; i < THIRD; i++) q[i] += a.along;
  }
  put_tile(rows, sum, y, stride, cols, add);
}

static void tile(int64_t rows, panel a, panel b, int64_t k, float *y, int64_t stride, int64_t cols,
                 int add) {
  panel copied = {a.p, 1, a.along}, found = {a.p, a.across, 1};
#define CASE(R)                                               \
  case R:                                                     \
    if (a.across == 1)                                        \
      multiply_panels(R, copied, b, k, y, stride, cols, add); \
    else                                                      \
      multiply_panels(R, found, b, k, y, stride, cols, add);  \
    break;
  switch (rows) { EACH_ROWS(CASE) }
#undef CASE
}

/* ---- blocks ---- */

/* Panel i of a, which is read where it lies or was copied. */
static panel panel_of_a(const product *p, const block *w, int64_t i) {
  if (w->a) return (panel){w->a + i * panel_size(w->k, w->rows), 1, w->rows};
  const float *at = element(&p->a, w->i0 + i * w->rows, w->t0);
  return p->a.along ? (panel){at, 1, p->a.step} : (panel){at, p->a.step, 1};
}

static panel panel_of_b(const product *p, const block *w, int64_t j) {
  if (w->b) return (panel){w->b + j * panel_size(w->k, COLS), 1, COLS};
  return (panel){element(&p->b, w->j0 + j * COLS, w->t0), 1, p->b.step};
}

static void multiply_block(const product *p, const block *w) {
  int64_t high = pieces(w->m, w->rows), wide = pieces(w->n, COLS);
  /* Short sums: high tiles write enough rows at once. */
  int64_t group = VF_LANES == 16 && w->k <= SHORT ? 1 : GROUP;
  for (int64_t first = 0; first < high; first += group)
    for (int64_t j = 0; j < wide; j++)
      for (int64_t i = first; i < ms_min(high, first + group); i++)
        tile(ms_min(w->rows, w->m - i * w->rows), panel_of_a(p, w, i), panel_of_b(p, w, j), w->k,
             p->y + (w->i0 + i * w->rows) * p->n + w->j0 + j * COLS, p->n,
             ms_min(COLS, w->n - j * COLS), p->add || w->t0);
}

/* ---- rectangles ---- */

/* How y is cut: `down` by `across` rectangles, of m by n but for the last ones; panels of a are
 * `rows` high. */
typedef struct grid {
  int64_t m, n, down, across, rows;
} grid;

/* A rectangle of y, by blocks of the size of `most`. */
static void multiply_rectangle(const product *p, const grid *g, int64_t number, const block *most) {
  int64_t i0 = number / g->across * g->m, i1 = ms_min(i0 + g->m, p->m);
  int64_t j0 = number % g->across * g->n, j1 = ms_min(j0 + g->n, p->n);
  for (int64_t j = j0; j < j1; j += most->n)
    for (int64_t t = 0; t < p->k; t += most->k)
      for (int64_t i = i0; i < i1; i += most->m) {
        block w = *most;
        w.i0 = i, w.m = ms_min(w.m, i1 - i);
        w.j0 = j, w.n = ms_min(w.n, j1 - j);
        w.t0 = t, w.k = ms_min(w.k, p->k - t);
        if (w.a) copy_panels(&(copy){&p->a, i, w.m, t, w.k, w.rows, w.a}, pieces(w.m, w.rows));
        if (w.b && i == i0)
          copy_panels(&(copy){&p->b, j, w.n, t, w.k, COLS, w.b}, pieces(w.n, COLS));
        multiply_block(p, &w);
      }
}

/* The quickest of the grids with about as many rectangles as there are threads, or, of a large
 * product, four times as many: a thread that is held up then leaves work to the others. */
static grid choose_grid(const product *p, int64_t threads) {
  int64_t high = pieces(p->m, ROWS), wide = pieces(p->n, COLS), jobs = threads;
  double least = 0, k = (double)p->k;
  grid best = {0};
  if ((double)p->m * (double)p->n * k > (double)threads * 4 * LARGE) jobs *= 4;
  for (int64_t down = 1; down <= ms_min(jobs, high); down++) {
    grid g = {.m = pieces(p->m, down), .n = pieces(wide, pieces(jobs, down)) * COLS};
    g.down = pieces(p->m, g.m), g.across = pieces(p->n, g.n), g.rows = even(g.m, ROWS);
    double m = (double)g.m, n = (double)g.n, copied = m * (double)pieces(g.n, BLOCK_N) + n;
    double cost = m * n * k + COPYING * copied * k + (g.across > 1 ? SHARING * m : 0);
    cost *= (double)pieces(g.down * g.across, threads);
    if (best.m == 0 || cost < least) best = g, least = cost;
  }
  return best;
}

/* The rectangles of one of the threads, which may be the caller alone: whether that one is in a
 * parallel region of its own makes no difference. */
static ms_status multiply_share(const product *p, const grid *g, int64_t id, int64_t threads) {
  int64_t rows = g->rows, high = pieces(g->m, rows); /* panels of a rectangle, then of a block */
  high = pieces(high, pieces(g->m, BLOCK_M));
  block most = {
      .m = high * rows, .n = ms_min(g->n, BLOCK_N), .k = even(p->k, BLOCK_K), .rows = rows};
  int64_t a_size = (high * panel_size(most.k, rows) + 15) / 16 * 16;
  int64_t b_size = pieces(most.n, COLS) * panel_size(most.k, COLS);
  void *room;
  ms_status st = ms_scratch((size_t)(a_size + b_size) * 4, "panels of a matrix product", &room);
  if (g->n > (p->a.along ? 4 : 8) * COLS) most.a = room;
  int64_t few = p->k * p->n <= MS_SERIAL ? IN_PLACE : 8 * ROWS;
  if (p->b.dtype != MS_F32 || !p->b.along || p->n % COLS || g->m > few)
    most.b = (float *)room + a_size;
  int64_t jobs = g->down * g->across;
  if (jobs <= threads || threads == 1) { /* the same ones in the next call: caches are warm */
    for (int64_t job = id; job < jobs && st == MS_OK; job += threads)
      multiply_rectangle(p, g, job, &most);
  } else {
#pragma omp for schedule(dynamic) nowait
    for (int64_t job = 0; job < jobs; job++)
      if (st == MS_OK) multiply_rectangle(p, g, job, &most);
  }
  return st;
}

static ms_status multiply(product p) {
  if (p.k == 0 && !p.add) memset(p.y, 0, (size_t)(p.m * p.n) * 4);
  if (p.m == 0 || p.n == 0 || p.k == 0) return MS_OK;
  double work = (double)p.m * (double)p.n * (double)p.k;
  int64_t threads = work < SERIAL ? 1 : omp_get_max_threads();
  grid g = choose_grid(&p, threads);
  if (threads == 1) return multiply_share(&p, &g, 0, 1);
  int failed = 0;
#pragma omp parallel reduction(| : failed)
  failed = multiply_share(&p, &g, omp_get_thread_num(), omp_get_num_threads()) != MS_OK;
  return failed ? MS_FAIL(MS_ENOMEM, "no memory for the panels of a matrix product") : MS_OK;
}

ms_status MS_KERNEL(linear)(ms_stream *s, ms_act y, ms_act x, const void *w, int w_dtype,
                            int64_t rows, int64_t in, int64_t out, int add) {
  MS_TAKES_F32("linear", y, x);
  if (rows == 0) return MS_OK;
  if (rows <= MS_FEW_ROWS)
    return MS_KERNEL(linear_few)(f32(y), f32(x), w, w_dtype, rows, in, out, add);
  return multiply(
      (product){{f32(x), in, MS_F32, 0}, {w, in, w_dtype, 0}, f32(y), rows, out, in, add});
}

ms_status MS_KERNEL(linear_dx)(ms_stream *s, ms_act dx, ms_act dy, const void *w, int w_dtype,
                               int64_t rows, int64_t in, int64_t out, int add) {
  MS_TAKES_F32("linear_dx", dx, dy);
  if (rows <= MS_FEW_ROWS)
    return MS_KERNEL(linear_dx_few)(f32(dx), f32(dy), w, w_dtype, rows, in, out, add);
  return multiply(
      (product){{f32(dy), out, MS_F32, 0}, {w, in, w_dtype, 1}, f32(dx), rows, in, out, add});
}

ms_status MS_KERNEL(linear_dw)(ms_stream *s, float *dw, ms_act dy, ms_act x, int64_t rows,
                               int64_t in, int64_t out, int add) {
  MS_TAKES_F32("linear_dw", dy, x);
  return multiply(
      (product){{f32(dy), out, MS_F32, 1}, {f32(x), in, MS_F32, 1}, dw, out, in, rows, add});
}

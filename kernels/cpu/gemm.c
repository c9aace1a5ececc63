/* gemm.c - the matrix products of training, by oneDNN's sgemm.
 *
 * oneDNN splits some shapes by the number of threads, in the inner dimension too, which changes
 * rounding. So the split is made here and by the shape alone: a grid of tiles over the output, each
 * computed by one single-threaded call. Threads only take tiles. bf16 weights are widened panel by
 * panel, into a buffer that fits the second-level cache. */
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>

#include "../../core/base/memory.h"
#include "cpu.h"
#include "simd.h"

/* y[m,n] = a b in row-major form; `ta`, `tb` as in BLAS: 'N' as stored, 'T' transposed. */
typedef struct product {
  char ta, tb;
  int64_t m, n, k;
  const float *a;
  const void *b;
  int b_dtype, add;
  float *y;
  int64_t lda, ldb;
  int64_t tile_m, tile_n, tile_k; /* the grid */
} product;

/* Panels of widened weights have at most this many elements: 1 MB. */
enum { PANEL = 1 << 18 };

/* MS_CPU must cap oneDNN too. It knows no "portable": SSE4.1 is the least it can be asked for. */
static void cap_library(void) {
#if !defined(__AVX512F__) && defined(__x86_64__)
#ifdef __AVX2__
  dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
#else
  dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
#endif
#endif
}

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The size of equal pieces of at most `most`, rounded up to `unit`. */
static int64_t piece(int64_t length, int64_t most, int64_t unit) {
  int64_t pieces = (length + most - 1) / most;
  int64_t size = (length + pieces - 1) / pieces;
  return (size + unit - 1) / unit * unit;
}

/* Tiles are as small as costs little: packing is repeated for every tile, and oneDNN's AVX-512
 * kernel works on 48 columns by 8 rows. Small products are cut so that two cores or four have
 * something to do, large ones in pieces that keep packing below a few percent. */
static void choose_grid(product *p) {
  double work = (double)p->m * (double)p->n * (double)p->k;
  int64_t most_m = 256, most_n = p->ta == 'T' ? 768 : 384;
  if (work < 32 << 20) most_m = 128, most_n = 192;
  if (work < 4 << 20) most_m = 64, most_n = 96;
  if (work < 1 << 20) most_m = p->m, most_n = p->n;
  if (p->b_dtype != MS_F32) most_m = 512;
  p->tile_m = piece(p->m, most_m, 8);
  p->tile_n = piece(p->n, most_n, 48);
  p->tile_k = p->b_dtype == MS_F32 ? p->k : piece(p->k, PANEL / p->tile_n, 16);
}

/* dense[r,c] = b[r,c] of a bf16 matrix with rows `stride` apart. */
static void widen(float *dense, const uint16_t *b, int64_t rows, int64_t cols, int64_t stride) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c += VF_LANES) {
      int64_t n = min(cols - c, VF_LANES);
      vf_store_n(dense + r * cols + c, vf_load_weight(b + r * stride, MS_BF16, c, n), n);
    }
}

/* b's part for inner indices k0.. and columns j0..; sets its leading dimension. */
static const float *panel_of(const product *p, int64_t k0, int64_t k, int64_t j0, int64_t n,
                             float *panel, int64_t *ld) {
  int across = p->tb == 'T';
  int64_t at = across ? j0 * p->ldb + k0 : k0 * p->ldb + j0;
  *ld = p->ldb;
  if (p->b_dtype == MS_F32) return (const float *)p->b + at;
  *ld = across ? k : n;
  widen(panel, (const uint16_t *)p->b + at, across ? n : k, *ld, p->ldb);
  return panel;
}

static dnnl_status_t compute_tile(const product *p, int64_t i0, int64_t j0, float *panel) {
  int64_t m = min(p->m - i0, p->tile_m), n = min(p->n - j0, p->tile_n);
  for (int64_t k0 = 0; k0 < p->k; k0 += p->tile_k) {
    int64_t k = min(p->k - k0, p->tile_k), ldb;
    const float *b = panel_of(p, k0, k, j0, n, panel, &ldb);
    const float *a = p->a + (p->ta == 'N' ? i0 * p->lda + k0 : k0 * p->lda + i0);
    dnnl_status_t st = dnnl_sgemm(p->ta, p->tb, m, n, k, 1.0f, a, p->lda, b, ldb,
                                  p->add || k0 ? 1.0f : 0.0f, p->y + i0 * p->n + j0, p->n);
    if (st != dnnl_success) return st;
  }
  return dnnl_success;
}

enum { NO_MEMORY = 1, LIBRARY_FAILED = 2 };

/* A thread's share: tiles until none is left. */
static int take_tiles(const product *p, int64_t tiles, int64_t across) {
  void *panel = NULL;
  int failed = 0;
  if (p->b_dtype != MS_F32 &&
      ms_alloc((size_t)(p->tile_k * p->tile_n) * 4, "widened weights", &panel) != MS_OK)
    failed = NO_MEMORY;
#pragma omp for schedule(dynamic) nowait
  for (int64_t t = 0; t < tiles; t++)
    if (!failed &&
        compute_tile(p, t / across * p->tile_m, t % across * p->tile_n, panel) != dnnl_success)
      failed = LIBRARY_FAILED;
  ms_free(panel);
  return failed;
}

/* oneDNN looks for threads itself where no parallel region is active: there it is told that there is
 * one. Errors are reported by the calling thread, whose message is read. */
static ms_status compute(const product *p) {
  int64_t across = (p->n + p->tile_n - 1) / p->tile_n;
  int64_t tiles = (p->m + p->tile_m - 1) / p->tile_m * across;
  int failed = 0, threads = omp_get_max_threads();
  if (tiles == 1 || threads == 1) {
    omp_set_num_threads(1);
    failed = take_tiles(p, tiles, across);
    omp_set_num_threads(threads);
  } else {
#pragma omp parallel reduction(| : failed)
    failed = take_tiles(p, tiles, across);
  }
  if (failed & NO_MEMORY)
    return MS_FAIL(MS_ENOMEM, "GEMM: no memory for %lld x %lld widened weights",
                   (long long)p->tile_k, (long long)p->tile_n);
  if (failed)
    return MS_FAIL(MS_EDEVICE, "GEMM %lld x %lld x %lld: oneDNN failed", (long long)p->m,
                   (long long)p->n, (long long)p->k);
  return MS_OK;
}

/* y[m,n] = a b, in the order of BLAS. */
static ms_status multiply(char ta, char tb, int64_t m, int64_t n, int64_t k, const float *a,
                          int64_t lda, const void *b, int b_dtype, int64_t ldb, int add, float *y) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  product p = {ta, tb, m, n, k, a, b, b_dtype, add, y, lda, ldb, 0, 0, 0};
  pthread_once(&once, cap_library);
  choose_grid(&p);
  return compute(&p);
}

ms_status MS_KERNEL(linear)(ms_stream *s, float *y, const float *x, const void *w, int w_dtype,
                            int64_t rows, int64_t in, int64_t out, int add) {
  if (rows <= MS_FEW_ROWS) return MS_KERNEL(linear_few)(y, x, w, w_dtype, rows, in, out, add);
  return multiply('N', 'T', rows, out, in, x, in, w, w_dtype, in, add, y);
}

ms_status MS_KERNEL(linear_dx)(ms_stream *s, float *dx, const float *dy, const void *w, int w_dtype,
                               int64_t rows, int64_t in, int64_t out, int add) {
  return multiply('N', 'N', rows, in, out, dy, out, w, w_dtype, in, add, dx);
}

ms_status MS_KERNEL(linear_dw)(ms_stream *s, float *dw, const float *dy, const float *x,
                               int64_t rows, int64_t in, int64_t out, int add) {
  return multiply('T', 'N', out, in, rows, dy, out, x, MS_F32, in, add, dw);
}

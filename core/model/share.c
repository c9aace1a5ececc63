/* share.c - what of a model a rank has, where the model is cut over a tensor-parallel group.
 *
 * Heads, the intermediate size and the vocabulary are cut; sizes need not divide. Keys and values go
 * with the heads that attend to them: where a border lies inside a group of heads, both sides hold its
 * keys and values. Every tensor follows from the sizes that it is made of: rows or columns of a size
 * that is cut are cut in the same places, all others are held by every rank. */
#include "../group/group.h"
#include "family.h"

/* Parts that are wide enough begin at a multiple of this, for the products' sake. */
enum { UNIT = 16 };

int64_t ms_share_border(int64_t n, int32_t rank, int32_t size) {
  int64_t unit = n >= 2 * UNIT * (int64_t)size ? UNIT : 1, border = n / unit * rank / size * unit;
  return rank == size ? n : border;
}

ms_share ms_share_of(const ms_config *c, ms_group *group, int64_t vocab_cut, int32_t rank) {
  int32_t size = group->size, each = c->heads / c->kv_heads;
  int64_t cut = vocab_cut ? vocab_cut : c->vocab;
  ms_share s = {.group = group, .vocab_cut = vocab_cut};
  s.first_head = (int32_t)((int64_t)c->heads * rank / size);
  s.heads = (int32_t)((int64_t)c->heads * (rank + 1) / size) - s.first_head;
  s.first_kv_head = s.first_head / each;
  s.kv_heads = (s.first_head + s.heads - 1) / each + 1 - s.first_kv_head;
  s.first_intermediate = ms_share_border(c->intermediate_size, rank, size);
  s.intermediate = ms_share_border(c->intermediate_size, rank + 1, size) - s.first_intermediate;
  int64_t first = ms_share_border(cut, rank, size), end = ms_share_border(cut, rank + 1, size);
  s.first_id = first < c->vocab ? first : c->vocab;
  s.vocab = (rank + 1 == size || end > c->vocab ? c->vocab : end) - s.first_id;
  return s;
}

ms_status ms_share_check(const ms_config *c, const ms_group *group) {
  int32_t n = group->size;
  if (n <= c->heads && n <= c->intermediate_size && n <= c->vocab) return MS_OK;
  return MS_FAIL(
      MS_EUNSUPPORTED,
      "model: cut over %d ranks, but it has %d heads, an intermediate size of %lld and a "
      "vocabulary of %lld: none of them can have fewer parts than there are ranks",
      n, c->heads, (long long)c->intermediate_size, (long long)c->vocab);
}

/* ---- sizes ---- */

int ms_share_is_cut(ms_dim dim) {
  return dim == MS_DIM_Q || dim == MS_DIM_KV || dim == MS_DIM_INTERMEDIATE;
}

int64_t ms_share_size(const ms_model *m, ms_dim dim) {
  const ms_share *s = &m->share;
  switch (dim) {
    case MS_DIM_Q: return (int64_t)s->heads * m->config.head_dim;
    case MS_DIM_KV: return (int64_t)s->kv_heads * m->config.head_dim;
    case MS_DIM_INTERMEDIATE: return s->intermediate;
    default: return ms_dim_size(&m->config, dim);
  }
}

/* Where in a size of the whole model this rank's part begins. */
static int64_t first_of(const ms_model *m, ms_dim dim) {
  const ms_share *s = &m->share;
  switch (dim) {
    case MS_DIM_Q: return (int64_t)s->first_head * m->config.head_dim;
    case MS_DIM_KV: return (int64_t)s->first_kv_head * m->config.head_dim;
    case MS_DIM_INTERMEDIATE: return s->first_intermediate;
    default: return 0;
  }
}

/* Rows at the beginning of this rank's keys and values that a rank before it holds as well. */
static int64_t copied_rows(const ms_model *m) {
  const ms_share *s = &m->share;
  int32_t each = m->config.heads / m->config.kv_heads;
  return s->first_head % each ? m->config.head_dim : 0;
}

int32_t ms_share_copied_head(const ms_model *m, int32_t k) {
  int32_t size = m->share.group->size, heads = m->config.heads, each = heads / m->config.kv_heads;
  int32_t before = -1;
  for (int32_t r = 1; r < size; r++) {
    int32_t first = (int32_t)((int64_t)heads * r / size), head = first / each;
    if (first % each == 0 || head == before) continue;
    before = head;
    if (k-- == 0) return head;
  }
  return -1;
}

/* ---- runs ---- */

/* The rank that counts and writes what all hold. */
static int owns_whole(const ms_model *m, int32_t i) {
  return i % m->share.group->size == m->share.group->rank;
}

static int outer_runs(const ms_model *m, int32_t i, ms_run *run) {
  const ms_parameter *p = &m->parameter[i];
  int is_norm = p->rank == 1;
  *run = (ms_run){.row = is_norm ? 0 : m->share.first_id,
                  .rows = p->shape[0],
                  .cols = p->rank == 2 ? p->shape[1] : 1,
                  .owned = is_norm ? owns_whole(m, i) : 1};
  return run->rows > 0;
}

/* Adds `rows` rows of a part, of which this rank holds `from` on. */
static int add_run(ms_run *run, ms_run proto, int64_t from, int64_t rows, int owned) {
  proto.row += from;
  proto.held += from;
  proto.rows = rows;
  proto.owned = owned;
  *run = proto;
  return rows > 0;
}

static int layer_runs(const ms_model *m, int32_t i, const ms_weight *w, ms_run *run) {
  int64_t row = 0, held = 0;
  int n = 0, cols_cut = ms_share_is_cut(w->cols);
  for (const ms_part *part = w->part; part < w->part + MS_MAX_PARTS && part->rows; part++) {
    int64_t rows = ms_share_size(m, part->rows);
    int64_t copied = part->rows == MS_DIM_KV ? copied_rows(m) : 0;
    int owned = cols_cut || ms_share_is_cut(part->rows) || owns_whole(m, i);
    ms_run proto = {.row = row + first_of(m, part->rows),
                    .held = held,
                    .col = first_of(m, w->cols),
                    .cols = w->cols ? ms_share_size(m, w->cols) : 1};
    n += add_run(&run[n], proto, 0, copied, 0);
    n += add_run(&run[n], proto, copied, rows - copied, owned);
    row += ms_dim_size(&m->config, part->rows);
    held += rows;
  }
  return n;
}

int ms_share_runs(const ms_model *m, int32_t i, ms_run run[MS_MAX_RUNS]) {
  const ms_weight *w = m->parameter[i].weight;
  return w ? layer_runs(m, i, w, run) : outer_runs(m, i, run);
}

ms_rows ms_run_rows(const ms_parameter *p, const ms_run *run) {
  int64_t width = p->rank == 2 ? p->whole[1] : 1, first = run->row * width + run->col;
  if (run->cols < width) return (ms_rows){first, run->rows, run->cols, width};
  return (ms_rows){first, 1, run->rows * width, run->rows * width};
}

int64_t ms_run_at(const ms_parameter *p, const ms_run *run) {
  return run->held * (p->rank == 2 ? p->shape[1] : 1);
}

/* ---- pieces ---- */

/* n elements of a run from its element a on: of one row, or whole rows. */
static void add_piece(const ms_parameter *p, const ms_run *run, int64_t a, int64_t n, int *count,
                      ms_piece *piece) {
  int64_t width = p->rank == 2 ? p->whole[1] : 1, cols = run->cols;
  int64_t first = (run->row + a / cols) * width + run->col + a % cols;
  ms_rows rows = {first, 1, n, n};
  if (n > cols && cols < width) rows = (ms_rows){first, n / cols, cols, width};
  if (n > 0)
    piece[(*count)++] = (ms_piece){.rows = rows, .at = run->held * cols + a, .owned = run->owned};
}

int ms_share_pieces(const ms_model *m, int32_t i, int64_t from, int64_t count,
                    ms_piece piece[MS_MAX_PIECES]) {
  const ms_parameter *p = &m->parameter[i];
  int64_t width = p->rank == 2 ? p->whole[1] : 1;
  ms_run run[MS_MAX_RUNS];
  int runs = ms_share_runs(m, i, run), n = 0;
  for (int k = 0; k < runs; k++) {
    int64_t cols = run[k].cols, held = run[k].held * cols;
    int64_t a = from > held ? from - held : 0, end = from + count - held;
    if (end > run[k].rows * cols) end = run[k].rows * cols;
    if (a >= end) continue;
    int64_t row = (a + cols - 1) / cols * cols, last = end / cols * cols;
    if (cols == width || row > last) { /* side by side */
      add_piece(p, &run[k], a, end - a, &n, piece);
      continue;
    }
    add_piece(p, &run[k], a, row - a, &n, piece);
    add_piece(p, &run[k], row, last - row, &n, piece);
    add_piece(p, &run[k], last, end - last, &n, piece);
  }
  return n;
}

/* workspace.c - the memory of a call of the head. What depends on the vocabulary is for a chunk of rows,
 * whose size the budget decides. */
#include <string.h>

#include "../base/memory.h"
#include "head_call.h"

int ms_head_full_of(const ms_head_work *w, const ms_target *target) {
  int i = 0;
  while (i < w->fulls && w->full[i].target != target) i++;
  return i;
}

/* Which columns of a full target's part the student's part of the ids needs; of hidden states only their
 * logits are made. */
static ms_head_full full_of(const ms_head_weights *student, const ms_target *t) {
  const ms_head_weights *h = &t->head;
  int64_t used = ms_head_below(student, t->options.vocab);
  if (ms_head_parts(student) == 1) return (ms_head_full){t, 0, h->vocab, h->vocab, NULL, NULL};
  if (!used) return (ms_head_full){.target = t};
  int64_t from = ms_head_first(student) - ms_head_first(h);
  return (ms_head_full){.target = t,
                        .from = from,
                        .used = used,
                        .stride = t->options.kind == MS_TARGET_LOGITS ? h->vocab : used};
}

/* Terms of one full target share its logits. */
static void list_fulls(ms_head_work *w) {
  const ms_head_call *c = w->call;
  w->fulls = 0;
  for (int32_t i = 0; i < c->terms; i++) {
    if (!ms_head_is_full(&c->term[i])) continue;
    int at = ms_head_full_of(w, c->term[i].target);
    if (at == w->fulls) w->full[w->fulls++] = full_of(&c->head, c->term[i].target);
  }
}

static size_t each_bytes(const ms_head_call *c) {
  return c->each ? (size_t)(c->rows * c->terms) * MS_HEAD_EACH * sizeof *c->each : 0;
}

/* The device's part with chunks of `size` rows; with `base` NULL only adds up. */
static size_t lay_device(ms_head_work *w, char *base, int64_t size) {
  const ms_head_call *c = w->call;
  size_t u = 0, n = (size_t)size, rows = (size_t)c->rows, terms = (size_t)c->terms;
  w->label = ms_cut(base, &u, rows * sizeof *w->label);
  for (int on = 0; on < 2; on++) {
    w->row[on] = ms_cut(base, &u, rows * sizeof *w->row[on]);
    w->weight[on] = ms_cut(base, &u, rows * sizeof *w->weight[on]);
  }
  w->total = ms_cut(base, &u, terms * MS_HEAD_TOTALS * sizeof *w->total);
  w->each = ms_cut(base, &u, each_bytes(c));
  w->record = ms_cut(base, &u, n * terms * sizeof *w->record);
  if (w->phases) {
    size_t parts = (size_t)w->tp->size;
    w->part = ms_cut(base, &u, parts * n * terms * sizeof *w->part);
    w->support = ms_cut(base, &u, n * (size_t)ms_head_supports(w) * sizeof *w->support);
    w->bins = ms_cut(base, &u, n * (size_t)ms_head_bins(w) * sizeof *w->bins);
  }
  w->logits.dtype = c->dev->ops->precision.logits;
  w->logits.at = ms_cut(base, &u, ms_act_bytes(w->logits, size * c->head.vocab));
  for (int i = 0; i < w->fulls; i++) {
    ms_head_full *f = &w->full[i];
    const ms_head_weights *h = &f->target->head;
    int copied = ms_head_needs_f32(f->target);
    f->logits = ms_cut(base, &u, n * (size_t)f->stride * sizeof *f->logits);
    f->f32 = ms_cut(base, &u, copied ? n * (size_t)h->width * sizeof *f->f32 : 0);
  }
  for (int32_t i = 0; i < c->terms; i++) {
    const ms_term *t = &c->term[i];
    ms_head_upload *up = &w->upload[i];
    int host = t->kind == MS_TERM_KD && !ms_head_is_full(t) && !t->target->dev;
    size_t k = host ? (size_t)t->target->options.k : 0;
    up->id = ms_cut(base, &u, n * k * sizeof *up->id);
    up->log_p = ms_cut(base, &u, n * k * sizeof *up->log_p);
    up->log_rest = ms_cut(base, &u, k ? n * sizeof *up->log_rest : 0);
  }
  return u;
}

static size_t lay_host(ms_head_work *w, char *base) {
  size_t u = 0, t = (size_t)w->call->terms;
  w->full = ms_cut(base, &u, t * sizeof *w->full);
  w->upload = ms_cut(base, &u, t * sizeof *w->upload);
  w->term = ms_cut(base, &u, t * sizeof *w->term);
  w->source = ms_cut(base, &u, t * sizeof *w->source);
  w->norm = ms_cut(base, &u, t * sizeof *w->norm);
  w->host_total = ms_cut(base, &u, t * MS_HEAD_TOTALS * sizeof *w->host_total);
  w->host_row = ms_cut(base, &u, (size_t)w->call->rows * sizeof(float));
  return u;
}

/* Rows of a chunk: what fits into the budget, in chunks of equal size. What is told of each row is
 * beside the budget, so that it changes no chunk, and no bit of the sums. */
static int64_t chunk_size(ms_head_work *w) {
  const ms_head_call *c = w->call;
  size_t budget = c->budget > 0 ? (size_t)c->budget : MS_HEAD_BUDGET;
  ms_cut(NULL, &budget, each_bytes(c));
  size_t all = lay_device(w, NULL, 0);
  int64_t few = 64, most;
  size_t per_row = (lay_device(w, NULL, few) - all + (size_t)few - 1) / (size_t)few;
  if (!per_row) per_row = 1; /* no terms, and none of the ids */
  most = budget > all ? (int64_t)((budget - all) / per_row) : 1;
  /* roundings to whole cache lines can make that a little too many */
  while (most > 1 && lay_device(w, NULL, most) > budget) most--;
  if (most < 1) most = 1;
  int64_t chunks = (c->rows + most - 1) / most;
  return chunks ? (c->rows + chunks - 1) / chunks : 1;
}

static void free_device(ms_head_workspace *s) {
  if (s->dev) ms_device_free(s->dev, s->data, s->bytes);
  s->dev = NULL;
  s->data = NULL;
  s->bytes = 0;
}

void ms_head_workspace_free(ms_head_workspace *s) {
  free_device(s);
  ms_free(s->host);
  s->host = NULL;
  s->host_bytes = 0;
}

ms_status ms_head_workspace_reserve(ms_head_workspace *s, ms_device *dev, size_t bytes) {
  if (s->dev == dev && s->bytes >= bytes) return MS_OK;
  free_device(s);
  MS_TRY(ms_device_new(dev, bytes, &s->data));
  s->dev = dev;
  s->bytes = bytes;
  return MS_OK;
}

static ms_status reserve_host(ms_head_workspace *s, size_t bytes) {
  if (s->host_bytes >= bytes) return MS_OK;
  ms_free(s->host);
  s->host = NULL;
  s->host_bytes = 0;
  MS_TRY(ms_alloc_undefined(bytes, "head: rows", &s->host));
  s->host_bytes = bytes;
  return MS_OK;
}

/* Lists the full targets and chooses the chunks; the host's part is there afterwards. */
static ms_status plan(ms_head_work *w, const ms_head_call *call, ms_head_workspace *from) {
  memset(w, 0, sizeof *w);
  w->call = call;
  w->tp = call->head.tp ? call->head.tp : ms_group_self();
  w->phases = w->tp->size > 1 || call->phases;
  MS_TRY(reserve_host(from, lay_host(w, NULL)));
  lay_host(w, from->host);
  list_fulls(w);
  w->size = chunk_size(w);
  return MS_OK;
}

ms_status ms_head_work_begin(ms_head_work *w, const ms_head_call *call, ms_head_workspace *from) {
  MS_TRY(ms_head_agree(&call->head, plan(w, call, from)));
  MS_TRY(ms_head_agree_size(&call->head, &w->size));
  size_t bytes = lay_device(w, NULL, w->size);
  MS_TRY(ms_head_agree(&call->head, ms_head_workspace_reserve(from, call->dev, bytes)));
  lay_device(w, from->data, w->size);
  return MS_OK;
}

int64_t ms_head_workspace_bytes(const ms_head_call *call) {
  ms_head_work w;
  ms_head_workspace own = {0};
  size_t bytes = plan(&w, call, &own) == MS_OK ? lay_device(&w, NULL, w.size) : 0;
  ms_head_workspace_free(&own);
  return (int64_t)bytes;
}

/* head_sums.c - the pass that CE and top-k terms share: the row's sums of exponentials by ranges of ids,
 * and from them, at the end, the row's gradient. */
#include "head_loss.h"

/* ---- supports ---- */

/* The index in U of an id, which is added when it is new. */
static int32_t place_id(const head_plan *p, head_scratch *w, int32_t id, float z) {
  int64_t at = 0;
  if (p->slots) {
    uint32_t mix = (uint32_t)id * 0x9e3779b1u;
    for (at = mix & (p->slots - 1); w->table[at]; at = (at + 1) & (p->slots - 1))
      if (w->id[w->table[at] - 1] == id) return w->table[at] - 1;
    w->table[at] = (int32_t)w->ids + 1;
  }
  w->id[w->ids] = id;
  w->z[w->ids] = z;
  w->grad[w->ids] = 0;
  w->mark[w->ids] = 0;
  return (int32_t)w->ids++;
}

/* Collects the ids of all supports and takes them out of the row. */
static void take_supports(const head_plan *p, head_scratch *w, float *z, int64_t r) {
  int32_t *slot = w->slot;
  float *entry = w->entry;
  w->ids = 0;
  if (p->slots) memset(w->table, 0, (size_t)p->slots * sizeof *w->table);
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (t->k && head_is_active(t, r)) {
      const int32_t *id = head_support(t, r);
      for (int32_t j = 0; j < t->k; j++) {
        int64_t at = head_place(p->args, id[j]);
        entry[j] = at < 0 ? -INFINITY : z[at];
        slot[j] = at < 0 ? -1 : place_id(p, w, (int32_t)at, z[at]);
      }
    }
    slot += t->k;
    entry += t->k;
  }
  for (int64_t i = 0; i < w->ids; i++) z[w->id[i]] = -INFINITY;
}

void head_fetch_supports(const ms_head_args *a, const float *z, int64_t r) {
  if (r >= a->rows) return;
  if (a->label) __builtin_prefetch(z + a->label[r] - a->first_id, 1, 3);
  for (int i = 0; i < a->terms; i++) {
    const ms_head_term *t = &a->term[i];
    if (!t->k || !head_is_active(t, r)) continue;
    const int32_t *id = head_support(t, r);
    for (int32_t j = 0; j < t->k && j < 256; j++) __builtin_prefetch(z + id[j] - a->first_id, 1, 3);
  }
}

/* ---- sums ---- */

static void choose_groups(const head_plan *p, head_scratch *w, int64_t r) {
  memset(w->on, 0, (size_t)(p->groups * p->ranges));
  for (int i = 0; i < p->args->terms; i++) {
    const ms_head_term *t = &p->args->term[i];
    if (p->group[i] < 0 || !head_is_active(t, r)) continue;
    for (int k = 0; k < p->ranges && p->bound[k] < t->vocab; k++)
      w->on[p->group[i] * p->ranges + k] = 1;
  }
}

/* Where group g's exponentials of a block are: the range's last group has the row itself. */
static float *exps_of(const head_plan *p, const head_scratch *w, float *z, int g,
                      const struct head_block *b) {
  int last = p->groups - 1;
  while (last > g && !w->on[last * p->ranges + b->range]) last--;
  return (last == g ? z : w->extra + (int64_t)g * p->args->vocab) + b->start;
}

static void sum_block(const head_plan *p, head_scratch *w, float *z, int index) {
  const struct head_block *b = &p->block[index];
  int keep = p->args->gradient && p->args->phase != MS_HEAD_SUMS;
  float max = block_max(z + b->start, b->size);
  int any = 0;
  w->block_max[index] = max;
  for (int g = 0; g < p->groups; g++) any |= w->on[g * p->ranges + b->range];
  if (!any) return;
  if (w->top[b->range] < 0 || max > w->range[b->range].max) {
    /* range[0 .. ranges) serves as the running maximum until the sums are put together */
    w->range[b->range].max = max;
    if (max > -INFINITY) w->top[b->range] = b->start + block_find(z + b->start, b->size, max);
  }
  for (int g = 0; g < p->groups; g++)
    if (w->on[g * p->ranges + b->range])
      w->block_sum[g * p->blocks + index] =
          block_exp(keep ? exps_of(p, w, z, g, b) : NULL, z + b->start, b->size, max, p->inv_t[g]);
}

static void sum_blocks(const head_plan *p, head_scratch *w, float *z) {
  for (int k = 0; k < p->ranges; k++) w->top[k] = -1;
  for (int i = 0; i < p->blocks; i++) sum_block(p, w, z, i);
  for (int i = 0; i < p->groups * p->ranges; i++) {
    w->range[i] = logsum_none();
    w->factor[i] = 0;
  }
  for (int g = 0; g < p->groups; g++)
    for (int k = 0; k < p->ranges; k++) {
      int from = p->first[k], at = g * p->blocks + from;
      if (w->on[g * p->ranges + k])
        w->range[g * p->ranges + k] =
            logsum_list(w->block_scale + at, w->block_max + from, w->block_sum + at,
                        p->first[k + 1] - from, p->inv_t[g]);
    }
}

void head_sum_row(const head_plan *p, head_scratch *w, float *z, int64_t r) {
  take_supports(p, w, z, r);
  head_fetch_supports(p->args, z + p->args->vocab, r + 1);
  choose_groups(p, w, r);
  sum_blocks(p, w, z);
}

logsum head_outside(const head_plan *p, const head_scratch *w, int g, int64_t vocab, int32_t mark) {
  logsum s = logsum_none();
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++)
    logsum_join(&s, w->range[g * p->ranges + k], p->inv_t[g]);
  for (int64_t i = 0; i < w->ids; i++)
    if (w->mark[i] != mark && w->id[i] < vocab) logsum_add(&s, (logsum){w->z[i], 1}, p->inv_t[g]);
  return s;
}

void head_spread(const head_plan *p, head_scratch *w, int g, int64_t vocab, int32_t mark, float max,
                 double factor) {
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++) {
    int at = g * p->ranges + k;
    w->factor[at] += factor * exp_above(w->range[at].max, max, p->inv_t[g]);
  }
  for (int64_t i = 0; i < w->ids; i++)
    if (w->mark[i] != mark && w->id[i] < vocab)
      w->grad[i] += factor * exp_above(w->z[i], max, p->inv_t[g]);
}

int64_t head_student_top(const head_plan *p, const head_scratch *w, int g, int64_t vocab,
                         float *logit) {
  int64_t top = -1;
  float max = -INFINITY;
  for (int k = 0; k < p->ranges && p->bound[k] < vocab; k++)
    if (w->range[g * p->ranges + k].max > max) {
      max = w->range[g * p->ranges + k].max;
      top = w->top[k];
    }
  for (int64_t i = 0; i < w->ids; i++)
    if (w->id[i] < vocab && (w->z[i] > max || (w->z[i] == max && top >= 0 && w->id[i] < top))) {
      max = w->z[i];
      top = w->id[i];
    }
  *logit = max;
  return top < 0 ? -1 : p->args->first_id + top;
}

/* ---- the gradient ---- */

/* z = factor * e + add (NULL: nothing) */
static void scale_block(float *z, const float *e, const float *add, int64_t n, float factor) {
  vf f = vf_set(factor);
  int64_t i = 0;
  for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES) {
    vf x = f * vf_load(e + i), y = f * vf_load(e + i + VF_LANES);
    if (add) x = x + vf_load(add + i), y = y + vf_load(add + i + VF_LANES);
    vf_store(z + i, x);
    vf_store(z + i + VF_LANES, y);
  }
  for (; i < n; i++) z[i] = factor * e[i] + (add ? add[i] : 0);
}

/* The gradient of the ids of a block, those in U apart. */
static void finish_block(const head_plan *p, head_scratch *w, float *z, const float *sum,
                         int index) {
  const struct head_block *b = &p->block[index];
  float *out = z + b->start;
  const float *add = sum ? sum + b->start : NULL;
  int any = 0;
  /* from the last group down: that one's exponentials lie where the result goes */
  for (int g = p->groups - 1; g >= 0; g--) {
    int k = g * p->ranges + b->range;
    if (!w->on[k]) continue;
    const float *e = exps_of(p, w, z, g, b);
    double f = w->factor[k] * w->block_scale[g * p->blocks + index];
    scale_block(out, e, add, b->size, (float)f);
    add = out;
    any = 1;
  }
  if (any) return;
  if (sum)
    memcpy(out, add, (size_t)b->size * sizeof *out);
  else
    memset(out, 0, (size_t)b->size * sizeof *out);
}

void head_finish_row(const head_plan *p, head_scratch *w, float *z, int64_t r, const float *sum) {
  const ms_head_args *a = p->args;
  int64_t label = a->label ? head_place(a, a->label[r]) : -1;
  for (int i = 0; i < p->blocks; i++) finish_block(p, w, z, sum, i);
  for (int64_t i = 0; i < w->ids; i++)
    z[w->id[i]] = (float)(w->grad[i] + (sum ? sum[w->id[i]] : 0));
  for (int i = 0; i < a->terms; i++)
    if (a->term[i].kind == MS_TERM_CE && head_is_active(&a->term[i], r) && label >= 0)
      z[label] = (float)(z[label] - a->term[i].weight[r] * a->term[i].gradient);
  if (a->scale == 1 && a->soft_cap == 0) return;
  for (int64_t i = 0; i < a->vocab; i++)
    z[i] *= a->soft_cap > 0 ? a->scale * w->slope[i] : a->scale;
}

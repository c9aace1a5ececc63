/* head_plan.c - what of the pass is the same for all rows, and the scratch of a thread. */
#include "head_loss.h"

static int group_of(head_plan *p, float inv_t) {
  for (int g = 0; g < p->groups; g++)
    if (p->inv_t[g] == inv_t) return g;
  p->inv_t[p->groups] = inv_t;
  return p->groups++;
}

static void add_bound(head_plan *p, int64_t bound) {
  int i = p->ranges;
  for (; i >= 0 && p->bound[i] >= bound; i--)
    if (p->bound[i] == bound) return;
  for (int j = p->ranges++; j > i; j--) p->bound[j + 1] = p->bound[j];
  p->bound[i + 1] = bound;
}

static void list_blocks(head_plan *p) {
  p->blocks = 0;
  for (int r = 0; r < p->ranges; p->first[++r] = p->blocks)
    for (int64_t i = p->bound[r]; i < p->bound[r + 1]; i += LOGSUM_BLOCK) {
      int64_t n = p->bound[r + 1] - i;
      p->block[p->blocks] = (struct head_block){i, n < LOGSUM_BLOCK ? n : LOGSUM_BLOCK, r};
      p->blocks++;
    }
}

/* No more ranges than terms and one; of each at most one block is not full. */
static size_t lay_plan(head_plan *p, const ms_head_args *a, char *base) {
  size_t u = 0, n = (size_t)a->terms + 1;
  p->bound = ms_cut(base, &u, (n + 1) * sizeof *p->bound);
  p->inv_t = ms_cut(base, &u, n * sizeof *p->inv_t);
  p->group = ms_cut(base, &u, n * sizeof *p->group);
  p->first = ms_cut(base, &u, (n + 1) * sizeof *p->first);
  p->block = ms_cut(base, &u, ((size_t)a->vocab / LOGSUM_BLOCK + n) * sizeof *p->block);
  return u;
}

size_t head_plan_make(head_plan *p, const ms_head_args *a, char *base) {
  int supports = 0;
  memset(p, 0, sizeof *p);
  p->args = a;
  size_t bytes = lay_plan(p, a, base);
  if (!base) return bytes;
  p->bound[0] = p->first[0] = 0;
  for (int i = 0; i < a->terms; i++) {
    const ms_head_term *t = &a->term[i];
    p->group[i] = t->source >= 0 ? -1 : group_of(p, (float)t->inv_t);
    p->full |= t->source >= 0;
    if (t->source < 0) add_bound(p, t->vocab);
    p->support += t->k;
    supports += t->k > 0;
    if (t->k > p->longest) p->longest = t->k;
  }
  add_bound(p, a->vocab);
  if (supports > 1)
    for (p->slots = 16; p->slots < 2 * p->support;) p->slots *= 2;
  list_blocks(p);
  return bytes;
}

/* Whether the ids of a head are looked for in whole rows. */
static int sorts_ids(const ms_head_args *a) {
  for (int i = 0; i < a->terms && a->phase == MS_HEAD_WHOLE; i++)
    if (ms_head_selects(&a->term[i])) return 1;
  return 0;
}

size_t head_scratch_lay(head_scratch *w, const head_plan *p, char *base) {
  const ms_head_args *a = p->args;
  size_t u = 0, row = (size_t)a->vocab * sizeof(float), g = (size_t)p->groups,
         r = (size_t)p->ranges;
  size_t b = (size_t)p->blocks, k = (size_t)p->support, s = (size_t)p->longest + 1 + VF_LANES;
  int gaps = sorts_ids(a);
  w->sum = ms_cut(base, &u, p->full ? row : 0);
  w->h = ms_cut(base, &u, p->full ? row + VF_LANES * sizeof(float) : 0);
  w->copy = ms_cut(base, &u, a->phase == MS_HEAD_WHOLE ? 0 : row);
  w->slope = ms_cut(base, &u, a->soft_cap > 0 ? row : 0);
  w->extra = ms_cut(base, &u, g > 1 ? (g - 1) * row : 0);
  w->block_max = ms_cut(base, &u, b * sizeof *w->block_max);
  w->block_sum = ms_cut(base, &u, g * b * sizeof *w->block_sum);
  w->block_scale = ms_cut(base, &u, g * b * sizeof *w->block_scale);
  w->range = ms_cut(base, &u, g * r * sizeof *w->range);
  w->top = ms_cut(base, &u, r * sizeof *w->top);
  w->on = ms_cut(base, &u, g * r);
  w->factor = ms_cut(base, &u, g * r * sizeof *w->factor);
  w->id = ms_cut(base, &u, k * sizeof *w->id);
  w->z = ms_cut(base, &u, k * sizeof *w->z);
  w->grad = ms_cut(base, &u, k * sizeof *w->grad);
  w->mark = ms_cut(base, &u, k * sizeof *w->mark);
  w->slot = ms_cut(base, &u, k * sizeof *w->slot);
  w->entry = ms_cut(base, &u, k * sizeof *w->entry);
  w->table = ms_cut(base, &u, (size_t)p->slots * sizeof *w->table);
  w->lp = ms_cut(base, &u, s * sizeof *w->lp);
  w->lq = ms_cut(base, &u, s * sizeof *w->lq);
  w->dh = ms_cut(base, &u, s * sizeof *w->dh);
  w->q = ms_cut(base, &u, s * sizeof *w->q);
  w->symbol = ms_cut(base, &u, s * sizeof *w->symbol);
  size_t most = gaps && (size_t)a->vocab > s ? (size_t)a->vocab : s;
  w->candidate = ms_cut(base, &u, most * sizeof *w->candidate);
  w->mass = ms_cut(base, &u, gaps ? HEAD_MASS_BINS * sizeof *w->mass : 0);
  return u;
}

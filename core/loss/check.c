/* check.c - what a call of the head is given, before anything is computed. */
#include <math.h>

#include "head_call.h"
#include "objective.h"

/* A hidden target's logits are computed now, with the head that its states were made for. */
static ms_status check_fresh(const ms_target *t, const char *name, int32_t i) {
  if (t->options.kind != MS_TARGET_HIDDEN || !t->head.changes) return MS_OK;
  MS_REQUIRE(atomic_load(t->head.changes) == t->made,
             "term %d (%s): the teacher's head has changed since its target was made (by a step, a "
             "checkpoint or a write), and a hidden target takes it as it is now: make the target "
             "again, or one of kind topk, which keeps what it was made of",
             i + 1, name);
  return MS_OK;
}

/* The ids of the student's part that take part must be in the target's. */
static ms_status check_part(const ms_head_weights *student, const ms_target *t, const char *name,
                            int32_t i) {
  const ms_head_weights *h = &t->head;
  int64_t first = ms_head_first(student), end = first + ms_head_below(student, t->options.vocab);
  int64_t from = ms_head_first(h), to = from + h->vocab;
  if (t->options.kind == MS_TARGET_TOPK || first == end) return MS_OK;
  MS_REQUIRE(from <= first && to >= end,
             "term %d (%s): on rank %d of %d the target is of ids %lld..%lld, but the student has "
             "%lld..%lld there: both must be cut at the same ids: open the teacher over the same "
             "ranks, with vocab_cut = %lld",
             i + 1, name, student->tp ? student->tp->rank : 0, ms_head_parts(student),
             (long long)from, (long long)to - 1, (long long)first, (long long)end - 1,
             (long long)ms_head_ids(student));
  return MS_OK;
}

static ms_status check_kd(const ms_head_call *c, int32_t i) {
  const ms_term *t = &c->term[i];
  const ms_objective *o = ms_objective_get(t->objective);
  MS_REQUIRE(t->target, "term %d (kd): no target", i + 1);
  MS_REQUIRE(o, "term %d (kd): %d is no objective", i + 1, t->objective);
  const ms_target_options *to = &t->target->options;
  if (!isnan(t->parameter) && o->parameter)
    MS_REQUIRE(
        t->parameter >= o->low && (o->open ? t->parameter < o->high : t->parameter <= o->high),
        "term %d (%s): %s = %g not in [%g, %g%s", i + 1, o->name, o->parameter, t->parameter,
        o->low, o->high, o->open ? ")" : "]");
  MS_REQUIRE(t->tail == MS_TAIL_BUCKET || t->tail == MS_TAIL_RENORMALIZE, "term %d (%s): tail = %d",
             i + 1, o->name, t->tail);
  MS_REQUIRE(isnan(t->temperature) || ms_temperature_fits(t->temperature),
             "term %d (%s): temperature %g, not in %g..%g", i + 1, o->name, t->temperature,
             MS_MIN_TEMPERATURE, MS_MAX_TEMPERATURE);
  /* either may be NaN, and is no less than the other then */
  MS_REQUIRE(!(fabs(t->temperature - to->temperature) > 1e-9 * to->temperature),
             "term %d (%s): temperature %g, but its target was made at %g", i + 1, o->name,
             t->temperature, to->temperature);
  MS_REQUIRE(isnan(t->t_scale) || isfinite(t->t_scale), "term %d (%s): t_scale %g", i + 1, o->name,
             t->t_scale);
  MS_REQUIRE(to->on == t->on, "term %d (%s): on = %s, but its target covers %s", i + 1, o->name,
             t->on ? "all" : "response", to->on ? "all" : "response");
  MS_REQUIRE(to->vocab <= ms_head_ids(&c->head),
             "term %d (%s): the target covers %lld ids, the student has %lld: ask the teacher for "
             "the shared ones (vocab)",
             i + 1, o->name, (long long)to->vocab, (long long)ms_head_ids(&c->head));
  MS_REQUIRE(!t->target->dev || t->target->dev == c->dev,
             "term %d (%s): the target is on %s, the student on %s", i + 1, o->name,
             t->target->dev->spec, c->dev->spec);
  MS_TRY(check_part(&c->head, t->target, o->name, i));
  return check_fresh(t->target, o->name, i);
}

ms_status ms_head_check_term(const ms_head_call *c, int32_t i) {
  const ms_term *t = &c->term[i];
  MS_REQUIRE(t->on == MS_ON_RESPONSE || t->on == MS_ON_ALL, "term %d: on = %d", i + 1, t->on);
  MS_REQUIRE(isfinite(t->weight), "term %d: weight %g", i + 1, t->weight);
  MS_REQUIRE(!isnan(t->norm) && t->norm != INFINITY, "term %d: norm %g", i + 1, t->norm);
  MS_REQUIRE(t->kind == MS_TERM_CE || t->kind == MS_TERM_KD, "term %d: %d is no kind", i + 1,
             t->kind);
  if (t->kind == MS_TERM_KD) return check_kd(c, i);
  MS_REQUIRE(!t->target, "term %d (ce): it takes no target", i + 1);
  return MS_OK;
}

ms_status ms_head_check_rows(const ms_head_call *c, const int64_t *count) {
  for (int on = 0; on < 2; on++)
    for (int64_t r = 0; r < c->rows; r++)
      MS_REQUIRE(!c->weight[on] || (c->weight[on][r] >= 0 && isfinite(c->weight[on][r])),
                 "head: row %lld has weight %g", (long long)r, c->weight[on][r]);
  for (int64_t r = 0; c->label && r < c->rows; r++)
    MS_REQUIRE(c->label[r] >= 0 && c->label[r] < ms_head_ids(&c->head),
               "head: row %lld has label %d, but the student has ids 0..%lld", (long long)r,
               c->label[r], (long long)ms_head_ids(&c->head) - 1);
  for (int32_t i = 0; i < c->terms; i++) {
    const ms_term *t = &c->term[i];
    MS_REQUIRE(t->kind != MS_TERM_CE || c->label, "term %d (ce): no labels", i + 1);
    MS_REQUIRE(t->kind != MS_TERM_KD || t->target->rows == count[t->on],
               "term %d (%s): the target has %lld rows, the batch %lld with a weight for \"%s\"",
               i + 1, ms_objective_get(t->objective)->name, (long long)t->target->rows,
               (long long)count[t->on], t->on ? "all" : "response");
  }
  return MS_OK;
}

/* head_loss.h - the parts of head_loss.c, a file each, and what they share.
 *
 * The pass over a row has three phases for each of its terms, with an ms_head_record between them: sums
 * (log-sum-exps, the support's entries), values (D and H = sum of h), and the gradient in place.
 *
 * CE and top-k terms need of a row only log-sum-exps over ranges of ids and a few single ids; all
 * of them share one pass. The ids of all supports are taken out of the row first (U below), so the
 * sums over what is left serve every term: a term's leftover is that plus the ids of U outside its
 * own support. The pass writes each block's exponentials over the logits, a second one multiplies
 * them by the block's factor: e^z is computed once, and the row stays in the second-level cache
 * between the two. Terms at other temperatures keep their exponentials in scratch rows.
 *
 * Terms with full targets need the logits intact, so they go first, into a scratch row (`sum`) that
 * the last pass adds.
 *
 * Where the vocabulary is in parts, each call does one phase of all terms: the first ones over copies of the
 * rows, the last one over the rows themselves, whose exponentials it makes again. */
#ifndef MS_CPU_HEAD_LOSS_H
#define MS_CPU_HEAD_LOSS_H
#include <string.h>

#include "../head.h"
#include "cpu.h"
#include "logsum.h"
#include "objective.h"

/* What is the same for all rows. */
typedef struct head_plan {
  const ms_head_args *args;
  int groups;     /* distinct temperatures of CE and top-k terms */
  float *inv_t;   /* [groups] */
  int *group;     /* [terms]; -1: a full target */
  int ranges;     /* ids are cut where some term's vocab ends */
  int64_t *bound; /* [ranges + 1] */
  int *first;     /* [ranges + 1]: their blocks */
  int blocks;
  struct head_block {
    int64_t start, size;
    int range;
  } * block;
  int64_t support; /* sum of k: no row has more ids in U */
  int64_t longest; /* largest k */
  int64_t slots;   /* of the table that finds an id in U; 0: one support, ids are distinct */
  int full;        /* there are full targets */
} head_plan;

/* One thread's scratch. */
typedef struct head_scratch {
  float *sum, *slope, *extra, *h; /* rows */
  float *copy;                    /* a row, in parts */
  float *block_max;               /* [blocks] */
  float *block_sum;               /* [groups, blocks] */
  float *block_scale;             /* [groups, blocks]: exp((its - the range's maximum) inv_t) */
  logsum *range;                  /* [groups, ranges] */
  int64_t *top;                   /* [ranges]: where the range's maximum is; -1 */
  uint8_t *on;                    /* [groups, ranges]: needed in this row */
  double *factor;                 /* [groups, ranges]: of exp((z - range's maximum) inv_t) */
  int64_t ids;                    /* U, of this rank's ids: */
  int32_t *id;                    /* from 0, as columns of the row */
  float *z;
  double *grad;
  int32_t *mark; /* [support]: the last term, + 1, whose support has this id */
  /* [support], terms following each other: of each term's j-th id its index in U, and its logit; -1, -inf
   * where it is not this rank's */
  int32_t *slot;
  float *entry;
  int32_t *table;          /* [slots] */
  float *lp, *lq, *dh, *q; /* [longest + 1 + VF_LANES]: the symbols that a term compares */
  int32_t *symbol;         /* their indices in the support; -1: the leftover */
  struct head_candidate {
    float lp;
    int32_t id;
  } * candidate; /* adaptive_kl */
  double *mass;
} head_scratch;

static inline int head_is_active(const ms_head_term *t, int64_t r) { return t->weight[r] > 0; }

/* The column of an id; -1: it is not this rank's. */
static inline int64_t head_place(const ms_head_args *a, int32_t id) {
  int64_t at = id - a->first_id;
  return at >= 0 && at < a->vocab ? at : -1;
}

/* Where a term that looks for a last id has its masses. */
static inline double *head_bins(const ms_head_args *a, int64_t r, int64_t term) {
  int64_t at = 0, all = 0;
  for (int64_t i = 0; i < a->terms; i++) {
    at += i < term && ms_head_selects(&a->term[i]);
    all += ms_head_selects(&a->term[i]);
  }
  return a->bins + (r * all + at) * MS_HEAD_BINS;
}

/* The ids of a top-k term's row. */
static inline const int32_t *head_support(const ms_head_term *t, int64_t r) {
  return t->id + (t->row[r] - t->first) * t->k;
}

/* head_plan.c: the plan, and the layout of a thread's scratch; with `base` NULL they only add up. */
#define head_plan_make MS_KERNEL(head_plan_make)
#define head_scratch_lay MS_KERNEL(head_scratch_lay)
size_t head_plan_make(head_plan *p, const ms_head_args *args, char *base);
size_t head_scratch_lay(head_scratch *w, const head_plan *p, char *base);

/* head_sums.c: the shared pass of CE and top-k terms. */
#define head_fetch_supports MS_KERNEL(head_fetch_supports)
#define head_sum_row MS_KERNEL(head_sum_row)
#define head_outside MS_KERNEL(head_outside)
#define head_spread MS_KERNEL(head_spread)
#define head_student_top MS_KERNEL(head_student_top)
#define head_finish_row MS_KERNEL(head_finish_row)
/* Single ids of a row lie anywhere in memory: they are asked for a row ahead. */
void head_fetch_supports(const ms_head_args *a, const float *z, int64_t r);
/* Takes the supports of row r out of z, sums what is left by groups and ranges. */
void head_sum_row(const head_plan *p, head_scratch *w, float *z, int64_t r);
/* Over the ids below `vocab` that are in no support, or only in those of other terms. */
logsum head_outside(const head_plan *p, const head_scratch *w, int g, int64_t vocab, int32_t mark);
/* Adds factor * exp((z - max) inv_t) to the gradient of those ids. */
void head_spread(const head_plan *p, head_scratch *w, int g, int64_t vocab, int32_t mark, float max,
                 double factor);
/* The student's first largest id below vocab, and its logit; -1: all are -inf. */
int64_t head_student_top(const head_plan *p, const head_scratch *w, int g, int64_t vocab,
                         float *logit);
/* The row's gradient, in place: what was spread, the supports' own, and `sum` (NULL: nothing). */
void head_finish_row(const head_plan *p, head_scratch *w, float *z, int64_t r, const float *sum);

/* One term of row r, through its phases, or one of them: head_ce.c, head_topk.c, head_full.c. The record is
 * what is known; the part, which may be the same, is what this rank's ids say. */
#define head_ce MS_KERNEL(head_ce)
#define head_topk MS_KERNEL(head_topk)
#define head_full MS_KERNEL(head_full)
void head_ce(const head_plan *p, head_scratch *w, int term, int64_t r, float label_logit,
             ms_head_record *part);
/* from: where the term's support begins among all. */
void head_topk(const head_plan *p, head_scratch *w, int term, int64_t from, int64_t r,
               ms_head_record *part);
/* Its gradient is added to w->sum, or set where `first`. */
void head_full(const head_plan *p, head_scratch *w, int term, float *z, int64_t r, int first,
               ms_head_record *record, ms_head_record *part);

/* head_full.c: a teacher's row against the student's, both as they are. */
typedef struct head_pair {
  const ms_head_term *t;
  const float *y, *z;                              /* the teacher's logits, the student's */
  float inv_t, inv_tt, max_z, max_y, log_z, log_y; /* of the log-sum-exps */
  int nan;
} head_pair;
/* lp and lq of a block, filled up to a multiple of VF_LANES. */
#define head_pair_logs MS_KERNEL(head_pair_logs)
void head_pair_logs(const head_pair *f, int64_t from, int64_t n, float *lp, float *lq);
#define HEAD_BLOCKS(vocab)                                                            \
  for (int64_t from = 0, n;                                                           \
       n = (vocab)-from < LOGSUM_BLOCK ? (vocab)-from : LOGSUM_BLOCK, from < (vocab); \
       from += LOGSUM_BLOCK)

/* head_gaps.c: adaptive_kl's gaps |p - q| over head and tail, set in the record, over n symbols of a
 * support, or over a pair of rows; and the weights that follow from them. */
enum { HEAD_MASS_BINS = 4096 };
typedef struct head_limit {
  float lp;     /* of the last id in the head */
  int64_t ties; /* as many as have that lp are in it, the first ones */
} head_limit;
#define head_symbol_gaps MS_KERNEL(head_symbol_gaps)
#define head_pair_limit MS_KERNEL(head_pair_limit)
#define head_pair_gaps MS_KERNEL(head_pair_gaps)
void head_symbol_gaps(head_scratch *w, const int32_t *id, int32_t n, double alpha,
                      ms_head_record *record);
head_limit head_pair_limit(const head_pair *f, head_scratch *w);
void head_pair_gaps(const head_pair *f, head_limit limit, ms_head_record *part);
/* In parts: masses by the byte of lp that is sought in a round, of the ids that agree with what was found
 * before; how many have the last id's lp; and what follows from the sums over all parts. */
#define head_select MS_KERNEL(head_select)
#define head_count_ties MS_KERNEL(head_count_ties)
#define head_join_select MS_KERNEL(head_join_select)
#define head_join_ties MS_KERNEL(head_join_ties)
void head_select(const head_pair *f, const ms_head_record *record, int round, double *bins);
void head_count_ties(const head_pair *f, const ms_head_record *record, ms_head_record *part);
void head_join_select(double alpha, int round, const double *bins, ms_head_record *record);
/* `all` ids have it, `before` of them on ranks before this one, `own` on this one. */
void head_join_ties(double alpha, int64_t all, int64_t before, int64_t own, ms_head_record *record);
static inline void head_weigh_gaps(const ms_head_record *record, objective_args *o) {
  /* what was taken out of the tail again may have been a little more than was in it */
  double head = record->head_gap, tail = fmax(record->tail_gap, 0);
  int none = head == 0 && tail == 0;
  o->forward = none ? 0.5f : (float)(head / (head + tail));
  o->reverse = none ? 0.5f : (float)(tail / (head + tail));
}

#endif

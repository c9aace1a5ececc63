/* head.h - what the fused head asks of a backend: top-k with log-sum-exp, and the pass that turns
 * a chunk of logits into losses and their gradient in place. DESIGN section 4 has the formulas.
 *
 * Notation, per row: z are the student's logits, y a teacher's, V the ids that both share,
 * lp = log_softmax(y / (T Tt)), lq = log_softmax(z / T) over ids below V. An id that is -inf on
 * either side leaves both softmaxes. A top-k term compares the k ids of the support S and, with
 * MS_TAIL_BUCKET, the leftover B as one more symbol; the student's share of B is a log-sum-exp over
 * the ids outside S. What follows from the rule on -inf there: an id of S that is -inf on either
 * side leaves both; so does B when either side has nothing in it (all of it is -inf); an id outside
 * S that only one side has at -inf stays in the other side's B: a top-k target does not say which
 * ids its leftover is made of. Whatever left, the remaining symbols are normalised again on both
 * sides; with none left the loss is 0.
 *
 * lp and lq are f32, and sums over them must not lose what is small: given the logits, a row's value
 * is right to 1e-5 of itself and its gradient to 1e-5 of its largest element, for any vocabulary and
 * however sure a row is, plus 2e-6 over the distance of the sides' logits where they nearly agree. */
#ifndef MS_KERNELS_HEAD_H
#define MS_KERNELS_HEAD_H
#include <stdint.h>

#include "ops.h"

/* sum of exp((z - max) inv_t), with max in units of z; max is -inf when there is nothing. */
typedef struct ms_logsum {
  float max;
  double sum;
} ms_logsum;

/* ---- parts of the vocabulary ----
 *
 * A rank may hold some of the ids only, those from first_id on, or none. What a row needs of all ids is
 * then found in rounds: a phase of the pass writes what this rank's ids say to its place among the parts,
 * core brings the parts of all ranks together, and head_join takes them into the records. Each phase
 * begins with the logits as the product made them; the last one turns them into the gradient, for which no
 * other rank is needed. Parts are joined in order of the ranks, on every rank: all have the same bits, and
 * ties go to the lower id, since the parts are in order of ids.
 *
 * Rounds of a chunk of rows, and the bytes that a rank gives to each other one:
 * - MS_HEAD_SUMS: an ms_head_record a row and term; for top-k terms the logits of the supports, 4 k bytes
 *   a row, of which the largest is taken (-inf where an id is another rank's). CE and top-k terms need
 *   no more: what is left is done with numbers that all ranks have, the leftover's too.
 * - Full targets: MS_HEAD_VALUES, a record.
 * - adaptive_kl over full targets, before that: MS_HEAD_SELECT four times, MS_HEAD_BINS doubles a row and
 *   such term, summed; MS_HEAD_TIES and MS_HEAD_GAPS, a record each.
 * A teacher's top-k: MS_TOPK_BEST, 8 k bytes a row; MS_TOPK_REST, an ms_logsum a row. */

/* One of a rank's k best ids, in order; id -1 (z -inf) after the last one. */
typedef struct ms_topk_candidate {
  float z;
  int32_t id;
} ms_topk_candidate;

enum {
  MS_TOPK_WHOLE = 0, /* all ids are here */
  MS_TOPK_BEST,      /* sets this part's candidates */
  MS_TOPK_REST,      /* sets id by all parts' candidates; sets this part's sum over the other ids */
  MS_TOPK_FINISH     /* sets log_p and log_rest by all parts' sums */
};

/* The k largest of logits[r, 0..vocab), largest first, ties by lower id; log_p is their
 * log-softmax over the vocab at temperature 1/inv_t, log_rest the log of what is left (-inf for
 * nothing). Overwrites the logits. In parts, `vocab` is how many of this rank's ids take part. */
typedef struct ms_topk_args {
  int32_t *id;     /* [rows, k] */
  float *log_p;    /* [rows, k] */
  float *log_rest; /* [rows] */
  float *logits;   /* [rows, stride] */
  int64_t rows, stride, vocab;
  int32_t k;
  float inv_t;           /* 1 / (T Tt) */
  float scale, soft_cap; /* applied to the logits first: scale z, then c tanh(z / c); 1, 0: none */
  int32_t phase, parts, part; /* how many there are, and which is this rank's */
  int64_t first_id;
  ms_topk_candidate *candidate; /* [parts, rows, k] */
  ms_logsum *rest;              /* [parts, rows] */
} ms_topk_args;

/* Rows of a teacher's logits; row r of the chunk is at row[r] - first (row[r] negative: the teacher has
 * none). scale and soft_cap are applied by the pass, in place, by its first phase. In parts, column 0 is
 * first_id's. */
typedef struct ms_head_source {
  float *logits;         /* [.., stride] */
  int64_t stride, vocab; /* of a row; of these, columns that are there */
  float scale, soft_cap;
  const int32_t *row; /* [rows] */
  int64_t first;
} ms_head_source;

enum {
  MS_HEAD_WHOLE = 0, /* all ids are here: everything in one sweep */
  MS_HEAD_SUMS,
  MS_HEAD_SELECT, /* looks for the last id of adaptive_kl's head: a byte of its lp a round */
  MS_HEAD_TIES,   /* how many ids have that lp */
  MS_HEAD_GAPS,
  MS_HEAD_VALUES,
  MS_HEAD_FINISH /* totals, each, and the gradient in place */
};
enum { MS_HEAD_SELECTS = 4, MS_HEAD_BINS = 256 };

/* What is known of a row and a term; in parts, also what a rank's ids say of them in a phase. */
typedef struct ms_head_record {
  /* sums: over the student's ids, over those outside a top-k support, over a full teacher's */
  ms_logsum student, rest, teacher;
  int64_t student_top, teacher_top; /* the first largest id; -1: none is finite */
  float label;                      /* CE: the label's logit; -inf where it is not this rank's */
  float teacher_there;              /* a full teacher's logit at student_top */
  /* where the objective needs the gaps over a pair of rows: the head's ids are those with a larger lp
   * than `last` and, of those with that lp, the first `ties` of this rank; `above` is the mass of all
   * ids with a larger one. While `last` is sought it is `key`, beginning with the largest one. */
  uint32_t key;
  float last;
  double above;
  int64_t ties;
  double head_gap, tail_gap; /* where the objective needs them */
  /* values: D and H = sum of h, in the objective's own units */
  double value, slope;
  double agree, teacher_mass, student_mass, teacher_entropy, student_entropy;
} ms_head_record;

/* What is added up over the rows, for each term: each row's value with its factor t_scale, and the fields
 * of ms_term_result, times the row's weight. */
enum {
  MS_HEAD_VALUE = 0,
  MS_HEAD_WEIGHT,
  MS_HEAD_ROWS,
  MS_HEAD_AGREE,
  MS_HEAD_TEACHER_MASS,
  MS_HEAD_STUDENT_MASS,
  MS_HEAD_TEACHER_ENTROPY,
  MS_HEAD_STUDENT_ENTROPY,
  MS_HEAD_TOTALS
};

typedef struct ms_head_term {
  int32_t kind, objective, tail; /* as in ms_term; the objective is the one to be computed */
  int32_t gaps;                  /* its value needs the gaps over head and tail first */
  int32_t source;                /* index of a full target's source; -1: top-k or CE */
  int64_t vocab;                 /* this rank's ids that take part: those below V, or all for CE */
  double inv_t, inv_tt;          /* 1 / T for the student, 1 / (T Tt) for a full teacher */
  double parameter;              /* beta, lambda, alpha */
  double t_scale;
  double gradient;     /* weight * t_scale / norm: the gradient's factor besides a */
  double sign_width;   /* tvd: |lq - lp| up to here has no sign */
  const float *weight; /* [rows]: a */
  int32_t k;           /* top-k: */
  int32_t leftover;    /* some id that takes part, on whatever rank, is not in the support */
  const int32_t *row;  /* [rows]: the row of the arrays below, which begin with row `first` */
  int64_t first;
  const int32_t *id;
  const float *log_p, *log_rest;
} ms_head_term;

/* What is told of each row and term, where it is asked for: its value with t_scale, and whether the
 * top choices agree. A row without weight has nothing. */
enum { MS_HEAD_EACH_VALUE = 0, MS_HEAD_EACH_AGREE, MS_HEAD_EACH };

typedef struct ms_head_args {
  double *total;          /* [terms, MS_HEAD_TOTALS]: added to, row by row */
  double *each;           /* [rows, terms, MS_HEAD_EACH], or NULL */
  ms_head_record *record; /* [rows, terms]: scratch; in parts, kept between the phases */
  ms_act logits; /* [rows, vocab]: of the head's product; becomes the gradient when `gradient` */
  const int32_t *label; /* [rows]; NULL without CE */
  int64_t rows, vocab;
  float scale, soft_cap; /* of the student's head; the gradient passes through both */
  int gradient;          /* 0: values only; the logits are spoilt all the same */
  int32_t terms, sources;
  const ms_head_term *term;
  const ms_head_source *source;
  int64_t first_id;          /* the id of column 0; labels and supports have ids of all ranks */
  int32_t phase, parts, own; /* how many parts there are, and which is this rank's */
  int32_t round;             /* MS_HEAD_SELECT: 0 .. MS_HEAD_SELECTS - 1 */
  ms_head_record *part;      /* [parts, rows, terms] */
  float *support;            /* [rows, sum of k], terms following each other */
  double *bins;              /* [rows, terms that look for a last id, MS_HEAD_BINS] */
} ms_head_args;

/* Terms that look for a last id. */
static inline int ms_head_selects(const ms_head_term *t) { return t->source >= 0 && t->gaps; }

#endif

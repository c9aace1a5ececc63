/* head_call.h - a call of the fused head while it runs, for the files of core/loss. */
#ifndef MS_HEAD_CALL_H
#define MS_HEAD_CALL_H
#include "../moonstill.h"
#include "../../kernels/head.h"
#include "head.h"

/* A full target and its place in the workspace. */
typedef struct ms_head_full {
  const ms_target *target;
  int64_t from,
      used; /* of its part of the ids those that the student's part has begin here; how many */
  int64_t stride; /* columns of `logits` */
  float *logits;
  float *f32; /* a chunk of hidden states, for the product, where they are held in less */
} ms_head_full;

/* A term's top-k rows, when they have to be brought to the device. */
typedef struct ms_head_upload {
  int32_t *id;
  float *log_p, *log_rest;
} ms_head_upload;

typedef struct ms_head_work {
  const ms_head_call *call;
  int64_t size; /* rows of a chunk */
  ms_group *tp; /* of one where the head is whole */
  int phases;
  /* on the device, for the whole call: the row's label; its weight; row[on][r], its place among those
   * with weight, or -1; sums over the rows for each term */
  int32_t *label, *row[2];
  float *weight[2];
  double *total, *each;
  /* on the device, for a chunk */
  ms_act logits;
  ms_head_record *record;
  /* where the head is in parts */
  ms_head_record *part;
  float *support;
  double *bins;
  /* host */
  int fulls;
  ms_head_full *full;
  ms_head_upload *upload;
  ms_head_term *term;
  ms_head_source *source;
  void *host_row; /* [rows] of four bytes */
  double *host_total, *norm;
} ms_head_work;

static inline int ms_head_is_full(const ms_term *t) {
  return t->kind == MS_TERM_KD && t->target->options.kind != MS_TARGET_TOPK;
}

/* Hidden states that need a copy of their own on the way to the product. */
static inline int ms_head_needs_f32(const ms_target *t) {
  return t->options.kind == MS_TARGET_HIDDEN && t->options.hidden_dtype != MS_F32;
}

/* A weight that is not given: none for the response, 1 for all, as in ms_batch_new. */
static inline float ms_head_weight(const ms_head_call *c, int on, int64_t r) {
  return c->weight[on] ? c->weight[on][r] : (float)(on == MS_ON_ALL);
}

/* check.c: term i; the rows, of which count[on] have a weight. */
ms_status ms_head_check_term(const ms_head_call *call, int32_t i);
ms_status ms_head_check_rows(const ms_head_call *call, const int64_t *count);

/* parts.c: the chunk through its phases; args but for phase and round. */
ms_status ms_head_phases(const ms_head_work *w, ms_head_args *args);
/* How many doubles a row there are for terms that look for a last id; numbers for the supports. */
int64_t ms_head_bins(const ms_head_work *w);
int64_t ms_head_supports(const ms_head_work *w);
/* Of a head in parts: an error of one rank is one of all. */
ms_status ms_head_agree(const ms_head_weights *head, ms_status st);
/* The smallest of all ranks' sizes. */
ms_status ms_head_agree_size(const ms_head_weights *head, int64_t *size);
/* x has room for each rank's bytes and has this rank's own in place: brings the others'. */
ms_status ms_head_gather(ms_device *dev, ms_group *tp, void *x, size_t bytes);

/* y = x w^T, where w has any rows. */
ms_status ms_head_product(ms_device *dev, ms_act y, ms_act x, const void *w, int dtype,
                          int64_t rows, int64_t width, int64_t vocab);

/* workspace.c: memory for the call, laid out. */
ms_status ms_head_work_begin(ms_head_work *w, const ms_head_call *call, ms_head_workspace *from);
/* The index of a full target among the call's. */
int ms_head_full_of(const ms_head_work *w, const ms_target *target);

#endif

/* head.h - the fused language-model head: DESIGN sections 3 and 4.
 *
 * From hidden states to losses and gradients in chunks of rows, so that the matrix of logits never
 * exists as a whole. Rows are the positions on which at least one term has weight. */
#ifndef MS_HEAD_H
#define MS_HEAD_H
#include "../moonstill.h"
#include "target.h"

enum { MS_HEAD_BUDGET = 128 << 20 }; /* bytes, when none are given */

typedef struct ms_head_call {
  ms_device *dev;
  ms_head_weights head;
  int64_t rows;
  ms_act hidden;          /* [rows, width], on the device */
  const int32_t *label;   /* [rows], host: the next token */
  const float *weight[2]; /* [rows], host, by MS_ON_RESPONSE and MS_ON_ALL */
  int32_t terms;
  const ms_term *term;
  int64_t budget;               /* bytes of workspace; 0 for the default */
  ms_act d_hidden;              /* [rows, width], set; none: no gradients are made */
  float *d_head;                /* [head.vocab, width], added to; NULL: frozen head */
  ms_term_result *result;       /* [terms] */
  double *each;                 /* [rows, terms, MS_HEAD_EACH], host; NULL: not asked for */
  ms_head_workspace *workspace; /* NULL: allocated and freed by the call */
  int phases; /* a whole head goes through the phases of one in parts: for tests */
} ms_head_call;

/* Where the head is cut over head.tp all ranks call with the same, but for their part of the head, and
 * have the same results. d_hidden is what this rank's ids give: the sum over the ranks is the gradient.
 * Targets with full rows must have the ids that the student's part has. What the ranks tell each other
 * is in kernels/head.h; beside that they agree on the size of chunks, and that none has failed, once a
 * call.
 *
 * Errors name the term. Every term's norm must be given (> 0) or <= 0 for "this call's own". A
 * chunk has at least one row, so a budget below a row's need is exceeded. */
ms_status ms_head_learn(const ms_head_call *call);
/* Bytes that ms_head_learn takes at most for this budget and these shapes: what plans print. It
 * looks at head, rows, terms and their targets, budget and whether there is d_hidden. */
int64_t ms_head_workspace_bytes(const ms_head_call *call);

#endif

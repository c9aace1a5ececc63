/* batch.h - one flat run of tokens, cut into segments, with the weights of predicting positions. */
#ifndef MS_BATCH_H
#define MS_BATCH_H
#include "../moonstill.h"
#include "../base/error.h"

struct ms_batch {
  int64_t tokens, segments;
  int32_t *token;         /* [tokens] */
  int32_t *segment_start; /* [segments + 1] */
  int32_t *position;      /* [tokens], from 0 in each segment */
  float *weight[2];       /* [tokens], by MS_ON_RESPONSE and MS_ON_ALL */
  double sum[2];          /* of each weight */
  int64_t rows[2];        /* positions with a weight > 0 */
};

/* A hash of the tokens that the supervised positions predict, never 0. What stands before them may differ
 * between teacher and student, as when the teacher alone sees a hint. */
uint64_t ms_batch_labels(const ms_batch *batch, int on);

#endif

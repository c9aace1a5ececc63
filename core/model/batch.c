/* batch.c - packed batches: checked once here, trusted everywhere else. */
#include "batch.h"

#include <math.h>
#include <string.h>

#include "../base/memory.h"

static ms_status check_segments(int64_t tokens, int64_t segments, const int32_t *start) {
  MS_REQUIRE(start && segments >= 1 && segments <= tokens, "batch: %lld segments for %lld tokens",
             (long long)segments, (long long)tokens);
  MS_REQUIRE(start[0] == 0, "batch: segment_start[0] is %d, not 0", start[0]);
  for (int64_t i = 0; i < segments; i++)
    MS_REQUIRE(start[i + 1] > start[i] && start[i + 1] <= tokens,
               "batch: segment %lld runs from %d to %d of %lld tokens", (long long)i, start[i],
               start[i + 1], (long long)tokens);
  MS_REQUIRE(start[segments] == tokens, "batch: the segments end at %d, not at %lld tokens",
             start[segments], (long long)tokens);
  return MS_OK;
}

static ms_status check_weights(const char *name, int64_t tokens, const float *weight) {
  for (int64_t t = 0; weight && t < tokens; t++)
    MS_REQUIRE(isfinite(weight[t]) && weight[t] >= 0, "batch: %s[%lld] is %g, not a weight", name,
               (long long)t, weight[t]);
  return MS_OK;
}

static ms_status new_arrays(ms_batch *b) {
  size_t n = (size_t)b->tokens;
  void *p;
  MS_TRY(ms_alloc_undefined(n * 4, "batch: tokens", &p));
  b->token = p;
  MS_TRY(ms_alloc_undefined(((size_t)b->segments + 1) * 4, "batch: segments", &p));
  b->segment_start = p;
  MS_TRY(ms_alloc_undefined(n * 4, "batch: positions", &p));
  b->position = p;
  for (int on = 0; on < 2; on++) {
    MS_TRY(ms_alloc(n * 4, "batch: weights", &p));
    b->weight[on] = p;
  }
  return MS_OK;
}

static void set_positions(ms_batch *b) {
  for (int64_t i = 0; i < b->segments; i++)
    for (int32_t t = b->segment_start[i]; t < b->segment_start[i + 1]; t++)
      b->position[t] = t - b->segment_start[i];
}

/* A NULL `weight` leaves `missing` everywhere; the last position of a segment predicts nothing. */
static void set_weights(ms_batch *b, int on, const float *weight, float missing) {
  for (int64_t t = 0; t < b->tokens; t++) b->weight[on][t] = weight ? weight[t] : missing;
  for (int64_t i = 0; i < b->segments; i++) b->weight[on][b->segment_start[i + 1] - 1] = 0;
  for (int64_t t = 0; t < b->tokens; t++) {
    b->sum[on] += (double)b->weight[on][t];
    b->rows[on] += b->weight[on][t] > 0;
  }
}

ms_status ms_batch_new(int64_t tokens, const int32_t *token, int64_t segments,
                       const int32_t *segment_start, const float *response, const float *all,
                       ms_batch **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(token && tokens >= 1 && tokens < INT32_MAX, "batch: %lld tokens", (long long)tokens);
  MS_TRY(check_segments(tokens, segments, segment_start));
  for (int64_t t = 0; t < tokens; t++)
    MS_REQUIRE(token[t] >= 0, "batch: token %d at position %lld", token[t], (long long)t);
  MS_TRY(check_weights("response", tokens, response));
  MS_TRY(check_weights("all", tokens, all));
  MS_TRY(ms_alloc(sizeof(ms_batch), "batch", &p));
  ms_batch *b = p;
  b->tokens = tokens;
  b->segments = segments;
  ms_status st = new_arrays(b);
  if (st != MS_OK) {
    ms_batch_free(b);
    return st;
  }
  memcpy(b->token, token, (size_t)tokens * 4);
  memcpy(b->segment_start, segment_start, ((size_t)segments + 1) * 4);
  set_positions(b);
  set_weights(b, MS_ON_RESPONSE, response, 0);
  set_weights(b, MS_ON_ALL, all, 1);
  *out = b;
  return MS_OK;
}

void ms_batch_free(ms_batch *batch) {
  if (!batch) return;
  ms_free(batch->token);
  ms_free(batch->segment_start);
  ms_free(batch->position);
  ms_free(batch->weight[0]);
  ms_free(batch->weight[1]);
  ms_free(batch);
}

int64_t ms_batch_segments(const ms_batch *batch) { return batch->segments; }
int64_t ms_batch_tokens(const ms_batch *batch) { return batch->tokens; }

double ms_batch_weight(const ms_batch *batch, int on) {
  return on == MS_ON_RESPONSE || on == MS_ON_ALL ? batch->sum[on] : 0;
}

ms_status ms_batch_rows(const ms_batch *batch, int on, int32_t *rows) {
  MS_REQUIRE(on == MS_ON_RESPONSE || on == MS_ON_ALL, "batch: on is %d, neither response nor all",
             on);
  for (int64_t i = 0; i < batch->segments; i++) {
    rows[i] = 0;
    for (int32_t t = batch->segment_start[i]; t < batch->segment_start[i + 1]; t++)
      rows[i] += batch->weight[on][t] > 0;
  }
  return MS_OK;
}

uint64_t ms_batch_labels(const ms_batch *batch, int on) {
  uint64_t hash = 1;
  for (int64_t t = 0; t < batch->tokens; t++)
    if (batch->weight[on][t] > 0)
      hash = (hash ^ (uint32_t)batch->token[t + 1]) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  return hash | 1;
}

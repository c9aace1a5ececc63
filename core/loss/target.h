/* target.h - what a teacher says about supervised rows, in three kinds behind one handle.
 *
 * Row r belongs to the r-th position of the batch whose weight for `options.on` is positive. A
 * hidden target keeps its teacher's head alive through `refer`, and is of no use once that changed.
 *
 * In bf16 a component of a state is off by up to 2^-8 of itself, by 1.66e-3 in the root mean square.
 * That moves logits by that part of their standard deviation s (by more only where large components
 * cancel in all logits): a KL of (1.66e-3 s / T)^2 / 2 = 1.4e-6 (s / T)^2 in the mean, and less than
 * 2^-17 (s / T)^2 = 8e-6 (s / T)^2 in each row. */
#ifndef MS_TARGET_H
#define MS_TARGET_H
#include "../group/group.h"
#include "../moonstill.h"
#include "workspace.h"

/* Where logits come from: a final hidden state and a head. Everything a family may do between the
 * last norm and the softmax is here, so that no path can forget it.
 *
 * A head may be cut by ids over the ranks of `tp`: each has some rows, in order of the ranks, one part
 * behind the other, and all make the same calls. */
typedef struct ms_head_weights {
  const void *w; /* [vocab, width], f32 or bf16, on the device: this rank's rows */
  int dtype;
  int64_t vocab, width;
  float scale;               /* multiplies the logits; 1 for none */
  float soft_cap;            /* c tanh(z / c), after scale; 0 for none */
  const ms_changes *changes; /* of w; NULL where w stays as it is */
  ms_group *tp;              /* NULL, or of one: the head is whole, the next two do not count */
  int64_t first_id;          /* of all ids, the one of this rank's first row */
  int64_t vocab_all;         /* rows of all ranks */
} ms_head_weights;

/* How many parts the head is in; the first id of this rank's, and how many of its ids lie below one; all
 * ids. */
static inline int32_t ms_head_parts(const ms_head_weights *h) { return h->tp ? h->tp->size : 1; }
static inline int64_t ms_head_first(const ms_head_weights *h) {
  return ms_head_parts(h) > 1 ? h->first_id : 0;
}
static inline int64_t ms_head_below(const ms_head_weights *h, int64_t id) {
  int64_t n = id - ms_head_first(h);
  return n < 0 ? 0 : n < h->vocab ? n : h->vocab;
}
static inline int64_t ms_head_ids(const ms_head_weights *h) {
  return ms_head_parts(h) > 1 ? h->vocab_all : h->vocab;
}

/* Temperatures beyond these have no use, and products and squares of two within them stay finite. */
#define MS_MIN_TEMPERATURE 0.001
#define MS_MAX_TEMPERATURE 1000.0
static inline int ms_temperature_fits(double t) {
  return t >= MS_MIN_TEMPERATURE && t <= MS_MAX_TEMPERATURE;
}

struct ms_target {
  ms_target_options options; /* vocab is never 0: the ids below it are those that take part;
                                temperature is never NaN for topk */
  int64_t rows;
  ms_device *dev; /* where the arrays are; NULL: host memory */
  void *data;     /* all of the arrays; those below lie in it */
  size_t bytes;
  int32_t *id;                        /* topk: [rows, k] */
  float *log_p;                       /* topk: [rows, k] */
  float *log_rest;                    /* topk: [rows] */
  float *logits;                      /* logits: [rows, head.vocab], before scale and soft cap: of a
                                         rank's part of the head */
  void *hidden;                       /* hidden: [rows, head.width], in options.hidden_dtype */
  ms_head_weights head;               /* hidden: as given; logits: vocab, scale and soft_cap */
  void (*refer)(void *owner, int by); /* counts references to the head's owner */
  void *owner;
  int64_t made;    /* hidden: head.changes when it was made */
  uint64_t labels; /* what the rows' next tokens hash to; 0: made of values, not known */
};

/* Makes a target of any kind from the hidden states ([rows, width], after the final norm, on
 * the device) of the rows in question, in chunks within `budget` bytes (0: the default, as for the
 * head). `refer(owner, +1)` keeps the head alive, `refer(owner, -1)` lets go; called for hidden
 * targets only. The chunks are in `workspace`; NULL: allocated and freed. rows may be 0.
 *
 * Where the head is cut all its ranks call, with the same states. A top-k target is then that of all ids,
 * the same on all of them; the others are of this rank's ids. */
ms_status ms_target_make(ms_device *dev, const ms_target_options *options, int64_t rows,
                         ms_act hidden, const ms_head_weights *head, int64_t budget,
                         ms_head_workspace *workspace, void (*refer)(void *owner, int by),
                         void *owner, ms_target **out);

/* A target whose arrays are to be written by the caller: on a device, or NULL: in host memory. A hidden one
 * refers to its head's owner as above. */
ms_status ms_target_room(ms_device *dev, const ms_target_options *options, int64_t rows,
                         const ms_head_weights *head, void (*refer)(void *owner, int by),
                         void *owner, ms_target **out);

#endif

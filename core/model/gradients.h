/* gradients.h - what becomes of gradients and weights where several ranks learn from different batches.
 *
 * Gradients are summed bucket by bucket: some layers each, in the order in which the backward pass fills
 * them, and in the step's last batch while it goes on. Where ranks share the optimiser's memory out, each
 * gets the sum of its own part of a bucket only, updates that part of the weights, and the parts are
 * gathered bucket by bucket while the next forward pass begins. */
#ifndef MS_GRADIENTS_H
#define MS_GRADIENTS_H
#include "../group/group.h"
#include "model.h"

/* Parameters side by side in the arenas; all that is cut among ranks begins where a block of squares
 * does. */
typedef struct ms_bucket {
  int32_t first, end;  /* parameters first .. end - 1 */
  int32_t layer;       /* complete when the backward pass has done this layer; -1: the embedding */
  int64_t from, total; /* elements of the arenas */
  int64_t *count;      /* [ranks] in each one's part, in order */
  int64_t own, at;     /* where this rank's part begins; and in an optimiser's arenas */
  ms_work *work;       /* under way: a sum, or a gathering */
} ms_bucket;

typedef struct ms_buckets {
  ms_group *group;
  int shard; /* as in ms_adamw_options */
  int users; /* optimisers whose arenas are laid out by it */
  int32_t n;
  ms_bucket *bucket; /* [n] from the last layers to the first */
  int64_t *counts;   /* [n, ranks] */
  int64_t owned;     /* elements that this rank updates */
  int late;          /* nothing begins before the backward pass has ended: for comparison */
  int sums;          /* the step's last batch is being learnt */
  int32_t ready, begun,
      done;         /* how many have all their gradients; whose sums have begun; are done */
  int32_t gathered; /* how many, from the last one on, have all their weights */
} ms_buckets;

/* Elements of arenas: parameters begin at multiples of this, of weights and of gradients. */
enum { MS_ARENA_UNIT = 32 };

/* How gradients of this model are summed from now on. An error where an optimiser is laid out for another
 * group, or shares otherwise. */
ms_status ms_buckets_make(ms_model *model, ms_group *group, int shard);
/* Whether ranks still write to, or read from, the model's memory; frees them where not. */
int ms_buckets_free(ms_model *model);
/* Which elements of a trained parameter this rank updates, and where its optimiser has them. */
void ms_buckets_part(const ms_model *model, const ms_parameter *p, int64_t *from, int64_t *count,
                     int64_t *at);

/* ---- sums ---- */

/* Before the step's last batch is learnt. */
ms_status ms_gradients_begin(ms_model *model, ms_group *group);
/* Whether a batch may be learnt: an error once gradients are those of all ranks, in whole or in part. */
ms_status ms_gradients_check(const ms_model *model);
/* The last batch was not learnt. Where no sum had begun nothing has happened. */
void ms_gradients_failed(ms_model *model);
/* Before gradients are zeroed. */
ms_status ms_gradients_forget(ms_model *model);
/* The backward pass has done this layer, and all above it; `layers`: the final norm. */
ms_status ms_gradients_ready(ms_model *model, int32_t layer);
/* All gradients are there: waits for the sums. */
ms_status ms_gradients_finish(ms_model *model);
/* All of it at once, unless that was done since gradients were zeroed. */
ms_status ms_model_sum_gradients(ms_model *model, ms_group *group);

/* ---- weights ---- */

/* Begins to gather what each rank has updated. */
ms_status ms_weights_gather(ms_model *model);
/* Waits for weights that a forward pass is about to use: of the embedding (-1), of a layer, of what
 * follows the layers and so of all (`layers`). */
ms_status ms_weights_ready(const ms_model *model, int32_t layer);
static inline ms_status ms_weights_settle(const ms_model *model) {
  return ms_weights_ready(model, model->config.layers);
}

#endif

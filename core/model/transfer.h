/* transfer.h - targets that some ranks make and others learn from.
 *
 * What is carried is a sample's supervised rows, as a plan (core/group/plan.h) says: first they enter the
 * groups of the receiver's ranks, then the ranks of such a group exchange them. A message has the rows of
 * its samples in their order, a tensor behind the other. What this rank has of a round, its own and what
 * came, is a store from which targets of any batch are made; it lasts until the round ends. A message that
 * is on its way keeps its own memory: the round that it is of may have ended long before it is read. */
#ifndef MS_TRANSFER_H
#define MS_TRANSFER_H
#include "../group/slots.h"
#include "../moonstill.h"
#include "../loss/target.h"

enum { MS_TRANSFER_TENSORS = 3 };

/* A part of each row. */
typedef struct ms_transfer_tensor {
  const char *name;
  int64_t cols;
  size_t element; /* bytes of one, on its way */
} ms_transfer_tensor;

/* The rows of some samples. */
typedef struct ms_bundle {
  int32_t peer; /* whom it goes to or comes from; the rank itself: it stays here */
  int stage, sends;
  int32_t samples;
  int32_t *sample; /* ascending */
  int64_t *first;  /* [samples + 1]: rows before each */
  char *data;
  size_t bytes;
  ms_work *work;
  struct ms_edge *edge; /* the memory is a slot's; NULL: its own */
  int held;             /* the slot is begun and not given, or taken and not released */
  struct ms_bundle *next;
} ms_bundle;

/* What goes from this rank to another one of its machine in a stage, or comes from there: a block a round. */
typedef struct ms_edge {
  int32_t peer;
  int stage, sends;
  ms_slots *slots; /* NULL before the first block */
  struct ms_edge *next;
} ms_edge;

struct ms_transfer {
  ms_group *group;
  ms_target_options options;
  ms_transfer_tensor tensor[MS_TRANSFER_TENSORS];
  int tensors;
  int64_t width, row_bytes;
  int dtype;
  ms_model *head; /* NULL: hidden targets of no rows only */
  int open;       /* a round is under way */
  int32_t samples;
  int32_t *rows;     /* [samples] of the round */
  ms_bundle *round;  /* in order of posting */
  ms_bundle *posted; /* of rounds before, not yet read */
  ms_links *links;   /* NULL: all are messages of the group */
  ms_edge *edges;
  int64_t key;
  int32_t depth;
  int64_t sent[MS_TRANSFER_TENSORS], received[MS_TRANSFER_TENSORS], messages, shared;
  size_t bytes, most; /* of all bundles; at any time */
  double seconds[4];  /* by MS_TRANSFER_.. */
};

/* What takes time: rows into bundles, waiting for those of others, the exchange within a group, and
 * targets out of bundles. */
enum { MS_TRANSFER_PACK, MS_TRANSFER_WAIT, MS_TRANSFER_EXCHANGE, MS_TRANSFER_TAKE };

#endif

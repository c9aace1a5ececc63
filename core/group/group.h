/* group.h - what ranks do together, one line per operation.
 *
 * Every rank of a group makes the same calls in the same order, and all get the same bits. A group of
 * one is still a group: `self`. A group lives until its process ends, so whoever is given one may keep
 * it. Finalizers run on one rank alone, so nothing here may be called in them.
 *
 * A call with `work` NULL returns when its part is done. Otherwise it returns at once, *work is to be
 * given to ms_work_wait, and until then the memory is the group's: nobody reads or writes it.
 *
 * Parts: `count[r]` elements belong to rank r, in order, one behind the other; they may be 0.
 *
 * Sums: element by element, in the order of ranks, in f32 for f32 and bf16, in the type itself for
 * others. So bits depend on the group's size alone, not on how a buffer is cut into calls. */
#ifndef MS_GROUP_H
#define MS_GROUP_H
#include "../../kernels/ops.h"
#include "../moonstill.h"

typedef enum { MS_SUM, MS_MAX } ms_reduction;
typedef struct ms_work ms_work;

/* Memory is that of the device of `s`; NULL: the host's. Counts are of elements. */
typedef struct ms_group_ops {
  const char *name; /* "self", "exchange" */
  /* x[0 .. n-1] of all ranks, reduced, in place. */
  ms_status (*all_reduce)(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n,
                          ms_reduction how, ms_work **work);
  /* x holds all parts; afterwards this rank's own is reduced, in its place, the others are undefined. */
  ms_status (*reduce_scatter)(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                              ms_reduction how, ms_work **work);
  /* x has room for all parts and holds this rank's own in its place; afterwards it holds all. */
  ms_status (*all_gather)(ms_group *g, ms_stream *s, void *x, int dtype, const int64_t *count,
                          ms_work **work);
  /* The root's x for all. */
  ms_status (*broadcast)(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t root,
                         ms_work **work);
  /* Part r of x goes to rank r, whose part of this rank comes into part r of y. */
  ms_status (*all_to_all)(ms_group *g, ms_stream *s, const void *x, const int64_t *count, void *y,
                          const int64_t *count_y, int dtype, ms_work **work);
  /* From one rank to another, which asks for as many. */
  ms_status (*send)(ms_group *g, ms_stream *s, const void *x, int dtype, int64_t n, int32_t to,
                    ms_work **work);
  ms_status (*receive)(ms_group *g, ms_stream *s, void *x, int dtype, int64_t n, int32_t from,
                       ms_work **work);
  /* Nobody goes on before all are here. */
  ms_status (*barrier)(ms_group *g);
  /* The ranks of one colour become a group, ordered by key, then by rank. A colour below 0: no group. */
  ms_status (*split)(ms_group *g, int32_t colour, int32_t key, ms_group **out);
} ms_group_ops;

/* Kinds of calls. */
enum {
  MS_CALL_ALL_REDUCE,
  MS_CALL_REDUCE_SCATTER,
  MS_CALL_ALL_GATHER,
  MS_CALL_BROADCAST,
  MS_CALL_ALL_TO_ALL,
  MS_CALL_SEND,
  MS_CALL_RECEIVE,
  MS_CALL_BARRIER,
  MS_CALL_KINDS
};

struct ms_group {
  const ms_group_ops *ops;
  int32_t rank, size;
  int64_t sent[MS_CALL_KINDS]
              [MS_F64 + 1]; /* bytes to other ranks, by kind and dtype of the calls */
};

/* Waits for a work that was begun and frees it; NULL is done. After an error the group is of no use. */
ms_status ms_work_wait(ms_work *work);
/* Whether it is done; what is done is still to be waited for. */
ms_status ms_work_test(ms_work *work, int *done);

/* Moves on whatever was begun and is not waited for: messages stand still while a rank computes. Never waits. */
void ms_group_progress(void);

/* The status of what every rank did its part of: MS_OK where it is that on all. A rank that failed keeps
 * its status and message; the others fail with the message of the first one that did. */
ms_status ms_group_agree(ms_group *group, ms_status st);

/* f32, bf16, f64, i32, i64, u8; an error for others. */
ms_status ms_group_check_dtype(int dtype);
/* Bytes of an element of one of them. */
size_t ms_element_size(int dtype);

#endif

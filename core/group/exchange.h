/* exchange.h - groups of ranks that send each other bytes, and the job that they belong to. */
#ifndef MS_EXCHANGE_H
#define MS_EXCHANGE_H
#include "group.h"
#include "transport.h"

/* What a rank may wait in that is no call of a group: for slots. `number` is a block, and `peer` is of the
 * world. */
enum { MS_CALL_BEGIN = MS_CALL_KINDS, MS_CALL_TAKE, MS_CALL_FINISH };

/* One call of one rank, as other ranks see it. Where all ranks must say the same, they are compared. */
typedef struct ms_call {
  int64_t number; /* of the group's calls, from 1 */
  int64_t count;  /* elements; those of all parts */
  uint64_t parts; /* a hash of the parts */
  int32_t group;  /* its context */
  int32_t op, dtype, how;
  int32_t peer; /* the root, or whom it is sent to or received from: a rank of the group; else -1 */
} ms_call;

enum { MS_CALL_TEXT = 160, MS_EXCHANGE_TIMEOUT = 600 };
/* "all_reduce (sum) of 1000 f32, call 3 of group 0" */
const char *ms_call_text(const ms_call *c, char *text);

/* All ranks that were launched together. */
typedef struct ms_job {
  const ms_transport *transport;
  int32_t contexts;       /* how many groups this rank knows of: the next one's context */
  int checks;             /* calls are compared before they begin */
  int broken;             /* a call has failed: nothing is waited for any more */
  char why[512];          /* its message */
  int64_t largest;        /* bytes of a message: longer ones are cut */
  double timeout;         /* seconds that a rank waits for one that does nothing */
  ms_work *works, **last; /* those under way, in the order in which they began */
} ms_job;

/* Begins a job; `world` is the group of all its ranks. */
ms_status ms_exchange_open(const ms_transport *transport, int checks, double timeout,
                           ms_group **world);

/* Longer messages are cut into such: for tests, the same on all ranks; at most MS_MESSAGE_BYTES. */
void ms_test_messages(int64_t bytes);
/* For whoever waits for something else of the job's ranks: moves all works on, an error where one fails;
 * waits a moment, the longer the more rounds there were; seconds until a wait is in vain. */
ms_status ms_exchange_advance(void);
void ms_exchange_pause(int64_t round);
double ms_exchange_timeout(void);
/* The number in the job of a group's rank. */
int32_t ms_exchange_rank(const ms_group *g, int32_t rank);

/* ---- watch.c: what the ranks of this machine see of each other ---- */

/* Memory that the job's ranks on this machine share; `name` is the same for all and new. */
ms_status ms_watch_open(const char *name, int32_t rank, int32_t size);
/* All ranks of the machine have opened it: nobody else finds it any more. */
void ms_watch_close(const char *name);
/* This rank has begun a call; has begun or ended to wait for one. */
void ms_watch_call(const ms_call *c);
void ms_watch_waits(const ms_call *c, int waits);
/* A message of this rank's is done. */
void ms_watch_progress(void);
/* The first rank of this machine; -1 where ranks are not seen. */
int32_t ms_watch_first(void);
/* Looks at the others, once a second while this rank waits: an error where all ranks wait and no message
 * has come anywhere for half a minute, or where none of those that can be seen has done anything for longer
 * than `timeout`. `since` is when this rank began to wait. */
ms_status ms_watch_look(double since, double timeout);

/* Whether this rank is the first one of its machine that fails; -1 where nobody is seen. */
int ms_watch_fails(void);

/* ---- cores.c ---- */

/* Gives a rank that mpirun has bound, though nobody asked for it, its share of the cores that mpirun may
 * use. Before there are threads. */
void ms_cores_widen(void);
/* Ranks that may use the same cores of a machine share them: sets the number of threads, unless
 * OMP_NUM_THREADS does. All ranks call it. */
ms_status ms_cores_share(ms_group *world);

/* ---- beat.c: what ranks of other machines do ---- */

/* What a rank's page says, as its machine tells the others. */
typedef struct ms_beat {
  int32_t rank, waits;
  uint32_t version, messages;
  int64_t used;
  ms_call call;
} ms_beat;

/* Begins to tell other machines, where there are any, and to hear of them. All ranks call it, once their
 * pages are there; `job` is the name of these. */
ms_status ms_beat_open(ms_group *world, const char *job);
/* For beat.c: what to tell of a rank of this machine (0: it is of another one, or its page is just
 * written), and what was told of another one's. */
int ms_watch_beat(int32_t rank, ms_beat *out);
void ms_watch_heard(const ms_beat *beat);

#endif

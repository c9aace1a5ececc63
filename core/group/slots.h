/* slots.h - blocks of memory that one rank writes and other ranks of its machine read where they are.
 *
 * A writer has `depth` slots, which it fills in turn: block b (from 1) is in slot (b - 1) mod depth. Every
 * reader takes all blocks in order and releases them in order; a slot is written again once all readers
 * have released what was in it. What is in a block is the caller's.
 *
 * Memory may be that of a device, where work is queued on streams and runs later. So a side never says
 * by itself that data are there: the writer records an event behind what it queued, and announces the
 * block; a reader that has seen the announcement lets its stream wait for the event, reads, records an
 * event of its own behind that, and releases the block. Announcements and releases are numbers in memory
 * that the processes share, each written by one side; that side remembers it as well, so that a lost
 * number is an error and never a block read too early.
 *
 * `begin` and `finish` wait for readers, `take` and `join` for the writer; nothing else waits. A wait moves the
 * group's works on, has its deadline, and ends with an error when the rank that is awaited has ended. */
#ifndef MS_SLOTS_H
#define MS_SLOTS_H
#include <stdatomic.h>

#include "exchange.h"

enum { MS_SLOTS_DEPTH = 66, MS_SLOTS_READERS = 64 }; /* at most */

typedef struct ms_slots ms_slots;

/* Who writes and who reads, by their ranks in the group. The writer may be a reader too. */
typedef struct ms_slots_plan {
  int32_t writer, readers;
  const int32_t *reader;
  int32_t depth;
  int64_t bytes; /* of a slot, at most; what is never written takes no memory */
  const struct ms_backing_ops *backing; /* NULL: memory of the machine */
} ms_slots_plan;

/* Sockets between the ranks of a group that are on one machine. They find each other once, together;
 * then a writer gives its slots to readers whenever it likes. */
typedef struct ms_links ms_links;

/* machine[r] is the lowest rank of the group whose machine rank r is on. Every rank calls. */
ms_status ms_group_machines(ms_group *group, int32_t *machine);
/* Every rank calls. An error on one rank is one on all, and then nothing is open. */
ms_status ms_links_open(ms_group *group, ms_links **out);
/* Whether a rank can be given memory, or gives it; not so the rank itself. */
int ms_links_has(const ms_links *links, int32_t rank);
/* Those of the world, which ms_group_share opens; NULL before that, or where they cannot be. */
ms_links *ms_links_world(void);
/* Local; slots that were made or joined over them may stay, but see nobody end any more. NULL is fine. */
void ms_links_close(ms_links *links);

/* By the writer: makes slots, which are on their way to the readers when it returns. `key` is what they ask
 * for: those of one writer and key are joined in the order in which they were made. */
ms_status ms_slots_make(ms_links *links, const ms_slots_plan *plan, int64_t key, ms_slots **out);
/* By a reader: waits for the next slots of a writer and key. `backing` as the writer's. */
ms_status ms_slots_join(ms_links *links, int32_t writer, int64_t key,
                        const struct ms_backing_ops *backing, ms_slots **out);
/* By a reader: drops those that have come for a key and were not joined. */
void ms_links_forget(ms_links *links, int64_t key);

/* Where the writer's next block goes, up to the plan's bytes. */
ms_status ms_slots_begin(ms_slots *s, ms_stream *on, void **data);
/* The block that was begun is what has been written, or queued on the stream. */
ms_status ms_slots_give(ms_slots *s, ms_stream *on, int64_t bytes);

/* The next block, to be read only: its memory is there until it is released. Several may be held. */
ms_status ms_slots_take(ms_slots *s, ms_stream *on, const void **data, int64_t *bytes);
/* The oldest block that this reader holds has been read, or that is queued on the stream. */
ms_status ms_slots_release(ms_slots *s, ms_stream *on);

/* Whether the writer's next begin, and the reader's next take, would not wait. */
ms_status ms_slots_can_begin(ms_slots *s, int *can);
ms_status ms_slots_can_take(ms_slots *s, int *can);

/* Every rank of the plan calls when it needs no more blocks and holds none, and its streams have done
 * what was queued. The writer waits until all have; a reader drops what it has not taken, and the writer
 * may go on for the others. */
ms_status ms_slots_finish(ms_slots *s);
/* Local, never waits; NULL is fine. A side that had not finished is then one that has ended. */
void ms_slots_free(ms_slots *s);

/* Bytes that a block may have. */
int64_t ms_slots_room(const ms_slots *s);

/* ---- what is behind it ---- */

typedef struct ms_backing ms_backing;

/* What slots are made of. The writer's process makes the memory and its events; the processes of other
 * readers open both once, by a handle of `handle_bytes` and a descriptor (-1: needs none). */
typedef struct ms_backing_ops {
  const char *name; /* "memory" */
  int64_t handle_bytes;
  /* The caller closes the descriptor. */
  ms_status (*make)(int64_t bytes, int32_t events, void *handle, int *fd, ms_backing **out);
  ms_status (*open)(int64_t bytes, int32_t events, const void *handle, int fd, ms_backing **out);
  /* An event is what was queued on the stream when it was last recorded; who waits for one waits for
   * what was recorded before that call. NULL is the host, whose work is done. */
  ms_status (*record)(ms_backing *b, int32_t event, ms_stream *on);
  ms_status (*wait)(ms_backing *b, int32_t event, ms_stream *on);
  /* The maker closes last, unless memory `stays` for those who have it open. */
  int stays;
  void (*close)(ms_backing *b);
} ms_backing_ops;

struct ms_backing {
  const ms_backing_ops *ops;
  char *memory;
  int64_t bytes;
};

/* Memory that processes share: made with its descriptor, which others map, to read only or to write too. */
ms_status ms_memory_make(int64_t bytes, int *fd, char **out);
ms_status ms_memory_map(int fd, int64_t bytes, int writes, char **out);
void ms_memory_unmap(void *memory, int64_t bytes);
extern const ms_backing_ops ms_backing_memory;

/* The numbers that the sides share, all 0 at first: the last block announced in each slot, and the last
 * one that each reader released. */
typedef struct ms_slots_control {
  _Alignas(64) struct ms_slots_writer {
    _Atomic uint64_t announced[MS_SLOTS_DEPTH];
    int64_t bytes[MS_SLOTS_DEPTH];
    _Atomic uint32_t finished;
  } writer;
  struct ms_slots_reader {
    _Alignas(64) _Atomic uint64_t released[MS_SLOTS_DEPTH];
    _Atomic uint32_t finished;
  } reader[MS_SLOTS_READERS];
} ms_slots_control;

/* One rank's side. Peers are the readers in the plan's order, and the writer behind them. */
struct ms_slots {
  ms_slots_control *control;
  ms_backing *backing;
  int writes, self; /* self: the reader that this rank is; -1 for none */
  int32_t readers, depth;
  int64_t slot_bytes;
  uint64_t begun, given;    /* blocks, by the writer */
  uint64_t taken, released; /* by this reader */
  int finished;
  int32_t name[MS_SLOTS_READERS + 1]; /* of each peer: its rank in the world, for messages */
  int fd[MS_SLOTS_READERS + 1];       /* the link to it, which hangs up when it ends; -1: none */
  uint8_t ended[MS_SLOTS_READERS + 1];
  int64_t control_bytes; /* as mapped; 0: the control is the caller's */
};

/* One wait, of which each round moves the group's works on and pauses, and in which others see for whom
 * it is; an error once that has lasted too long. */
typedef struct ms_slots_wait {
  ms_call call; /* peer -1 at first */
  int64_t round;
  double since, looked, began; /* began: of a timeline */
} ms_slots_wait;
ms_status ms_slots_wait_round(ms_slots_wait *w, int32_t peer);
void ms_slots_wait_end(ms_slots_wait *w);

/* What has come and nobody has asked for yet is in `arrived`. */
struct ms_links {
  ms_group *group;
  struct ms_arrival *arrived;
  int fd[]; /* [ranks]; -1: of another machine, or the rank itself */
};

/* A side over control and backing that are there: `me` is a rank of the plan. */
ms_status ms_slots_new(const ms_slots_plan *plan, int32_t me, ms_slots_control *control,
                       ms_backing *backing, ms_slots **out);

/* What the operations are made of, two steps each, which tests take one by one. The first one may have to
 * be repeated: *can 0, and *peer is whom it waits for. The second ones never wait, but that of `finish`. */
enum { MS_SLOTS_BEGIN, MS_SLOTS_GIVE, MS_SLOTS_TAKE, MS_SLOTS_RELEASE, MS_SLOTS_FINISH };
typedef ms_status ms_slots_step(ms_slots *s, ms_stream *on, int *can, int32_t *peer);
extern ms_slots_step *const ms_slots_steps[][2];

/* Events: a slot is filled; a reader is done with it. */
static inline int32_t ms_slots_events(const ms_slots_plan *p) {
  return p->depth * (1 + p->readers);
}
/* Slots begin on pages. */
static inline int64_t ms_slots_slot_bytes(const ms_slots_plan *p) {
  return (p->bytes + 4095) / 4096 * 4096;
}

#endif

/* letters.c - texts that a rank sends another one without waiting for it.
 *
 * A letter is two messages: how long it is, and the text. Those of one pair of ranks arrive in order. What
 * is on its way is kept here until it has arrived. */
#include <string.h>

#include "../base/memory.h"
#include "group.h"

typedef struct letter {
  int64_t bytes;
  ms_work *work[2];
  struct letter *next;
  char text[];
} letter;

static letter *on_their_way, **last = &on_their_way;

/* Whether a letter has arrived; with `wait` it is waited for. */
static ms_status arrive(letter *l, int wait, int *done) {
  *done = 1;
  for (int i = 0; i < 2; i++) {
    int here = 1;
    if (!wait) MS_TRY(ms_work_test(l->work[i], &here));
    *done = *done && here;
    if (!here) continue;
    ms_work *work = l->work[i];
    l->work[i] = NULL;
    MS_TRY(ms_work_wait(work));
  }
  return MS_OK;
}

static ms_status drop_arrived(int wait) {
  while (on_their_way) {
    letter *l = on_their_way;
    int done;
    MS_TRY(arrive(l, wait, &done));
    if (!done) return MS_OK;
    on_their_way = l->next;
    if (!on_their_way) last = &on_their_way;
    ms_free(l);
  }
  return MS_OK;
}

ms_status ms_letter_send(ms_group *g, int32_t to, const char *text, int64_t bytes) {
  void *p;
  MS_TRY(drop_arrived(0));
  MS_REQUIRE(text && bytes >= 0, "letter: %lld bytes", (long long)bytes);
  MS_TRY(ms_alloc(sizeof(letter) + (size_t)bytes, "letter", &p));
  letter *l = p;
  l->bytes = bytes;
  memcpy(l->text, text, (size_t)bytes);
  *last = l; /* from now on its memory may be the transport's */
  last = &l->next;
  MS_TRY(g->ops->send(g, NULL, &l->bytes, MS_I64, 1, to, &l->work[0]));
  return g->ops->send(g, NULL, l->text, MS_U8, bytes, to, &l->work[1]);
}

ms_status ms_letter_receive(ms_group *g, int32_t from, char **text) {
  int64_t bytes;
  void *p;
  *text = NULL;
  MS_TRY(g->ops->receive(g, NULL, &bytes, MS_I64, 1, from, NULL));
  MS_TRY(ms_alloc((size_t)bytes + 1, "letter", &p));
  ms_status st = g->ops->receive(g, NULL, p, MS_U8, bytes, from, NULL);
  if (st != MS_OK) return st; /* its memory may still be the transport's */
  *text = p;
  return MS_OK;
}

ms_status ms_letter_settle(void) { return drop_arrived(1); }

ms_status ms_group_discard(ms_group *g, int32_t from, int64_t bytes) {
  void *p;
  MS_REQUIRE(bytes >= 0, "discard: %lld bytes", (long long)bytes);
  MS_TRY(ms_alloc_undefined((size_t)bytes, "what nobody reads", &p));
  MS_TRY(g->ops->receive(g, NULL, p, MS_U8, bytes, from,
                         NULL)); /* else its memory is the transport's */
  ms_free(p);
  return MS_OK;
}

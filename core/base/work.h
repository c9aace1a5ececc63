/* work.h - a private folder beside a path, in which is made what will stand there, and into which goes
 * what stands there no longer.
 *
 * Its name, .moonstill- and 32 digits, cannot be guessed, and nobody else may write into it. A marker
 * in it says for whom it is and is locked for as long as its process lives, however that ends: a folder
 * whose marker can be locked is of a process that is gone, also where that ran on another machine.
 * So what we remove is ours by three proofs: the name, the marker that repeats it, the free lock. */
#ifndef MS_WORK_H
#define MS_WORK_H
#include "error.h"

typedef struct ms_work {
  char *path;   /* what it is for; its parent exists */
  char *folder; /* beside `path` */
  int parent;   /* the folder that both are in, open */
  int dir;      /* `folder`, open */
  int lock;     /* its marker, open and locked */
} ms_work;

/* Makes the folder; removes those beside `path` whose processes are gone. */
ms_status ms_work_begin(const char *path, ms_work *out);
/* The two names there are in the folder: what will be at `path`, and what was. To be freed with
 * ms_text_free. */
ms_status ms_work_new(const ms_work *work, char **out);
ms_status ms_work_old(const ms_work *work, char **out);
/* The first of them in a folder called `name` that another process has in `parent`. */
ms_status ms_work_of(const char *parent, const char *name, char **out);
/* Removes the folder and frees the struct's content; nothing begun is fine. The old one is kept while
 * nothing is at `path`. Keeps the error of the calling thread: what cannot be removed is a warning. */
void ms_work_end(ms_work *work);
/* Leaves the folder for good: without its marker, nobody takes it for ours. Frees the struct's content. */
void ms_work_leave(ms_work *work);

#endif

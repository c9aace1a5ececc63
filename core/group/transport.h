/* transport.h - what carries bytes between the ranks of a job: all that core/group asks of MPI.
 *
 * It is implemented in a shared object of its own, which nothing of the core is linked to; so its
 * functions return NULL, or the text of an error that lasts until the next call. */
#ifndef MS_TRANSPORT_H
#define MS_TRANSPORT_H
#include <stdint.h>

enum { MS_TRANSPORT_VERSION = 1 };

typedef struct ms_transport {
  int version; /* MS_TRANSPORT_VERSION */
  const char *name, *library;
  int32_t rank, size; /* of this process in its job */
  int32_t largest_tag;
  /* Begins to send or to receive exactly `bytes`, at most MS_MESSAGE_BYTES. Messages of one pair of ranks
   * and one tag arrive in order. `request` is from the caller, of `request_bytes`. */
  size_t request_bytes;
  const char *(*send)(int32_t to, int32_t tag, const void *x, int64_t bytes, void *request);
  const char *(*receive)(int32_t from, int32_t tag, void *x, int64_t bytes, void *request);
  /* Whether it is done. A message of another length than was asked for is an error. */
  const char *(*test)(void *request, int *done);
  /* Ends the whole job, with a status; does not return. */
  void (*abort)(int status);
} ms_transport;

#define MS_MESSAGE_BYTES ((int64_t)4 << 20) /* each that is done shows that the others go on */

/* What the shared object has: joins the job. */
#define MS_TRANSPORT_OPEN "ms_transport_open"
typedef const char *ms_transport_open_f(const ms_transport **out);

#endif

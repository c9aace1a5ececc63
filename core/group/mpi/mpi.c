/* mpi.c - bytes over MPI, as moonstill-mpi.so: opened by a process that was launched under MPI, so
 * that any other one neither needs nor starts it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "../transport.h"

ms_transport_open_f ms_transport_open;

/* What is asked for, beside MPI's own. */
typedef struct request {
  MPI_Request mpi;
  int bytes; /* to receive; -1: sends */
  int peer;
} request;

static char message[MPI_MAX_ERROR_STRING + 64];
static MPI_Comm job = MPI_COMM_NULL;

static const char *check(int code, const char *what) {
  int length = 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  if (code == MPI_SUCCESS) return NULL;
  MPI_Error_string(code, text, &length);
  snprintf(message, sizeof message, "%s: %s", what, text);
  return message;
}

static const char *send_bytes(int32_t to, int32_t tag, const void *x, int64_t bytes, void *out) {
  request *r = out;
  r->bytes = -1;
  r->peer = to;
  return check(MPI_Isend(x, (int)bytes, MPI_BYTE, to, tag, job, &r->mpi), "MPI_Isend");
}

static const char *receive_bytes(int32_t from, int32_t tag, void *x, int64_t bytes, void *out) {
  request *r = out;
  r->bytes = (int)bytes;
  r->peer = from;
  return check(MPI_Irecv(x, (int)bytes, MPI_BYTE, from, tag, job, &r->mpi), "MPI_Irecv");
}

static const char *test_request(void *of, int *done) {
  request *r = of;
  MPI_Status status;
  int count = 0;
  const char *why = check(MPI_Test(&r->mpi, done, &status), "MPI_Test");
  if (why || !*done || r->bytes < 0) return why;
  if ((why = check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count"))) return why;
  if (count == r->bytes) return NULL;
  snprintf(message, sizeof message, "rank %d sent %d bytes where %d are to come", r->peer, count,
           r->bytes);
  return message;
}

static void abort_job(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  _Exit(status);
}

/* A process that ends without it is taken for one that failed. */
static void finalize(void) {
  int over = 0;
  MPI_Finalized(&over);
  if (!over) MPI_Finalize();
}

const char *ms_transport_open(const ms_transport **out) {
  static ms_transport mpi = {.version = MS_TRANSPORT_VERSION,
                             .name = "mpi",
                             .request_bytes = sizeof(request),
                             .send = send_bytes,
                             .receive = receive_bytes,
                             .test = test_request,
                             .abort = abort_job};
  static char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int started = 0, given, found = 0, rank, size, *largest;
  const char *why = check(MPI_Initialized(&started), "MPI_Initialized");
  if (why) return why;
  if (!started) {
    if ((why = check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given), "MPI_Init")))
      return why;
    atexit(finalize);
  }
  if ((why = check(MPI_Comm_dup(MPI_COMM_WORLD, &job), "MPI_Comm_dup"))) return why;
  MPI_Comm_set_errhandler(job, MPI_ERRORS_RETURN);
  MPI_Comm_rank(job, &rank);
  MPI_Comm_size(job, &size);
  MPI_Get_library_version(library, &given);
  MPI_Comm_get_attr(job, MPI_TAG_UB, &largest, &found);
  for (char *c = library; *c; c++)
    if (*c == ',' || *c == '\n') *c = 0; /* "Open MPI v4.1.4" */
  mpi.library = library;
  mpi.rank = rank;
  mpi.size = size;
  mpi.largest_tag = found ? *largest : 32767;
  *out = &mpi;
  return NULL;
}

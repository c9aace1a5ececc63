/* forks.h - C tests of several ranks without MPI: processes that are forked, and send each other messages
 * over sockets. So one may be killed while the others go on. */
#ifndef MS_TEST_FORKS_H
#define MS_TEST_FORKS_H
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/group/exchange.h"
#include "tests/support/test.h"

enum { FORKS = 6 };

typedef struct fork_request {
  int fd, sends;
  int32_t tag;
  void *x;
  int64_t bytes;
} fork_request;

static int fork_link[FORKS];    /* of this rank to each other one */
static void (*fork_hook)(void); /* called before each message is sent */

/* A message has its tag before it. */
static inline const char *fork_send(int32_t to, int32_t tag, const void *x, int64_t bytes,
                                    void *out) {
  struct iovec part[] = {{&tag, sizeof tag}, {(void *)(uintptr_t)x, (size_t)bytes}};
  struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
  fork_request *r = out;
  r->sends = 1;
  if (fork_hook) fork_hook();
  return sendmsg(fork_link[to], &m, MSG_NOSIGNAL) < 0 ? "a rank has ended" : NULL;
}

static inline const char *fork_receive(int32_t from, int32_t tag, void *x, int64_t bytes,
                                       void *out) {
  *(fork_request *)out = (fork_request){fork_link[from], 0, tag, x, bytes};
  return NULL;
}

static inline const char *fork_test(void *of, int *done) {
  fork_request *r = of;
  int32_t tag = 0;
  struct iovec part[] = {{&tag, sizeof tag}, {r->x, (size_t)r->bytes}};
  struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
  *done = 1;
  if (r->sends) return NULL;
  ssize_t n = recvmsg(r->fd, &m, MSG_DONTWAIT);
  *done = n >= 0;
  if (n < 0 && errno == EAGAIN) return NULL;
  if (n <= 0) return "a rank has ended";
  return n == r->bytes + (ssize_t)sizeof tag && tag == r->tag ? NULL : "a message of another call";
}

/* Runs `body` as so many ranks, each with half a minute; status[r] is what waitpid says of it. The last
 * test fails where a rank returns something else than 0, or checks that did not hold. */
static inline void test_forks(int ranks, double timeout, int (*body)(ms_group *world),
                              int *status) {
  int link[FORKS][FORKS][2];
  pid_t pid[FORKS];
  fflush(stdout);
  for (int a = 0; a < ranks; a++)
    for (int b = 0; b < a; b++)
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link[a][b]) < 0) abort();
  for (int r = 0; r < ranks; r++) {
    pid[r] = fork();
    if (pid[r]) continue;
    static ms_transport sockets = {.version = MS_TRANSPORT_VERSION,
                                   .name = "forks",
                                   .library = "sockets",
                                   .largest_tag = INT32_MAX,
                                   .request_bytes = sizeof(fork_request),
                                   .send = fork_send,
                                   .receive = fork_receive,
                                   .test = fork_test};
    ms_group *world = NULL;
    for (int a = 0; a < ranks; a++)
      for (int b = 0; b < a; b++)
        for (int end = 0; end < 2; end++) { /* the first end is a's */
          int mine = end ? b : a, other = end ? a : b;
          if (mine == r)
            fork_link[other] = link[a][b][end];
          else
            close(link[a][b][end]);
        }
    sockets.rank = r;
    sockets.size = ranks;
    alarm(30);
    test_bad = 0;
    int code = ms_exchange_open(&sockets, 0, timeout, &world) == MS_OK ? body(world) : 99;
    if (code && !status) printf("rank %d ended with %d: %s\n", r, code, ms_last_error());
    fflush(stdout);
    _exit(code ? code : test_bad);
  }
  for (int a = 0; a < ranks; a++)
    for (int b = 0; b < a; b++)
      for (int end = 0; end < 2; end++) close(link[a][b][end]);
  for (int r = 0; r < ranks; r++) {
    int is = -1;
    waitpid(pid[r], &is, 0);
    if (status)
      status[r] = is;
    else
      CHECK(is == 0);
  }
}

#endif

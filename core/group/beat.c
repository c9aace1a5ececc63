/* beat.c - what ranks of other machines do. Once a second the first rank of each machine sends what the
 * pages of its ranks say (watch.c) to the first ranks of the others, which enter it in theirs: so a wait
 * lasts while a rank of another machine works, and an error says what all of them wait in.
 *
 * A thread does it, since a rank that computes makes no calls, and with datagrams of its own, since MPI
 * is the calling thread's. One that is lost is followed by the next; where none comes through, those
 * ranks are not seen. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/memory.h"
#include "exchange.h"

enum { MOST_ADDRESSES = 8, MOST_BEATS = 12 };

/* Where the first rank of a machine hears; others have no addresses. */
typedef struct ear {
  uint32_t address[MOST_ADDRESSES];
  int32_t count;
  uint16_t port, unused;
} ear;

/* A datagram, no longer than what goes through everywhere in one piece. */
typedef struct datagram {
  char job[32]; /* its name, which nobody else knows */
  int32_t count, unused;
  ms_beat beat[MOST_BEATS];
} datagram;

static struct {
  char job[32];
  int socket;
  ear *ears; /* of all ranks */
  int32_t me, ranks;
} own;

static void say(const datagram *d) {
  size_t bytes = offsetof(datagram, beat) + (size_t)d->count * sizeof d->beat[0];
  for (int32_t r = 0; r < own.ranks; r++)
    for (int32_t i = 0; r != own.me && i < own.ears[r].count; i++) {
      struct sockaddr_in to = {.sin_family = AF_INET,
                               .sin_port = own.ears[r].port,
                               .sin_addr = {.s_addr = own.ears[r].address[i]}};
      (void)sendto(own.socket, d, bytes, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to);
    }
}

static void say_all(void) {
  datagram d = {.count = 0};
  memcpy(d.job, own.job, sizeof d.job);
  for (int32_t r = 0; r < own.ranks; r++) {
    if (!ms_watch_beat(r, &d.beat[d.count])) continue;
    if (++d.count < MOST_BEATS) continue;
    say(&d);
    d.count = 0;
  }
  if (d.count) say(&d);
}

static void hear(void) {
  datagram d;
  ssize_t n = recv(own.socket, &d, sizeof d, MSG_DONTWAIT);
  if (n < (ssize_t)offsetof(datagram, beat) || memcmp(d.job, own.job, sizeof d.job)) return;
  if (d.count < 0 || d.count > MOST_BEATS) return;
  if (n != (ssize_t)(offsetof(datagram, beat) + (size_t)d.count * sizeof d.beat[0])) return;
  for (int32_t i = 0; i < d.count; i++) ms_watch_heard(&d.beat[i]);
}

static void *run(void *unused) {
  double next = 0;
  (void)unused;
  for (;;) {
    double now = ms_clock();
    if (now >= next) {
      say_all();
      next = now + 1;
    }
    struct pollfd p = {.fd = own.socket, .events = POLLIN};
    if (poll(&p, 1, (int)(1000 * (next - now)) + 1) > 0) hear();
  }
  return NULL;
}

/* The addresses of this machine, but for those that are the same on every one. */
static void find_addresses(ear *e) {
  struct ifaddrs *list = NULL;
  if (getifaddrs(&list)) return;
  for (struct ifaddrs *i = list; i && e->count < MOST_ADDRESSES; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
    if (!(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK) continue;
    e->address[e->count++] = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
  }
  freeifaddrs(list);
}

static int open_socket(ear *e) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (bind(fd, (struct sockaddr *)&at, size) || getsockname(fd, (struct sockaddr *)&at, &size)) {
    close(fd);
    return -1;
  }
  e->port = at.sin_port;
  find_addresses(e);
  return fd;
}

/* No signal is this thread's. */
static int start_thread(void) {
  pthread_t thread;
  pthread_attr_t how;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&how);
  pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
  int failed = pthread_create(&thread, &how, run, NULL);
  pthread_attr_destroy(&how);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !failed;
}

ms_status ms_beat_open(ms_group *world, const char *job) {
  ear mine = {.count = 0};
  int64_t *counts = NULL;
  int32_t machines = 0, first = ms_watch_first() == world->rank;
  void *p = NULL;
  ms_status st = MS_OK;
  own.socket = first ? open_socket(&mine) : -1;
  MS_TRY(ms_alloc((size_t)world->size * sizeof(ear), "addresses of machines", &p));
  own.ears = p;
  MS_TRY_OR(done, ms_alloc((size_t)world->size * sizeof *counts, "addresses of machines", &p));
  counts = p;
  for (int32_t r = 0; r < world->size; r++) counts[r] = sizeof(ear);
  own.ears[world->rank] = mine;
  MS_TRY_OR(done, world->ops->all_gather(world, NULL, own.ears, MS_U8, counts, NULL));
  for (int32_t r = 0; r < world->size; r++) machines += own.ears[r].count > 0;
  own.me = world->rank;
  own.ranks = world->size;
  snprintf(own.job, sizeof own.job, "%s", job);
  if (own.socket >= 0 && machines > 1 && start_thread()) {
    ms_free(counts);
    return MS_OK; /* the thread has the rest, for as long as the process lives */
  }

done:
  if (own.socket >= 0) close(own.socket);
  own.socket = -1;
  ms_free(own.ears);
  own.ears = NULL;
  ms_free(counts);
  return st;
}

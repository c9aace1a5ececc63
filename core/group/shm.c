/* shm.c - memory that processes of a machine share, and how they find each other.
 *
 * Memory has no name: its descriptor goes over a Unix socket, and it is gone with the last process that
 * has it. Ranks listen under random names that their group alone is told; no folder is needed and nothing
 * stays behind. Each step of opening links ends in an agreement of all ranks, so what a step waits for was
 * done in the one before, and none of them waits. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../base/memory.h"
#include "exchange.h"
#include "slots.h"

/* ---- memory ---- */

static ms_status map(int fd, int64_t bytes, int writes, char **out) {
  int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
  void *p = ms_hook_fails() ? MAP_FAILED : mmap(NULL, (size_t)bytes, access, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    return MS_FAIL(MS_ENOMEM, "shm: no room for %lld bytes of shared memory", (long long)bytes);
  ms_hook_count(1);
  *out = p;
  return MS_OK;
}

/* Sealed: no other process can cut it off under a reader. */
ms_status ms_memory_make(int64_t bytes, int *out_fd, char **out) {
  ms_status st = MS_OK;
  *out_fd = -1;
  int fd = memfd_create("moonstill", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return MS_FAIL(MS_EGROUP, "shm: memfd_create: %s", strerror(errno));
  if (ftruncate(fd, (off_t)bytes) < 0) {
    st = MS_FAIL(MS_ENOMEM, "shm: %lld bytes of shared memory: %s", (long long)bytes,
                 strerror(errno));
    goto fail;
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  MS_TRY_OR(fail, map(fd, bytes, 1, out));
  *out_fd = fd;
  return MS_OK;
fail:
  close(fd);
  return st;
}

ms_status ms_memory_map(int fd, int64_t bytes, int writes, char **out) {
  struct stat at;
  if (fstat(fd, &at) < 0 || at.st_size != (off_t)bytes)
    return MS_FAIL(MS_EGROUP, "shm: memory of %lld bytes came where %lld must",
                   fd < 0 ? -1LL : (long long)at.st_size, (long long)bytes);
  return map(fd, bytes, writes, out);
}

void ms_memory_unmap(void *memory, int64_t bytes) {
  munmap(memory, (size_t)bytes);
  ms_hook_count(-1);
}

static ms_status new_memory(char *memory, int64_t bytes, ms_backing **out) {
  void *p = NULL;
  ms_status st = ms_alloc(sizeof(ms_backing), "shared memory", &p);
  if (st != MS_OK) {
    ms_memory_unmap(memory, bytes);
    return st;
  }
  *out = p;
  **out = (ms_backing){.ops = &ms_backing_memory, .memory = memory, .bytes = bytes};
  return MS_OK;
}

static ms_status make_memory(int64_t bytes, int32_t events, void *handle, int *fd,
                             ms_backing **out) {
  char *memory = NULL;
  MS_TRY(ms_memory_make(bytes, fd, &memory));
  ms_status st = new_memory(memory, bytes, out);
  if (st == MS_OK) return MS_OK;
  close(*fd);
  *fd = -1;
  return st;
}

static ms_status open_memory(int64_t bytes, int32_t events, const void *handle, int fd,
                             ms_backing **out) {
  char *memory = NULL;
  MS_TRY(ms_memory_map(fd, bytes, 0, &memory));
  return new_memory(memory, bytes, out);
}

/* What the host has written or read is done: the numbers that are written behind it order it. */
static ms_status is_done(ms_backing *b, int32_t event, ms_stream *on) { return MS_OK; }

static void close_memory(ms_backing *b) {
  ms_memory_unmap(b->memory, b->bytes);
  ms_free(b);
}

const ms_backing_ops ms_backing_memory = {.name = "memory",
                                          .make = make_memory,
                                          .open = open_memory,
                                          .record = is_done,
                                          .wait = is_done,
                                          .stays = 1,
                                          .close = close_memory};

/* ---- who shares a machine ---- */

enum { SECRET = 16 };

static uint64_t hash_of(uint64_t hash, const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
  return hash;
}

/* The same for processes that may find each other's sockets: of one user, on one kernel, in one network. */
static int64_t machine_of_this(void) {
  char text[160] = "";
  uid_t user = geteuid();
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, text, 64), m = 0;
  if (fd >= 0) close(fd);
  if (n > 0) m = readlink("/proc/self/ns/net", text + n, 64);
  if (n <= 0 || m <= 0) { /* cannot be known: it is a machine of its own */
    n = 0;
    m = getrandom(text, 64, 0);
  }
  uint64_t hash = hash_of(14695981039346656037u, text, (size_t)(n + (m > 0 ? m : 0)));
  return (int64_t)hash_of(hash, &user, sizeof user);
}

ms_status ms_group_machines(ms_group *g, int32_t *machine) {
  void *p = NULL;
  ms_status st = ms_alloc(2 * (size_t)g->size * sizeof(int64_t), "machines of ranks", &p);
  MS_TRY_OR(done, ms_group_agree(g, st));
  int64_t *said = p, *count = said + g->size;
  for (int32_t r = 0; r < g->size; r++) count[r] = 1;
  said[g->rank] = machine_of_this();
  st = g->ops->all_gather(g, NULL, said, MS_I64, count, NULL);
  for (int32_t r = 0; r < g->size && st == MS_OK; r++)
    for (machine[r] = 0; said[machine[r]] != said[r];) machine[r]++;
done:
  ms_free(p);
  return st;
}

/* ---- links ---- */

/* Slots that have come and that nobody has asked for yet. */
typedef struct offer {
  int32_t writer, readers, depth, reader[MS_SLOTS_READERS];
  int64_t key, bytes;
  char backing[16];
} offer;

typedef struct ms_arrival {
  offer offer;
  int fd[2]; /* control; data, -1 where it needs none */
  struct ms_arrival *next;
} arrival; /* in the order in which they came */

typedef struct hello {
  unsigned char secret[SECRET];
  int32_t rank;
} hello;

typedef struct opening {
  ms_group *group;
  ms_links *links;
  int32_t *machine;
  int listener;
  int32_t expected;
  unsigned char secret[2 * SECRET]; /* the first half is in names */
} opening;

/* All that a rank can do alone. */
static ms_status prepare(opening *o) {
  void *p = NULL;
  size_t ranks = (size_t)o->group->size;
  MS_TRY(ms_alloc(sizeof(ms_links) + ranks * sizeof(int), "links", &p));
  o->links = p;
  o->links->group = o->group;
  for (size_t r = 0; r < ranks; r++) o->links->fd[r] = -1;
  MS_TRY(ms_alloc(ranks * sizeof(int32_t), "links", &p));
  o->machine = p;
  if (o->group->rank == 0 && getrandom(o->secret, sizeof o->secret, 0) != sizeof o->secret)
    return MS_FAIL(MS_EGROUP, "shm: no random numbers here");
  return MS_OK;
}

static ms_status introduce(opening *o) {
  ms_group *g = o->group;
  MS_TRY(g->ops->broadcast(g, NULL, o->secret, MS_U8, sizeof o->secret, 0, NULL));
  return ms_group_machines(g, o->machine);
}

static socklen_t address_of(const opening *o, int32_t rank, struct sockaddr_un *at) {
  char *p = at->sun_path + 1; /* the byte before it is 0: a name that is in no folder */
  *at = (struct sockaddr_un){.sun_family = AF_UNIX};
  p += sprintf(p, "moonstill-");
  for (int i = 0; i < SECRET; i++) p += sprintf(p, "%02x", o->secret[i]);
  p += sprintf(p, "-%d", rank);
  return (socklen_t)(p - (char *)at);
}

static ms_status open_socket(int *out) {
  *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return *out < 0 ? MS_FAIL(MS_EGROUP, "shm: socket: %s", strerror(errno)) : MS_OK;
}

static int is_beside(const opening *o, int32_t rank) {
  return o->machine[rank] == o->machine[o->group->rank];
}

/* Each rank listens for the higher ones of its machine. */
static ms_status listen_here(opening *o) {
  struct sockaddr_un at;
  for (int32_t r = o->group->rank + 1; r < o->group->size; r++) o->expected += is_beside(o, r);
  if (!o->expected) return MS_OK;
  MS_TRY(open_socket(&o->listener));
  socklen_t length = address_of(o, o->group->rank, &at);
  if (bind(o->listener, (struct sockaddr *)&at, length) < 0 || listen(o->listener, o->expected) < 0)
    return MS_FAIL(MS_EGROUP, "shm: a socket to listen at: %s", strerror(errno));
  return MS_OK;
}

static int is_same_user(int fd) {
  struct ucred who;
  socklen_t length = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == geteuid();
}

static ms_status call(opening *o, int32_t rank) {
  struct sockaddr_un at;
  hello h = {.rank = o->group->rank};
  int *fd = &o->links->fd[rank];
  int32_t name = ms_exchange_rank(o->group, rank);
  socklen_t length = address_of(o, rank, &at);
  memcpy(h.secret, o->secret + SECRET, SECRET);
  MS_TRY(open_socket(fd));
  if (connect(*fd, (struct sockaddr *)&at, length) < 0)
    return MS_FAIL(MS_EGROUP, "shm: rank %d cannot be reached: %s", name, strerror(errno));
  if (!is_same_user(*fd)) return MS_FAIL(MS_EGROUP, "shm: rank %d is of another user", name);
  if (send(*fd, &h, sizeof h, MSG_NOSIGNAL) != sizeof h)
    return MS_FAIL(MS_EGROUP, "shm: rank %d: %s", name, strerror(errno));
  return MS_OK;
}

static ms_status call_others(opening *o) {
  for (int32_t r = 0; r < o->group->rank; r++)
    if (is_beside(o, r)) MS_TRY(call(o, r));
  return MS_OK;
}

/* Whether who calls is a rank that must and has not yet. */
static int is_rank(const opening *o, int fd, hello *h) {
  return is_same_user(fd) && recv(fd, h, sizeof *h, 0) == sizeof *h &&
         !memcmp(h->secret, o->secret + SECRET, SECRET) && h->rank > o->group->rank &&
         h->rank < o->group->size && is_beside(o, h->rank) && o->links->fd[h->rank] < 0;
}

/* All have called. */
static ms_status answer(opening *o) {
  for (int32_t left = o->expected; left > 0;) {
    hello h;
    int fd = accept4(o->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
      return MS_FAIL(MS_EGROUP, "shm: %d of %d ranks did not come: %s", left, o->expected,
                     strerror(errno));
    if (is_rank(o, fd, &h)) {
      o->links->fd[h.rank] = fd;
      left--;
    } else {
      close(fd);
    }
  }
  return MS_OK;
}

ms_status ms_links_open(ms_group *g, ms_links **out) {
  static ms_status (*const steps[])(opening *) = {prepare, introduce, listen_here, call_others,
                                                  answer};
  opening o = {.group = g, .listener = -1};
  ms_status st = MS_OK;
  for (size_t i = 0; i < sizeof steps / sizeof *steps && st == MS_OK; i++)
    st = ms_group_agree(g, steps[i](&o));
  if (o.listener >= 0) close(o.listener);
  ms_free(o.machine);
  if (st != MS_OK) {
    ms_links_close(o.links);
    o.links = NULL;
  }
  *out = o.links;
  return st;
}

static ms_links *world;

ms_links *ms_links_world(void) { return world; }

ms_status ms_group_share(ms_group *g) {
  if (world && world->group->size == g->size) return MS_OK;
  return ms_links_open(g, &world);
}

int ms_links_has(const ms_links *l, int32_t rank) { return l && l->fd[rank] >= 0; }

static void drop(arrival *a) {
  for (int i = 0; i < 2; i++)
    if (a->fd[i] >= 0) close(a->fd[i]);
  ms_free(a);
}

void ms_links_close(ms_links *l) {
  if (!l) return;
  for (int32_t r = 0; r < l->group->size; r++)
    if (l->fd[r] >= 0) close(l->fd[r]);
  while (l->arrived) {
    arrival *a = l->arrived;
    l->arrived = a->next;
    drop(a);
  }
  ms_free(l);
}

/* ---- slots over links ---- */

static const ms_backing_ops *backing_of(const ms_slots_plan *p) {
  return p->backing ? p->backing : &ms_backing_memory;
}

static int64_t data_bytes(const ms_slots_plan *p) { return p->depth * ms_slots_slot_bytes(p); }

static int64_t control_bytes(const ms_slots_plan *p) {
  return (int64_t)sizeof(ms_slots_control) + backing_of(p)->handle_bytes;
}

static ms_status check_plan(const ms_links *l, const ms_slots_plan *p) {
  int32_t me = l->group->rank, size = l->group->size;
  MS_REQUIRE(p->readers >= 1 && p->readers <= MS_SLOTS_READERS, "slots: %d readers not in 1..%d",
             p->readers, MS_SLOTS_READERS);
  MS_REQUIRE(p->depth >= 1 && p->depth <= MS_SLOTS_DEPTH, "slots: %d of them not in 1..%d",
             p->depth, MS_SLOTS_DEPTH);
  MS_REQUIRE(p->bytes >= 1 && p->bytes <= INT64_MAX / 2 / MS_SLOTS_DEPTH, "slots of %lld bytes",
             (long long)p->bytes);
  MS_REQUIRE(p->writer == me, "slots: rank %d makes those that rank %d writes", me, p->writer);
  for (int32_t r = 0; r < p->readers; r++) {
    MS_REQUIRE(p->reader[r] >= 0 && p->reader[r] < size, "slots: rank %d of %d reads", p->reader[r],
               size);
    MS_REQUIRE(p->reader[r] == me || ms_links_has(l, p->reader[r]),
               "slots: rank %d is not on the machine of rank %d", p->reader[r], me);
    for (int32_t q = 0; q < r; q++)
      MS_REQUIRE(p->reader[q] != p->reader[r], "slots: rank %d reads twice", p->reader[r]);
  }
  return MS_OK;
}

/* Slots over memory of which the descriptors are there, or are made. */
static ms_status new_slots(ms_links *l, const ms_slots_plan *p, int makes, int *fd,
                           ms_slots **out) {
  const ms_backing_ops *ops = backing_of(p);
  char *control = NULL;
  ms_backing *backing = NULL;
  ms_status st = MS_OK;
  if (makes)
    MS_TRY(ms_memory_make(control_bytes(p), &fd[0], &control));
  else
    MS_TRY(ms_memory_map(fd[0], control_bytes(p), 1, &control));
  char *handle = control + sizeof(ms_slots_control);
  MS_TRY_OR(fail, makes ? ops->make(data_bytes(p), ms_slots_events(p), handle, &fd[1], &backing)
                        : ops->open(data_bytes(p), ms_slots_events(p), handle, fd[1], &backing));
  MS_TRY_OR(fail,
            ms_slots_new(p, l->group->rank, (ms_slots_control *)(void *)control, backing, out));
  (*out)->control_bytes = control_bytes(p);
  for (int32_t i = 0; i <= p->readers; i++) {
    int32_t peer = (*out)->name[i], knows = i < p->readers ? makes : !makes;
    if (knows) (*out)->fd[i] = l->fd[peer];
    (*out)->name[i] = ms_exchange_rank(l->group, peer);
  }
  return MS_OK;
fail:
  if (backing) ops->close(backing);
  ms_memory_unmap(control, control_bytes(p));
  return st;
}

/* Room for two descriptors beside a message. */
typedef union beside {
  struct cmsghdr header;
  char room[CMSG_SPACE(2 * sizeof(int))];
} beside;

static ms_status send_offer(const ms_links *l, int32_t to, offer *o, const int *fds) {
  beside b = {.room = {0}};
  size_t n = fds[1] < 0 ? 1 : 2;
  struct iovec data = {o, sizeof *o};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &b};
  m.msg_controllen = CMSG_SPACE(n * sizeof(int));
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(n * sizeof(int));
  memcpy(CMSG_DATA(c), fds, n * sizeof(int));
  if (sendmsg(l->fd[to], &m, MSG_NOSIGNAL) == sizeof *o) return MS_OK;
  return MS_FAIL(MS_EGROUP, "slots: memory for rank %d: %s", ms_exchange_rank(l->group, to),
                 errno == EPIPE || errno == ECONNRESET ? "it has ended" : strerror(errno));
}

ms_status ms_slots_make(ms_links *l, const ms_slots_plan *p, int64_t key, ms_slots **out) {
  int fds[2] = {-1, -1};
  *out = NULL;
  MS_TRY(check_plan(l, p));
  offer o = {.writer = p->writer, .readers = p->readers, .depth = p->depth, .key = key};
  o.bytes = p->bytes;
  memcpy(o.reader, p->reader, (size_t)p->readers * sizeof *o.reader);
  snprintf(o.backing, sizeof o.backing, "%s", backing_of(p)->name);
  ms_status st = new_slots(l, p, 1, fds, out);
  for (int32_t r = 0; r < p->readers && st == MS_OK; r++)
    if (p->reader[r] != p->writer) st = send_offer(l, p->reader[r], &o, fds);
  for (int i = 0; i < 2; i++)
    if (fds[i] >= 0) close(fds[i]);
  if (st == MS_OK) return MS_OK;
  ms_slots_free(*out);
  *out = NULL;
  return st;
}

static ms_status receive_offer(ms_links *l, int32_t from, arrival *a, int *came) {
  beside b;
  struct iovec data = {&a->offer, sizeof a->offer};
  struct msghdr m = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &b, .msg_controllen = sizeof b};
  int32_t name = ms_exchange_rank(l->group, from);
  ssize_t n = recvmsg(l->fd[from], &m, MSG_CMSG_CLOEXEC);
  *came = n > 0;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return MS_OK;
  if (n <= 0) return MS_FAIL(MS_EGROUP, "slots: rank %d has ended before it gave its slots", name);
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
    memcpy(a->fd, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
  if (m.msg_flags & MSG_CTRUNC)
    return MS_FAIL(MS_EGROUP, "slots: no more descriptors for this process (ulimit -n)");
  MS_REQUIRE(n == sizeof a->offer && a->fd[0] >= 0 && a->offer.writer == from,
             "slots: a message of rank %d is of another build", name);
  return MS_OK;
}

/* Whatever has come from a rank. */
static ms_status collect(ms_links *l, int32_t from) {
  for (int came = 1; came;) {
    void *p = NULL;
    MS_TRY(ms_alloc(sizeof(arrival), "slots that came", &p));
    arrival *a = p, **end = &l->arrived;
    a->fd[0] = a->fd[1] = -1;
    ms_status st = receive_offer(l, from, a, &came);
    if (st != MS_OK || !came) drop(a);
    MS_TRY(st);
    if (!came) break;
    while (*end) end = &(*end)->next;
    *end = a;
  }
  return MS_OK;
}

static arrival **find(ms_links *l, int32_t writer, int64_t key) {
  for (arrival **at = &l->arrived; *at; at = &(*at)->next)
    if ((*at)->offer.key == key && (writer < 0 || (*at)->offer.writer == writer)) return at;
  return NULL;
}

ms_status ms_slots_join(ms_links *l, int32_t writer, int64_t key, const ms_backing_ops *backing,
                        ms_slots **out) {
  ms_slots_wait w = {.call = {.op = MS_CALL_TAKE, .number = 1, .peer = -1}};
  ms_status st = MS_OK;
  *out = NULL;
  MS_REQUIRE(writer >= 0 && writer < l->group->size && ms_links_has(l, writer),
             "slots: rank %d is not another one of this machine", writer);
  while (!find(l, writer, key) && st == MS_OK) {
    st = collect(l, writer);
    if (find(l, writer, key))
      st = MS_OK; /* it was given before its writer ended */
    else if (st == MS_OK)
      st = ms_slots_wait_round(&w, ms_exchange_rank(l->group, writer));
  }
  ms_slots_wait_end(&w);
  MS_TRY(st);
  arrival **at = find(l, writer, key), *a = *at;
  ms_slots_plan p = {.writer = writer,
                     .readers = a->offer.readers,
                     .reader = a->offer.reader,
                     .depth = a->offer.depth,
                     .bytes = a->offer.bytes,
                     .backing = backing};
  MS_REQUIRE(!strcmp(a->offer.backing, backing_of(&p)->name), "slots: %s where %s is asked for",
             a->offer.backing, backing_of(&p)->name);
  MS_TRY(new_slots(l, &p, 0, a->fd, out));
  *at = a->next;
  drop(a);
  return MS_OK;
}

void ms_links_forget(ms_links *l, int64_t key) {
  for (arrival **at; (at = find(l, -1, key));) {
    arrival *a = *at;
    *at = a->next;
    drop(a);
  }
}

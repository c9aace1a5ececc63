/* world.c - all ranks that were launched with this process, as a group. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../base/memory.h"
#include "exchange.h"

static const ms_transport *transport; /* NULL: this process is alone */
static ms_group *world;

/* Open MPI's mpirun gives the first of these, Slurm's srun one of the others. */
static const char *const numbers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

int32_t ms_group_number(void) {
  const char *asked = getenv("MS_GROUP");
  if (asked && !strcmp(asked, "self")) return -1;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    const char *number = getenv(numbers[i]);
    if (number && *number) return atoi(number);
  }
  return -1;
}

/* Whether whoever started this process says that it is a rank of MPI's. */
static int is_launched(void) {
  const char *asked = getenv("MS_GROUP");
  return (asked && !strcmp(asked, "mpi")) || ms_group_number() >= 0;
}

/* Whether processes may read each other's memory, which the kernel or a container may deny: large
 * messages within a machine fail then. */
static int can_read_others(void) {
  char from = 1, to = 0, scope = '0';
  struct iovec local = {&to, 1}, remote = {&from, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) return 0;
  FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "r"); /* 1: MPI asks the others for it */
  if (f) {
    if (fread(&scope, 1, 1, f) != 1) scope = '0';
    fclose(f);
  }
  return scope < '2';
}

/* Settings of Open MPI's that no user should have to know, unless they are set. */
static void settle(void) {
  setenv("OMPI_MCA_pml", "ob1", 0); /* shared memory and TCP; others take 200 ms to start */
  setenv("OMPI_MCA_mtl", "^ofi,psm2", 0);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* ranks may be more than cores */
  if (!can_read_others()) setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/* Opens moonstill-mpi.so, which lies beside what holds this function. */
static ms_status open_library(void) {
  const char *given = getenv("MS_MPI_LIB");
  char path[4096];
  Dl_info self;
  if (given) {
    snprintf(path, sizeof path, "%s", given);
  } else {
    char own[4096] = "";
    if (dladdr((void *)(uintptr_t)ms_group_world, &self) && self.dli_fname)
      snprintf(own, sizeof own, "%s", self.dli_fname);
    char real[4096];
    if (!realpath(strchr(own, '/') ? own : "/proc/self/exe", real)) real[0] = 0;
    char *slash = strrchr(real, '/');
    if (slash) *slash = 0;
    snprintf(path, sizeof path, "%.4000s/moonstill-mpi.so", real);
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return MS_FAIL(MS_EGROUP,
                   "group: launched as a rank of MPI, but %s. Install Open MPI (libopenmpi-dev and "
                   "openmpi-bin) and build again, or set MS_GROUP=self to work alone",
                   dlerror());
  ms_transport_open_f *open = (ms_transport_open_f *)(uintptr_t)dlsym(library, MS_TRANSPORT_OPEN);
  if (!open) return MS_FAIL(MS_EGROUP, "group: %s: %s", path, dlerror());
  settle();
  const char *why = open(&transport);
  if (why) return MS_FAIL(MS_EGROUP, "group: %s", why);
  if (transport->version == MS_TRANSPORT_VERSION) return MS_OK;
  transport = NULL;
  return MS_FAIL(MS_EGROUP, "group: %s is of another build", path);
}

static double number_of(const char *name, double otherwise) {
  const char *text = getenv(name);
  char *end;
  double x = text ? strtod(text, &end) : 0;
  return text && *text && !*end && x > 0 ? x : otherwise;
}

/* The first rank's random name for what the ranks of a machine share. */
static ms_status open_watch(ms_group *g) {
  unsigned char random[12] = {0};
  char name[2 * sizeof random + 1];
  if (g->rank == 0 && getrandom(random, sizeof random, 0) < 0)
    return MS_FAIL(MS_EGROUP, "group: no random numbers here");
  MS_TRY(g->ops->broadcast(g, NULL, random, MS_U8, sizeof random, 0, NULL));
  for (size_t i = 0; i < sizeof random; i++) sprintf(name + 2 * i, "%02x", random[i]);
  MS_TRY(ms_watch_open(name, g->rank, g->size));
  MS_TRY(g->ops->barrier(g));
  ms_watch_close(name);
  return ms_beat_open(g, name);
}

ms_status ms_group_world(ms_group **out) {
  *out = world;
  if (world) return MS_OK;
  if (is_launched()) MS_TRY(open_library());
  if (!transport || transport->size == 1) {
    *out = world = ms_group_self();
    return MS_OK;
  }
  MS_TRY(ms_exchange_open(transport, getenv("MS_GROUP_CHECK") != NULL,
                          number_of("MS_GROUP_TIMEOUT", MS_EXCHANGE_TIMEOUT), out));
  MS_TRY(ms_cores_share(*out));
  MS_TRY(open_watch(*out));
  world = *out;
  return MS_OK;
}

int32_t ms_group_machine(void) {
  int32_t first = ms_watch_first();
  return first >= 0 ? first : world ? world->rank : 0;
}

int ms_group_fails(void) { return ms_watch_fails(); }

void ms_group_abort(int status) {
  if (transport) transport->abort(status);
}

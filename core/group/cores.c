/* cores.c - which cores a rank may use, and how many threads it has. */
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/memory.h"
#include "exchange.h"

/* Whether mpirun has bound this process without being asked to: to one core, mostly. */
static int is_bound_unasked(void) {
  const char *bound = getenv("OMPI_MCA_orte_bound_at_launch");
  const char *mapped = getenv("OMPI_MCA_rmaps_base_mapping_policy");
  return bound && !strcmp(bound, "1") && !getenv("OMPI_MCA_hwloc_base_binding_policy") &&
         !(mapped && strstr(mapped, "pe="));
}

static int number_of(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

void ms_cores_widen(void) {
  cpu_set_t all, mine;
  int rank = number_of("OMPI_COMM_WORLD_LOCAL_RANK", -1);
  int size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
  if (!is_bound_unasked() || rank < 0 || rank >= size) return;
  if (sched_getaffinity(getppid(), sizeof all, &all)) return; /* mpirun's part of the machine */
  int count = CPU_COUNT(&all), first = (int)((int64_t)count * rank / size);
  int past = (int)((int64_t)count * (rank + 1) / size), seen = 0;
  if (past == first) past = first + 1;
  CPU_ZERO(&mine);
  for (int core = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, &all)) continue;
    if (seen >= first && seen < past) CPU_SET(core, &mine);
    seen++;
  }
  if (sched_setaffinity(0, sizeof mine, &mine)) return; /* where it may not, it stays bound */
  if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(CPU_COUNT(&mine));
}

/* What ranks that share cores have in common: the machine, and which cores of it they may use. */
typedef struct place {
  char machine[128];
  cpu_set_t cores;
} place;

static void find_place(place *p) {
  char host[64] = "", boot[64] = "";
  memset(p, 0, sizeof *p);
  gethostname(host, sizeof host - 1);
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (f) {
    if (!fgets(boot, sizeof boot, f)) boot[0] = 0;
    fclose(f);
  }
  snprintf(p->machine, sizeof p->machine, "%.60s %.60s", host, boot);
  if (sched_getaffinity(0, sizeof p->cores, &p->cores)) CPU_ZERO(&p->cores);
}

ms_status ms_cores_share(ms_group *world) {
  void *p = NULL;
  int64_t *counts = NULL;
  int same = 0;
  ms_status st = MS_OK;
  MS_TRY(ms_alloc((size_t)world->size * sizeof(place), "places of ranks", &p));
  place *places = p;
  MS_TRY_OR(done, ms_alloc((size_t)world->size * sizeof *counts, "places of ranks", &p));
  counts = p;
  for (int32_t r = 0; r < world->size; r++) counts[r] = sizeof(place);
  find_place(&places[world->rank]);
  MS_TRY_OR(done, world->ops->all_gather(world, NULL, places, MS_U8, counts, NULL));
  for (int32_t r = 0; r < world->size; r++)
    same += !memcmp(&places[r], &places[world->rank], sizeof(place));
  if (same > 1 && !getenv("OMP_NUM_THREADS")) {
    int threads = omp_get_num_procs() / same;
    omp_set_num_threads(threads > 0 ? threads : 1);
  }

done:
  ms_free(places);
  ms_free(counts);
  return st;
}

/* ranks.h - C tests of several ranks: a program that starts itself under mpirun. */
#ifndef MS_TEST_RANKS_H
#define MS_TEST_RANKS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs this program as so many ranks, with an argument and environment variables (NAME=VALUE ..); gives its
 * exit status. What it prints goes to `text`, of TEST_RANKS_TEXT bytes, and without one, where the
 * status is not 0, to stdout. */
enum { TEST_RANKS_TEXT = 1 << 16 };
static inline int test_ranks(const char *program, int ranks, const char *what,
                             const char *environment, char *text) {
  static char own[TEST_RANKS_TEXT];
  char command[16384], line[4096];
  snprintf(command, sizeof command,
           "MS_MPI_LIB=\"${MS_MPI_LIB:-$(dirname '%s')/../moonstill-mpi.so}\" "
           "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1 "
           "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive %s timeout -k 5 300 "
           "$(command -v orterun || command -v mpirun) --oversubscribe --bind-to none -q -np %d "
           "'%s' %s 2>&1",
           program, environment, ranks, program, what);
  char *to = text ? text : own;
  size_t n = 0;
  to[0] = 0;
  FILE *p = popen(command, "r");
  while (p && fgets(line, sizeof line, p))
    if (n + strlen(line) < TEST_RANKS_TEXT) n += (size_t)sprintf(to + n, "%s", line);
  int status = p ? pclose(p) : -1;
  if (status && !text) printf("%s", own);
  return status;
}

/* Whether this process is one of the ranks. */
static inline int test_is_rank(void) { return getenv("OMPI_COMM_WORLD_SIZE") != NULL; }

static inline int test_has_mpirun(void) {
  return !system("(command -v orterun || command -v mpirun) >/dev/null");
}

#endif

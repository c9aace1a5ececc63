/* launch.c - see launch.h. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonstill.h"

static int errors = STDERR_FILENO; /* where rank_say writes */

void ms_rank_start(void) {
  const char *logs = getenv("MS_RANK_LOGS");
  int rank = ms_group_number();
  if (rank <= 0) return;
  char path[4096] = "/dev/null";
  if (logs && *logs) snprintf(path, sizeof path, "%.4000s/rank-%d.log", logs, rank);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) {
    fprintf(stderr, "moonstill: rank %d: %s: %s\n", rank, path, strerror(errno));
    return;
  }
  errors = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  close(fd);
}

static int rank_say(lua_State *L) {
  dprintf(errors, "%s\n", luaL_checkstring(L, 1));
  return 0;
}

static volatile sig_atomic_t child, asked;

static void pass_on(int number) {
  int again = asked != 0;
  if (!asked) asked = number;
  if (child <= 0) return;
  kill((pid_t)child, again ? SIGTERM : SIGUSR1);
}

/* In a process group of its own: the terminal's Ctrl-C is this process's alone. So is what is typed,
 * since a group in the background that reads it is stopped. */
static void start_child(char **argv, const sigset_t *mask) {
  int fd = isatty(STDIN_FILENO) ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
  if (fd >= 0) dup2(fd, STDIN_FILENO);
  setpgid(0, 0);
  sigprocmask(SIG_SETMASK, mask, NULL);
  execvp(argv[0], argv);
  fprintf(stderr, "moonstill: %s: %s\n", argv[0], strerror(errno));
  _exit(127);
}

static int run(char **argv) {
  static const int passed[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART}, old[3];
  sigset_t all, before;
  int status = 0;
  asked = 0;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before); /* none is lost between fork and the handler */
  pid_t pid = fork();
  if (pid == 0) start_child(argv, &before);
  child = pid;
  for (int i = 0; i < 3; i++) sigaction(passed[i], &action, &old[i]);
  sigprocmask(SIG_SETMASK, &before, NULL);
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  child = 0;
  for (int i = 0; i < 3; i++) sigaction(passed[i], &old[i], NULL);
  if (pid < 0) return 127;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_command(lua_State *L) {
  int n = (int)lua_objlen(L, 1);
  char **argv = lua_newuserdata(L, ((size_t)n + 1) * sizeof *argv);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    argv[i] = (char *)luaL_checkstring(L, -1); /* the list keeps it */
    lua_pop(L, 1);
  }
  argv[n] = NULL;
  lua_pushinteger(L, run(argv));
  lua_pushinteger(L, asked);
  return 2;
}

void ms_launch_push(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"rank_say", rank_say}, {"run_command", run_command}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
}

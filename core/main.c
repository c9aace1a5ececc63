/* main.c - the executable: LuaJIT with moonstill's modules inside. It calls moonstill.prompt.cli.
 *
 * The modules are linked in as bytecode, under the symbols where LuaJIT's `require` looks first.
 * The core's symbols are exported, so that the modules take them from the process itself. */
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "group/exchange.h"
#include "launch.h"
#include "prompt.h"
#include "signals.h"

/* The global `arg` as in any Lua program: arg[0] is the program, negative indices are not used. */
static void push_arguments(lua_State *L, int argc, char **argv) {
  lua_createtable(L, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_setglobal(L, "arg");
}

/* Called by lua_pcall, since everything here may run out of memory. */
static int start(lua_State *L) {
  luaL_openlibs(L);
  push_arguments(L, (int)lua_tointeger(L, 2), lua_touserdata(L, 1));
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moonstill.prompt.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  ms_prompt_push(L);
  ms_launch_push(L);
  lua_call(L, 1, 1);
  return 1;
}

/* A thread that waits at the end of a parallel loop spins before it sleeps. OpenMP's default,
 * milliseconds, costs five sixths of the speed when another process needs the core. 2000 rounds, about
 * 30 us, are enough to bridge the gap between two operations. The runtime reads its environment before
 * main, so the program sets the variable and starts itself again; if it cannot, the default stays. */
static void bound_spinning(char **argv) {
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  if (!setenv("GOMP_SPINCOUNT", "2000", 1)) execv("/proc/self/exe", argv);
}

/* Opens /dev/null in the place of standard streams that are closed: the first file opened would get
 * their number, and messages would be written into it. */
static void fill_streams(void) {
  int fd;
  do { fd = open("/dev/null", O_RDWR); } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
  fill_streams();
  ms_cores_widen();
  bound_spinning(argv);
  ms_rank_start();
  ms_signals_start();
  lua_State *L = luaL_newstate();
  if (!L) {
    fputs("moonstill: no memory to start\n", stderr);
    return EXIT_FAILURE;
  }
  lua_pushcfunction(L, start);
  lua_pushlightuserdata(L, argv);
  lua_pushinteger(L, argc);
  int status = EXIT_FAILURE;
  if (lua_pcall(L, 2, 1, 0) == 0) {
    status = (int)lua_tointeger(L, -1);
  } else {
    const char *message = lua_tostring(L, -1);
    fprintf(stderr, "moonstill: %s\n", message ? message : "an error that is not text");
  }
  lua_close(L);
  return fflush(stdout) ? EXIT_FAILURE : status;
}

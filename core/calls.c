/* calls.c - what is typed at the prompt runs here, and Ctrl-C stops it. */
#include "calls.h"

#include <lauxlib.h>
#include <pthread.h>
#include <signal.h>

#include "moonstill.h"
#include "signals.h"

static lua_State *running; /* NULL between calls */
static pthread_t runner;

static void stop(lua_State *L, lua_Debug *frame) {
  (void)frame;
  lua_sethook(L, NULL, 0, 0);
  luaL_where(L, 0); /* the line that runs */
  lua_pushliteral(L, "interrupted");
  lua_concat(L, 2);
  lua_error(L);
}

/* A hook raises the error at the interpreter's next instruction. No hook runs inside the core or in
 * code that LuaJIT has compiled (modules; what is typed is not compiled), so from here on Ctrl-C has
 * its default action: a further one ends the process. A hook may be set only by the thread that runs
 * Lua, so another thread that gets the signal sends it on. */
static void on_call_signal(int number) {
  if (!running || pthread_equal(pthread_self(), runner)) {
    signal(number, SIG_DFL);
    if (!running) raise(number);
    if (running) lua_sethook(running, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
    return;
  }
  pthread_kill(runner, number);
}

static void take_signal(void) {
  struct sigaction action = {.sa_handler = on_call_signal, .sa_flags = SA_RESTART};
  sigaction(SIGINT, &action, NULL);
}

int ms_calls_call(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  running = L;
  runner = pthread_self();
  ms_signals_again(on_call_signal);
  if (!ms_signals_watching()) take_signal();
  int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 1);
  running = NULL;
  if (!ms_signals_watching()) signal(SIGINT, SIG_DFL);
  if (ms_interrupted() == SIGINT) ms_interrupt(0); /* a run that was to end has ended */
  lua_sethook(L, NULL, 0, 0);
  lua_pushboolean(L, status == 0);
  lua_replace(L, 1); /* in the place of the handler */
  return lua_gettop(L);
}

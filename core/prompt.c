/* prompt.c - the terminal side of the REPL, by libedit. */
#include "prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <lauxlib.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 2000 };

static EditLine *editor;
static History *history_list;
static char *history_path;
static char *prompt_text;
static int interrupts[2]; /* a pipe: a byte for each Ctrl-C while a line is read */
static lua_State *running;
static pthread_t runner;

static char *prompt(EditLine *e) { return prompt_text; }

static void on_read_signal(int number) {
  int saved = errno;
  if (write(interrupts[1], "", 1) < 0) errno = 0; /* the pipe is full: Ctrl-C is noted already */
  errno = saved;
}

static int take_interrupts(void) {
  char byte[64];
  return read(interrupts[0], byte, sizeof byte) > 0;
}

/* The next byte of the terminal; 0 at its end, -1 after Ctrl-C or an error. The handler writes to the
 * pipe, so a signal that comes just before poll, or to another thread, ends the wait too. */
static int read_byte(char *c) {
  struct pollfd wait[] = {{STDIN_FILENO, POLLIN, 0}, {interrupts[0], POLLIN, 0}};
  while (poll(wait, 2, -1) < 0)
    if (errno != EINTR) return -1;
  if (wait[1].revents) return -1;
  return (int)read(STDIN_FILENO, c, 1);
}

/* Replaces libedit's reader, which reads on after a signal: here Ctrl-C ends the line. */
static int read_character(EditLine *e, wchar_t *out) {
  mbstate_t state = {0};
  for (;;) {
    char c;
    int n = read_byte(&c);
    if (n <= 0) return n;
    size_t used = mbrtowc(out, &c, 1, &state);
    if (used == (size_t)-2) continue;                /* a character of several bytes */
    if (used == (size_t)-1) *out = (unsigned char)c; /* not UTF-8: the byte itself */
    return 1;
  }
}

static int open_editor(void) {
  HistEvent event;
  if (editor) return 1;
  setlocale(LC_CTYPE, "");
  if (strcmp(nl_langinfo(CODESET), "UTF-8")) setlocale(LC_CTYPE, "C.UTF-8");
  editor = el_init("moonstill", stdin, stdout, stderr);
  history_list = history_init();
  if (!editor || !history_list || pipe2(interrupts, O_NONBLOCK | O_CLOEXEC)) return 0;
  history(history_list, &event, H_SETSIZE, HISTORY_LINES);
  history(history_list, &event, H_SETUNIQUE, 1);
  el_set(editor, EL_PROMPT, prompt);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, history, history_list);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(editor, EL_GETCFN, read_character);
  el_source(editor, NULL); /* the user's .editrc */
  return 1;
}

static void keep(const char *line) {
  HistEvent event;
  if (strspn(line, " \t\n") == strlen(line)) return;
  history(history_list, &event, H_ENTER, line);
  if (history_path) history(history_list, &event, H_SAVE, history_path);
}

static int prompt_read(lua_State *L) {
  struct sigaction action = {.sa_handler = on_read_signal, .sa_flags = SA_RESTART}, old;
  int count = 0;
  char *copy = strdup(luaL_checkstring(L, 1));
  if (!copy || !open_editor()) {
    free(copy);
    return luaL_error(L, "the terminal's line editor cannot be opened");
  }
  free(prompt_text);
  prompt_text = copy;
  sigaction(SIGINT, &action, &old);
  const char *line = el_gets(editor, &count);
  sigaction(SIGINT, &old, NULL);
  if (take_interrupts()) {
    const LineInfo *typed = el_line(editor);
    fputs("^C\n", stdout);
    lua_pushboolean(L, 0);
    lua_pushlstring(L, typed->buffer, (size_t)(typed->lastchar - typed->buffer));
    el_reset(editor);
    return 2;
  }
  if (!line || count <= 0) {
    lua_pushnil(L);
  } else {
    keep(line);
    lua_pushlstring(L, line, (size_t)count - (line[count - 1] == '\n'));
  }
  return 1;
}

static int prompt_history(lua_State *L) {
  HistEvent event;
  char *copy = strdup(luaL_checkstring(L, 1));
  if (!copy || !open_editor()) {
    free(copy);
    return luaL_error(L, "the history cannot be opened");
  }
  free(history_path);
  history_path = copy;
  history(history_list, &event, H_LOAD, history_path); /* absent at first */
  return 0;
}

static int prompt_interactive(lua_State *L) {
  lua_pushboolean(L, isatty(STDIN_FILENO) && isatty(STDOUT_FILENO));
  return 1;
}

static void stop(lua_State *L, lua_Debug *frame) {
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted");
}

/* Ctrl-C while Lua runs: a hook raises the error at the interpreter's next instruction. No hook runs
 * inside the core or in code that LuaJIT has compiled (modules; what is typed is not compiled), so from
 * here on Ctrl-C has its default action: a second one ends the process. A hook may be set only by the
 * thread that runs Lua, so another thread that gets the signal sends it on. */
static void on_call_signal(int number) {
  if (!pthread_equal(pthread_self(), runner)) {
    pthread_kill(runner, SIGINT);
    return;
  }
  signal(SIGINT, SIG_DFL);
  lua_sethook(running, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static int prompt_call(lua_State *L) {
  struct sigaction action = {.sa_handler = on_call_signal, .sa_flags = SA_RESTART}, old;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  running = L;
  runner = pthread_self();
  sigaction(SIGINT, &action, &old);
  int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  sigaction(SIGINT, &old, NULL);
  lua_sethook(L, NULL, 0, 0);
  lua_pushboolean(L, status == 0);
  lua_insert(L, 1);
  return lua_gettop(L);
}

void ms_prompt_push(lua_State *L) {
  static const luaL_Reg functions[] = {{"interactive", prompt_interactive},
                                       {"read", prompt_read},
                                       {"history", prompt_history},
                                       {"call", prompt_call},
                                       {NULL, NULL}};
  lua_createtable(L, 0, 5);
  luaL_register(L, NULL, functions);
  lua_pushfstring(L, "libedit %d.%d", LIBEDIT_MAJOR, LIBEDIT_MINOR);
  lua_setfield(L, -2, "version");
}

/* prompt.c - the terminal side of the prompts: lines by libedit, with history, completion and pasting;
 * on a terminal that is dumb, lines as they come. */
#include "prompt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <lauxlib.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "calls.h"

enum { HISTORY_LINES = 2000 };

static EditLine *editor;
static History *history_list;
static char *history_path;
static char *prompt_text;
static int interrupts[2];  /* a pipe: a byte for each Ctrl-C while a line is read */
static lua_State *reading; /* whoever waits for a line */
static int completer = LUA_NOREF;

/* signals ------------------------------------------------------------------------------------- */

static void on_read_signal(int number) {
  int saved = errno;
  if (write(interrupts[1], "", 1) < 0) errno = 0; /* the pipe is full: Ctrl-C is noted already */
  errno = saved;
}

static int take_interrupts(void) {
  char byte[64];
  return read(interrupts[0], byte, sizeof byte) > 0;
}

static int open_interrupts(void) {
  return interrupts[1] || !pipe2(interrupts, O_NONBLOCK | O_CLOEXEC);
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

/* What is pasted ------------------------------------------------------------------------------- */

/* The terminal is asked to put marks around what is pasted, once the prompt stands there. */
static int marks_pastes;

static void mark_pastes(int on) {
  if (on == marks_pastes) return;
  marks_pastes = on;
  fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
  fflush(stdout);
}

static const wchar_t PASTE_END[] = L"\033[201~";
enum { PASTE_END_CHARACTERS = sizeof PASTE_END / sizeof *PASTE_END - 1 };

static int ends_paste(const wchar_t *text, size_t n) {
  size_t end = PASTE_END_CHARACTERS;
  return n >= end && !wmemcmp(text + n - end, PASTE_END, end);
}

/* Reads up to the mark; returns the characters before it, NULL where the input or memory ends. */
static wchar_t *read_paste(EditLine *e, size_t *count) {
  wchar_t *text = NULL, c;
  for (size_t n = 0, room = 0; el_wgetc(e, &c) == 1;) {
    if (n + 1 >= room) {
      wchar_t *more = realloc(text, (room = 2 * room + 256) * sizeof *text);
      if (!more) break;
      text = more;
    }
    text[n++] = c == L'\r' ? L'\n' : c;
    if (!ends_paste(text, n)) continue;
    *count = n - PASTE_END_CHARACTERS;
    text[*count] = 0;
    return text;
  }
  free(text);
  return NULL;
}

/* Pasted lines are one text, which is entered where its last line is whole. */
static unsigned char paste(EditLine *e, int key) {
  size_t n = 0;
  wchar_t *text = read_paste(e, &n);
  if (!text) return CC_EOF;
  int whole = n > 0 && text[n - 1] == L'\n';
  while (n > 0 && text[n - 1] == L'\n') text[--n] = 0;
  int failed = n > 0 && el_winsertstr(e, text);
  free(text);
  if (failed) return CC_ERROR;
  if (whole) el_push(e, "\n");
  return CC_REFRESH;
}

/* completion ----------------------------------------------------------------------------------- */

static int is_waiting(void) {
  struct pollfd input = {STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

/* Asks Lua; false where it has nothing to say. Leaves its results on the stack. */
static int ask_completer(lua_State *L, const LineInfo *line) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, completer);
  lua_pushlstring(L, line->buffer, (size_t)(line->cursor - line->buffer));
  lua_pushlstring(L, line->cursor, (size_t)(line->lastchar - line->cursor));
  return lua_pcall(L, 2, 3, 0) == 0 && lua_isstring(L, -2);
}

/* Tab. Where more input is there already it was pasted, and stays. */
static unsigned char complete(EditLine *e, int key) {
  lua_State *L = reading;
  int top = lua_gettop(L);
  unsigned char done = CC_ERROR;
  if (completer == LUA_NOREF || is_waiting()) return el_insertstr(e, "\t") ? CC_ERROR : CC_REFRESH;
  if (ask_completer(L, el_line(e))) {
    const char *text = lua_tostring(L, -2), *list = lua_tostring(L, -1);
    int back = (int)lua_tointeger(L, -3);
    done = CC_REFRESH;
    if (back > 0) el_deletestr(e, back);
    if (*text && el_insertstr(e, text)) done = CC_ERROR;
    if (list) {
      printf("\n%s\n", list);
      fflush(stdout);
      el_set(e, EL_REFRESH); /* from here on: CC_REDISPLAY would begin rows above, on the list */
      done = CC_NORM;
    }
  }
  lua_settop(L, top);
  return done;
}

static int prompt_complete(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  luaL_unref(L, LUA_REGISTRYINDEX, completer);
  completer = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

enum { MOST_FILES = 10000 };

static int is_folder(DIR *folder, const struct dirent *entry) {
  struct stat info;
  if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK) return entry->d_type == DT_DIR;
  return !fstatat(dirfd(folder), entry->d_name, &info, 0) && S_ISDIR(info.st_mode);
}

static int prompt_files(lua_State *L) {
  DIR *folder = opendir(luaL_checkstring(L, 1));
  lua_newtable(L);
  if (!folder) return 1;
  int n = 0;
  for (struct dirent *e; n < MOST_FILES && (e = readdir(folder));) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    lua_pushfstring(L, is_folder(folder, e) ? "%s/" : "%s", e->d_name);
    lua_rawseti(L, -2, ++n);
  }
  closedir(folder);
  return 1;
}

/* lines ---------------------------------------------------------------------------------------- */

static char *prompt(EditLine *e) { return prompt_text; }

/* Replaces libedit's reader, which reads on after a signal: here Ctrl-C ends the line. */
static int read_character(EditLine *e, wchar_t *out) {
  mbstate_t state = {0};
  mark_pastes(1);
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
  if (!editor || !history_list) return 0;
  history(history_list, &event, H_SETSIZE, HISTORY_LINES);
  history(history_list, &event, H_SETUNIQUE, 1);
  el_set(editor, EL_PROMPT, prompt);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, history, history_list);
  el_set(editor, EL_ADDFN, "ms-paste", "Take what is pasted", paste);
  el_set(editor, EL_ADDFN, "ms-complete", "Complete a name", complete);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(editor, EL_BIND, "\\e[200~", "ms-paste", NULL);
  el_set(editor, EL_BIND, "^I", "ms-complete", NULL);
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

static int push_given_up(lua_State *L, const char *typed, size_t bytes) {
  lua_pushboolean(L, 0);
  lua_pushlstring(L, typed, bytes);
  return 2;
}

static int push_line(lua_State *L, const char *line, size_t bytes) {
  lua_pushlstring(L, line, bytes - (bytes > 0 && line[bytes - 1] == '\n'));
  return 1;
}

static int read_edited(lua_State *L) {
  int count = 0;
  if (!open_editor()) return luaL_error(L, "the terminal's line editor cannot be opened");
  el_resize(editor);
  const char *line = el_gets(editor, &count);
  mark_pastes(0);
  if (take_interrupts()) {
    const LineInfo *typed = el_line(editor);
    fputs("^C\n", stdout);
    int results = push_given_up(L, typed->buffer, (size_t)(typed->lastchar - typed->buffer));
    el_reset(editor);
    return results;
  }
  if (!line || count <= 0) return 0;
  keep(line);
  return push_line(L, line, (size_t)count);
}

/* Without an editor the terminal itself takes lines, and writes ^C. */
static int read_plain(lua_State *L) {
  luaL_Buffer line;
  char c = 0;
  int n;
  fputs(prompt_text, stdout);
  fflush(stdout);
  luaL_buffinit(L, &line);
  while ((n = read_byte(&c)) > 0 && c != '\n') luaL_addchar(&line, c);
  luaL_pushresult(&line);
  if (take_interrupts()) {
    fputs("\n", stdout);
    return push_given_up(L, "", 0);
  }
  return n > 0 || lua_objlen(L, -1) > 0;
}

static int is_dumb(void) {
  const char *kind = getenv("TERM");
  return !kind || !*kind || !strcmp(kind, "dumb");
}

static int prompt_read(lua_State *L) {
  struct sigaction action = {.sa_handler = on_read_signal, .sa_flags = SA_RESTART}, old;
  char *copy = strdup(luaL_checkstring(L, 1));
  if (!copy || !open_interrupts()) {
    free(copy);
    return luaL_error(L, "the terminal cannot be read");
  }
  free(prompt_text);
  prompt_text = copy;
  reading = L;
  sigaction(SIGINT, &action, &old);
  int results = is_dumb() ? read_plain(L) : read_edited(L);
  sigaction(SIGINT, &old, NULL);
  if (results == 0) lua_pushnil(L);
  return results ? results : 1;
}

static int prompt_history(lua_State *L) {
  HistEvent event;
  char *copy = strdup(luaL_checkstring(L, 1));
  if (!copy || !(is_dumb() || open_editor())) {
    free(copy);
    return luaL_error(L, "the history cannot be opened");
  }
  free(history_path);
  history_path = copy;
  if (editor) history(history_list, &event, H_LOAD, history_path); /* absent at first */
  return 0;
}

static int prompt_interactive(lua_State *L) {
  lua_pushboolean(L, isatty(STDIN_FILENO) && isatty(STDOUT_FILENO));
  return 1;
}

void ms_prompt_push(lua_State *L) {
  static const luaL_Reg functions[] = {{"interactive", prompt_interactive},
                                       {"read", prompt_read},
                                       {"complete", prompt_complete},
                                       {"files", prompt_files},
                                       {"history", prompt_history},
                                       {"call", ms_calls_call},
                                       {NULL, NULL}};
  lua_createtable(L, 0, 7);
  luaL_register(L, NULL, functions);
  lua_pushfstring(L, "libedit %d.%d", LIBEDIT_MAJOR, LIBEDIT_MINOR);
  lua_setfield(L, -2, "version");
}

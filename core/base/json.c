/* json.c - JSON by jansson, with limits and messages that say where. */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../moonstill.h"
#include "file.h"
#include "guess.h"
#include "memory.h"

/* ---- jansson's memory ---- */

static json_malloc_t take_before; /* the process's allocator, which this one calls */
static json_free_t give_before;

/* Of the call that this thread is in. most 0: no limit. */
static _Thread_local struct {
  size_t used, most;
  int starved, over;
} now;

static void *take(size_t bytes) {
  void *p = NULL;
  now.used += bytes;
  if (now.most && now.used > now.most)
    now.over = 1;
  else if (!ms_hook_fails())
    p = take_before(bytes);
  if (p)
    ms_hook_count(1);
  else
    now.starved = 1;
  return p;
}

static void give(void *p) {
  if (p) ms_hook_count(-1);
  give_before(p);
}

/* The library is never unloaded, so these stay where jansson finds them. */
__attribute__((constructor)) static void hook(void) {
  json_get_alloc_funcs(&take_before, &give_before);
  json_set_alloc_funcs(take, give);
}

static void begin(size_t most) {
  memset(&now, 0, sizeof now);
  now.most = most;
}

int ms_json_starved(void) {
  int starved = now.starved;
  begin(0);
  return starved;
}

/* ---- reading ---- */

/* What the values of a text may take: members of an object take 42 bytes for each that is read,
 * numbers 28; only empty objects take more. */
static size_t most_memory(size_t bytes) {
  const size_t base = (size_t)64 << 20, all = (size_t)2 << 30;
  size_t most = base + 48 * bytes;
  return most < all ? most : all;
}

/* The finite x above 2^63 as 17 digits and an exponent, which give the same x again. The point, which
 * is not the same everywhere, is left out. */
static void print_real(double x, char out[32]) {
  char text[40];
  snprintf(text, sizeof text, "%.16e", x);
  const char *e = strchr(text, 'e');
  snprintf(out, 32, "%c%.16se%d", text[0], e - 16, atoi(e + 1) - 16);
}

/* A literal that jansson finds too big becomes one that it reads: of an integer the nearest double, as
 * a real; of what is beyond doubles too, 1e308 with its sign. There is room: the integer has 19 digits
 * at least, the other 5 characters ("1e309"). Blanks are for the rest. */
static void tame_number(char *literal, size_t n) {
  json_error_t e = {0};
  char number[32] = "1e308";
  json_t *value = json_loadb(literal, n, JSON_DECODE_ANY, &e);
  int big = !value && json_error_code(&e) == json_error_numeric_overflow;
  json_decref(value);
  if (!big) return;
  value = json_loadb(literal, n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &e);
  if (value) print_real(fabs(json_real_value(value)), number);
  json_decref(value);
  size_t sign = *literal == '-';
  memset(literal + sign, ' ', n - sign);
  memcpy(literal + sign, number, strlen(number));
}

/* The bytes of the number at p, as the grammar has it: what follows is the parser's to judge. */
static size_t number_bytes(const char *p) {
  static const char digits[] = "0123456789";
  size_t n = *p == '-';
  n += strspn(p + n, digits);
  if (p[n] == '.') n += 1 + strspn(p + n + 1, digits);
  if (p[n] != 'e' && p[n] != 'E') return n;
  n += 1 + (p[n + 1] == '+' || p[n + 1] == '-');
  return n + strspn(p + n, digits);
}

/* All of them that stand outside of strings, in a text with 0 behind it. Every byte stays in its
 * place. */
static void tame_numbers(char *text, size_t bytes) {
  int inside = 0;
  for (size_t i = 0, n; i < bytes; i += n) {
    n = 1;
    if (inside && text[i] == '\\') n = 2;
    if (text[i] == '"') inside = !inside;
    if (inside || (text[i] != '-' && (text[i] < '0' || text[i] > '9'))) continue;
    n = number_bytes(text + i);
    if (n > 18 || memchr(text + i, 'e', n) || memchr(text + i, 'E', n)) tame_number(text + i, n);
  }
}

enum { FLAGS = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL };

/* jansson's reader, but that a number may have any size: whether it can be used is for those to say
 * who read it. */
static json_t *load(const char *text, size_t bytes, size_t most, json_error_t *e) {
  begin(most);
  memset(e, 0, sizeof *e); /* jansson leaves the code as it is where memory has ended */
  json_t *value = json_loadb(text, bytes, FLAGS, e);
  if (value || now.starved || json_error_code(e) != json_error_numeric_overflow) return value;
  begin(0);
  char *copy = take(bytes + 1);
  if (!copy) return NULL;
  memcpy(copy, text, bytes);
  copy[bytes] = 0;
  tame_numbers(copy, bytes);
  if (!now.starved) {
    begin(most);
    value = json_loadb(copy, bytes, FLAGS, e);
  }
  give(copy);
  return value;
}

ms_status ms_json_parse(const char *name, const char *text, size_t bytes, json_t **out) {
  json_error_t e;
  *out = NULL;
  if (bytes > MS_JSON_MAX_BYTES)
    return MS_FAIL(MS_EIO, "%s: %zu bytes of JSON, limit %d", name, bytes, MS_JSON_MAX_BYTES);
  size_t most = most_memory(bytes);
  json_t *value = load(text, bytes, most, &e);
  int over = now.over;
  /* A text can come out shorter, and no error: jansson's reader of words does not look. */
  if (ms_json_starved()) {
    json_decref(value);
    if (over)
      return MS_FAIL(MS_EIO,
                     "%s: the values in %zu bytes of JSON take more than %zu bytes of memory,"
                     " the limit for that many",
                     name, bytes, most);
    return MS_FAIL(MS_ENOMEM, "%s: no memory for the values in %zu bytes of JSON", name, bytes);
  }
  if (!value)
    return MS_FAIL(MS_EIO, "%s: line %d, column %d (byte %d): %s", name, e.line, e.column,
                   e.position, e.text);
  *out = value;
  return MS_OK;
}

ms_status ms_json_read(const char *path, size_t limit, json_t **out) {
  char *text;
  size_t bytes;
  *out = NULL;
  ms_status st = ms_file_read(path, limit, &text, &bytes);
  if (st != MS_OK) return ms_file_explain(path, st);
  size_t mark = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* some editors' */
  st = ms_json_parse(path, text + mark, bytes - mark, out);
  ms_free(text);
  return ms_file_explain(path, st);
}

ms_status ms_json_copy(const char *name, const json_t *value, json_t **out) {
  begin(0);
  *out = json_deep_copy(value);
  if (*out && !ms_json_starved()) return MS_OK;
  json_decref(*out);
  *out = NULL;
  return MS_FAIL(MS_ENOMEM, "%s: no memory for a copy", name);
}

/* ---- writing ---- */

/* Text as jansson writes it, in our memory. */
static ms_status dump(const json_t *value, size_t flags, char **out) {
  void *p;
  *out = NULL;
  begin(0);
  size_t bytes = json_dumpb(value, NULL, 0, flags);
  int starved = ms_json_starved();
  if (starved || !bytes)
    return MS_FAIL(starved ? MS_ENOMEM : MS_EINVAL, "JSON: %s",
                   starved ? "no memory to write" : "a value that cannot be written");
  MS_TRY(ms_alloc(bytes + 1, "JSON", &p));
  size_t again = json_dumpb(value, p, bytes, flags);
  if (ms_json_starved() || again != bytes) {
    ms_free(p);
    return MS_FAIL(MS_ENOMEM, "JSON: no memory to write");
  }
  *out = p;
  return MS_OK;
}

const char *ms_json_show(const json_t *value, char *buffer, size_t room) {
  char *text;
  if (ms_json_text(value, 0, &text) != MS_OK) return "?";
  size_t n = strlen(text) < room ? strlen(text) : room - 4;
  memcpy(buffer, text, n);
  strcpy(buffer + n, n < strlen(text) ? "..." : "");
  ms_text_free(text);
  return buffer;
}

/* Numbers with 15 digits where that reads back as the same values ("1e-6"), else with 17. */
ms_status ms_json_text(const json_t *value, int indent, char **out) {
  size_t flags = JSON_ENCODE_ANY | (indent ? JSON_INDENT((size_t)indent) : JSON_COMPACT);
  MS_TRY(dump(value, flags | JSON_REAL_PRECISION(15), out));
  begin(0);
  json_t *back = json_loads(*out, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  int same = back && json_equal(back, value);
  json_decref(back);
  if (same && !now.starved) return MS_OK;
  ms_free(*out);
  *out = NULL;
  if (ms_json_starved()) return MS_FAIL(MS_ENOMEM, "JSON: no memory to write");
  return dump(value, flags | JSON_REAL_PRECISION(17), out);
}

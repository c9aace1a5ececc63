/* json.c - JSON by jansson, with limits and messages that say where. */
#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- numbers beyond their types ----
 *
 * What nobody reads shall not refuse a file, so numbers of any size are taken: jansson's types hold
 * those that are written here in the place of others. Where one is read, it is found out of bounds. */

/* An integer of 17 digits and an exponent, which read back as x. */
static void spell(double x, char spelt[32]) {
  char text[40], digits[18];
  int n = 0;
  snprintf(text, sizeof text, "%.16e", fabs(x));
  const char *e = strchr(text, 'e');
  for (const char *p = text; p < e && n < 17; p++) /* but for the point, whatever it looks like */
    if (isdigit((unsigned char)*p)) digits[n++] = *p;
  digits[n] = 0;
  snprintf(spelt, 32, "%s%se%d", x < 0 ? "-" : "", digits, atoi(e + 1) - 16);
}

/* Writes a number anew in its place, if it must be: an integer beyond 64 bits as a real, what is
 * beyond doubles as 1e308. Both are no longer than it was, so that positions in errors stay. */
static void tame_number(char *p, size_t n, locale_t c) {
  char after = p[n], spelt[32];
  size_t sign = *p == '-';
  p[n] = 0;
  errno = 0;
  if (strspn(p + sign, "0123456789") == n - sign) strtoll(p, NULL, 10);
  int beyond = errno == ERANGE;
  double x = strtod_l(p, NULL, c);
  p[n] = after;
  if (isinf(x))
    snprintf(spelt, sizeof spelt, "%s1e308", sign ? "-" : "");
  else if (beyond)
    spell(x, spelt);
  else
    return;
  memset(p, ' ', n);
  memcpy(p, spelt, strlen(spelt));
}

/* A copy of a text with all such numbers written anew; freed with ms_free. */
static ms_status tame_numbers(const char *name, const char *text, size_t bytes, char **out) {
  void *copy;
  int quoted = 0;
  MS_TRY(ms_alloc(bytes + 1, name, &copy));
  *out = memcpy(copy, text, bytes);
  locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
  if (!c) {
    ms_free(copy);
    return MS_FAIL(MS_ENOMEM, "%s: no memory for a locale", name);
  }
  for (char *p = *out, *end = p + bytes; p < end; p++) {
    size_t n = quoted ? 0 : strspn(p, "+-.eE0123456789");
    if (*p == '"') quoted = !quoted;
    if (quoted && *p == '\\') p++;
    if (!n || (*p != '-' && !isdigit((unsigned char)*p))) continue;
    tame_number(p, n, c);
    p += n - 1;
  }
  freelocale(c);
  return MS_OK;
}

/* ---- reading ---- */

static json_t *load(const char *text, size_t bytes, size_t most, json_error_t *e) {
  begin(most);
  return json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
}

/* What the values of a text may take: members of an object take 42 bytes for each that is read,
 * numbers 28; only empty objects take more. */
static size_t most_memory(size_t bytes) {
  const size_t base = (size_t)64 << 20, all = (size_t)2 << 30;
  size_t most = base + 48 * bytes;
  return most < all ? most : all;
}

ms_status ms_json_parse(const char *name, const char *text, size_t bytes, json_t **out) {
  json_error_t e;
  *out = NULL;
  if (bytes > MS_JSON_MAX_BYTES)
    return MS_FAIL(MS_EIO, "%s: %zu bytes of JSON, limit %d", name, bytes, MS_JSON_MAX_BYTES);
  size_t most = most_memory(bytes);
  json_t *value = load(text, bytes, most, &e);
  if (!value && !now.starved && json_error_code(&e) == json_error_numeric_overflow) {
    char *tame;
    MS_TRY(tame_numbers(name, text, bytes, &tame));
    value = load(tame, bytes, most, &e);
    ms_free(tame);
  }
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

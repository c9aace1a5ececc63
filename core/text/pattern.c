/* pattern.c - regular expressions of users, in PCRE2's own syntax. Those of tokenizers, which are
 * written in another one, are in regex.c. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "../base/memory.h"
#include "../moonstill.h"

enum { PATTERN_MOST = 1 << 16, PATTERN_LIMIT = 10000000, PATTERN_HEAP = 64 << 10 /* KiB */ };

struct ms_pattern {
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *context;
};

static void *take(PCRE2_SIZE bytes, void *unused) {
  void *p;
  return ms_alloc(bytes, "pattern", &p) == MS_OK ? p : NULL;
}
static void give(void *p, void *unused) { ms_free(p); }

/* What PCRE2 says of an error. */
static ms_status fail_compile(int code, PCRE2_SIZE at, const char *text, int64_t bytes) {
  char why[256];
  if (code == PCRE2_ERROR_HEAP_FAILED) return MS_FAIL(MS_ENOMEM, "pattern: no memory");
  pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
  return MS_FAIL(MS_EINVAL, "the pattern '%.*s' is no regular expression: %s, at byte %zu",
                 (int)(bytes < 200 ? bytes : 200), text, why, at + 1);
}

static ms_status compile(ms_pattern *p, pcre2_general_context *general, const char *text,
                         int64_t bytes) {
  int code;
  PCRE2_SIZE at;
  pcre2_compile_context *context = pcre2_compile_context_create(general);
  if (!context) return MS_FAIL(MS_ENOMEM, "pattern: no memory");
  p->code = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)bytes,
                          PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at,
                          context);
  pcre2_compile_context_free(context);
  return p->code ? MS_OK : fail_compile(code, at, text, bytes);
}

static ms_status prepare(ms_pattern *p, pcre2_general_context *general) {
  p->data = pcre2_match_data_create_from_pattern(p->code, general);
  p->context = pcre2_match_context_create(general);
  if (!p->data || !p->context) return MS_FAIL(MS_ENOMEM, "pattern: no memory");
  pcre2_set_match_limit(p->context, PATTERN_LIMIT);
  pcre2_set_heap_limit(p->context, PATTERN_HEAP);
  return MS_OK;
}

ms_status ms_pattern_new(const char *text, int64_t bytes, ms_pattern **out) {
  void *m;
  *out = NULL;
  MS_REQUIRE(bytes >= 0 && bytes <= PATTERN_MOST, "pattern: %lld bytes, not in 0..%d",
             (long long)bytes, PATTERN_MOST);
  MS_TRY(ms_alloc(sizeof(ms_pattern), "pattern", &m));
  ms_pattern *p = m;
  pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
  ms_status st =
      general ? compile(p, general, text, bytes) : MS_FAIL(MS_ENOMEM, "pattern: no memory");
  if (st == MS_OK) st = prepare(p, general);
  pcre2_general_context_free(general);
  if (st == MS_OK)
    *out = p;
  else
    ms_pattern_free(p);
  return st;
}

void ms_pattern_free(ms_pattern *p) {
  if (!p) return;
  pcre2_match_context_free(p->context);
  pcre2_match_data_free(p->data);
  pcre2_code_free(p->code);
  ms_free(p);
}

static ms_status fail_match(int code) {
  char why[256];
  if (code == PCRE2_ERROR_NOMEMORY) return MS_FAIL(MS_ENOMEM, "pattern: no memory");
  pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
  return MS_FAIL(MS_EINVAL, "the pattern takes too long for a text: %s", why);
}

/* The next byte that begins a character. */
static PCRE2_SIZE behind(const char *text, PCRE2_SIZE bytes, PCRE2_SIZE at) {
  at++;
  while (at < bytes && ((unsigned char)text[at] & 0xc0) == 0x80) at++;
  return at;
}

ms_status ms_pattern_last(const ms_pattern *p, const char *text, int64_t bytes, int64_t *start,
                          int64_t *end) {
  const PCRE2_SIZE *found = pcre2_get_ovector_pointer(p->data);
  PCRE2_SIZE at = 0, n = (PCRE2_SIZE)bytes;
  *start = *end = -1;
  MS_REQUIRE(bytes >= 0, "pattern: a text of %lld bytes", (long long)bytes);
  while (at <= n) {
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, at, PCRE2_NOTEMPTY, p->data, p->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return fail_match(rc);
    int group = 1;
    while (group < rc && found[2 * group] == PCRE2_UNSET) group++;
    if (group >= rc) group = 0;
    *start = (int64_t)found[2 * group];
    *end = (int64_t)found[2 * group + 1];
    at = found[1] > at ? found[1] : behind(text, n, at);
  }
  return MS_OK;
}

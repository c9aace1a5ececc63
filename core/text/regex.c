/* regex.c - from Oniguruma's syntax to PCRE2's, and matching. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"
#include "buf.h"
#include "unicode.h"

struct ms_regex {
  pcre2_code *code;
  int jit;
};
struct ms_matcher {
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

static void *take(PCRE2_SIZE bytes, void *unused) {
  void *p;
  return ms_alloc(bytes, "regular expression", &p) == MS_OK ? p : NULL;
}
static void give(void *p, void *unused) { ms_free(p); }

/* ---- translation ---- */

/* White_Space, written out: PCRE2's \s also takes U+180E. */
#define SPACE                                                                \
  "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}" \
  "\\x{202F}\\x{205F}\\x{3000}"
#define NOT_SPACE                                                                \
  "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"          \
  "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}" \
  "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
/* Oniguruma's \w, with the numbers of Latin-1; PCRE2's own leaves out marks and connectors. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE"

typedef struct {
  const char *where, *p, *end;
  int in_class;
  ms_buf out;
} reader;

static ms_status put(reader *r, const char *text) {
  return ms_buf_add(&r->out, text, strlen(text));
}

static ms_status unsupported(const reader *r, const char *what, const char *at) {
  int n = (int)(r->end - at < 24 ? r->end - at : 24);
  return MS_FAIL(MS_EUNSUPPORTED, "%s: regular expression: %s is not supported: \"%.*s\"", r->where,
                 what, n, at);
}

/* Adds a set, given by its members: inside a class, or as a class of its own. */
static ms_status put_set(reader *r, const char *members, int negated) {
  if (r->in_class) return put(r, members);
  MS_TRY(put(r, negated ? "[^" : "["));
  MS_TRY(put(r, members));
  return put(r, "]");
}

static int is_category(const char *name, size_t n) {
  static const char *const known =
      " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc "
      "Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs ";
  char key[5];
  if (n < 1 || n > 2) return 0;
  size_t at = 0;
  key[at++] = ' ';
  for (size_t i = 0; i < n; i++) key[at++] = name[i];
  key[at++] = ' ';
  key[at] = 0;
  return strstr(known, key) != NULL;
}

/* Adds to a class the characters of a category that PCRE2's Unicode does not have yet. */
static ms_status put_new(reader *r, const char *name, size_t n) {
  int32_t first, last;
  const char *category;
  char text[48];
  for (int i = 0; ms_unicode_new(i, &first, &last, &category); i++) {
    if (memcmp(category, name, n)) continue;
    snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", (unsigned)first, (unsigned)last);
    MS_TRY(put(r, text));
  }
  return MS_OK;
}

static ms_status put_category(reader *r, const char *name, size_t n, int negated) {
  if (!r->in_class) MS_TRY(put(r, negated ? "[^" : "["));
  MS_TRY(put(r, "\\p{"));
  MS_TRY(ms_buf_add(&r->out, name, n));
  MS_TRY(put(r, "}"));
  MS_TRY(put_new(r, name, n));
  return r->in_class ? MS_OK : put(r, "]");
}

/* \p{...} behind the letter. A script is asked for by sc:, since PCRE2's plain name means
 * Script_Extensions. */
static ms_status property(reader *r, const char *start) {
  int negated = r->p[-1] == 'P';
  const char *close =
      r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p)) : NULL;
  if (!close) return unsupported(r, "this property", start);
  const char *name = r->p + 1;
  r->p = close + 1;
  if (name < close && *name == '^') {
    negated = !negated;
    name++;
  }
  size_t n = (size_t)(close - name);
  for (size_t i = 0; i < n; i++)
    if (!((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z') && name[i] != '_')
      return unsupported(r, "this property", start);
  if (r->in_class && negated) return unsupported(r, "a negated property in a class", start);
  if (is_category(name, n)) return put_category(r, name, n, negated);
  /* Only Han has new characters that are found in texts: its extensions H and I. */
  MS_TRY(put(r, r->in_class ? "" : negated ? "[^" : "["));
  MS_TRY(put(r, "\\p{sc:"));
  MS_TRY(ms_buf_add(&r->out, name, n));
  MS_TRY(put(r, "}"));
  if (n == 3 && !memcmp(name, "Han", 3))
    MS_TRY(put(r, "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"));
  return put(r, r->in_class ? "" : "]");
}

static ms_status put_word(reader *r, int negated) {
  static const char *const parts[] = {"L", "M", "Nd", "Nl"};
  if (!r->in_class) MS_TRY(put(r, negated ? "[^" : "["));
  MS_TRY(put(r, WORD));
  for (int i = 0; i < 4; i++) MS_TRY(put_new(r, parts[i], strlen(parts[i])));
  return r->in_class ? MS_OK : put(r, "]");
}

static ms_status escape(reader *r) {
  const char *start = r->p++;
  if (r->p >= r->end) return unsupported(r, "a lone backslash", start);
  char c = *r->p++;
  switch (c) {
    case 's': return put_set(r, SPACE, 0);
    case 'S': return r->in_class ? put(r, NOT_SPACE) : put_set(r, SPACE, 1);
    case 'w': return put_word(r, 0);
    case 'W':
      if (r->in_class) return unsupported(r, "\\W in a class", start);
      return put_word(r, 1);
    case 'd': return put_category(r, "Nd", 2, 0);
    case 'D':
      if (r->in_class) return unsupported(r, "\\D in a class", start);
      return put_category(r, "Nd", 2, 1);
    case 'p':
    case 'P': return property(r, start);
    case 'v': return put(r, "\\x0B");
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'A':
    case 'z':
      if ((c == 'A' || c == 'z') && r->in_class) return unsupported(r, "this escape", start);
      return ms_buf_add(&r->out, start, 2);
    case 'u': { /* four digits */
      if (r->end - r->p < 4) return unsupported(r, "this escape", start);
      MS_TRY(put(r, "\\x{"));
      MS_TRY(ms_buf_add(&r->out, r->p, 4));
      r->p += 4;
      return put(r, "}");
    }
    case 'x': return ms_buf_add(&r->out, start, 2); /* \xHH and \x{H..}: alike in both */
    default: break;
  }
  if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c & 0x80))
    return unsupported(r, "this escape", start);
  return ms_buf_add(&r->out, start, 2);
}

static ms_status class(reader *r) {
  const char *start = r->p;
  MS_TRY(put(r, "["));
  r->p++;
  if (r->p < r->end && *r->p == '^') {
    MS_TRY(put(r, "^"));
    r->p++;
  }
  if (r->p < r->end && *r->p == ']') return unsupported(r, "] first in a class", start);
  r->in_class = 1;
  while (r->p < r->end && *r->p != ']') {
    if (*r->p == '[') return unsupported(r, "a class in a class", start);
    if (*r->p == '&' && r->end - r->p > 1 && r->p[1] == '&')
      return unsupported(r, "an intersection of classes", start);
    if (*r->p == '\\') {
      MS_TRY(escape(r));
    } else {
      MS_TRY(ms_buf_add(&r->out, r->p++, 1));
    }
  }
  r->in_class = 0;
  if (r->p >= r->end) return unsupported(r, "a class without end", start);
  r->p++;
  return put(r, "]");
}

/* Only the groups that mean the same in both; Ruby's (?m) is PCRE2's (?s), for one. */
static ms_status group(reader *r) {
  static const char *const known[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?i)", "?-i:"};
  const char *start = r->p;
  size_t left = (size_t)(r->end - r->p - 1);
  MS_TRY(put(r, "("));
  r->p++;
  if (!left || *r->p != '?') return MS_OK;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    size_t n = strlen(known[i]);
    if (n > left || memcmp(known[i], r->p, n)) continue;
    r->p += n;
    return put(r, known[i]);
  }
  return unsupported(r, "this group", start);
}

/* {n,m}. Ruby gives a sign after it, or a missing n, another meaning: both are refused. */
static ms_status interval(reader *r) {
  const char *start = r->p, *close = memchr(r->p, '}', (size_t)(r->end - r->p));
  if (!close || start[1] == ',') return unsupported(r, "this interval", start);
  for (const char *q = start + 1; q < close; q++)
    if (!(*q >= '0' && *q <= '9') && *q != ',') return unsupported(r, "this interval", start);
  if (close + 1 < r->end && (close[1] == '+' || close[1] == '?'))
    return unsupported(r, "a sign behind an interval", start);
  r->p = close + 1;
  return ms_buf_add(&r->out, start, (size_t)(r->p - start));
}

static ms_status translate(reader *r) {
  while (r->p < r->end) {
    switch (*r->p) {
      case '\\': MS_TRY(escape(r)); break;
      case '[': MS_TRY(class(r)); break;
      case '(': MS_TRY(group(r)); break;
      case '{': MS_TRY(interval(r)); break;
      default: MS_TRY(ms_buf_add(&r->out, r->p++, 1));
    }
  }
  return MS_OK;
}

/* ---- compiling and matching ---- */

static ms_status compile(ms_regex *re, const char *where, const ms_buf *pattern) {
  int code;
  PCRE2_SIZE at;
  char text[256];
  pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
  pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
  if (context) {
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* In Ruby's syntax ^ and $ always match at lines. */
    re->code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->size,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &at, context);
  }
  pcre2_compile_context_free(context);
  pcre2_general_context_free(general);
  if (!context) return MS_FAIL(MS_ENOMEM, "%s: no memory for a regular expression", where);
  if (!re->code) {
    if (code == PCRE2_ERROR_HEAP_FAILED)
      return MS_FAIL(MS_ENOMEM, "%s: no memory for a regular expression", where);
    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return MS_FAIL(MS_EUNSUPPORTED, "%s: regular expression: %s", where, text);
  }
  code = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
  if (code == PCRE2_ERROR_NOMEMORY)
    return MS_FAIL(MS_ENOMEM, "%s: no memory to compile a regular expression", where);
  re->jit = code == 0; /* without PCRE2's compiler matching is slower */
  return MS_OK;
}

ms_status ms_regex_new(const char *where, const char *pattern, size_t bytes, ms_regex **out) {
  reader r = {.where = where, .p = pattern, .end = pattern + bytes};
  void *p = NULL;
  *out = NULL;
  ms_status st = bytes > 1 << 16
                     ? MS_FAIL(MS_EUNSUPPORTED, "%s: regular expression of %zu bytes", where, bytes)
                     : translate(&r);
  if (st == MS_OK) st = ms_alloc(sizeof(ms_regex), "regular expression", &p);
  if (st == MS_OK) st = compile(p, where, &r.out);
  ms_buf_free(&r.out);
  if (st == MS_OK) {
    *out = p;
  } else {
    ms_regex_free(p);
  }
  return st;
}

void ms_regex_free(ms_regex *re) {
  if (!re) return;
  pcre2_code_free(re->code);
  ms_free(re);
}

enum { STACK_START = 32 << 10, STACK_MOST = 16 << 20, MATCH_LIMIT = 200000000 };

ms_status ms_matcher_new(ms_matcher **out) {
  void *p;
  *out = NULL;
  MS_TRY(ms_alloc(sizeof(ms_matcher), "matcher", &p));
  ms_matcher *m = p;
  pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
  if (general) {
    m->data = pcre2_match_data_create(1, general);
    m->context = pcre2_match_context_create(general);
    m->stack = pcre2_jit_stack_create(STACK_START, STACK_MOST, general);
  }
  pcre2_general_context_free(general);
  uint32_t jit = 0;
  pcre2_config(PCRE2_CONFIG_JIT, &jit);
  if (!m->data || !m->context || (jit && !m->stack)) {
    ms_matcher_free(m);
    return MS_FAIL(MS_ENOMEM, "matcher: no memory");
  }
  if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
  pcre2_set_match_limit(m->context, MATCH_LIMIT);
  *out = m;
  return MS_OK;
}

void ms_matcher_free(ms_matcher *m) {
  if (!m) return;
  pcre2_jit_stack_free(m->stack);
  pcre2_match_context_free(m->context);
  pcre2_match_data_free(m->data);
  ms_free(m);
}

ms_status ms_regex_find(const ms_regex *re, ms_matcher *m, const char *text, size_t bytes,
                        size_t from, size_t *start, size_t *end, int *found) {
  PCRE2_SPTR subject = (PCRE2_SPTR)text;
  int rc = re->jit ? pcre2_jit_match(re->code, subject, bytes, from, 0, m->data, m->context)
                   : pcre2_match(re->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, m->data,
                                 m->context);
  *found = 0;
  if (rc == PCRE2_ERROR_NOMATCH) return MS_OK;
  if (rc < 0) {
    char why[256];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    return MS_FAIL(rc == PCRE2_ERROR_NOMEMORY ? MS_ENOMEM : MS_EINVAL,
                   "tokenizer: regular expression gave up at byte %zu of %zu: %s", from, bytes,
                   why);
  }
  const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
  *start = at[0];
  *end = at[1];
  *found = 1;
  return MS_OK;
}

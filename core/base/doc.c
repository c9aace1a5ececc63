/* doc.c - JSON and YAML as one flat list of nodes, so that Lua builds its tables in one pass.
 *
 * JSON comes from jansson's tree, which the document keeps for its texts. YAML comes from libyaml's
 * events: anchors are remembered as ranges of nodes, an alias copies its range, and the limit on
 * the number of nodes is what stops documents that grow by aliases of aliases. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "json.h"
#include "../moonstill.h"
#include "memory.h"

enum { YAML_MAX_BYTES = 16 << 20, YAML_MAX_DEPTH = 100, YAML_MAX_NODES = 1 << 20 };
enum { YAML_MAX_ALIASED = 64 << 20 };

struct ms_doc {
  ms_node *node;
  int64_t count, room;
  json_t *json; /* of JSON: owns the texts */
  char *text;   /* of YAML: scalars, one after the other */
  size_t text_used, text_room;
};

const ms_node *ms_doc_nodes(const ms_doc *doc, int64_t *count) {
  *count = doc->count;
  return doc->node;
}

void ms_doc_free(ms_doc *doc) {
  if (!doc) return;
  json_decref(doc->json);
  ms_free(doc->node);
  ms_free(doc->text);
  ms_free(doc);
}

/* Room for one more node; its index is in *at, since the list may move. */
static ms_status add_node(ms_doc *doc, int kind, int64_t *at) {
  if (doc->count == doc->room) {
    void *p = doc->node;
    int64_t room = doc->room ? 2 * doc->room : 64;
    MS_TRY(ms_grow(&p, (size_t)doc->count * sizeof *doc->node, (size_t)room * sizeof *doc->node,
                   "document"));
    doc->node = p;
    doc->room = room;
  }
  ms_node *n = &doc->node[doc->count];
  memset(n, 0, sizeof *n);
  n->kind = (int16_t)kind;
  *at = doc->count++;
  return MS_OK;
}

/* ---- JSON ---- */

static ms_status add_text(ms_doc *doc, const char *text, size_t bytes) {
  int64_t at;
  MS_TRY(add_node(doc, MS_DOC_STRING, &at));
  doc->node[at].text = text;
  doc->node[at].bytes = (int64_t)bytes;
  return MS_OK;
}

static ms_status add_json(ms_doc *doc, json_t *value) {
  static const int kinds[] = {
      [JSON_OBJECT] = MS_DOC_OBJECT,   [JSON_ARRAY] = MS_DOC_ARRAY, [JSON_STRING] = MS_DOC_STRING,
      [JSON_INTEGER] = MS_DOC_INTEGER, [JSON_REAL] = MS_DOC_NUMBER, [JSON_TRUE] = MS_DOC_TRUE,
      [JSON_FALSE] = MS_DOC_FALSE,     [JSON_NULL] = MS_DOC_NULL};
  const char *key;
  json_t *child;
  size_t i;
  int64_t at;

  if (json_is_string(value))
    return add_text(doc, json_string_value(value), json_string_length(value));
  MS_TRY(add_node(doc, kinds[json_typeof(value)], &at));
  if (json_is_number(value)) {
    doc->node[at].number = json_number_value(value);
    if (json_is_integer(value)) doc->node[at].integer = json_integer_value(value);
  } else if (json_is_array(value)) {
    doc->node[at].count = (int64_t)json_array_size(value);
    json_array_foreach(value, i, child) MS_TRY(add_json(doc, child));
  } else if (json_is_object(value)) {
    doc->node[at].count = (int64_t)json_object_size(value);
    json_object_foreach(value, key, child) {
      MS_TRY(add_text(doc, key, strlen(key)));
      MS_TRY(add_json(doc, child));
    }
  }
  return MS_OK;
}

static int64_t count_json(json_t *value) {
  const char *key;
  json_t *child;
  size_t i;
  int64_t n = 1;
  json_array_foreach(value, i, child) n += count_json(child);
  json_object_foreach(value, key, child) n += 1 + count_json(child);
  return n;
}

/* Room for exactly the nodes there are: growing by doubling would take three times as much. */
static ms_status make_room(ms_doc *doc) {
  void *p;
  int64_t n = count_json(doc->json);
  MS_TRY(ms_alloc_undefined((size_t)n * sizeof *doc->node, "document", &p));
  doc->node = p;
  doc->room = n;
  return MS_OK;
}

ms_status ms_doc_parse_json(const char *name, const char *text, int64_t bytes, ms_doc **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(bytes >= 0, "%s: %lld bytes", name, (long long)bytes);
  MS_TRY(ms_alloc(sizeof(ms_doc), "document", &p));
  ms_doc *doc = p;
  ms_status st = ms_json_parse(name, text, (size_t)bytes, &doc->json);
  if (st == MS_OK) st = make_room(doc);
  if (st == MS_OK) st = add_json(doc, doc->json);
  if (st == MS_OK)
    *out = doc;
  else
    ms_doc_free(doc);
  return st;
}

/* ---- YAML ---- */

typedef struct anchor {
  char *name;
  int64_t first, end; /* nodes; end 0 while the anchored node is still open */
} anchor;

/* A key of a mapping that is open, or just closed and being checked. */
typedef struct map_key {
  const char *text;
  int64_t bytes;
  int line, column;
} map_key;

typedef struct reader {
  const char *name, *text;
  size_t bytes;
  yaml_parser_t parser;
  ms_doc *doc;
  locale_t locale; /* "C": strtod must not ask the user's */
  anchor *anchors;
  int64_t anchor_count, anchor_room;
  map_key *keys; /* a stack: the keys of all open mappings */
  int64_t key_count, key_room;
  int64_t aliased; /* bytes of the texts that aliases stand for */
} reader;

static int line_of(const yaml_mark_t *mark) { return (int)mark->line + 1; }

static ms_status fail_at(const reader *r, const yaml_mark_t *mark, const char *what) {
  return MS_FAIL(MS_EIO, "%s: line %d, column %zu: %s", r->name, line_of(mark), mark->column + 1,
                 what);
}

/* A node that begins at a mark. */
static ms_status add_node_at(reader *r, int kind, const yaml_mark_t *mark, int64_t *at) {
  MS_TRY(add_node(r->doc, kind, at));
  r->doc->node[*at].line = line_of(mark);
  r->doc->node[*at].column = (uint16_t)(mark->column < 65535 ? mark->column + 1 : 65535);
  return MS_OK;
}

/* The text of a line, counted from 0, and its length. */
static const char *text_of_line(const reader *r, size_t line, size_t *bytes) {
  const char *at = r->text, *end = r->text + r->bytes, *stop;
  for (; line && (stop = memchr(at, '\n', (size_t)(end - at))); line--) at = stop + 1;
  stop = memchr(at, '\n', (size_t)(end - at));
  *bytes = line ? 0 : (size_t)((stop ? stop : end) - at);
  return at;
}

/* Whether a tab stands where blanks belong: before a line's text, or where libyaml stopped. */
static int has_tab(const reader *r, const yaml_mark_t *mark) {
  size_t bytes, i = 0;
  const char *line = text_of_line(r, mark->line, &bytes);
  while (i < bytes && line[i] == ' ') i++;
  return (i < bytes && line[i] == '\t') || (mark->column < bytes && line[mark->column] == '\t');
}

/* The place behind the colon of a line "key:value", without the blank that makes a key of it; 0. */
static size_t lacks_blank(const reader *r, size_t number) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
  size_t bytes, i = 0, first;
  const char *line = text_of_line(r, number, &bytes);
  while (i < bytes && line[i] == ' ') i++;
  for (first = i; i < bytes && line[i] && strchr(letters, line[i]);) i++;
  int lacks = i > first && i + 1 < bytes && line[i] == ':' && !strchr(" \t\r/", line[i + 1]);
  return lacks ? i + 1 : 0;
}

/* What people write that is no YAML, in words that say what to do; MS_OK where it is nothing known. */
static ms_status name_slip(const reader *r) {
  const yaml_parser_t *p = &r->parser;
  const yaml_mark_t *mark = &p->problem_mark;
  if (p->context && strstr(p->context, "quoted scalar") && strstr(p->problem, "unexpected"))
    return fail_at(r, &p->context_mark, "the quote that begins here is not closed");
  if (has_tab(r, mark)) return fail_at(r, mark, "a tab: YAML is indented with blanks alone");
  for (size_t line = mark->line + 1, tries = 0; line-- && tries < 2; tries++)
    if (lacks_blank(r, line)) {
      yaml_mark_t at = {.line = line, .column = lacks_blank(r, line)};
      return fail_at(r, &at, "a blank belongs behind the colon of a key: value");
    }
  if (p->context && strstr(p->context, "flow"))
    return fail_at(r, &p->context_mark,
                   "the bracket that begins here is not closed, or its content is not separated "
                   "by commas");
  if (strstr(p->problem, "mapping values are not allowed"))
    return fail_at(
        r, mark,
        "a colon where no key is: a value that holds ': ' is put in quotes, and the keys "
        "of a table begin in one column");
  return MS_OK;
}

static ms_status fail_parse(const reader *r) {
  const yaml_parser_t *p = &r->parser;
  const char *problem = p->problem ? p->problem : "cannot be read";
  if (p->error == YAML_MEMORY_ERROR) return MS_FAIL(MS_ENOMEM, "%s: no memory", r->name);
  if (p->error == YAML_READER_ERROR)
    return MS_FAIL(MS_EIO, "%s: byte %zu: %s", r->name, p->problem_offset, problem);
  if (p->problem) MS_TRY(name_slip(r));
  return MS_FAIL(MS_EIO, "%s: line %d, column %zu: %s%s%s", r->name, line_of(&p->problem_mark),
                 p->problem_mark.column + 1, problem, p->context ? " " : "",
                 p->context ? p->context : "");
}

static ms_status next_event(reader *r, yaml_event_t *e) {
  if (!yaml_parser_parse(&r->parser, e)) return fail_parse(r);
  return MS_OK;
}

/* Keeps a copy of a scalar's text. The room was sized by the input, which no scalar outgrows. */
static ms_status keep_text(reader *r, const yaml_event_t *e, ms_node *n) {
  ms_doc *doc = r->doc;
  size_t bytes = e->data.scalar.length;
  if (bytes > doc->text_room - doc->text_used)
    return fail_at(r, &e->start_mark, "scalars are longer than the file");
  n->text = memcpy(doc->text + doc->text_used, e->data.scalar.value, bytes);
  n->bytes = (int64_t)bytes;
  doc->text_used += bytes;
  return MS_OK;
}

static int is_one_of(const char *s, const char *const *list) {
  for (; *list; list++)
    if (!strcmp(s, *list)) return 1;
  return 0;
}

static size_t digits(const char *s) { return strspn(s, "0123456789"); }

/* The core schema's numbers: decimal, 0o and 0x integers; decimal fractions; .inf and .nan. */
static int is_decimal(const char *s, int *integer) {
  s += *s == '-' || *s == '+';
  size_t whole = digits(s), part = 0;
  s += whole;
  *integer = whole && !*s;
  if (*s == '.') {
    part = digits(s + 1);
    s += 1 + part;
  }
  if (!whole && !part) return 0;
  if (*s == 'e' || *s == 'E') {
    s++;
    s += *s == '-' || *s == '+';
    size_t n = digits(s);
    if (!n) return 0;
    s += n;
  }
  return !*s;
}

static int read_special(const char *s, double *number) {
  static const char *const inf[] = {".inf", ".Inf", ".INF", NULL};
  static const char *const nan[] = {".nan", ".NaN", ".NAN", NULL};
  if (is_one_of(s, nan)) {
    *number = (double)NAN;
    return 1;
  }
  int sign = *s == '-' || *s == '+';
  if (!is_one_of(s + sign, inf)) return 0;
  *number = *s == '-' ? -(double)INFINITY : (double)INFINITY;
  return 1;
}

static int read_number(const reader *r, const char *s, double *number, int *integer) {
  const char *hex = "0123456789abcdefABCDEF", *octal = "01234567";
  *integer = 1;
  if (is_decimal(s, integer)) {
    *number = strtod_l(s, NULL, r->locale);
    return 1;
  }
  int base = !strncmp(s, "0x", 2) ? 16 : !strncmp(s, "0o", 2) ? 8 : 0;
  if (!base) return *integer = 0, read_special(s, number);
  if (!s[2] || strspn(s + 2, base == 16 ? hex : octal) != strlen(s + 2)) return 0;
  *number = 0;
  for (s += 2; *s; s++) *number = *number * base + (*s <= '9' ? *s - '0' : (*s | 32) - 'a' + 10);
  return *integer = 1;
}

/* What a plain scalar means by YAML 1.2's core schema. */
static ms_status resolve_plain(const reader *r, const yaml_event_t *e, ms_node *n) {
  static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
  static const char *const yes[] = {"true", "True", "TRUE", NULL};
  static const char *const no[] = {"false", "False", "FALSE", NULL};
  const char *s = (const char *)e->data.scalar.value;
  int integer;

  if (strlen(s) != e->data.scalar.length) return MS_OK; /* holds a zero byte: a string */
  if (is_one_of(s, nulls))
    n->kind = MS_DOC_NULL;
  else if (is_one_of(s, yes))
    n->kind = MS_DOC_TRUE;
  else if (is_one_of(s, no))
    n->kind = MS_DOC_FALSE;
  else if (read_number(r, s, &n->number, &integer)) {
    if (integer && (n->number > 9007199254740992.0 || n->number < -9007199254740992.0))
      return fail_at(r, &e->start_mark, "integer beyond 2^53 has no exact value; quote it");
    n->kind = integer ? MS_DOC_INTEGER : MS_DOC_NUMBER;
    if (integer) n->integer = (int64_t)n->number;
  }
  return MS_OK;
}

/* Explicit tags: those of the core schema, when the scalar is what they say. */
static ms_status check_tag(const reader *r, const yaml_event_t *e, const char *tag, ms_node *n) {
  static const struct {
    const char *tag;
    int kind, other;
  } known[] = {{YAML_NULL_TAG, MS_DOC_NULL, MS_DOC_NULL},
               {YAML_BOOL_TAG, MS_DOC_TRUE, MS_DOC_FALSE},
               {YAML_INT_TAG, MS_DOC_INTEGER, MS_DOC_NUMBER},
               {YAML_FLOAT_TAG, MS_DOC_NUMBER, MS_DOC_INTEGER},
               {YAML_SEQ_TAG, MS_DOC_ARRAY, MS_DOC_ARRAY},
               {YAML_MAP_TAG, MS_DOC_OBJECT, MS_DOC_OBJECT}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(tag, known[i].tag)) {
      if (n->kind == known[i].kind || n->kind == known[i].other) return MS_OK;
      return fail_at(r, &e->start_mark, "the value is not what its tag says");
    }
  return fail_at(r, &e->start_mark, "tags other than the core schema's are not read");
}

static ms_status add_scalar(reader *r, const yaml_event_t *e) {
  const char *tag = (const char *)e->data.scalar.tag;
  int64_t at;
  MS_TRY(add_node_at(r, MS_DOC_STRING, &e->start_mark, &at));
  ms_node *n = &r->doc->node[at];
  MS_TRY(keep_text(r, e, n));
  if (tag && (!strcmp(tag, "!") || !strcmp(tag, YAML_STR_TAG))) return MS_OK;
  if (tag || e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) MS_TRY(resolve_plain(r, e, n));
  return tag ? check_tag(r, e, tag, n) : MS_OK;
}

static ms_status open_anchor(reader *r, const yaml_event_t *e, const yaml_char_t *name,
                             int64_t *at) {
  void *p = r->anchors;
  *at = -1;
  if (!name) return MS_OK;
  if (r->anchor_count == 1000) return fail_at(r, &e->start_mark, "more than 1000 anchors");
  if (r->anchor_count == r->anchor_room) {
    size_t size = (size_t)r->anchor_count * sizeof *r->anchors;
    MS_TRY(ms_grow(&p, size, 2 * size + 8 * sizeof *r->anchors, "YAML anchors"));
    r->anchors = p;
    r->anchor_room = 2 * r->anchor_room + 8;
  }
  anchor *a = &r->anchors[r->anchor_count];
  MS_TRY(ms_text_copy((const char *)name, strlen((const char *)name), &a->name));
  a->first = r->doc->count;
  a->end = 0;
  *at = r->anchor_count++;
  return MS_OK;
}

static ms_status add_alias(reader *r, const yaml_event_t *e) {
  const char *name = (const char *)e->data.alias.anchor;
  int64_t i = r->anchor_count - 1; /* the last one of that name counts */
  while (i >= 0 && strcmp(r->anchors[i].name, name)) i--;
  if (i < 0) return fail_at(r, &e->start_mark, "alias of an anchor that is not there");
  if (!r->anchors[i].end) return fail_at(r, &e->start_mark, "alias inside its own anchor");
  for (int64_t from = r->anchors[i].first, at; from < r->anchors[i].end; from++) {
    MS_TRY(add_node(r->doc, 0, &at));
    r->doc->node[at] = r->doc->node[from];
    r->aliased += r->doc->node[at].bytes;
    if (at >= YAML_MAX_NODES)
      return fail_at(r, &e->start_mark, "aliases make more than 1048576 nodes");
    if (r->aliased > YAML_MAX_ALIASED)
      return fail_at(r, &e->start_mark, "aliases make more than 67108864 bytes of text");
  }
  return MS_OK;
}

static int compare_keys(const void *pa, const void *pb) {
  const map_key *a = pa, *b = pb;
  int64_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
  int c = memcmp(a->text, b->text, (size_t)n);
  if (c) return c;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
  return a->line - b->line;
}

/* Sorts the keys of a mapping that has ended, finds equal neighbours and drops them. */
static ms_status close_keys(reader *r, int64_t base) {
  map_key *k = r->keys + base;
  int64_t n = r->key_count - base;
  r->key_count = base;
  if (n > 1) qsort(k, (size_t)n, sizeof *k, compare_keys);
  for (int64_t i = 1; i < n; i++)
    if (k[i].bytes == k[i - 1].bytes && !memcmp(k[i].text, k[i - 1].text, (size_t)k[i].bytes))
      return MS_FAIL(MS_EIO,
                     "%s: line %d, column %d: duplicate key '%.*s' (first on line %d): one of them "
                     "has to go",
                     r->name, k[i].line, k[i].column, (int)(k[i].bytes < 100 ? k[i].bytes : 100),
                     k[i].text, k[i - 1].line);
  return MS_OK;
}

static ms_status push_key(reader *r, const ms_node *n) {
  if (r->key_count == r->key_room) {
    void *p = r->keys;
    size_t size = (size_t)r->key_room * sizeof *r->keys;
    MS_TRY(ms_grow(&p, size, 2 * size + 16 * sizeof *r->keys, "YAML keys"));
    r->keys = p;
    r->key_room = 2 * r->key_room + 16;
  }
  r->keys[r->key_count++] = (map_key){n->text, n->bytes, n->line, n->column};
  return MS_OK;
}

/* A key is a scalar and stands for its text: `1: x` has the key "1". */
static ms_status add_key(reader *r, const yaml_event_t *e) {
  int64_t at;
  if (e->type != YAML_SCALAR_EVENT || e->data.scalar.anchor)
    return fail_at(r, &e->start_mark, "a key must be a scalar, without anchor or alias");
  if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
    const char *s = (const char *)e->data.scalar.value;
    if (!strcmp(s, "<<")) return fail_at(r, &e->start_mark, "merge keys (<<) are not read");
    if (!*s) return fail_at(r, &e->start_mark, "empty key");
  }
  MS_TRY(add_node_at(r, MS_DOC_STRING, &e->start_mark, &at));
  MS_TRY(keep_text(r, e, &r->doc->node[at]));
  return push_key(r, &r->doc->node[at]);
}

static ms_status add_value(reader *r, const yaml_event_t *e, int depth);

/* The elements of a sequence or the members of a mapping, up to its end. */
static ms_status add_children(reader *r, int map, int depth, int64_t *count) {
  yaml_event_t e;
  for (*count = 0;; ++*count) {
    MS_TRY(next_event(r, &e));
    int end = e.type == YAML_SEQUENCE_END_EVENT || e.type == YAML_MAPPING_END_EVENT;
    ms_status st = MS_OK;
    if (!end && map) {
      st = add_key(r, &e);
      yaml_event_delete(&e);
      MS_TRY(st);
      MS_TRY(next_event(r, &e));
    }
    if (!end) st = add_value(r, &e, depth);
    yaml_event_delete(&e);
    if (end || st != MS_OK) return st;
  }
}

static ms_status add_collection(reader *r, const yaml_event_t *e, int depth) {
  int map = e->type == YAML_MAPPING_START_EVENT;
  const char *tag = (const char *)(map ? e->data.mapping_start.tag : e->data.sequence_start.tag);
  int64_t at, count, base = r->key_count;
  if (depth >= YAML_MAX_DEPTH) return fail_at(r, &e->start_mark, "nested more than 100 deep");
  MS_TRY(add_node_at(r, map ? MS_DOC_OBJECT : MS_DOC_ARRAY, &e->start_mark, &at));
  if (tag) MS_TRY(check_tag(r, e, tag, &r->doc->node[at]));
  MS_TRY(add_children(r, map, depth + 1, &count));
  r->doc->node[at].count = count;
  return map ? close_keys(r, base) : MS_OK;
}

static ms_status add_value(reader *r, const yaml_event_t *e, int depth) {
  int64_t a;
  if (r->doc->count >= YAML_MAX_NODES) return fail_at(r, &e->start_mark, "more than 1048576 nodes");
  switch (e->type) {
    case YAML_ALIAS_EVENT: return add_alias(r, e);
    case YAML_SCALAR_EVENT:
      MS_TRY(open_anchor(r, e, e->data.scalar.anchor, &a));
      MS_TRY(add_scalar(r, e));
      break;
    case YAML_SEQUENCE_START_EVENT:
      MS_TRY(open_anchor(r, e, e->data.sequence_start.anchor, &a));
      MS_TRY(add_collection(r, e, depth));
      break;
    case YAML_MAPPING_START_EVENT:
      MS_TRY(open_anchor(r, e, e->data.mapping_start.anchor, &a));
      MS_TRY(add_collection(r, e, depth));
      break;
    default: return fail_at(r, &e->start_mark, "a value is missing");
  }
  if (a >= 0) r->anchors[a].end = r->doc->count;
  return MS_OK;
}

/* Stream start, at most one document, stream end. An empty stream is null. */
static ms_status read_stream(reader *r) {
  int documents = 0;
  for (int done = 0; !done;) {
    yaml_event_t e;
    int64_t at;
    MS_TRY(next_event(r, &e));
    ms_status st = MS_OK;
    done = e.type == YAML_STREAM_END_EVENT;
    if (e.type == YAML_DOCUMENT_START_EVENT && documents++)
      st = fail_at(r, &e.start_mark, "a second document");
    else if (done && !documents)
      st = add_node(r->doc, MS_DOC_NULL, &at);
    else if (!done && e.type != YAML_STREAM_START_EVENT && e.type != YAML_DOCUMENT_START_EVENT &&
             e.type != YAML_DOCUMENT_END_EVENT)
      st = add_value(r, &e, 0);
    yaml_event_delete(&e);
    MS_TRY(st);
  }
  return MS_OK;
}

static ms_status parse_yaml(reader *r, const char *text, size_t bytes) {
  void *p;
  /* An escape of two bytes makes at most three (\L, \P); UTF-16 likewise. */
  r->doc->text_room = 2 * bytes + 16;
  MS_TRY(ms_alloc_undefined(r->doc->text_room, "YAML text", &p));
  r->doc->text = p;
  r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!r->locale || !yaml_parser_initialize(&r->parser))
    return MS_FAIL(MS_ENOMEM, "%s: no memory", r->name);
  yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, bytes);
  ms_status st = read_stream(r);
  yaml_parser_delete(&r->parser);
  return st;
}

ms_status ms_doc_parse_yaml(const char *name, const char *text, int64_t bytes, ms_doc **out) {
  reader r = {.name = name, .text = text, .bytes = (size_t)bytes};
  void *p;
  *out = NULL;
  if (bytes < 0 || bytes > YAML_MAX_BYTES)
    return MS_FAIL(MS_EIO, "%s: %lld bytes of YAML, limit %d", name, (long long)bytes,
                   YAML_MAX_BYTES);
  MS_TRY(ms_alloc(sizeof(ms_doc), "document", &p));
  r.doc = p;
  ms_status st = parse_yaml(&r, text, (size_t)bytes);
  if (r.locale) freelocale(r.locale);
  for (int64_t i = 0; i < r.anchor_count; i++) ms_free(r.anchors[i].name);
  ms_free(r.anchors);
  ms_free(r.keys);
  if (st == MS_OK)
    *out = r.doc;
  else
    ms_doc_free(r.doc);
  return st;
}

/* json.c - JSON by jansson, with limits and messages that say where. */
#include "json.h"

#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "guess.h"
#include "memory.h"

ms_status ms_json_parse(const char *name, const char *text, size_t bytes, json_t **out) {
  json_error_t e;
  *out = NULL;
  if (bytes > MS_JSON_MAX_BYTES)
    return MS_FAIL(MS_EIO, "%s: %zu bytes of JSON, limit %d", name, bytes, MS_JSON_MAX_BYTES);
  *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
  if (!*out)
    return MS_FAIL(MS_EIO, "%s: line %d, column %d (byte %d): %s", name, e.line, e.column,
                   e.position, e.text);
  return MS_OK;
}

ms_status ms_json_read(const char *path, json_t **out) {
  char *text;
  size_t bytes;
  *out = NULL;
  ms_status st = ms_file_read(path, MS_JSON_MAX_BYTES, &text, &bytes);
  if (st != MS_OK) return ms_file_explain(path, st);
  size_t mark = bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* some editors' */
  st = ms_json_parse(path, text + mark, bytes - mark, out);
  ms_free(text);
  return ms_file_explain(path, st);
}

/* Numbers with 15 digits where that reads back as the same values ("1e-6"), else with 17. */
static char *dump(const json_t *value, size_t flags) {
  char *text = json_dumps(value, flags | JSON_REAL_PRECISION(15));
  json_t *back = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
  int same = back && json_equal(back, value);
  json_decref(back);
  if (same) return text;
  free(text);
  return json_dumps(value, flags | JSON_REAL_PRECISION(17));
}

ms_status ms_json_text(const json_t *value, int indent, char **out) {
  size_t flags = JSON_ENCODE_ANY | (indent ? JSON_INDENT((size_t)indent) : JSON_COMPACT);
  char *text = dump(value, flags);
  *out = NULL;
  if (!text) return MS_FAIL(MS_ENOMEM, "JSON: no memory to write");
  ms_status st = ms_text_copy(text, strlen(text), out);
  free(text);
  return st;
}

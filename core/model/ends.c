/* ends.c - the ids that end an answer, and generation_config.json, which says them to the world. */
#include <string.h>

#include "../base/file.h"
#include "../base/json.h"
#include "../base/memory.h"
#include "../io/folder.h"
#include "model.h"

#define FILE_NAME "generation_config.json"
#define KEY "eos_token_id"

ms_status ms_model_set_ends(ms_model *m, int32_t n, const int32_t *id) {
  void *copy;
  MS_REQUIRE(n >= 0 && (!n || id), "model: %d ids that end an answer", n);
  for (int32_t i = 0; i < n; i++)
    MS_REQUIRE(id[i] >= 0 && id[i] < m->config.vocab,
               "model: id %d ends an answer, outside the vocabulary of %lld", id[i],
               (long long)m->config.vocab);
  MS_TRY(ms_alloc((size_t)n * sizeof *id, "ends", &copy));
  if (n) memcpy(copy, id, (size_t)n * sizeof *id);
  ms_free(m->end);
  m->end = copy;
  m->ends = n;
  return MS_OK;
}

int32_t ms_model_ends(const ms_model *m, const int32_t **id) {
  if (id) *id = m->end;
  return m->end ? m->ends : -1;
}

static int is_id(const ms_model *m, const json_t *value) {
  json_int_t id = json_integer_value(value);
  return json_is_integer(value) && id >= 0 && id < m->config.vocab;
}

/* Adds an id, or those of a list, to `list`, which names each once: seen[vocab] marks them. What else
 * stands there is passed over. */
static int add_ids(const ms_model *m, json_t *list, char *seen, json_t *value) {
  int bad = 0;
  for (size_t i = 0; i < json_array_size(value); i++)
    bad |= add_ids(m, list, seen, json_array_get(value, i));
  if (!is_id(m, value) || seen[json_integer_value(value)]) return bad;
  seen[json_integer_value(value)] = 1;
  return bad | json_array_append(list, value);
}

/* What config.json says of tokens, for a folder that brought no file of its own. */
static int add_tokens(const ms_model *m, json_t *to) {
  static const char *const keys[] = {"bos_token_id", "pad_token_id", NULL};
  int bad = 0;
  for (const char *const *key = keys; *key; key++) {
    json_t *value = json_object_get(m->config.json, *key);
    if (is_id(m, value)) bad |= json_object_set(to, *key, value);
  }
  return bad;
}

/* `file` with all ends, those that it names first: the first is what ends a text. It is then no
 * longer what config.json alone would give, which readers may take it for. */
static ms_status merge(const ms_model *m, json_t *file, int *changed) {
  void *seen;
  MS_TRY(ms_alloc((size_t)m->config.vocab, "ends", &seen));
  json_t *list = json_array();
  int bad = !list || add_ids(m, list, seen, json_object_get(file, KEY));
  size_t named = json_array_size(list);
  for (int32_t i = 0; i < m->ends; i++) {
    json_t *id = json_integer(m->end[i]);
    bad |= !id || add_ids(m, list, seen, id);
    json_decref(id);
  }
  size_t all = json_array_size(list);
  *changed = all > named;
  if (*changed) {
    json_object_del(file, "_from_model_config");
    bad |= json_object_set(file, KEY, all == 1 ? json_array_get(list, 0) : list);
  }
  json_decref(list);
  ms_free(seen);
  return bad ? MS_FAIL(MS_ENOMEM, "model: no memory for " FILE_NAME) : MS_OK;
}

static ms_status put(const ms_folder *folder, const json_t *file) {
  char *text;
  MS_TRY(ms_json_text(file, 2, &text));
  ms_status st = ms_folder_put(folder, FILE_NAME, text);
  ms_text_free(text);
  return st;
}

/* The file at `path` goes along as it is where it names all ends, or cannot be read. */
static ms_status carry(const ms_model *m, const ms_folder *folder, const char *path) {
  json_t *file = NULL;
  int changed = 0;
  ms_status st = ms_json_read(path, MS_CONFIG_MAX_BYTES, &file);
  if (st == MS_ENOMEM) return st;
  st = json_is_object(file) ? merge(m, file, &changed) : MS_OK;
  if (st == MS_OK) st = changed ? put(folder, file) : ms_folder_copy(folder, path, FILE_NAME);
  json_decref(file);
  return st;
}

static ms_status write_new(const ms_model *m, const ms_folder *folder) {
  int changed;
  json_t *file = json_object();
  ms_status st = file && !add_tokens(m, file)
                     ? merge(m, file, &changed)
                     : MS_FAIL(MS_ENOMEM, "model: no memory for " FILE_NAME);
  if (st == MS_OK) st = put(folder, file);
  json_decref(file);
  return st;
}

ms_status ms_ends_write(const ms_model *m, const ms_folder *folder, const char *from) {
  char *path = NULL;
  if (from) MS_TRY(ms_text_format(&path, "%s/" FILE_NAME, from));
  ms_status st = MS_OK;
  if (path && ms_path_kind(path) == 1)
    st = carry(m, folder, path);
  else if (m->ends)
    st = write_new(m, folder);
  ms_text_free(path);
  return st;
}

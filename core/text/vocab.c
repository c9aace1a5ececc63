/* vocab.c - spellings of tokens in one run of text, found by an open hash table. */
#include "vocab.h"

#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"

static int32_t *find(const ms_vocab *v, const char *text, size_t bytes) {
  const ms_vocab_entry *entry = (const void *)v->entry.data;
  uint32_t i = (uint32_t)XXH3_64bits(text, bytes);
  for (;; i++) {
    int32_t *slot = &v->slot[i & (uint32_t)(v->slots - 1)];
    if (*slot < 0) return slot;
    const ms_vocab_entry *e = &entry[*slot];
    if ((size_t)e->bytes == bytes && !memcmp(v->text.data + e->at, text, bytes)) return slot;
  }
}

static ms_status grow_table(ms_vocab *v) {
  if (v->slots && v->used < v->slots / 2) return MS_OK;
  void *p;
  int32_t old = v->slots, *before = v->slot;
  MS_TRY(ms_alloc(sizeof(int32_t) * (size_t)(old ? 2 * old : 1024), "vocabulary", &p));
  v->slot = p;
  v->slots = old ? 2 * old : 1024;
  memset(p, 0xFF, sizeof(int32_t) * (size_t)v->slots);
  for (int32_t i = 0; i < old; i++) {
    if (before[i] < 0) continue;
    size_t bytes = 0;
    const char *text = ms_vocab_text(v, before[i], &bytes);
    *find(v, text, bytes) = before[i];
  }
  ms_free(before);
  return MS_OK;
}

static ms_status grow_entries(ms_vocab *v, int32_t size) {
  if (size <= v->size) return MS_OK;
  MS_TRY(ms_buf_reserve(&v->entry, (size_t)(size - v->size) * sizeof(ms_vocab_entry)));
  ms_vocab_entry *entry = (void *)v->entry.data;
  for (int32_t i = v->size; i < size; i++) entry[i] = (ms_vocab_entry){0, -1};
  v->entry.size = (size_t)size * sizeof *entry;
  v->size = size;
  return MS_OK;
}

ms_status ms_vocab_add(ms_vocab *v, const char *text, size_t bytes, int32_t id, int *what) {
  MS_REQUIRE(id >= 0 && id < MS_VOCAB_MOST && bytes < INT32_MAX, "vocabulary: id %d", id);
  MS_TRY(grow_table(v));
  int32_t *slot = find(v, text, bytes);
  if (*slot >= 0) {
    *what = MS_VOCAB_TEXT_TAKEN;
    return MS_OK;
  }
  if (id < v->size && ((ms_vocab_entry *)(void *)v->entry.data)[id].bytes >= 0) {
    *what = MS_VOCAB_ID_TAKEN;
    return MS_OK;
  }
  MS_TRY(ms_buf_reserve(&v->text, bytes + 1));
  MS_TRY(grow_entries(v, id + 1));
  ((ms_vocab_entry *)(void *)v->entry.data)[id] = (ms_vocab_entry){v->text.size, (int32_t)bytes};
  memcpy(v->text.data + v->text.size, text, bytes);
  v->text.data[v->text.size + bytes] = 0;
  v->text.size += bytes + 1;
  *slot = id;
  v->used++;
  *what = MS_VOCAB_ADDED;
  return MS_OK;
}

int32_t ms_vocab_id(const ms_vocab *v, const char *text, size_t bytes) {
  return v->slots ? *find(v, text, bytes) : -1;
}

const char *ms_vocab_text(const ms_vocab *v, int32_t id, size_t *bytes) {
  if (id < 0 || id >= v->size) return NULL;
  const ms_vocab_entry *e = &((const ms_vocab_entry *)(const void *)v->entry.data)[id];
  if (e->bytes < 0) return NULL;
  *bytes = (size_t)e->bytes;
  return v->text.data + e->at;
}

void ms_vocab_free(ms_vocab *v) {
  ms_buf_free(&v->text);
  ms_buf_free(&v->entry);
  ms_free(v->slot);
  *v = (ms_vocab){0};
}

/* vocab.h - the spellings of tokens: id to text, text to id. */
#ifndef MS_VOCAB_H
#define MS_VOCAB_H
#include <stddef.h>
#include <stdint.h>

#include "buf.h"

enum { MS_VOCAB_MOST = 1 << 24 }; /* a file with an id above this is damaged */

/* Zeroed is empty and valid. An id may be taken once, a text may stand for one id. */
typedef struct ms_vocab {
  ms_buf text;          /* all spellings, each with a terminator */
  ms_buf entry;         /* ms_vocab_entry, by id */
  int32_t size;         /* largest id + 1 */
  int32_t *slot, slots; /* open hash table of ids, -1 free; slots is a power of two */
  int32_t used;
} ms_vocab;
typedef struct ms_vocab_entry {
  size_t at;
  int32_t bytes; /* -1: id unused */
} ms_vocab_entry;

enum { MS_VOCAB_ADDED = 1, MS_VOCAB_ID_TAKEN, MS_VOCAB_TEXT_TAKEN };
/* *what: which of the three it was; only the first changes the vocabulary. */
ms_status ms_vocab_add(ms_vocab *v, const char *text, size_t bytes, int32_t id, int *what);
int32_t ms_vocab_id(const ms_vocab *v, const char *text, size_t bytes); /* -1: none */
/* NULL when unused; lives as long as nothing is added. */
const char *ms_vocab_text(const ms_vocab *v, int32_t id, size_t *bytes);
void ms_vocab_free(ms_vocab *v);

#endif

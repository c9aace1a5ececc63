/* added.h - tokens that are found in the text before the model sees it, leftmost and longest. */
#ifndef MS_ADDED_H
#define MS_ADDED_H
#include <stddef.h>
#include <stdint.h>

#include "draft.h"

enum { MS_ADDED_SPECIAL = 1, MS_ADDED_SINGLE_WORD = 2, MS_ADDED_LSTRIP = 4, MS_ADDED_RSTRIP = 8 };

/* A trie over bytes. Zeroed is empty and finds nothing. */
typedef struct ms_added {
  ms_buf node;        /* node 0 is the root */
  int32_t first[256]; /* children of the root, 0 for none */
} ms_added;

/* A stretch of the text: an added token, with the spaces that it takes, or text (id -1). */
typedef struct ms_stretch {
  size_t start, end, spelled, spelled_end;
  int32_t id;
} ms_stretch;
/* Ranges of a text in which no special token is found: they ascend and do not touch. */
typedef struct ms_plain {
  const ms_range *range;
  size_t count;
} ms_plain;

ms_status ms_added_add(ms_added *a, const char *text, size_t bytes, int32_t id, int flags);
/* Cuts the text into stretches (ms_stretch, added to `out`). An empty text has none.
 *
 * A special token is looked for in each plain range and in what is between them, never across a
 * border: one that a plain range spells is left to the text, whole. Tokens that are not special are
 * found everywhere. The spaces that a token takes may be plain. */
ms_status ms_added_split(const ms_added *a, const char *text, size_t bytes, ms_plain plain,
                         ms_buf *out);
void ms_added_free(ms_added *a);

#endif

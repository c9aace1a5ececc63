/* draft.h - a text that the steps of a tokenizer rewrite, and where each of its bytes came from.
 *
 * Only texts that are traced have ranges: those whose offsets are asked for, or of which a part is
 * plain. The ranges of a text ascend, by their starts and by their ends. */
#ifndef MS_DRAFT_H
#define MS_DRAFT_H
#include <stddef.h>
#include <stdint.h>

#include "buf.h"

/* Bytes of the text that was given. */
typedef struct ms_range {
  int32_t start, end;
} ms_range;

typedef struct ms_slice {
  const char *text;
  size_t bytes;
  const ms_range *from; /* of each byte; NULL: not traced */
} ms_slice;
static inline ms_slice ms_slice_part(ms_slice s, size_t start, size_t end) {
  return (ms_slice){s.text + start, end - start, s.from ? s.from + start : NULL};
}
/* What a traced slice of at least a byte came from. */
static inline ms_range ms_slice_range(ms_slice s) {
  return (ms_range){s.from[0].start, s.from[s.bytes - 1].end};
}
/* The same of its first character: what a sign that is put before the slice stands for. */
ms_range ms_slice_first(ms_slice s);

/* Zeroed is empty and valid. */
typedef struct ms_draft {
  ms_buf text, from;
} ms_draft;
ms_slice ms_draft_slice(const ms_draft *d);
void ms_draft_clear(ms_draft *d);
void ms_draft_swap(ms_draft *a, ms_draft *b);
static inline ms_status ms_draft_add(ms_draft *d, ms_slice s) {
  if (s.from) MS_TRY(ms_buf_add(&d->from, s.from, s.bytes * sizeof *s.from));
  return ms_buf_add(&d->text, s.text, s.bytes);
}
/* New bytes in the place of `from`, all of which they stand for; NULL: not traced. */
ms_status ms_draft_put(ms_draft *d, const char *text, size_t bytes, const ms_range *from);
void ms_draft_free(ms_draft *d);

/* Widens the ranges until they ascend: a start is none of those behind it, an end none before it. */
void ms_ranges_ascend(ms_range *r, size_t n);

#endif

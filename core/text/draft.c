/* draft.c - texts that know where they came from. */
#include "draft.h"

#include "utf8.h"

ms_range ms_slice_first(ms_slice s) {
  int n;
  ms_utf8_get(s.text, &n);
  return ms_slice_range(ms_slice_part(s, 0, (size_t)n));
}

ms_slice ms_draft_slice(const ms_draft *d) {
  return (ms_slice){d->text.data, d->text.size, d->from.size ? (const void *)d->from.data : NULL};
}

void ms_draft_clear(ms_draft *d) { d->text.size = d->from.size = 0; }

void ms_draft_swap(ms_draft *a, ms_draft *b) {
  ms_draft swap = *a;
  *a = *b;
  *b = swap;
}

ms_status ms_draft_put(ms_draft *d, const char *text, size_t bytes, const ms_range *from) {
  for (size_t i = 0; from && i < bytes; i++) MS_TRY(ms_buf_add(&d->from, from, sizeof *from));
  return ms_buf_add(&d->text, text, bytes);
}

void ms_draft_free(ms_draft *d) {
  ms_buf_free(&d->text);
  ms_buf_free(&d->from);
}

void ms_ranges_ascend(ms_range *r, size_t n) {
  for (size_t i = n; i-- > 1;)
    if (r[i - 1].start > r[i].start) r[i - 1].start = r[i].start;
  for (size_t i = 1; i < n; i++)
    if (r[i].end < r[i - 1].end) r[i].end = r[i - 1].end;
}

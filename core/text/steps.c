/* steps.c - what normalizers, pre-tokenizers and decoders share: patterns and byte characters. */
#include "steps.h"

#include <string.h>

#include "../base/memory.h"
#include "utf8.h"

void ms_steps_free(ms_steps *s) {
  for (int i = 0; i < s->count; i++) {
    ms_regex_free(s->step[i].regex);
    ms_free(s->step[i].literal);
    ms_free(s->step[i].text);
  }
  s->count = 0;
}

ms_status ms_step_find(const ms_step *s, ms_matcher *m, const char *text, size_t bytes, size_t from,
                       size_t *start, size_t *end, int *found) {
  if (s->regex) return ms_regex_find(s->regex, m, text, bytes, from, start, end, found);
  const char *p = memmem(text + from, bytes - from, s->literal, s->literal_bytes);
  *found = p != NULL;
  if (p) {
    *start = (size_t)(p - text);
    *end = *start + s->literal_bytes;
  }
  return MS_OK;
}

enum { ROOM_FOR_ALL = 64 << 10, ROOM_FOR_EACH = 64 };

void ms_room_give(ms_room *room, size_t bytes) {
  if (!room->text) room->left = ROOM_FOR_ALL;
  room->text += bytes;
  room->left += ROOM_FOR_EACH * bytes;
}

ms_status ms_room_take(ms_room *room, size_t bytes) {
  if (bytes > room->left)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "tokenizer: the steps of its file make more than %zu bytes of %zu: the limit is "
                   "%d, and %d for each byte of the text",
                   ROOM_FOR_ALL + ROOM_FOR_EACH * room->text, room->text, ROOM_FOR_ALL,
                   ROOM_FOR_EACH);
  room->left -= bytes;
  return MS_OK;
}

ms_status ms_step_replace(const ms_step *s, ms_matcher *m, ms_slice in, ms_draft *out,
                          ms_room *room) {
  size_t done = 0, from = 0, start, end;
  int found;
  while (from <= in.bytes) {
    MS_TRY(ms_step_find(s, m, in.text, in.bytes, from, &start, &end, &found));
    if (!found) break;
    if (start == end)
      return MS_FAIL(MS_EUNSUPPORTED, "tokenizer: Replace: its pattern matches the empty text");
    MS_TRY(ms_room_take(room, s->text_bytes));
    MS_TRY(ms_draft_add(out, ms_slice_part(in, done, start)));
    ms_range all = in.from ? ms_slice_range(ms_slice_part(in, start, end)) : (ms_range){0, 0};
    MS_TRY(ms_draft_put(out, s->text, s->text_bytes, in.from ? &all : NULL));
    done = from = end;
  }
  return ms_draft_add(out, ms_slice_part(in, done, in.bytes));
}

/* Bytes that are printable in Latin-1 stand for themselves; the others are, in order, the
 * characters from U+0100 on. */
static int plain(int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); }

int32_t ms_byte_char(unsigned char byte) {
  if (plain(byte)) return byte;
  if (byte <= 0x20) return 0x100 + byte;
  return byte == 0xAD ? 0x143 : 0x121 + (byte - 0x7F);
}

int ms_char_byte(int32_t c) {
  if (c < 0x100) return plain(c) ? c : -1;
  if (c <= 0x120) return c - 0x100;
  if (c <= 0x142) return c - 0x121 + 0x7F;
  return c == 0x143 ? 0xAD : -1;
}

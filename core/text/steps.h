/* steps.h - the chains of a tokenizer: normalizer, pre-tokenizer and decoder, each a short list of
 * steps that the loader fills from tokenizer.json. */
#ifndef MS_STEPS_H
#define MS_STEPS_H
#include <stddef.h>
#include <stdint.h>

#include "../moonstill.h"
#include "draft.h"
#include "regex.h"

enum {
  MS_STEP_NFC,
  MS_STEP_PREPEND,
  MS_STEP_REPLACE, /* a pattern by `text` */

  MS_STEP_PREFIX, /* a space unless there is one (ByteLevel's add_prefix_space) */
  MS_STEP_SPLIT,
  MS_STEP_BYTES, /* every byte becomes a printable character */
  MS_STEP_META,  /* spaces become `text`, which is also put in front by `scheme` */

  MS_STEP_DECODE_BYTES,
  MS_STEP_DECODE_FALLBACK,
  MS_STEP_DECODE_FUSE,
  MS_STEP_DECODE_STRIP,
  MS_STEP_DECODE_META,
  MS_STEP_DECODE_JOIN, /* for a file without a decoder: spaces between tokens */
};
enum { MS_SPLIT_REMOVED, MS_SPLIT_ISOLATED, MS_SPLIT_PREVIOUS, MS_SPLIT_NEXT, MS_SPLIT_CONTIGUOUS };
enum { MS_SCHEME_ALWAYS, MS_SCHEME_FIRST, MS_SCHEME_NEVER };

typedef struct ms_step {
  int kind, behavior, invert, scheme;
  int fused;       /* DECODE_STRIP: the tokens it sees are fragments of one text */
  ms_regex *regex; /* the pattern: one of these three */
  char *literal;
  int (*is_in)(int32_t); /* single characters of a class */
  size_t literal_bytes;
  char *text; /* meaning depends on the kind; owned */
  size_t text_bytes;
  int32_t strip; /* the character that DECODE_STRIP takes away */
  int32_t strip_start, strip_stop;
} ms_step;

enum { MS_STEPS_MOST = 32 };
typedef struct ms_steps {
  ms_step step[MS_STEPS_MOST];
  int count;
} ms_steps;

void ms_steps_free(ms_steps *s);

/* The next match of a pattern at or after `from`; regular expressions and literals only. */
ms_status ms_step_find(const ms_step *s, ms_matcher *m, const char *text, size_t bytes, size_t from,
                       size_t *start, size_t *end, int *found);
/* How many bytes all steps together may still make of a text: without a limit a file of a few lines
 * could make gigabytes of a word. */
typedef struct ms_room {
  size_t left, text; /* text: the bytes that were given */
} ms_room;
/* For `bytes` more of a text: 64 bytes of room for each, and 64 KiB for the whole text. */
void ms_room_give(ms_room *room, size_t bytes);
ms_status ms_room_take(ms_room *room, size_t bytes);

/* Adds to `out` the text with every match of s replaced by its `text`, which stands for all of the
 * match. */
ms_status ms_step_replace(const ms_step *s, ms_matcher *m, ms_slice in, ms_draft *out,
                          ms_room *room);

/* Applies a normalizer to one stretch of text. The result is in `out`, whose old content is lost;
 * `spare` is scratch. */
ms_status ms_normalize(const ms_steps *steps, ms_matcher *m, ms_slice in, ms_draft *out,
                       ms_draft *spare, ms_room *room);

/* A word of a text; `first`: it begins where the whole text begins. */
typedef struct ms_span {
  size_t start, end;
  int first;
} ms_span;
typedef struct ms_words {
  ms_draft text, spare_text;
  ms_buf span, spare_span; /* of ms_span */
} ms_words;
/* Cuts a stretch of normalized text into words, in w->text and w->span. */
ms_status ms_pretokenize(const ms_steps *steps, ms_matcher *m, ms_slice in, int first, ms_words *w,
                         ms_room *room);
void ms_words_free(ms_words *w);

/* The character that stands for a byte in byte-level vocabularies, and back (-1: none). */
int32_t ms_byte_char(unsigned char byte);
int ms_char_byte(int32_t c);

#endif

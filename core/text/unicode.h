/* unicode.h - the character classes that tokenizers name, as the library that writes their files
 * classifies them; its parts use different versions of Unicode. */
#ifndef MS_UNICODE_H
#define MS_UNICODE_H
#include <stdint.h>

int ms_char_is_space(int32_t c);       /* White_Space */
int ms_char_is_numeric(int32_t c);     /* Nd, Nl, No */
int ms_char_is_punctuation(int32_t c); /* P* of Unicode 8, and all ASCII signs */
int ms_char_is_word(int32_t c);        /* Alphabetic, M*, Nd, Pc, joiners */
/* The class by which marks are ordered in normal forms: 0 for marks younger than Unicode 9. */
int ms_char_mark_class(int32_t c);

/* Range `i` of the characters that Unicode 15 and 16 added, which PCRE2 and utf8proc may not know yet,
 * and its category of two letters; 0 after the last. */
int ms_unicode_new(int i, int32_t *first, int32_t *last, const char **category);

#endif

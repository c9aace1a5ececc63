/* regex.h - the regular expressions of tokenizer.json, by PCRE2.
 *
 * They are written for Oniguruma with Ruby's syntax. What means the same in PCRE2 is passed on,
 * what can be said exactly in other words is translated, and everything else is MS_EUNSUPPORTED. */
#ifndef MS_REGEX_H
#define MS_REGEX_H
#include <stddef.h>

#include "../base/error.h"

typedef struct ms_regex ms_regex;
typedef struct ms_matcher ms_matcher; /* what one thread needs to match */

/* `where` names the place in errors. */
ms_status ms_regex_new(const char *where, const char *pattern, size_t bytes, ms_regex **out);
void ms_regex_free(ms_regex *re);
ms_status ms_matcher_new(ms_matcher **out);
void ms_matcher_free(ms_matcher *m);
/* The first match at or after `from` in valid UTF-8: *found 1 and its bounds, or *found 0. */
ms_status ms_regex_find(const ms_regex *re, ms_matcher *m, const char *text, size_t bytes,
                        size_t from, size_t *start, size_t *end, int *found);

#endif

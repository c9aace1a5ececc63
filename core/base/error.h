/* error.h - how every layer reports failure.
 *
 * A call that can fail returns ms_status and leaves one message for its thread. The message is
 * written where the fact is known, names the operation and all numbers involved, and is passed on
 * unchanged. */
#ifndef MS_ERROR_H
#define MS_ERROR_H
#include "types.h"

ms_status ms_fail_at(ms_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define MS_FAIL(st, ...) ms_fail_at((st), __FILE__, __LINE__, __VA_ARGS__)
#define MS_REQUIRE(cond, ...)                            \
  do {                                                   \
    if (!(cond)) return MS_FAIL(MS_EINVAL, __VA_ARGS__); \
  } while (0)
#define MS_TRY(call)              \
  do {                            \
    ms_status st_ = (call);       \
    if (st_ != MS_OK) return st_; \
  } while (0)
/* For functions that hold something: sets the local `st`, goes to the label. */
#define MS_TRY_OR(label, call)              \
  do {                                      \
    if ((st = (call)) != MS_OK) goto label; \
  } while (0)
#define MS_REQUIRE_OR(label, cond, ...)     \
  do {                                      \
    if (!(cond)) {                          \
      st = MS_FAIL(MS_EINVAL, __VA_ARGS__); \
      goto label;                           \
    }                                       \
  } while (0)

/* Control characters, which names in files may hold, as '?': messages go to terminals. */
void ms_make_printable(char *text);

#endif

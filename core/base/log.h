/* log.h - what the core has to say beside errors: lines on stderr that begin with "moonstill: ".
 *
 * MS_LOG=info shows everything, MS_LOG=none nothing. The default shows warnings: something that was
 * asked for is not done, or something was found damaged. */
#ifndef MS_LOG_H
#define MS_LOG_H

enum { MS_LOG_INFO, MS_LOG_WARNING };

void ms_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3), nonnull(2)));

#endif

/* file.h - whole files: read with a limit, written atomically. */
#ifndef MS_FILE_H
#define MS_FILE_H
#include <stddef.h>

#include "error.h"

/* The content with a terminator after it; freed with ms_free. Over `limit` bytes is an error. */
ms_status ms_file_read(const char *path, size_t limit, char **text, size_t *bytes);

/* A copy of the first `length` bytes of a path, or of where it leads when it is a link: a rename there
 * replaces what the link names and not the link. A link to nothing is an error. */
ms_status ms_path_resolve(const char *path, size_t length, char **out);

/* Removes what a write to `path` left beside it when its process was killed: PATH.PID.tmp, and when
 * `path` is there PATH.PID.old, of processes that are gone. What cannot be removed stays. */
void ms_stale_remove(const char *path);

#endif

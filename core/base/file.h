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

/* The folder that holds `path`: "." for a bare name. */
ms_status ms_path_parent(const char *path, char **out);

/* Opens a file for writing that is not there yet, nor as a link: -1 and errno. */
int ms_file_open_new(const char *path);
/* Writes and flushes such a file, which errors call `name`; it is removed again when that fails. */
ms_status ms_file_create(const char *path, const char *name, const void *data, int64_t bytes);

/* Renames `from` to the first of TO.old, TO.old.1, TO.old.2 .. that is not there: its name is *where,
 * freed with ms_text_free. */
ms_status ms_path_rename_aside(const char *from, const char *to, char **where);

/* Removes what `name` is in the folder `parent` (a descriptor), a whole tree; missing is fine. Links
 * are not followed. `path` is for messages. */
ms_status ms_remove_at(int parent, const char *name, const char *path);

typedef enum ms_lock_state {
  MS_LOCK_TAKEN,
  MS_LOCK_BUSY, /* another opening of the file has it */
  MS_LOCK_NONE  /* a file system without locks: errno */
} ms_lock_state;
/* Locks an open file without waiting. The lock ends with the descriptor. */
ms_lock_state ms_lock_take(int fd);

#endif

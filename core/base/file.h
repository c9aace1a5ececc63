/* file.h - whole files: read with a limit, written atomically. */
#ifndef MS_FILE_H
#define MS_FILE_H
#include <stddef.h>

#include "error.h"

/* The content with a terminator after it; freed with ms_free. Over `limit` bytes is an error. */
ms_status ms_file_read(const char *path, size_t limit, char **text, size_t *bytes);

#endif

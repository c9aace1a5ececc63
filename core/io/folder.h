/* folder.h - folders that appear as a whole or not at all.
 *
 * A folder is filled under a temporary name beside its place; commit flushes every file, and puts
 * it there with one rename. A folder that is already there is exchanged with it in one step where
 * the file system can, and removed afterwards: killed at any moment, the place holds the old
 * folder or the new one (where it cannot exchange, for an instant neither, and the old one is
 * beside under PATH.PID.old). */
#ifndef MS_FOLDER_H
#define MS_FOLDER_H
#include "../base/error.h"

typedef struct ms_folder {
  char *path; /* where it will be */
  char *tmp;  /* where it is filled; its parent exists */
} ms_folder;

/* Makes the temporary, and the parents of `path`; removes those of processes that are gone. What may
 * be replaced is the caller's to check. */
ms_status ms_folder_begin(const char *path, ms_folder *out);
/* The path of a file in the temporary, to be freed with ms_text_free. */
ms_status ms_folder_file(const ms_folder *folder, const char *name, char **out);
/* Copies a file into it. */
ms_status ms_folder_copy(const ms_folder *folder, const char *from, const char *name);
/* Frees the struct's content, also on failure, when the temporary is removed. */
ms_status ms_folder_commit(ms_folder *folder);
/* Removes the temporary and frees the struct's content; nothing begun is fine. Keeps the error. */
void ms_folder_abort(ms_folder *folder);

#endif

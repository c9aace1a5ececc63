/* folder.h - folders that appear as a whole or not at all.
 *
 * A folder is filled in a private one beside its place; commit flushes every file, and puts it
 * there with one rename. A folder that is already there is exchanged with it in one step where the
 * file system can, and removed afterwards: killed at any moment, the place holds the old folder or
 * the new one (where it cannot exchange, for an instant neither, and the old one is in the private
 * one). What was there is removed only if it is shown to be ours, then and there; otherwise it is
 * put aside under PATH.old. */
#ifndef MS_FOLDER_H
#define MS_FOLDER_H
#include "../base/error.h"
#include "../base/work.h"

typedef struct ms_folder {
  char *path; /* where it will be */
  char *tmp;  /* where it is filled */
  ms_work work;
} ms_folder;

/* MS_OK for a folder that we wrote, and in which nothing else has been put since. */
typedef ms_status (*ms_folder_is_ours)(const char *path);

/* Makes the temporary, and the parents of `path`. */
ms_status ms_folder_begin(const char *path, ms_folder *out);
/* The name of the temporary's own folder, by which another process joins in. That one only fills it: what
 * becomes of the folder is up to the one that began it. */
const char *ms_folder_name(const ms_folder *folder);
ms_status ms_folder_join(const char *path, const char *name, ms_folder *out);
/* The path of a file in the temporary, to be freed with ms_text_free. */
ms_status ms_folder_file(const ms_folder *folder, const char *name, char **out);
/* Makes a file of a text in it. */
ms_status ms_folder_put(const ms_folder *folder, const char *name, const char *text);
/* Copies a file into it. */
ms_status ms_folder_copy(const ms_folder *folder, const char *from, const char *name);
/* Frees the struct's content, also on failure, when the temporary is removed. */
ms_status ms_folder_commit(ms_folder *folder, ms_folder_is_ours is_ours);
/* Removes the temporary and frees the struct's content; nothing begun is fine. Keeps the error. */
void ms_folder_abort(ms_folder *folder);

/* Removes the folder `path`: it goes as a whole first, so that no half of it is ever there. */
ms_status ms_folder_discard(const char *path);

#endif

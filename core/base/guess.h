/* guess.h - what a file or folder really is that is not what its reader expects.
 *
 * Readers call it once they have failed: the first bytes tell a pointer file, an error page or an
 * archive from a damaged file, and the message says so, with what to do. */
#ifndef MS_GUESS_H
#define MS_GUESS_H
#include "error.h"

/* Gives `st` back. Where it is MS_EIO and the file at `path` is something known, the message of the
 * failure is replaced by what it is. */
ms_status ms_file_explain(const char *path, ms_status st);

/* For a folder without the file that its reader needs: fails with what is at `path` in its place and
 * what to do. `name`: config.json, model.safetensors (no weights at all), tokenizer.json or state.json
 * (of a checkpoint). */
ms_status ms_folder_lacks(const char *path, const char *name);
/* Gives `st` back. Where it is MS_EUNSUPPORTED and the folder is one of another kind than a language
 * model's, its message says so too. */
ms_status ms_folder_explain(const char *path, ms_status st);

/* Whether a name in the folder has this beginning and end; the first in order is kept in `found`. */
int ms_folder_holds(const char *folder, const char *begin, const char *end, char found[256]);

#endif

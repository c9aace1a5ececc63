/* guess.h - what a file or folder really is that is not what its reader expects.
 *
 * Readers call it once they have failed: the first bytes tell a pointer file, an error page or an
 * archive from a damaged file, and the message says so, with what to do. */
#ifndef MS_GUESS_H
#define MS_GUESS_H
#include "error.h"

/* What to do about weights in other formats. */
#define MS_GUESS_CONVERT                                                                     \
  "load it with transformers (AutoModelForCausalLM.from_pretrained) and save it again with " \
  "save_pretrained, which writes .safetensors"

/* Gives `st` back. Where it is MS_EIO and the file at `path` is something known, the message of the
 * failure is replaced by what it is. */
ms_status ms_file_explain(const char *path, ms_status st);

/* What the names in a folder say of it: one that begins and ends so means this. */
typedef struct ms_clue {
  const char *begin, *end, *means; /* begin NULL ends a list */
} ms_clue;
/* For a folder that lacks the file `missing`: gives MS_EIO back, with a message that names the first
 * clue that is there and what it means. Where there is none, or where the file's own place says more,
 * the message is that of the failure `st`, given back. */
ms_status ms_folder_explain(const char *folder, const char *missing, const ms_clue *clues,
                            ms_status st);

#endif

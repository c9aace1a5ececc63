/* together.h - a folder that the ranks of a team fill together: the first one begins it and makes its files,
 * each writes its part of them, the first one commits. So all of them must see it. */
#ifndef MS_TOGETHER_H
#define MS_TOGETHER_H
#include "../group/team.h"
#include "folder.h"

/* Begins it on the first rank, unless that comes with an error `st`, and lets the others join. */
ms_status ms_together_begin(const ms_team *team, ms_status st, const char *path, ms_folder *out);
/* Commits it where no rank comes with an error `st`, and removes it otherwise. */
ms_status ms_together_end(const ms_team *team, ms_status st, ms_folder *folder,
                          ms_folder_is_ours is_ours);

#endif

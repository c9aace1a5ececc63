/* together.c - a folder that the ranks of a team fill together. */
#include "together.h"

#include <stdio.h>

/* Nothing that a rank does may keep it from the next call of all. */
ms_status ms_together_begin(const ms_team *team, ms_status st, const char *path, ms_folder *out) {
  char name[64] = "";
  int first = !ms_team_rank(team);
  *out = (ms_folder){0};
  if (first && st == MS_OK) st = ms_folder_begin(path, out);
  if (first && st == MS_OK) snprintf(name, sizeof name, "%s", ms_folder_name(out));
  MS_TRY(ms_team_broadcast(team, name, sizeof name));
  if (!first && *name && st == MS_OK) st = ms_folder_join(path, name, out);
  st = ms_team_agree(team, st);
  if (st != MS_OK) ms_folder_abort(out);
  return st;
}

ms_status ms_together_end(const ms_team *team, ms_status st, ms_folder *folder,
                          ms_folder_is_ours is_ours) {
  st = ms_team_agree(team, st);
  if (st == MS_OK && !ms_team_rank(team)) st = ms_folder_commit(folder, is_ours);
  ms_folder_abort(folder);
  return ms_team_agree(team, st);
}

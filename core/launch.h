/* launch.h - processes of this program as ranks: starting them, and what a rank does with its output.
 * Part of the executable only. */
#ifndef MS_LAUNCH_H
#define MS_LAUNCH_H
#include <lua.h>

/* Of the ranks that were launched together the first one prints. What the others print goes to
 * MS_RANK_LOGS/rank-N.log, or nowhere; what a rank must say all the same goes through ms_rank_say. */
void ms_rank_start(void);
/* Adds to the table on top of the stack:
 *   rank_say(line)       writes a line to where the launching program's errors go
 *   run_command(list)    runs a command, which gets the input unless that is a terminal, until it ends: its exit status, or 128 + N
 *                        for signal N, 127 where it cannot be started; and the signal that asked this
 *                        process to end meanwhile, or 0. That is sent on: as SIGUSR1, which mpirun hands to
 *                        every rank, and the second one as SIGTERM, with which it ends them.
 */
void ms_launch_push(lua_State *L);

#endif

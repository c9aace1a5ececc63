/* trace.h - what this rank does and what it waits for, for a timeline of all ranks. Lua begins and reads
 * one by moonstill.h; what may wait calls this. Without a timeline each call is a load and a branch. */
#ifndef MS_TRACE_H
#define MS_TRACE_H
#include "../moonstill.h"

typedef int ms_trace_cause; /* MS_TRACE_WORK and the others */

/* What a wait of this thread's is for now, see ms_trace_waits_for. */
ms_trace_cause ms_trace_wait_cause(void);

#endif

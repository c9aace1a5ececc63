/* calls.h - calls of Lua that Ctrl-C interrupts. Part of the executable only. */
#ifndef MS_CALLS_H
#define MS_CALLS_H
#include <lua.h>

/* call(handler, f, ...) of Lua: true and the results, or false and what the handler made of the
 * error. Ctrl-C raises the error "interrupted"; while a run watches for it (ms_interrupt_watch), the
 * first one is the run's, which ends in good order. */
int ms_calls_call(lua_State *L);

#endif

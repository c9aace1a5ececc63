/* prompt.h - what the executable's Lua gets beside the library: a line with editing and history, and
 * calls that Ctrl-C interrupts. Part of the executable only; main.c gives the table to
 * moonstill.prompt.cli. */
#ifndef MS_PROMPT_H
#define MS_PROMPT_H
#include <lua.h>

/* Pushes a table:
 *   interactive()        whether stdin and stdout are a terminal
 *   read(prompt)         the next line without its end, or the lines that were pasted; nil at the end
 *                        of input; false and what was typed after Ctrl-C
 *   complete(f)          Tab calls f(before, after), what stands before and after the cursor: how many
 *                        characters before it go, a text in their place, and a text to show, or nil
 *   files(folder)        a list of what is in it, in no order, folders with a slash behind them; empty
 *                        where it cannot be read
 *   history(path)        reads that file and adds every line entered from now on
 *   call(handler, f, ...) see calls.h
 *   version              of the line editor
 */
void ms_prompt_push(lua_State *L);

#endif

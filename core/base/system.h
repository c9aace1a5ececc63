/* system.h - what the executable tells the library of the process, beside moonstill.h. */
#ifndef MS_SYSTEM_H
#define MS_SYSTEM_H

/* `watch(1)` and `watch(0)` begin and end to call ms_interrupt for signals; ms_interrupt_watch does
 * nothing until one is given. */
void ms_interrupt_by(void (*watch)(int on));

#endif

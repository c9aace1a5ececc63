/* signals.h - what the executable does about signals; the library touches none. Part of the
 * executable only. */
#ifndef MS_SIGNALS_H
#define MS_SIGNALS_H

/* From now on a pipe that nobody reads and a file that may grow no further are errors of the write,
 * and ms_interrupt_watch watches. */
void ms_signals_start(void);

/* Whether ms_interrupt_watch watches. */
int ms_signals_watching(void);

/* While it watches, a second SIGINT ends the process, or calls `then` where one is given. */
void ms_signals_again(void (*then)(int number));

#endif

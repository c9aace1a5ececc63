/* signals.c - signals of the executable. While a run watches, those that ask a process to end let it
 * finish its step and save; a write that cannot go on is an error and not the process's end. */
#include "signals.h"

#include <signal.h>
#include <stdlib.h>

#include "base/system.h"
#include "moonstill.h"

/* Ctrl-C, a polite kill, a terminal that was closed, a limit of processor time, a batch system or who
 * launched the ranks (launch.c). */
static const int asks_to_end[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1};
enum { ASKS = sizeof asks_to_end / sizeof *asks_to_end };
static struct sigaction old[ASKS];
static int watching;
static void (*again)(int number); /* what a second SIGINT does */

static void on_write_signal(int number) { (void)number; }

/* Whoever asks twice does not want to wait. The last two come again by themselves: from the kernel
 * and from a shell, and for each second beyond the limit. */
static void on_ask(int number) {
  if (ms_interrupted() == number && number == SIGINT && again) {
    again(number);
    return;
  }
  if (ms_interrupted() == number && (number == SIGINT || number == SIGTERM)) _Exit(128 + number);
  if (!ms_interrupted()) ms_interrupt(number);
}

static void watch(int on) {
  watching = on;
  for (int i = 0; i < ASKS; i++) {
    struct sigaction action = {.sa_handler = on_ask, .sa_flags = SA_RESTART};
    sigaction(asks_to_end[i], on ? &action : &old[i], on ? &old[i] : NULL);
    /* nohup: the terminal's end is to be ignored */
    if (on && asks_to_end[i] == SIGHUP && old[i].sa_handler == SIG_IGN)
      sigaction(SIGHUP, &old[i], NULL);
  }
}

int ms_signals_watching(void) { return watching; }

void ms_signals_again(void (*then)(int number)) { again = then; }

void ms_signals_start(void) {
  /* A handler, not SIG_IGN: programs that are started from here get the defaults back. */
  struct sigaction action = {.sa_handler = on_write_signal, .sa_flags = SA_RESTART};
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGXFSZ, &action, NULL);
  ms_interrupt_by(watch);
}

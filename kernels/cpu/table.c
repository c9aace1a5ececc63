/* table.c - the CPU backend's table, one per instruction set. */
#include "cpu.h"

#define MS_TEXT_(x) #x
#define MS_TEXT(x) MS_TEXT_(x)

const ms_ops MS_KERNEL(ops) = {
    .name = "cpu/" MS_TEXT(MS_ISA),
    .alloc = ms_cpu_alloc,
    .free = ms_cpu_free,
    .write = ms_cpu_write,
    .read = ms_cpu_read,
    .copy = ms_cpu_copy,
    .zero = ms_cpu_zero,
    .sync = ms_cpu_sync,
    .cast = MS_KERNEL(cast),
    .linear = ms_cpu_linear,
    .linear_dx = ms_cpu_linear_dx,
    .linear_dw = ms_cpu_linear_dw,
};

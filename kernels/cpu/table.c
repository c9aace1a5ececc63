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
    .linear = MS_KERNEL(linear),
    .linear_dx = MS_KERNEL(linear_dx),
    .linear_dw = MS_KERNEL(linear_dw),
    .bias = MS_KERNEL(bias),
    .bias_db = MS_KERNEL(bias_db),
    .embed = MS_KERNEL(embed),
    .embed_dw = MS_KERNEL(embed_dw),
    .rmsnorm = MS_KERNEL(rmsnorm),
    .rmsnorm_backward = MS_KERNEL(rmsnorm_backward),
    .rope = MS_KERNEL(rope),
    .attention = MS_KERNEL(attention),
    .attention_backward = MS_KERNEL(attention_backward),
    .attention_cached = MS_KERNEL(attention_cached),
    .swiglu = MS_KERNEL(swiglu),
    .swiglu_backward = MS_KERNEL(swiglu_backward),
    .add = MS_KERNEL(add),
    .gather = MS_KERNEL(gather),
    .scatter = MS_KERNEL(scatter),
    .topk = MS_KERNEL(topk),
    .head_loss = MS_KERNEL(head_loss),
    .sum_squares = MS_KERNEL(sum_squares),
    .not_finite = MS_KERNEL(not_finite),
    .adamw = MS_KERNEL(adamw),
};

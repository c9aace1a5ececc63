/* types.h - the numbers that Lua, core and kernels share.
 *
 * What LuaJIT declares begins with the part between the cdef marks; that of moonstill.h follows. The
 * same rules hold here as there. */
#ifndef MS_TYPES_H
#define MS_TYPES_H
#include <stdint.h>

/* cdef begin */
typedef int ms_status; /* int, so that Lua sees a number and not a boxed enum */
enum {
  MS_OK = 0,
  MS_EINVAL = -1,       /* a wrong call: shape, type, order, value */
  MS_ENOMEM = -2,       /* host or device memory */
  MS_EIO = -3,          /* files: missing, unreadable, malformed, disk full */
  MS_EUNSUPPORTED = -4, /* understood, but not built: names what is missing */
  MS_EDEVICE = -5,      /* a device or a library above it */
  MS_EGROUP = -6        /* another rank, or the library that reaches it */
};
enum {
  MS_F32 = 0,
  MS_BF16 = 1,
  MS_F16 = 2,
  MS_I32 = 3,
  MS_I64 = 4,
  MS_U8 = 5, /* dtypes */
  MS_F64 = 6
}; /* of numbers in host memory; no tensor has it */
/* Of a top-k target: what becomes of the mass outside its ids. One more symbol, or left out. */
enum { MS_TAIL_BUCKET = 0, MS_TAIL_RENORMALIZE = 1 };
enum { MS_TERM_CE = 0, MS_TERM_KD = 1 }; /* the terms of a loss */
/* cdef end */

#endif

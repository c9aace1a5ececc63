/* device.h - devices and the one place that knows which backends this build has. */
#ifndef MS_DEVICE_H
#define MS_DEVICE_H
#include <stdatomic.h>

#include "../moonstill.h"
#include "../../kernels/ops.h"

struct ms_device {
  const ms_ops *ops;
  int index;         /* N of "name:N", which the backend knows it by */
  ms_stream *stream; /* work of this device is queued here; NULL on the CPU */
  _Atomic int refs;  /* the handle, and everything that lives on the device */
  char spec[16];
  ms_device *next; /* device.c's list of open devices */
};

void ms_device_retain(ms_device *dev);

/* By which backends report errors and log. */
extern const ms_host ms_device_host;

/* Memory of the device, undefined; freeing NULL is nothing. */
static inline ms_status ms_device_new(ms_device *dev, size_t bytes, void **out) {
  return dev->ops->alloc(dev->index, bytes, out);
}
static inline void ms_device_free(ms_device *dev, void *p, size_t bytes) {
  if (p) dev->ops->free(dev->index, p, bytes);
}

/* An arena: `what` it is for and what needs `less` stand in the message when there is no memory. */
ms_status ms_device_alloc(ms_device *dev, size_t bytes, const char *what, const char *less,
                          void **out);

/* Calls an operation of a device's table; a missing entry is an error that names both. */
#define MS_OP(dev, op, ...)                         \
  ((dev)->ops->op                                   \
       ? (dev)->ops->op((dev)->stream, __VA_ARGS__) \
       : MS_FAIL(MS_EUNSUPPORTED, "%s: backend has no operation '%s'", (dev)->ops->name, #op))

#endif

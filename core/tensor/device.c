/* device.c - the only place that knows which backends this build has. */
#include "device.h"

#include <stdio.h>
#include <string.h>

#include "../../kernels/cpu/cpu.h"
#include "../base/memory.h"

static const ms_ops *find_ops(const char *spec) {
  if (strcmp(spec, "cpu") == 0) return ms_cpu_ops();
  return NULL;
}

ms_status ms_device_open(const char *spec, ms_device **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(spec && strlen(spec) < sizeof((ms_device *)0)->spec, "device: bad name");
  const ms_ops *ops = find_ops(spec);
  if (!ops) return MS_FAIL(MS_EUNSUPPORTED, "device '%s': this build has only 'cpu'", spec);
  MS_TRY(ms_alloc(sizeof(ms_device), "device", &p));
  ms_device *dev = p;
  dev->ops = ops;
  dev->refs = 1;
  strcpy(dev->spec, spec);
  *out = dev;
  return MS_OK;
}

void ms_device_hold(ms_device *dev) { atomic_fetch_add(&dev->refs, 1); }

void ms_device_close(ms_device *dev) {
  if (dev && atomic_fetch_sub(&dev->refs, 1) == 1) ms_free(dev);
}

const char *ms_device_spec(const ms_device *dev) { return dev->spec; }

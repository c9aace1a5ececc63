/* device.c - the only place that knows which backends this build has. */
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../../kernels/cpu/cpu.h"
#include "../base/log.h"
#include "../base/memory.h"

static const ms_ops *find_ops(const char *spec) {
  if (strcmp(spec, "cpu") == 0) return ms_cpu_ops();
  return NULL;
}

/* Devices that are open. A second opening gives the same one, so that models which were opened
 * apart share a stream and may work on each other's tensors. */
static ms_device *devices;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

static ms_status new_device(const char *spec, ms_device **out) {
  void *p;
  const ms_ops *ops = find_ops(spec);
  if (!ops) return MS_FAIL(MS_EUNSUPPORTED, "device '%s': this build has only 'cpu'", spec);
  MS_TRY(ms_alloc(sizeof(ms_device), "device", &p));
  ms_device *dev = p;
  dev->ops = ops;
  dev->refs = 1;
  strcpy(dev->spec, spec);
  dev->next = devices;
  devices = dev;
  *out = dev;
  return MS_OK;
}

ms_status ms_device_open(const char *spec, ms_device **out) {
  ms_status st = MS_OK;
  *out = NULL;
  MS_REQUIRE(spec && strlen(spec) < sizeof((ms_device *)0)->spec, "device: bad name");
  pthread_mutex_lock(&devices_lock);
  for (ms_device *dev = devices; dev && !*out; dev = dev->next)
    if (!strcmp(dev->spec, spec)) {
      ms_device_hold(dev);
      *out = dev;
    }
  if (!*out) st = new_device(spec, out);
  pthread_mutex_unlock(&devices_lock);
  return st;
}

ms_status ms_device_alloc(ms_device *dev, size_t bytes, const char *what, const char *less,
                          void **out) {
  char why[200];
  ms_status st = dev->ops->alloc(bytes, out);
  if (st == MS_OK) ms_log(MS_LOG_INFO, "memory for %s: %zu bytes on %s", what, bytes, dev->spec);
  if (st != MS_ENOMEM) return st;
  const char *fact =
      strstr(ms_last_error(), "no memory"); /* behind the backend's own name for it */
  snprintf(why, sizeof why, "%s", fact ? fact : ms_last_error());
  return MS_FAIL(st, "%s: %s; %s", what, why, less);
}

void ms_device_hold(ms_device *dev) { atomic_fetch_add(&dev->refs, 1); }

void ms_device_close(ms_device *dev) {
  if (!dev) return;
  pthread_mutex_lock(&devices_lock);
  int last = atomic_fetch_sub(&dev->refs, 1) == 1;
  for (ms_device **p = &devices; last && *p; p = &(*p)->next)
    if (*p == dev) {
      *p = dev->next;
      break;
    }
  pthread_mutex_unlock(&devices_lock);
  if (last) ms_free(dev);
}

const char *ms_device_spec(const ms_device *dev) { return dev->spec; }

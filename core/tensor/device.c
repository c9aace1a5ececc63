/* device.c - the only place that knows which backends this build has. */
#include "device.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/cpu/cpu.h"
#include "../base/log.h"
#include "../base/memory.h"

const ms_host ms_device_host = {ms_fail_at, ms_log};

static const struct {
  const char *name;
  ms_backend *get;
} backends[] = {{"cpu", ms_cpu_backend}};
enum { BACKENDS = sizeof backends / sizeof *backends };

const char *ms_cpu_isa(void) { return ms_cpu_backend(&ms_device_host)->name + strlen("cpu/"); }

/* The table of backend `name`; NULL for one that this build lacks. */
static ms_status find_ops(const char *name, size_t length, const ms_ops **out) {
  *out = NULL;
  for (int i = 0; i < BACKENDS; i++)
    if (strlen(backends[i].name) == length && !memcmp(backends[i].name, name, length))
      *out = backends[i].get(&ms_device_host);
  MS_REQUIRE(!*out || ((*out)->version == MS_OPS_VERSION && (*out)->size == sizeof(ms_ops)),
             "device '%s': its backend's table is of version %d and %zu bytes, not %d and %zu",
             name, (*out)->version, (*out)->size, MS_OPS_VERSION, sizeof(ms_ops));
  return MS_OK;
}

/* A name without a number means number 0: "cpu" and "cpu:0" are one device. */
static ms_status find_device(const char *spec, const ms_ops **ops, int *index, char name[16]) {
  const char *colon = strchr(spec, ':');
  size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
  char *end = NULL;
  long number = colon ? strtol(colon + 1, &end, 10) : 0;
  MS_TRY(find_ops(spec, length, ops));
  if (!*ops) return MS_FAIL(MS_EUNSUPPORTED, "device '%s': this build has only 'cpu'", spec);
  int devices = (*ops)->devices();
  MS_REQUIRE(!colon || (isdigit((unsigned char)colon[1]) && !*end && number < devices),
             "device '%s': %.*s has %d device%s, numbered from 0", spec, (int)length, spec, devices,
             devices == 1 ? "" : "s");
  *index = (int)number;
  if (devices == 1)
    snprintf(name, 16, "%.*s", (int)length, spec);
  else
    snprintf(name, 16, "%.*s:%d", (int)length, spec, *index);
  return MS_OK;
}

/* The open devices. Opening one again gives the same object, so that models opened apart share its
 * stream and may work on each other's tensors. */
static ms_device *devices;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

static ms_status new_device(const char *spec, const ms_ops *ops, int index, ms_device **out) {
  void *p;
  MS_TRY(ms_alloc(sizeof(ms_device), "device", &p));
  ms_device *dev = p;
  ms_status st = ops->stream_open(index, &dev->stream);
  if (st != MS_OK) {
    ms_free(dev);
    return st;
  }
  dev->ops = ops;
  dev->index = index;
  dev->refs = 1;
  strcpy(dev->spec, spec);
  dev->next = devices;
  devices = dev;
  *out = dev;
  return MS_OK;
}

ms_status ms_device_open(const char *spec, ms_device **out) {
  ms_status st = MS_OK;
  const ms_ops *ops;
  int index = 0;
  char name[16];
  *out = NULL;
  MS_REQUIRE(spec && strlen(spec) < sizeof name, "device: bad name");
  MS_TRY(find_device(spec, &ops, &index, name));
  pthread_mutex_lock(&devices_lock);
  for (ms_device *dev = devices; dev && !*out; dev = dev->next)
    if (!strcmp(dev->spec, name)) {
      ms_device_retain(dev);
      *out = dev;
    }
  if (!*out) st = new_device(name, ops, index, out);
  pthread_mutex_unlock(&devices_lock);
  return st;
}

ms_status ms_device_alloc(ms_device *dev, size_t bytes, const char *what, const char *less,
                          void **out) {
  char why[200];
  ms_status st = ms_device_new(dev, bytes, out);
  if (st == MS_OK) ms_log(MS_LOG_INFO, "memory for %s: %zu bytes on %s", what, bytes, dev->spec);
  if (st != MS_ENOMEM) return st;
  const char *fact =
      strstr(ms_last_error(), "no memory"); /* the part after the backend's name for it */
  snprintf(why, sizeof why, "%s", fact ? fact : ms_last_error());
  return MS_FAIL(st, "%s: %s; %s", what, why, less);
}

void ms_device_retain(ms_device *dev) { atomic_fetch_add(&dev->refs, 1); }

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
  if (!last) return;
  dev->ops->stream_close(dev->stream);
  ms_free(dev);
}

const char *ms_device_spec(const ms_device *dev) { return dev->spec; }

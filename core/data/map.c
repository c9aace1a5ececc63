/* map.c - whole files as read-only memory, which the system reads when it is looked at. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/error.h"
#include "../base/memory.h"
#include "../moonstill.h"

struct ms_map {
  void *data; /* NULL for an empty file */
  int64_t bytes;
};

static ms_status map_file(int fd, const char *path, ms_map *map) {
  struct stat info;
  if (fstat(fd, &info) || !S_ISREG(info.st_mode)) return MS_FAIL(MS_EIO, "%s: not a file", path);
  map->bytes = (int64_t)info.st_size;
  if (!map->bytes) return MS_OK;
  map->data = mmap(NULL, (size_t)map->bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map->data != MAP_FAILED) return MS_OK;
  map->data = NULL;
  return MS_FAIL(errno == ENOMEM ? MS_ENOMEM : MS_EIO, "%s: cannot map %lld bytes: %s", path,
                 (long long)map->bytes, strerror(errno));
}

ms_status ms_map_open(const char *path, ms_map **out) {
  void *p;
  *out = NULL;
  MS_REQUIRE(path, "map: no path");
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  if (fd < 0) return MS_FAIL(MS_EIO, "%s: cannot open: %s", path, strerror(errno));
  ms_status st = ms_alloc(sizeof(ms_map), "map", &p);
  if (st == MS_OK) st = map_file(fd, path, p);
  close(fd); /* the memory stays */
  if (st == MS_OK)
    *out = p;
  else if (p)
    ms_map_close(p);
  return st;
}

void ms_map_close(ms_map *map) {
  if (!map) return;
  if (map->data) munmap(map->data, (size_t)map->bytes);
  ms_free(map);
}

const void *ms_map_data(const ms_map *map) { return map ? map->data : NULL; }

int64_t ms_map_bytes(const ms_map *map) { return map ? map->bytes : -1; }

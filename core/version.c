/* version.c - the version of moonstill, and those of the libraries and kernels it runs on. */
#include <jansson.h>
#include <luajit.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "base/memory.h"
#include "moonstill.h"

ms_status ms_version(int libraries, char **text) {
  if (!libraries) return ms_text_format(text, "moonstill %s", MS_VERSION);
  char pcre[64];
  pcre2_config(PCRE2_CONFIG_VERSION, pcre);
  unsigned xxh = XXH_versionNumber();
  return ms_text_format(
      text,
      "moonstill %s\n%s\nlibyaml %s\njansson %s\nPCRE2 %s\nutf8proc %s\nxxHash %u.%u.%u\n"
      "zlib %s\nzstd %s\nOpenMP %d\nCPU kernels %s",
      MS_VERSION, LUAJIT_VERSION, yaml_get_version_string(), JANSSON_VERSION, pcre,
      utf8proc_version(), xxh / 10000, xxh / 100 % 100, xxh % 100, zlibVersion(),
      ZSTD_versionString(), _OPENMP, ms_cpu_isa());
}

/* folder.c - folders that appear as a whole: what becomes of what was there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/moonstill.h"
#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/io/folder.h"
#include "tests/support/test.h"

static char root[] = "/tmp/moonstill-test.XXXXXX", path[64];

static const char *at(const char *name) {
  static char full[4][128];
  static int i;
  i = (i + 1) % 4;
  snprintf(full[i], sizeof *full, "%s/%s", root, name);
  return full[i];
}

static int is_there(const char *name) { return !access(at(name), F_OK); }

/* Ours: what holds no "mine". */
static int looked;
static ms_status is_ours(const char *folder) {
  char file[256];
  looked++;
  snprintf(file, sizeof file, "%s/mine", folder);
  return access(file, F_OK) ? MS_OK : MS_FAIL(MS_EINVAL, "%s: holds 'mine'", folder);
}

/* The same where "mine" comes after the first look, as by somebody who was just in time. */
static ms_status is_ours_at_first(const char *folder) {
  ms_status st = is_ours(folder);
  if (looked == 1) ms_file_write(at("m/mine"), "x", 1);
  return st;
}

static void write_m(const char *file, ms_folder_is_ours check) {
  ms_folder f;
  looked = 0;
  CHECK(ms_folder_begin(path, &f) == MS_OK);
  CHECK(ms_folder_put(&f, file, "text") == MS_OK);
  CHECK(ms_folder_put(&f, file, "text") == MS_EIO); /* not written over */
  CHECK(ms_folder_commit(&f, check) == MS_OK);
}

static void names(const char *want) {
  char *text;
  CHECK(ms_dir_list(root, &text) == MS_OK && !strcmp(text, want));
  if (strcmp(text, want)) fprintf(stderr, "there are\n%s", text);
  ms_text_free(text);
}

int main(void) {
  int64_t live = ms_test_live();
  if (!mkdtemp(root)) return 1;
  snprintf(path, sizeof path, "%s/m", root);
  setenv("MS_LOG", "none", 1);

  TEST("a folder that is ours is replaced, and looked at before and after");
  write_m("a", is_ours);
  CHECK(looked == 0 && is_there("m/a"));
  write_m("b", is_ours);
  CHECK(looked == 2 && is_there("m/b") && !is_there("m/a"));
  names("m\n");

  TEST("one that is not, or is not any more, is kept");
  CHECK(ms_file_write(at("m/mine"), "x", 1) == MS_OK);
  write_m("c", is_ours);
  CHECK(is_there("m/c") && is_there("m.old/b") && is_there("m.old/mine"));
  write_m("d", is_ours_at_first);
  CHECK(looked == 2 && is_there("m/d") && is_there("m.old.1/c") && is_there("m.old.1/mine"));
  names("m\nm.old\nm.old.1\n");

  TEST("what is set aside takes no name that is there");
  char *where;
  CHECK(ms_path_set_aside(path, &where) == MS_OK && !strcmp(where, at("m.old.2")));
  ms_text_free(where);
  CHECK(ms_path_set_aside(path, &where) == MS_EIO && !where);
  CHECK(ms_path_same(at("m.old.2"), at("m.old/../m.old.2")) && !ms_path_same(at("m.old"), root) &&
        !ms_path_same(path, path));

  TEST("a discarded folder is gone, and a missing one an error");
  CHECK(ms_folder_discard(at("m.old.2")) == MS_OK && ms_folder_discard(path) == MS_EIO);
  names("m.old\nm.old.1\n");

  TEST("its temporary is for its owner alone, the folder for whom the umask says");
  ms_folder f;
  struct stat info;
  umask(022);
  CHECK(ms_folder_begin(path, &f) == MS_OK);
  CHECK(!stat(f.work.folder, &info) && (info.st_mode & 0777) == 0700);
  CHECK(!stat(f.tmp, &info) && (info.st_mode & 0777) == 0755);
  ms_folder_abort(&f);
  names("m.old\nm.old.1\n");

  TEST("nothing stays behind");
  CHECK(ms_dir_remove(root) == MS_OK && ms_test_live() == live);
  return test_end();
}

/* tokenizer.c - one tokenizer used by several threads at once, which Lua cannot do. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../core/moonstill.h"
#include "tests/support/test.h"

enum { THREADS = 4, ROUNDS = 300, ROOM = 4096 };

static const char FILE_TEXT[] =
    "{\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"special\":true,\"normalized\":false,"
    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false}],"
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\" ?\\\\p{L}+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3,\"abab\":4,\" ab\":5},"
    "\"merges\":[\"a b\",\"ab ab\"]}}";

static ms_tokenizer *tok;
static char text[1500];
static int32_t want[ROOM];
static int64_t want_count;

static void *work(void *bad) {
  int32_t ids[ROOM];
  for (int i = 0; i < ROUNDS; i++) {
    int64_t n = 0;
    /* From another place each time, so that caches and buffers differ between the threads. */
    int from = i * 3 % 60;
    ms_tokenizer_encode(tok, text + from, 600 - from, 0, 1, NULL, 0, ids, NULL, ROOM, &n);
    if (ms_tokenizer_encode(tok, text, sizeof text - 1, 0, 1, NULL, 0, ids, NULL, ROOM, &n) ||
        n != want_count || memcmp(ids, want, (size_t)n * sizeof *ids))
      *(int *)bad = 1;
  }
  return NULL;
}

int main(void) {
  char path[] = "/tmp/moonstill-test.XXXXXX";
  pthread_t thread[THREADS];
  int bad[THREADS] = {0};

  TEST("threads that share a tokenizer get the ids that one gets");
  int fd = mkstemp(path);
  CHECK(fd >= 0 && write(fd, FILE_TEXT, sizeof FILE_TEXT - 1) == sizeof FILE_TEXT - 1);
  close(fd);
  for (size_t i = 0; i < sizeof text - 1; i++) text[i] = "ab ab<s>abab abab"[i % 17];
  int64_t before = ms_test_live();
  CHECK(ms_tokenizer_open(path, &tok) == MS_OK);
  CHECK(!ms_tokenizer_encode(tok, text, sizeof text - 1, 0, 1, NULL, 0, want, NULL, ROOM,
                             &want_count));
  CHECK(want_count > 400 && want[0] == 3 && want[3] == 6);
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, work, &bad[i]));
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < THREADS; i++) CHECK(!bad[i]);
  ms_tokenizer_free(tok);
  CHECK(ms_test_live() == before);
  unlink(path);
  return test_end();
}

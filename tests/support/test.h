/* test.h - for tests of what Lua cannot reach. A program calls CHECK as often as it likes between
 * TEST lines and ends with `return test_end();`, which prints the totals that tests/run reads. */
#ifndef MS_TEST_H
#define MS_TEST_H
#include <stdio.h>

static int test_passed, test_failed, test_bad;
static const char *test_name;

static inline void test_close(void) {
  if (test_name) *(test_bad ? &test_failed : &test_passed) += 1;
  test_bad = 0;
}

/* Begins a test; the one before ends. */
static inline void test_begin(const char *name) {
  test_close();
  test_name = name;
}

static inline int test_end(void) {
  test_close();
  printf("%d passed, %d failed, 0 skipped\n", test_passed, test_failed);
  return test_failed > 0;
}

#define TEST(name) test_begin(name)
#define CHECK(cond)                                                              \
  do {                                                                           \
    if (!(cond)) {                                                               \
      test_bad = 1;                                                              \
      printf("failed: %s\n  %s:%d: %s\n", test_name, __FILE__, __LINE__, #cond); \
    }                                                                            \
  } while (0)

#endif

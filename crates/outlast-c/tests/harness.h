/* What the test programs share. A test is a function; RUN runs it in a new directory of its own. The last line of a
 * program is "summary PASSED FAILED SKIPPED KILLS LOST", which scripts/c-test adds up. */
#ifndef HARNESS_H
#define HARNESS_H

#include <outlast.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int passed, failed, skipped, kills, failures;
static unsigned long long lost;
static char directory[256], file[300], other_file[300];

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

#define EXPECT_CODE(expected, call)                                                                                    \
    do {                                                                                                               \
        outlast_code code_ = (call);                                                                                   \
        if (code_ != (expected)) {                                                                                     \
            fprintf(stderr, "%s:%d: %s returned %s (%s), not %s\n", __FILE__, __LINE__, #call,                         \
                    outlast_code_name(code_), code_ < 0 ? outlast_error_message() : "", #expected);                    \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

#define OK(call) EXPECT_CODE(OUTLAST_OK, call)

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk) {
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void run(const char *name, void (*test)(void)) {
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/outlast-c-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(directory)) {
        perror(directory);
        exit(1);
    }
    snprintf(file, sizeof file, "%s/test.pool", directory);
    snprintf(other_file, sizeof other_file, "%s/other.pool", directory);
    failures = 0;
    test();
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    printf("%s %s\n", failures ? "FAILED" : "ok", name);
    fflush(stdout);
    failures ? failed++ : passed++;
}

#define RUN(test) run(#test, test)

static int summary(void) {
    printf("summary %d %d %d %d %llu\n", passed, failed, skipped, kills, lost);
    return failed > 0 || lost > 0;
}

/* Options for pools of tests: with a limit, because valgrind has few addresses to give, and without a journal. */
static inline const outlast_options *small(void) {
    static outlast_options options;
    options.max_size = 64 << 20;
    options.flags = OUTLAST_NO_JOURNAL;
    return &options;
}

static inline outlast_pool *new_pool(void) {
    outlast_pool *pool = NULL;
    OK(outlast_create(file, small(), &pool));
    return pool;
}

static inline outlast_map *new_map(outlast_pool *pool, const char *name, const char *key, const char *value) {
    outlast_map *map = NULL;
    OK(outlast_map_open(pool, name, key, value, &map));
    return map;
}

static inline outlast_map *new_ordered_map(outlast_pool *pool, const char *name, const char *key, const char *value) {
    outlast_map *map = NULL;
    OK(outlast_ordered_map_open(pool, name, key, value, &map));
    return map;
}

/* Whether the value of a text key is this text. */
static inline int has(outlast_map *map, const char *key, const char *value) {
    char buffer[256];
    size_t len = 0;
    outlast_code code = outlast_get(map, OUTLAST_TEXT(key), buffer, sizeof buffer, &len);
    return code == OUTLAST_OK && len == strlen(value) && memcmp(buffer, value, len) == 0;
}

#endif

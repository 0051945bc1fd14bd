/* A child process writes and acknowledges on a pipe, and is killed. Nothing acknowledged may be missing, and no batch
 * may be there in part. The last ten lives have a journal. */
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { LIVES = 20 };

static const outlast_options *options_of(int life) {
    static outlast_options options;
    options = *small();
    options.flags = life < LIVES / 2 ? OUTLAST_NO_JOURNAL : OUTLAST_JOURNAL;
    return &options;
}

static uint64_t value_of(uint64_t key) {
    return key * 0x9e3779b97f4a7c15u + 1;
}

/* Writes records from `next` on, until it is killed. A record is a number in one map, and a text under the same number
 * in another; every third one is written by a batch. */
static void write_records(int life, uint64_t next, int acknowledge) {
    outlast_pool *pool;
    outlast_map *numbers, *texts;
    outlast_batch *batch;
    if (outlast_open_or_create(file, options_of(life), &pool) || outlast_batch_begin(pool, &batch) ||
        outlast_map_open(pool, "numbers", "u64", "u64", &numbers) ||
        outlast_ordered_map_open(pool, "texts", "u64", "str", &texts)) {
        fprintf(stderr, "the child cannot open the pool: %s\n", outlast_error_message());
        _exit(1);
    }
    for (;; next++) {
        uint64_t value = value_of(next);
        char text[32];
        outlast_bytes bytes = outlast_bytes_of(text, snprintf(text, sizeof text, "%llu", (unsigned long long)value));
        int error;
        if (next % 3) {
            error = outlast_u64_put(numbers, next, value) || outlast_put(texts, OUTLAST_VALUE(next), bytes);
        } else {
            error = outlast_batch_put(batch, numbers, OUTLAST_VALUE(next), OUTLAST_VALUE(value)) ||
                    outlast_batch_put(batch, texts, OUTLAST_VALUE(next), bytes) || outlast_batch_commit(batch, NULL);
        }
        if (error || write(acknowledge, &next, sizeof next) != sizeof next) {
            fprintf(stderr, "the child cannot write: %s\n", outlast_error_message());
            _exit(1);
        }
        /* The pool is small, so old records make room. The parent looks at the newest ones of each life. */
        if (next >= 20000) {
            outlast_u64_remove(numbers, next - 20000);
            uint64_t old = next - 20000;
            outlast_remove(texts, OUTLAST_VALUE(old));
        }
    }
}

/* Lets a child write for some milliseconds, and kills it. Returns the first number that it has not acknowledged. */
static uint64_t live(int life, uint64_t next) {
    int pipe_of[2], status = 0;
    uint64_t acknowledged = next, number;
    struct timespec time = {0, (20 + 37 * life % 100) * 1000000L};
    EXPECT(pipe(pipe_of) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(pipe_of[0]);
        write_records(life, next, pipe_of[1]);
    }
    close(pipe_of[1]);
    /* The time begins with the first record. */
    if (read(pipe_of[0], &number, sizeof number) == sizeof number) {
        acknowledged = number + 1;
        /* The pipe holds 8,192 numbers, so it has to be emptied meanwhile. */
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do {
            if (read(pipe_of[0], &number, sizeof number) != sizeof number) {
                break;
            }
            acknowledged = number + 1;
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < time.tv_nsec);
    }
    kill(child, SIGKILL);
    while (read(pipe_of[0], &number, sizeof number) == sizeof number) {
        acknowledged = number + 1;
    }
    close(pipe_of[0]);
    waitpid(child, &status, 0);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT(acknowledged > next);
    kills++;
    return acknowledged;
}

static int is_there(outlast_map *numbers, outlast_map *texts, uint64_t key) {
    uint64_t value = 0;
    char text[32], expected[32];
    size_t len = 0;
    int number = outlast_u64_get(numbers, key, &value) == OUTLAST_OK && value == value_of(key);
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)value_of(key));
    outlast_code code = outlast_get(texts, OUTLAST_VALUE(key), text, sizeof text, &len);
    return number + 2 * (code == OUTLAST_OK && len == strlen(expected) && memcmp(text, expected, len) == 0);
}

static void look(int life, uint64_t acknowledged) {
    outlast_pool *pool = NULL;
    outlast_map *numbers = NULL, *texts = NULL;
    OK(outlast_open(file, options_of(life), &pool));
    OK(outlast_map_open(pool, "numbers", "u64", "u64", &numbers));
    OK(outlast_ordered_map_open(pool, "texts", "u64", "str", &texts));
    /* What makes room removes the record 20,000 before one that is acknowledged, and one more may be under way. */
    for (uint64_t key = acknowledged > 19999 ? acknowledged - 19999 : 0; key < acknowledged; key++) {
        lost += is_there(numbers, texts, key) != 3;
    }
    if (acknowledged % 3 == 0) {
        int found = is_there(numbers, texts, acknowledged);
        EXPECT(found == 0 || found == 3);
    }
    OK(outlast_verify(pool, NULL, NULL, NULL));
    OK(outlast_close(pool));
    outlast_map_free(numbers);
    outlast_map_free(texts);
    outlast_pool_free(pool);
}

static void nothing_acknowledged_is_lost(void) {
    uint64_t next = 0;
    for (int life = 0; life < LIVES; life++) {
        next = live(life, next);
        look(life, next);
    }
    EXPECT(lost == 0);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    RUN(nothing_acknowledged_is_lost);
    return summary();
}

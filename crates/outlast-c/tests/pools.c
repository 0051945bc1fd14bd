/* The life of a pool: reopening, copies, damage, and everything that a caller can get wrong. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

/* ---- Life --------------------------------------------------------------------- */

static void a_pool_reopens_as_it_was(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "str");
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v")));
    OK(outlast_sync(pool));
    outlast_map_free(map);
    outlast_pool_free(pool); /* Without a close. */
    OK(outlast_open_or_create(file, small(), &pool));
    OK(outlast_map_open(pool, "map", NULL, NULL, &map));
    EXPECT(has(map, "k", "v"));
    OK(outlast_close(pool));
    outlast_pool_free(pool);
    outlast_map_free(map); /* In the other order. */
    EXPECT_CODE(OUTLAST_ERROR_IO, outlast_create(file, small(), &pool));
    EXPECT(pool == NULL);
}

static void a_journal_makes_changes_durable(void) {
    outlast_options options = *small();
    outlast_durability durability;
    char copy[300];
    outlast_pool *pool = NULL;
    options.flags = OUTLAST_JOURNAL;
    options.journal_interval_ms = 5;
    options.journal_directory = other_file;
    options.working_directory = directory;
    OK(outlast_create(file, &options, &pool));
    OK(outlast_pool_durability(pool, &durability));
    EXPECT(durability.survives_process_death && !durability.survives_power_loss && !durability.is_suspect);
    EXPECT(durability.journal_interval_ms == 5);
    outlast_map *map = new_map(pool, "map", "str", "str");
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v")));
    OK(outlast_wait_durable(pool));
    EXPECT(access(other_file, F_OK) == 0);
    snprintf(copy, sizeof copy, "%s/copy.pool", directory);
    OK(outlast_backup(file, copy, &options));
    OK(outlast_close(pool));
    outlast_map_free(map);
    outlast_pool_free(pool);
    OK(outlast_open_read_only(copy, small(), &pool));
    OK(outlast_map_open(pool, "map", NULL, NULL, &map));
    EXPECT(has(map, "k", "v"));
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void note_progress(uint64_t done, uint64_t all, void *context) {
    int *calls = context;
    EXPECT(done <= all);
    __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
}

static void progress_is_told(void) {
    outlast_options options = *small();
    int calls = 0;
    uint64_t records = 0;
    outlast_pool *pool = new_pool();
    outlast_map *map = new_ordered_map(pool, "map", "u64", "u64");
    for (uint64_t n = 0; n < 5000; n++) {
        OK(outlast_u64_put(map, n, n));
    }
    outlast_map_free(map);
    outlast_pool_free(pool);
    options.progress = note_progress;
    options.progress_context = &calls;
    options.recovery_threads = 2;
    OK(outlast_open(file, &options, &pool));
    map = new_ordered_map(pool, "map", "u64", "u64");
    OK(outlast_count(map, &records));
    EXPECT(records == 5000 && calls > 0);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void snapshots_and_backups_are_pools(void) {
    char backup[300];
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "str");
    snprintf(backup, sizeof backup, "%s/backup.pool", directory);
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v")));
    OK(outlast_snapshot(pool, other_file));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_snapshot(pool, file));
    EXPECT_CODE(OUTLAST_ERROR_NO_JOURNAL, outlast_backup(file, backup, NULL));
    OK(outlast_close(pool));
    outlast_map_free(map);
    outlast_pool_free(pool);
    OK(outlast_backup(file, backup, small()));
    const char *copies[] = {other_file, backup};
    for (int i = 0; i < 2; i++) {
        OK(outlast_open_read_only(copies[i], small(), &pool));
        OK(outlast_map_open(pool, "map", "str", "str", &map));
        EXPECT(has(map, "k", "v"));
        outlast_map_free(map);
        outlast_pool_free(pool);
    }
}

static int list(const char *name, const char *key, const char *value, const char *scheme, void *context) {
    char *listed = context;
    sprintf(listed + strlen(listed), "%s: %s to %s, %s; ", name, key, value, scheme);
    return 0;
}

static void maps_are_listed_and_dropped(void) {
    char listed[200] = "";
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "ages", "str", "u64"), *log = new_ordered_map(pool, "log", "u64", "str"), *none;
    OK(outlast_maps(pool, list, listed));
    EXPECT(strcmp(listed, "ages: str to u64, dash-eh; log: u64 to str, phast; ") == 0);
    OK(outlast_map_drop(pool, "ages"));
    EXPECT_CODE(OUTLAST_ERROR_MAP_DROPPED, outlast_contains(map, OUTLAST_TEXT("Ada")));
    EXPECT_CODE(OUTLAST_ERROR_NO_SUCH_MAP, outlast_map_drop(pool, "ages"));
    EXPECT_CODE(OUTLAST_ERROR_NO_SUCH_MAP, outlast_map_open(pool, "ages", NULL, NULL, &none));
    EXPECT(none == NULL);
    outlast_map_free(map);
    OK(outlast_map_open_scheme(pool, "ages", "str", "u64", "clevel", &map));
    outlast_map_free(map);
    outlast_map_free(log);
    outlast_pool_free(pool);
}

static void a_pool_tells_its_numbers(void) {
    char text[8192];
    size_t len = 0;
    bool more = true;
    outlast_options options = *small();
    outlast_pool *pool = NULL;
    options.flags = OUTLAST_NO_JOURNAL | OUTLAST_NO_BACKGROUND;
    OK(outlast_open_anonymous(&options, &pool));
    while (more) {
        OK(outlast_step(pool, &more));
    }
    EXPECT_CODE(OUTLAST_BUFFER_TOO_SMALL, outlast_pool_stats(pool, "p", text, 10, &len));
    OK(outlast_pool_stats(pool, "p", text, sizeof text, &len));
    EXPECT(len > 100 && strstr(text, "outlast_pool_bytes{pool=\"p\"} 2097152\n"));
    outlast_pool_free(pool);
}

/* ---- Damage ------------------------------------------------------------------- */

struct damage {
    int places;
    uint64_t offset;
};

static int note_damage(uint64_t offset, const char *message, void *context) {
    struct damage *damage = context;
    damage->places++;
    damage->offset = offset;
    EXPECT(strstr(message, "expected"));
    return 0;
}

static int count_record(outlast_bytes key, outlast_bytes value, void *context) {
    (void)key, (void)value;
    ++*(int *)context;
    return 0;
}

static int ignore_damage(uint64_t offset, const char *message, void *context) {
    (void)offset, (void)message, (void)context;
    return 0;
}

static void damage_has_an_offset(void) {
    static char content[8 << 20];
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "str"), *none;
    outlast_verification found;
    struct damage damage = {0, 0};
    int records = 0;
    OK(outlast_put(map, OUTLAST_TEXT("key"), OUTLAST_TEXT("a value that is easily found")));
    OK(outlast_put(map, OUTLAST_TEXT("other"), OUTLAST_TEXT("sound")));
    OK(outlast_verify(pool, &found, note_damage, &damage));
    EXPECT(found.is_sound && found.records == 2 && found.damaged == 0 && found.used_bytes > 0);
    OK(outlast_close(pool));
    outlast_map_free(map);
    outlast_pool_free(pool);

    int descriptor = open(file, O_RDWR);
    ssize_t size = read(descriptor, content, sizeof content);
    char *place = memmem(content, size, "easily", 6);
    EXPECT(place && pwrite(descriptor, "EASILY", 6, place - content) == 6);
    close(descriptor);

    OK(outlast_open(file, small(), &pool));
    OK(outlast_map_open(pool, "map", "str", "str", &map));
    EXPECT_CODE(OUTLAST_ERROR_DAMAGED, outlast_verify(pool, &found, note_damage, &damage));
    EXPECT(!found.is_sound && found.damaged == 1 && damage.places == 1);
    EXPECT(outlast_error_offset() == damage.offset && strstr(outlast_error_message(), "damaged"));
    OK(outlast_salvage(map, count_record, ignore_damage, &records));
    EXPECT(records == 1);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_map_open(pool, NULL, "str", "str", &none));
    EXPECT(outlast_error_offset() == OUTLAST_NO_OFFSET);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void other_files_are_refused(void) {
    outlast_pool *pool = NULL;
    FILE *text = fopen(file, "w");
    EXPECT_CODE(OUTLAST_ERROR_NO_SUCH_POOL, outlast_open(other_file, NULL, &pool));
    fputs("This is not a pool, although it is as long as that.", text);
    fclose(text);
    outlast_code code = outlast_open(file, NULL, &pool);
    EXPECT(code == OUTLAST_ERROR_NOT_A_POOL || code == OUTLAST_ERROR_DAMAGED);
    EXPECT(pool == NULL && strlen(outlast_error_message()) > 5);
}

/* ---- Misuse ------------------------------------------------------------------- */

static void calls_after_close_fail(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "u64", "u64"), *none;
    outlast_batch *batch = NULL;
    uint64_t value = 0;
    int records = 0;
    OK(outlast_batch_begin(pool, &batch));
    OK(outlast_batch_put(batch, map, OUTLAST_VALUE(value), OUTLAST_VALUE(value)));
    OK(outlast_close(pool));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_close(pool));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_sync(pool));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_wait_durable(pool));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_snapshot(pool, other_file));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_verify(pool, NULL, NULL, NULL));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_map_open(pool, "map", "u64", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_map_drop(pool, "map"));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_batch_commit(batch, NULL));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_u64_get(map, 1, &value));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_u64_put(map, 1, 1));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_contains(map, OUTLAST_VALUE(value)));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, outlast_each(map, count_record, &records));
    EXPECT(strstr(outlast_error_message(), "closed"));
    outlast_batch_free(batch);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void null_arguments_are_errors(void) {
    outlast_pool *pool = new_pool(), *no_pool = NULL;
    outlast_map *map = new_map(pool, "map", "bytes", "bytes"), *no_map = NULL;
    outlast_batch *batch = NULL, *no_batch = NULL;
    outlast_bytes text = OUTLAST_TEXT("k"), wrong = outlast_bytes_of(NULL, 1);
    outlast_bytes endless = outlast_bytes_of("k", SIZE_MAX);
    OK(outlast_batch_begin(pool, &batch));
    outlast_code calls[] = {
        outlast_open(NULL, NULL, &no_pool),
        outlast_open(file, NULL, NULL),
        outlast_open_anonymous(NULL, NULL),
        outlast_close(NULL),
        outlast_sync(NULL),
        outlast_wait_durable(NULL),
        outlast_step(NULL, NULL),
        outlast_verify(NULL, NULL, NULL, NULL),
        outlast_backup(NULL, NULL, NULL),
        outlast_snapshot(pool, NULL),
        outlast_maps(NULL, list, NULL),
        outlast_maps(pool, NULL, NULL),
        outlast_pool_durability(pool, NULL),
        outlast_pool_stats(pool, NULL, NULL, 0, NULL),
        outlast_map_open(NULL, "map", "str", "str", &no_map),
        outlast_map_open(pool, NULL, "str", "str", &no_map),
        outlast_map_open(pool, "map", NULL, "str", &no_map),
        outlast_map_open(pool, "map", "bytes", "bytes", NULL),
        outlast_map_drop(pool, NULL),
        outlast_get(NULL, text, NULL, 0, NULL),
        outlast_get(map, wrong, NULL, 0, NULL),
        outlast_get(map, endless, NULL, 0, NULL),
        outlast_get(map, text, NULL, 1, NULL),
        outlast_get_view(map, text, NULL, NULL),
        outlast_put(NULL, text, text),
        outlast_insert(map, text, wrong),
        outlast_compare_swap(map, text, text, wrong),
        outlast_u64_get(NULL, 1, NULL),
        outlast_each(NULL, count_record, NULL),
        outlast_each(map, NULL, NULL),
        outlast_view_read(NULL, 0, NULL, 0),
        outlast_batch_begin(NULL, &no_batch),
        outlast_batch_begin(pool, NULL),
        outlast_batch_put(NULL, map, text, text),
        outlast_batch_put(batch, NULL, text, text),
        outlast_batch_require(batch, map, wrong, text),
        outlast_batch_commit(NULL, NULL),
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (calls[i] != OUTLAST_ERROR_INVALID) {
            fprintf(stderr, "call %zu returned %s\n", i, outlast_code_name(calls[i]));
            failures++;
        }
    }
    EXPECT(no_pool == NULL && no_map == NULL && no_batch == NULL);
    outlast_pool_free(NULL);
    outlast_map_free(NULL);
    outlast_batch_free(NULL);
    EXPECT(outlast_view_len(NULL) == 0);
    outlast_batch_free(batch);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void wrong_types_are_refused(void) {
    outlast_pool *pool = new_pool(), *other = NULL;
    outlast_map *map = new_map(pool, "map", "str", "u64"), *none = NULL;
    outlast_batch *batch = NULL;
    uint64_t value = 1;
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_map_open(pool, "map", "bytes", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_map_open(pool, "map", "str", "i64", &none));
    EXPECT(strcmp(outlast_error_message(), "map \"map\" has value schema u64, not i64") == 0);
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_ordered_map_open(pool, "map", "str", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_map_open(pool, "new", "string", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_map_open(pool, "new", "str", "(u64,u64)", &none));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_map_open_scheme(pool, "new", "str", "u64", "btree", &none));
    EXPECT_CODE(OUTLAST_ERROR_NO_SUCH_MAP, outlast_map_open(pool, "new", NULL, NULL, &none));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_map_open(pool, "\xff", "str", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_put(map, OUTLAST_TEXT("\xff"), OUTLAST_VALUE(value)));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("four")));
    OK(outlast_open_anonymous(small(), &other));
    OK(outlast_batch_begin(other, &batch));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_batch_put(batch, map, OUTLAST_TEXT("k"), OUTLAST_VALUE(value)));
    EXPECT(strstr(outlast_error_message(), "another pool"));
    outlast_batch_free(batch);
    outlast_pool_free(other);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void limits_are_errors(void) {
    outlast_options options = {.max_size = 4 << 20, .flags = OUTLAST_NO_JOURNAL};
    outlast_pool *pool = NULL;
    char *long_key = calloc(1, 65537);
    OK(outlast_create(file, &options, &pool));
    outlast_map *map = new_map(pool, "map", "bytes", "bytes");
    EXPECT_CODE(OUTLAST_ERROR_TOO_LARGE, outlast_put(map, outlast_bytes_of(long_key, 65537), OUTLAST_NOTHING));
    OK(outlast_put(map, outlast_bytes_of(long_key, 65536), OUTLAST_NOTHING));
    outlast_code code = OUTLAST_OK;
    for (int n = 0; code == OUTLAST_OK && n < 1000; n++) {
        code = outlast_put(map, OUTLAST_VALUE(n), outlast_bytes_of(long_key, 60000));
    }
    EXPECT(code == OUTLAST_ERROR_POOL_FULL);
    OK(outlast_remove(map, outlast_bytes_of(long_key, 65536)));
    free(long_key);
    outlast_map_free(map);
    outlast_pool_free(pool);
    options.flags = OUTLAST_JOURNAL | OUTLAST_NO_JOURNAL;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_open(file, &options, &pool));
    options.flags = 1 << 20;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_open(file, &options, &pool));
    options = (outlast_options){.reserved = {1}};
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_open(file, &options, &pool));
    options = (outlast_options){.page_bits = 30};
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_create(other_file, &options, &pool));
}

static void read_only_pools_can_only_be_read(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "u64", "u64"), *none = NULL;
    uint64_t value = 0;
    OK(outlast_u64_put(map, 1, 10));
    OK(outlast_close(pool));
    outlast_map_free(map);
    outlast_pool_free(pool);
    OK(outlast_open_read_only(file, small(), &pool));
    OK(outlast_map_open(pool, "map", "u64", "u64", &map));
    OK(outlast_u64_get(map, 1, &value));
    EXPECT_CODE(OUTLAST_ERROR_READ_ONLY, outlast_u64_put(map, 1, 11));
    EXPECT_CODE(OUTLAST_ERROR_READ_ONLY, outlast_map_open(pool, "new", "u64", "u64", &none));
    EXPECT_CODE(OUTLAST_ERROR_READ_ONLY, outlast_map_drop(pool, "map"));
    EXPECT(value == 10);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* Runs in a child process, and returns what it found. (Not as an exit code, which belongs to valgrind: to a forked
 * child, what the parent's threads had allocated is lost.) */
static outlast_code in_child(outlast_code (*run)(void *), void *context) {
    int pipe_of[2];
    outlast_code code = OUTLAST_ERROR_OTHER;
    EXPECT(pipe(pipe_of) == 0);
    pid_t child = fork();
    if (child == 0) {
        code = run(context);
        _exit(write(pipe_of[1], &code, sizeof code) != sizeof code);
    }
    close(pipe_of[1]);
    EXPECT(read(pipe_of[0], &code, sizeof code) == sizeof code);
    close(pipe_of[0]);
    waitpid(child, NULL, 0);
    return code;
}

static outlast_code open_again(void *context) {
    (void)context;
    outlast_pool *pool;
    return outlast_open(file, small(), &pool);
}

static outlast_code use_of_parent(void *context) {
    outlast_map *map = context;
    uint64_t value;
    outlast_code code = outlast_u64_get(map, 1, &value);
    outlast_map_free(map);
    return code;
}

static void other_processes_are_kept_out(void) {
    outlast_pool *pool = new_pool(), *again = NULL;
    outlast_map *map = new_map(pool, "map", "u64", "u64");
    OK(outlast_u64_put(map, 1, 10));
    EXPECT_CODE(OUTLAST_ERROR_LOCKED, outlast_open(file, small(), &again));
    EXPECT_CODE(OUTLAST_ERROR_LOCKED, in_child(open_again, NULL));
    EXPECT_CODE(OUTLAST_ERROR_NOT_OPEN, in_child(use_of_parent, map));
    OK(outlast_u64_put(map, 1, 11));
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* ---- Threads ------------------------------------------------------------------ */

enum { THREADS = 4, ADDITIONS = 2000 };

static void *add_many(void *context) {
    for (int n = 0; n < ADDITIONS; n++) {
        OK(outlast_u64_add(context, n % 10, 1, NULL));
    }
    return NULL;
}

static void threads_share_handles(void) {
    pthread_t threads[THREADS];
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "u64", "u64");
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, add_many, map);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (uint64_t key = 0; key < 10; key++) {
        uint64_t sum = 0;
        OK(outlast_u64_get(map, key, &sum));
        EXPECT(sum == THREADS * ADDITIONS / 10);
    }
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void *fail(void *context) {
    (void)context;
    EXPECT(strcmp(outlast_error_message(), "") == 0);
    outlast_sync(NULL);
    EXPECT(strstr(outlast_error_message(), "pool"));
    return NULL;
}

static void messages_belong_to_their_thread(void) {
    pthread_t thread;
    char before[200];
    outlast_u64_get(NULL, 1, NULL);
    snprintf(before, sizeof before, "%s", outlast_error_message());
    pthread_create(&thread, NULL, fail, NULL);
    pthread_join(thread, NULL);
    EXPECT(strcmp(before, outlast_error_message()) == 0);
    EXPECT(strcmp(outlast_code_name(OUTLAST_ERROR_LOCKED), "OUTLAST_ERROR_LOCKED") == 0);
    EXPECT(strcmp(outlast_code_name(12345), "unknown") == 0);
    EXPECT(strlen(outlast_version()) >= 5);
}

int main(void) {
    RUN(a_pool_reopens_as_it_was);
    RUN(a_journal_makes_changes_durable);
    RUN(progress_is_told);
    RUN(snapshots_and_backups_are_pools);
    RUN(maps_are_listed_and_dropped);
    RUN(a_pool_tells_its_numbers);
    RUN(damage_has_an_offset);
    RUN(other_files_are_refused);
    RUN(calls_after_close_fail);
    RUN(null_arguments_are_errors);
    RUN(wrong_types_are_refused);
    RUN(limits_are_errors);
    RUN(read_only_pools_can_only_be_read);
    RUN(other_processes_are_kept_out);
    RUN(threads_share_handles);
    RUN(messages_belong_to_their_thread);
    return summary();
}

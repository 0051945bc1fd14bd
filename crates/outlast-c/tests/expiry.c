/* Records that expire, and caches. */
#include "harness.h"

#include <time.h>

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + time.tv_nsec;
}

static void pause_ms(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static outlast_map *new_expiring_map(outlast_pool *pool, const char *name, const char *key, const char *value,
                                     const char *scheme) {
    outlast_map *map = NULL;
    OK(outlast_expiring_map_open(pool, name, key, value, scheme, &map));
    return map;
}

static void records_expire(void) {
    outlast_pool *pool = new_pool();
    const char *schemes[] = {NULL, "phast", "clevel"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        outlast_map *map = new_expiring_map(pool, "map", "str", "str", schemes[i]);
        uint64_t time = 0, end = now() + OUTLAST_SECONDS(60), records = 0;
        OK(outlast_put_until(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v"), end));
        OK(outlast_expiry_of(map, OUTLAST_TEXT("k"), &time));
        EXPECT(time == end && has(map, "k", "v"));
        OK(outlast_update(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("w")));
        OK(outlast_expiry_of(map, OUTLAST_TEXT("k"), &time));
        EXPECT(time == end && has(map, "k", "w"));
        OK(outlast_persist(map, OUTLAST_TEXT("k")));
        OK(outlast_expiry_of(map, OUTLAST_TEXT("k"), &time));
        EXPECT(time == OUTLAST_NEVER);
        OK(outlast_expire_for(map, OUTLAST_TEXT("k"), OUTLAST_SECONDS(1) / 50));
        OK(outlast_put_for(map, OUTLAST_TEXT("l"), OUTLAST_TEXT("v"), OUTLAST_SECONDS(1) / 50));
        OK(outlast_put_for(map, OUTLAST_TEXT("m"), OUTLAST_TEXT("v"), UINT64_MAX));
        OK(outlast_expiry_of(map, OUTLAST_TEXT("m"), &time));
        EXPECT(time == OUTLAST_NEVER);
        pause_ms(40);
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_contains(map, OUTLAST_TEXT("k")));
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_get(map, OUTLAST_TEXT("l"), NULL, 0, NULL));
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_expire_at(map, OUTLAST_TEXT("k"), end));
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_persist(map, OUTLAST_TEXT("k")));
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_expiry_of(map, OUTLAST_TEXT("k"), &time));
        OK(outlast_count(map, &records));
        EXPECT(records == 1);
        OK(outlast_expire_at(map, OUTLAST_TEXT("m"), 1));
        EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_contains(map, OUTLAST_TEXT("m")));
        outlast_map_free(map);
        OK(outlast_map_drop(pool, "map"));
    }
    outlast_pool_free(pool);
}

static void numbers_expire_too(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_expiring_map(pool, "map", "u64", "u64", NULL);
    uint64_t key = 7, value = 8, found = 0, time = 0, end = now() + OUTLAST_SECONDS(60);
    OK(outlast_put_until(map, OUTLAST_VALUE(key), OUTLAST_VALUE(value), end));
    OK(outlast_u64_get(map, key, &found));
    EXPECT(found == 8);
    OK(outlast_u64_add(map, key, 2, &found));
    OK(outlast_add(map, OUTLAST_VALUE(key), 1, &found));
    OK(outlast_expiry_of(map, OUTLAST_VALUE(key), &time));
    EXPECT(found == 11 && time == end);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void batches_set_times(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_expiring_map(pool, "map", "str", "str", NULL);
    outlast_batch *batch = NULL;
    uint64_t time = 0, end = now() + OUTLAST_SECONDS(60);
    OK(outlast_batch_begin(pool, &batch));
    OK(outlast_batch_put_until(batch, map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v"), end));
    OK(outlast_batch_put(batch, map, OUTLAST_TEXT("l"), OUTLAST_TEXT("v")));
    OK(outlast_batch_commit(batch, NULL));
    OK(outlast_expiry_of(map, OUTLAST_TEXT("k"), &time));
    EXPECT(time == end);
    OK(outlast_expiry_of(map, OUTLAST_TEXT("l"), &time));
    EXPECT(time == OUTLAST_NEVER);
    outlast_batch_free(batch);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

struct renewal {
    outlast_map *expiring, *plain;
    uint64_t end;
};

static int renew(const outlast_transaction *t, void *context) {
    struct renewal *renewal = context;
    char value[8];
    OK(outlast_transaction_get(t, renewal->expiring, OUTLAST_TEXT("k"), value, sizeof value, NULL));
    OK(outlast_transaction_put_until(t, renewal->expiring, OUTLAST_TEXT("k"), OUTLAST_TEXT("w"), renewal->end));
    OK(outlast_transaction_put(t, renewal->plain, OUTLAST_TEXT("k"), outlast_bytes_of(value, 1)));
    EXPECT_CODE(OUTLAST_ERROR_INVALID,
                outlast_transaction_put_until(t, renewal->plain, OUTLAST_TEXT("k"), OUTLAST_TEXT("w"), renewal->end));
    return 0;
}

static void transactions_set_times(void) {
    outlast_pool *pool = new_pool();
    struct renewal renewal = {new_expiring_map(pool, "map", "str", "str", NULL), new_map(pool, "plain", "str", "str"),
                              now() + OUTLAST_SECONDS(60)};
    uint64_t time = 0;
    OK(outlast_put(renewal.expiring, OUTLAST_TEXT("k"), OUTLAST_TEXT("v")));
    OK(outlast_transaction_run(pool, renew, &renewal));
    OK(outlast_expiry_of(renewal.expiring, OUTLAST_TEXT("k"), &time));
    EXPECT(time == renewal.end && has(renewal.expiring, "k", "w") && has(renewal.plain, "k", "v"));
    outlast_map_free(renewal.expiring);
    outlast_map_free(renewal.plain);
    outlast_pool_free(pool);
}

static void a_map_has_expiry_or_not(void) {
    outlast_pool *pool = new_pool();
    outlast_map *plain = new_map(pool, "plain", "str", "str"), *map = plain;
    outlast_batch *batch = NULL;
    uint64_t time = 0;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_put_for(plain, OUTLAST_TEXT("k"), OUTLAST_TEXT("v"), 1));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_expiry_of(plain, OUTLAST_TEXT("k"), &time));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_persist(plain, OUTLAST_TEXT("k")));
    OK(outlast_batch_begin(pool, &batch));
    EXPECT_CODE(OUTLAST_ERROR_INVALID,
                outlast_batch_put_until(batch, plain, OUTLAST_TEXT("k"), OUTLAST_TEXT("v"), 1));
    outlast_batch_free(batch);
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_expiring_map_open(pool, "plain", "str", "str", NULL, &map));
    EXPECT(!map);
    outlast_map_free(plain);
    map = new_expiring_map(pool, "expiring", "str", "str", NULL);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_expiry_of(map, OUTLAST_TEXT("k"), NULL));
    outlast_map_free(map);
    /* Who opens an existing map need not know that its records expire. */
    map = new_map(pool, "expiring", "str", "str");
    OK(outlast_put_for(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("v"), OUTLAST_SECONDS(60)));
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* ---- Caches ------------------------------------------------------------------- */

static outlast_cache *new_cache(outlast_pool *pool, const char *key, const char *value,
                                outlast_cache_options options) {
    outlast_cache *cache = NULL;
    OK(outlast_cache_open(pool, "cache", key, value, &options, &cache));
    return cache;
}

static outlast_cache_counts counts_of(outlast_cache *cache) {
    outlast_cache_counts counts;
    OK(outlast_cache_stats(cache, &counts));
    return counts;
}

static int count_record(outlast_bytes key, outlast_bytes value, void *context) {
    (void)key, (void)value;
    ++*(int *)context;
    return 0;
}

static void a_cache_keeps_what_is_used(void) {
    outlast_pool *pool = new_pool();
    outlast_cache_options options = {0};
    options.records = 100;
    outlast_cache *cache = new_cache(pool, "u64", "u64", options);
    uint64_t value = 0, found;
    size_t len = 0;
    for (uint64_t key = 0; key < 1000; key++) {
        value = key * 3;
        OK(outlast_cache_insert(cache, OUTLAST_VALUE(key), OUTLAST_VALUE(value)));
        /* The first keys are used all the time, so they stay. */
        for (uint64_t used = 0; used <= key && used < 10; used++) {
            OK(outlast_cache_get(cache, OUTLAST_VALUE(used), &found, sizeof found, &len));
            EXPECT(len == sizeof found && found == used * 3);
        }
    }
    outlast_cache_counts counts = counts_of(cache);
    int seen = 0;
    EXPECT(counts.records <= 100 && counts.records > 50 && counts.bytes > counts.records * 24);
    EXPECT(counts.evictions == 1000 - counts.records && counts.misses == 0 && counts.hits == 9955);
    value = 5000;
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_cache_get(cache, OUTLAST_VALUE(value), NULL, 0, NULL));
    EXPECT(counts_of(cache).misses == 1);
    OK(outlast_each(outlast_cache_map(cache), count_record, &seen));
    EXPECT((uint64_t)seen == counts.records);
    value = 0;
    OK(outlast_cache_remove(cache, OUTLAST_VALUE(value)));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_cache_remove(cache, OUTLAST_VALUE(value)));
    EXPECT_CODE(OUTLAST_BUFFER_TOO_SMALL,
                (value = 1, outlast_cache_get(cache, OUTLAST_VALUE(value), &found, 4, &len)));
    EXPECT(len == 8);
    OK(outlast_clear(outlast_cache_map(cache), &found));
    EXPECT(found == counts.records - 1 && counts_of(cache).records == 0 && counts_of(cache).bytes == 0);
    outlast_cache_free(cache);
    outlast_pool_free(pool);
}

static void a_cache_is_bounded_in_bytes(void) {
    outlast_pool *pool = new_pool();
    outlast_cache_options options = {0};
    options.bytes = 100000;
    outlast_cache *cache = new_cache(pool, "str", "bytes", options);
    char key[32], value[1000], large[100000];
    memset(value, 'v', sizeof value);
    memset(large, 'l', sizeof large);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "key %d", i);
        OK(outlast_cache_insert(cache, OUTLAST_TEXT(key), outlast_bytes_of(value, sizeof value)));
        EXPECT(counts_of(cache).bytes <= 100000);
    }
    EXPECT(counts_of(cache).records > 50);
    /* What is larger than the cache is not there afterwards, nor is what it replaces. */
    OK(outlast_cache_insert(cache, OUTLAST_TEXT(key), outlast_bytes_of(large, sizeof large)));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_contains(outlast_cache_map(cache), OUTLAST_TEXT(key)));
    outlast_cache_free(cache);
    /* It keeps its records when the pool is opened again. */
    uint64_t records = 0;
    cache = new_cache(pool, "str", "bytes", options);
    records = counts_of(cache).records;
    outlast_cache_free(cache);
    OK(outlast_close(pool));
    outlast_pool_free(pool);
    OK(outlast_open(file, small(), &pool));
    cache = new_cache(pool, "str", "bytes", options);
    EXPECT(records > 50 && counts_of(cache).records == records && counts_of(cache).hits == 0);
    OK(outlast_verify(pool, NULL, NULL, NULL));
    outlast_cache_free(cache);
    outlast_pool_free(pool);
}

static void records_of_a_cache_expire(void) {
    outlast_pool *pool = new_pool();
    outlast_cache_options options = {0};
    options.records = 100;
    options.live_for = OUTLAST_SECONDS(60);
    outlast_cache *cache = new_cache(pool, "str", "str", options);
    uint64_t time = 0;
    OK(outlast_cache_insert(cache, OUTLAST_TEXT("minute"), OUTLAST_TEXT("v")));
    OK(outlast_expiry_of(outlast_cache_map(cache), OUTLAST_TEXT("minute"), &time));
    EXPECT(time > now() + OUTLAST_SECONDS(50) && time <= now() + OUTLAST_SECONDS(60));
    OK(outlast_cache_insert_for(cache, OUTLAST_TEXT("soon"), OUTLAST_TEXT("v"), OUTLAST_SECONDS(1) / 50));
    pause_ms(40);
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_cache_get(cache, OUTLAST_TEXT("soon"), NULL, 0, NULL));
    EXPECT(counts_of(cache).expired == 1 && counts_of(cache).records == 1);
    outlast_cache_free(cache);
    outlast_pool_free(pool);
}

static void wrong_caches_are_refused(void) {
    outlast_pool *pool = new_pool();
    outlast_cache_options options = {0};
    outlast_cache *cache = NULL;
    outlast_cache_counts counts;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_open(pool, "cache", "str", "str", &options, &cache));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_open(pool, "cache", "str", "str", NULL, &cache));
    options.bytes = options.records = 1000;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_open(pool, "cache", "str", "str", &options, &cache));
    options.bytes = 0;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_open(pool, "cache", "str", "u128", &options, &cache));
    options.reserved[4] = 1;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_open(pool, "cache", "str", "str", &options, &cache));
    options.reserved[4] = 0;
    outlast_map_free(new_map(pool, "map", "str", "str"));
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_cache_open(pool, "map", "str", "str", &options, &cache));
    OK(outlast_cache_open(pool, "cache", "str", "str", &options, &cache));
    outlast_cache_free(cache);
    EXPECT_CODE(OUTLAST_ERROR_MAP_MISMATCH, outlast_cache_open(pool, "cache", "str", "u64", &options, &cache));
    EXPECT(!cache);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_insert(NULL, OUTLAST_TEXT("k"), OUTLAST_TEXT("v")));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_cache_stats(NULL, &counts));
    EXPECT(!outlast_cache_map(NULL));
    outlast_cache_free(NULL);
    outlast_pool_free(pool);
}

int main(void) {
    RUN(records_expire);
    RUN(numbers_expire_too);
    RUN(batches_set_times);
    RUN(transactions_set_times);
    RUN(a_map_has_expiry_or_not);
    RUN(a_cache_keeps_what_is_used);
    RUN(a_cache_is_bounded_in_bytes);
    RUN(records_of_a_cache_expire);
    RUN(wrong_caches_are_refused);
    return summary();
}

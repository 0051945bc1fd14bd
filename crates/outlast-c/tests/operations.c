/* Every operation, on maps of every type. */
#include "harness.h"

#include <math.h>

/* ---- One key ------------------------------------------------------------------ */

static void strings_are_kept_as_they_are(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "bytes", "bytes");
    outlast_bytes zeros = outlast_bytes_of("a\0b", 3);
    char buffer[8];
    size_t len = 99;
    OK(outlast_insert(map, zeros, OUTLAST_NOTHING));
    EXPECT_CODE(OUTLAST_EXISTS, outlast_insert(map, zeros, OUTLAST_TEXT("x")));
    OK(outlast_get(map, zeros, NULL, 0, &len));
    EXPECT(len == 0);
    OK(outlast_put(map, OUTLAST_NOTHING, OUTLAST_TEXT("of the empty key")));
    EXPECT(has(map, "", "of the empty key"));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_get(map, OUTLAST_TEXT("a"), buffer, sizeof buffer, &len));
    OK(outlast_contains(map, zeros));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_contains(map, OUTLAST_TEXT("a")));
    outlast_map_free(map);
    OK(outlast_close(pool));
    outlast_pool_free(pool);
}

static void a_buffer_that_is_too_small_gets_nothing(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "bytes");
    char buffer[8] = "........";
    size_t len = 0;
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("12345")));
    EXPECT_CODE(OUTLAST_BUFFER_TOO_SMALL, outlast_get(map, OUTLAST_TEXT("k"), buffer, 4, &len));
    EXPECT(len == 5 && memcmp(buffer, "........", 8) == 0);
    EXPECT_CODE(OUTLAST_BUFFER_TOO_SMALL, outlast_get(map, OUTLAST_TEXT("k"), NULL, 0, NULL));
    OK(outlast_get(map, OUTLAST_TEXT("k"), buffer, 5, NULL));
    EXPECT(memcmp(buffer, "12345...", 8) == 0);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* Buffers of up to 4096 bytes and larger ones take different ways. */
static void values_of_all_lengths_fill_buffers_of_all_capacities(void) {
    enum { MOST = 5000 };
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, MOST};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "bytes", "bytes");
    char value[MOST], buffer[MOST + 1];
    for (size_t i = 0; i < MOST; i++) {
        value[i] = (char)(i * 7 + 1);
    }
    for (size_t i = 0; i < SIZES; i++) {
        OK(outlast_put(map, OUTLAST_TEXT("k"), outlast_bytes_of(value, sizes[i])));
        for (size_t j = 0; j < SIZES; j++) {
            size_t len = 99, filled = sizes[i] <= sizes[j] ? sizes[i] : 0;
            memset(buffer, '.', sizeof buffer);
            EXPECT_CODE(sizes[i] <= sizes[j] ? OUTLAST_OK : OUTLAST_BUFFER_TOO_SMALL,
                        outlast_get(map, OUTLAST_TEXT("k"), buffer, sizes[j], &len));
            EXPECT(len == sizes[i] && memcmp(buffer, value, filled) == 0 && buffer[filled] == '.');
        }
    }
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void changes_tell_what_they_did(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "str");
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_update(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("1")));
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("1")));
    OK(outlast_update(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("2")));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_compare_swap(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("1"), OUTLAST_TEXT("3")));
    OK(outlast_compare_swap(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("2"), OUTLAST_TEXT("3")));
    EXPECT(has(map, "k", "3"));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_compare_swap(map, OUTLAST_TEXT("-"), OUTLAST_TEXT("2"), OUTLAST_TEXT("3")));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_compare_remove(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("2")));
    OK(outlast_compare_remove(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("3")));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_remove(map, OUTLAST_TEXT("k")));
    OK(outlast_put(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("4")));
    OK(outlast_remove(map, OUTLAST_TEXT("k")));
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void keep_text(outlast_bytes value, void *context) {
    memcpy(context, value.data, value.len);
    ((char *)context)[value.len] = 0;
}

static void the_value_before_can_be_had(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "str");
    char before[16] = "none";
    OK(outlast_exchange(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("1"), keep_text, before));
    EXPECT(strcmp(before, "none") == 0);
    OK(outlast_exchange(map, OUTLAST_TEXT("k"), OUTLAST_TEXT("2"), keep_text, before));
    EXPECT(strcmp(before, "1") == 0);
    OK(outlast_take(map, OUTLAST_TEXT("k"), keep_text, before));
    EXPECT(strcmp(before, "2") == 0);
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_take(map, OUTLAST_TEXT("k"), keep_text, before));
    outlast_map_free(map);
    outlast_pool_free(pool);
}

struct head {
    outlast_map *map;
    size_t len;
    char bytes[4];
};

static void read_head(const outlast_view *view, void *context) {
    struct head *head = context;
    head->len = outlast_view_len(view);
    /* The view stays as it is, whatever happens to the record. */
    OK(outlast_put(head->map, OUTLAST_TEXT("k"), OUTLAST_TEXT("other")));
    OK(outlast_view_read(view, head->len - 4, head->bytes, 4));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_view_read(view, head->len - 3, head->bytes, 4));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_view_read(view, SIZE_MAX, head->bytes, 4));
}

static void a_view_reads_parts_of_a_long_value(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "str", "bytes");
    char *value = calloc(1, 1000000);
    struct head head = {map, 0, ""};
    memcpy(value + 999996, "tail", 4);
    OK(outlast_put(map, OUTLAST_TEXT("k"), outlast_bytes_of(value, 1000000)));
    OK(outlast_get_view(map, OUTLAST_TEXT("k"), read_head, &head));
    EXPECT(head.len == 1000000 && memcmp(head.bytes, "tail", 4) == 0);
    EXPECT(has(map, "k", "other"));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_get_view(map, OUTLAST_TEXT("-"), read_head, &head));
    free(value);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* ---- Types -------------------------------------------------------------------- */

/* Puts a value under a key of each type, and reads it back through `get`, `each` and `compare_swap`. */
struct record {
    outlast_bytes key, value;
    int times;
};

static int compare_record(outlast_bytes key, outlast_bytes value, void *context) {
    struct record *record = context;
    record->times++;
    EXPECT(key.len == record->key.len && memcmp(key.data, record->key.data, key.len) == 0);
    EXPECT(value.len == record->value.len && memcmp(value.data, record->value.data, value.len) == 0);
    return 0;
}

static void keep_and_read(outlast_pool *pool, const char *key_type, outlast_bytes key, const char *value_type,
                          outlast_bytes value) {
    for (int ordered = 0; ordered < 2; ordered++) {
        outlast_map *map = ordered ? new_ordered_map(pool, "types", key_type, value_type)
                                   : new_map(pool, "types", key_type, value_type);
        unsigned char buffer[16];
        size_t len = 0;
        struct record record = {key, value, 0};
        OK(outlast_insert(map, key, value));
        OK(outlast_get(map, key, buffer, sizeof buffer, &len));
        EXPECT(len == value.len && memcmp(buffer, value.data, len) == 0);
        OK(outlast_each(map, compare_record, &record));
        OK(outlast_salvage(map, compare_record, NULL, &record));
        EXPECT(record.times == 2);
        OK(outlast_compare_swap(map, key, value, value));
        EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_put(map, outlast_bytes_of("123456789", 9),
                                                      outlast_bytes_of("123456789", 9)));
        outlast_map_free(map);
        OK(outlast_map_drop(pool, "types"));
    }
}

static void every_type_reads_as_it_was_written(void) {
    outlast_pool *pool = new_pool();
    bool yes = true;
    uint8_t u8 = 200;
    int8_t i8 = -100;
    uint16_t u16 = 60000;
    int16_t i16 = -30000;
    uint32_t u32 = 4000000000;
    int32_t i32 = -2000000000;
    uint64_t u64 = UINT64_MAX;
    int64_t i64 = INT64_MIN;
    float f32 = -1.5f;
    double f64 = -2.25;
    struct {
        const char *name;
        outlast_bytes bytes;
    } types[] = {
        {"bool", OUTLAST_VALUE(yes)}, {"u8", OUTLAST_VALUE(u8)},   {"i8", OUTLAST_VALUE(i8)},
        {"u16", OUTLAST_VALUE(u16)},  {"i16", OUTLAST_VALUE(i16)}, {"u32", OUTLAST_VALUE(u32)},
        {"i32", OUTLAST_VALUE(i32)},  {"u64", OUTLAST_VALUE(u64)}, {"i64", OUTLAST_VALUE(i64)},
        {"f32", OUTLAST_VALUE(f32)},  {"f64", OUTLAST_VALUE(f64)},
    };
    size_t count = sizeof types / sizeof *types;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            keep_and_read(pool, types[i].name, types[i].bytes, types[j].name, types[j].bytes);
        }
    }
    outlast_map *of_text = new_map(pool, "of text", "str", "f64");
    double back = 0;
    OK(outlast_put(of_text, OUTLAST_TEXT("pi"), OUTLAST_VALUE(f64)));
    OK(outlast_get(of_text, OUTLAST_TEXT("pi"), &back, sizeof back, NULL));
    EXPECT(back == f64);
    outlast_map_free(of_text);
    outlast_map *by_float = new_map(pool, "by float", "f32", "str");
    OK(outlast_put(by_float, OUTLAST_VALUE(f32), OUTLAST_TEXT("-1.5")));
    OK(outlast_contains(by_float, OUTLAST_VALUE(f32)));
    outlast_map_free(by_float);
    OK(outlast_verify(pool, NULL, NULL, NULL));
    outlast_pool_free(pool);
}

static int in_order(outlast_bytes key, outlast_bytes value, void *context) {
    double number, *last = context;
    (void)value;
    memcpy(&number, key.data, sizeof number);
    EXPECT(number > *last);
    *last = number;
    return 0;
}

static void floats_are_in_order(void) {
    outlast_pool *pool = new_pool();
    const char *values[] = {"u64", "str"}; /* In place, and in blocks. */
    for (int i = 0; i < 2; i++) {
        outlast_map *map = new_ordered_map(pool, values[i], "f64", values[i]);
        double numbers[] = {1.5, -2.0, 1e300, -1e-300, 0.0}, last = -INFINITY, minus = -1.0;
        uint64_t value = 7;
        for (int n = 0; n < 5; n++) {
            OK(outlast_put(map, OUTLAST_VALUE(numbers[n]), i ? OUTLAST_TEXT("x") : OUTLAST_VALUE(value)));
        }
        OK(outlast_each(map, in_order, &last));
        EXPECT(last == 1e300);
        outlast_range above = {.low = OUTLAST_VALUE(minus), .low_bound = OUTLAST_INCLUDED};
        last = -1;
        OK(outlast_range_first(map, &above, in_order, &last));
        EXPECT(last == -1e-300);
        outlast_map_free(map);
    }
    outlast_pool_free(pool);
}

static void counters_count(void) {
    outlast_pool *pool = new_pool();
    outlast_map *counts = new_map(pool, "counts", "str", "u8"), *levels = new_map(pool, "levels", "str", "i16");
    uint64_t sum = 0;
    int64_t level = 0;
    OK(outlast_add(counts, OUTLAST_TEXT("k"), 200, &sum));
    OK(outlast_add(counts, OUTLAST_TEXT("k"), 55, &sum));
    EXPECT(sum == 255);
    EXPECT_CODE(OUTLAST_ERROR_OVERFLOW, outlast_add(counts, OUTLAST_TEXT("k"), 1, &sum));
    EXPECT_CODE(OUTLAST_ERROR_OVERFLOW, outlast_add(counts, OUTLAST_TEXT("k"), UINT64_MAX, NULL));
    OK(outlast_subtract(counts, OUTLAST_TEXT("k"), 254, &sum));
    EXPECT(sum == 1);
    EXPECT_CODE(OUTLAST_ERROR_OVERFLOW, outlast_subtract(counts, OUTLAST_TEXT("k"), 2, &sum));
    OK(outlast_add_signed(levels, OUTLAST_TEXT("k"), -32768, &level));
    EXPECT(level == -32768);
    EXPECT_CODE(OUTLAST_ERROR_OVERFLOW, outlast_add_signed(levels, OUTLAST_TEXT("k"), -1, &level));
    OK(outlast_add_signed(levels, OUTLAST_TEXT("k"), 40000, &level));
    EXPECT(level == 7232);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_add(levels, OUTLAST_TEXT("k"), 1, NULL));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_add_signed(counts, OUTLAST_TEXT("k"), 1, NULL));
    outlast_map_free(counts);
    outlast_map_free(levels);
    outlast_pool_free(pool);
}

static void maps_of_words_need_no_pointers(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "u64", "u64"), *strings = new_map(pool, "strings", "str", "u64");
    uint64_t value = 0, key = 1;
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_u64_get(map, 1, &value));
    OK(outlast_u64_insert(map, 1, 10));
    EXPECT_CODE(OUTLAST_EXISTS, outlast_u64_insert(map, 1, 11));
    OK(outlast_u64_get(map, 1, &value));
    EXPECT(value == 10);
    OK(outlast_u64_put(map, 1, 12));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_u64_update(map, 2, 1));
    OK(outlast_u64_update(map, 1, 13));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_u64_compare_swap(map, 1, 12, 14));
    OK(outlast_u64_compare_swap(map, 1, 13, 14));
    OK(outlast_u64_add(map, 1, 6, &value));
    EXPECT(value == 20);
    EXPECT_CODE(OUTLAST_ERROR_OVERFLOW, outlast_u64_add(map, 1, UINT64_MAX, &value));
    value = 0;
    OK(outlast_get(map, OUTLAST_VALUE(key), &value, sizeof value, NULL));
    EXPECT(value == 20);
    OK(outlast_u64_contains(map, 1));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_u64_compare_remove(map, 1, 21));
    OK(outlast_u64_compare_remove(map, 1, 20));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_u64_remove(map, 1));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_u64_contains(map, 1));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_u64_get(strings, 1, &value));
    outlast_map_free(strings);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* ---- Many records ------------------------------------------------------------- */

struct walk {
    char keys[64];
    int limit;
};

static int note_key(outlast_bytes key, outlast_bytes value, void *context) {
    struct walk *walk = context;
    (void)value;
    strncat(walk->keys, key.data, key.len);
    return --walk->limit == 0;
}

static const char *walked(outlast_map *map, const outlast_range *range) {
    static struct walk walk;
    memset(&walk, 0, sizeof walk);
    OK(outlast_range_each(map, range, note_key, &walk));
    return walk.keys;
}

static void ranges_go_both_ways(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_ordered_map(pool, "map", "str", "str"), *unordered = new_map(pool, "hash", "str", "str");
    struct walk walk = {"", 2};
    for (const char *key = "dbaec"; *key; key++) {
        OK(outlast_put(map, outlast_bytes_of(key, 1), OUTLAST_TEXT("x")));
    }
    outlast_range range = {0};
    EXPECT(strcmp(walked(map, NULL), "abcde") == 0);
    EXPECT(strcmp(walked(map, &range), "abcde") == 0);
    range.is_reverse = 1;
    EXPECT(strcmp(walked(map, &range), "edcba") == 0);
    range = (outlast_range){OUTLAST_TEXT("b"), OUTLAST_TEXT("d"), OUTLAST_INCLUDED, OUTLAST_EXCLUDED, 0};
    EXPECT(strcmp(walked(map, &range), "bc") == 0);
    range = (outlast_range){OUTLAST_TEXT("b"), OUTLAST_TEXT("d"), OUTLAST_EXCLUDED, OUTLAST_INCLUDED, 1};
    EXPECT(strcmp(walked(map, &range), "dc") == 0);
    EXPECT_CODE(OUTLAST_STOPPED, outlast_each(map, note_key, &walk));
    EXPECT(strcmp(walk.keys, "ab") == 0);
    walk = (struct walk){"", 0};
    range = (outlast_range){.high = OUTLAST_TEXT("cc"), .high_bound = OUTLAST_INCLUDED, .is_reverse = 1};
    OK(outlast_range_first(map, &range, note_key, &walk));
    EXPECT(strcmp(walk.keys, "c") == 0);
    range = (outlast_range){.low = OUTLAST_TEXT("f"), .low_bound = OUTLAST_INCLUDED};
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_range_first(map, &range, note_key, &walk));
    range.low_bound = 3;
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_range_each(map, &range, note_key, &walk));
    range = (outlast_range){.is_reverse = 2};
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_range_each(map, &range, note_key, &walk));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_range_each(unordered, NULL, note_key, &walk));
    outlast_map_free(unordered);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void prefixes_select_keys(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_ordered_map(pool, "map", "bytes", "str"), *words = new_ordered_map(pool, "w", "u64", "u64");
    const char *keys[] = {"a", "ab", "ac", "b", "a\xff"};
    struct walk walk = {"", 0};
    for (int i = 0; i < 5; i++) {
        OK(outlast_put(map, OUTLAST_TEXT(keys[i]), OUTLAST_TEXT("")));
    }
    OK(outlast_prefix_each(map, OUTLAST_TEXT("a"), false, note_key, &walk));
    EXPECT(strcmp(walk.keys, "aabaca\xff") == 0);
    walk = (struct walk){"", 0};
    OK(outlast_prefix_each(map, OUTLAST_TEXT("a\xff"), true, note_key, &walk));
    EXPECT(strcmp(walk.keys, "a\xff") == 0);
    walk = (struct walk){"", 1};
    EXPECT_CODE(OUTLAST_STOPPED, outlast_prefix_each(map, OUTLAST_NOTHING, true, note_key, &walk));
    EXPECT(strcmp(walk.keys, "b") == 0);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_prefix_each(words, OUTLAST_TEXT("a"), false, note_key, &walk));
    outlast_map_free(words);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

static void counting_and_clearing(void) {
    outlast_pool *pool = new_pool();
    outlast_map *map = new_map(pool, "map", "u32", "bytes");
    uint64_t count = 99;
    for (uint32_t n = 0; n < 1000; n++) {
        OK(outlast_put(map, OUTLAST_VALUE(n), OUTLAST_TEXT("value")));
    }
    OK(outlast_count(map, &count));
    EXPECT(count == 1000);
    OK(outlast_count_estimate(map, &count));
    EXPECT(count > 800 && count < 1200);
    OK(outlast_clear(map, &count));
    EXPECT(count == 1000);
    OK(outlast_count(map, &count));
    EXPECT(count == 0);
    outlast_map_free(map);
    outlast_pool_free(pool);
}

/* ---- Batches ------------------------------------------------------------------ */

static void a_batch_makes_all_changes_or_none(void) {
    outlast_pool *pool = new_pool();
    outlast_map *names = new_map(pool, "names", "u64", "str"), *numbers = new_map(pool, "numbers", "str", "u64");
    outlast_batch *batch = NULL;
    uint64_t one = 1, two = 2, value = 0;
    size_t at = 99;
    OK(outlast_batch_begin(pool, &batch));
    OK(outlast_batch_require_absent(batch, numbers, OUTLAST_TEXT("Ada")));
    OK(outlast_batch_put(batch, names, OUTLAST_VALUE(one), OUTLAST_TEXT("Ada")));
    OK(outlast_batch_put(batch, numbers, OUTLAST_TEXT("Ada"), OUTLAST_VALUE(one)));
    EXPECT_CODE(OUTLAST_NOT_FOUND, outlast_contains(numbers, OUTLAST_TEXT("Ada")));
    OK(outlast_batch_commit(batch, &at));
    OK(outlast_get(numbers, OUTLAST_TEXT("Ada"), &value, sizeof value, NULL));
    EXPECT(value == 1 && at == 99);

    OK(outlast_batch_require(batch, numbers, OUTLAST_TEXT("Ada"), OUTLAST_VALUE(one)));
    OK(outlast_batch_require(batch, numbers, OUTLAST_TEXT("Ada"), OUTLAST_VALUE(two)));
    OK(outlast_batch_remove(batch, numbers, OUTLAST_TEXT("Ada")));
    EXPECT_CODE(OUTLAST_DIFFERS, outlast_batch_commit(batch, &at));
    EXPECT(at == 1);
    OK(outlast_contains(numbers, OUTLAST_TEXT("Ada")));
    OK(outlast_batch_commit(batch, NULL)); /* It is empty by now. */
    OK(outlast_contains(numbers, OUTLAST_TEXT("Ada")));

    OK(outlast_batch_remove(batch, numbers, OUTLAST_TEXT("Ada")));
    outlast_batch_free(batch);
    OK(outlast_contains(numbers, OUTLAST_TEXT("Ada")));
    outlast_map_free(names);
    outlast_map_free(numbers);
    outlast_pool_free(pool);
}

/* ---- Transactions ------------------------------------------------------------- */

struct transfer {
    outlast_map *accounts;
    uint64_t amount;
    int calls;
};

/* Moves money from "ada" to "bob". The first time, another change comes between. */
static int transfer(const outlast_transaction *t, void *context) {
    struct transfer *transfer = context;
    uint64_t ada = 0, bob = 0;
    OK(outlast_transaction_get(t, transfer->accounts, OUTLAST_TEXT("ada"), &ada, sizeof ada, NULL));
    outlast_transaction_get(t, transfer->accounts, OUTLAST_TEXT("bob"), &bob, sizeof bob, NULL);
    if (transfer->calls++ == 0) {
        OK(outlast_add(transfer->accounts, OUTLAST_TEXT("ada"), 5, NULL));
    }
    ada -= transfer->amount;
    bob += transfer->amount;
    OK(outlast_transaction_put(t, transfer->accounts, OUTLAST_TEXT("ada"), OUTLAST_VALUE(ada)));
    OK(outlast_transaction_put(t, transfer->accounts, OUTLAST_TEXT("bob"), OUTLAST_VALUE(bob)));
    OK(outlast_transaction_get(t, transfer->accounts, OUTLAST_TEXT("bob"), &ada, sizeof ada, NULL));
    EXPECT(ada == bob);
    return bob > 50;
}

static void a_transaction_runs_again_if_it_was_overtaken(void) {
    outlast_pool *pool = new_pool();
    outlast_map *accounts = new_map(pool, "accounts", "str", "u64");
    struct transfer context = {accounts, 30, 0};
    uint64_t value = 100;
    OK(outlast_put(accounts, OUTLAST_TEXT("ada"), OUTLAST_VALUE(value)));
    OK(outlast_transaction_run(pool, transfer, &context));
    EXPECT(context.calls == 2);
    EXPECT_CODE(OUTLAST_STOPPED, outlast_transaction_run(pool, transfer, &context));
    OK(outlast_get(accounts, OUTLAST_TEXT("ada"), &value, sizeof value, NULL));
    EXPECT(value == 75);
    OK(outlast_get(accounts, OUTLAST_TEXT("bob"), &value, sizeof value, NULL));
    EXPECT(value == 30);
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_transaction_run(pool, NULL, NULL));
    EXPECT_CODE(OUTLAST_ERROR_INVALID, outlast_transaction_remove(NULL, accounts, OUTLAST_TEXT("ada")));
    outlast_map_free(accounts);
    outlast_pool_free(pool);
}

int main(void) {
    RUN(strings_are_kept_as_they_are);
    RUN(a_buffer_that_is_too_small_gets_nothing);
    RUN(values_of_all_lengths_fill_buffers_of_all_capacities);
    RUN(changes_tell_what_they_did);
    RUN(the_value_before_can_be_had);
    RUN(a_view_reads_parts_of_a_long_value);
    RUN(every_type_reads_as_it_was_written);
    RUN(floats_are_in_order);
    RUN(counters_count);
    RUN(maps_of_words_need_no_pointers);
    RUN(ranges_go_both_ways);
    RUN(prefixes_select_keys);
    RUN(counting_and_clearing);
    RUN(a_batch_makes_all_changes_or_none);
    RUN(a_transaction_runs_again_if_it_was_overtaken);
    return summary();
}

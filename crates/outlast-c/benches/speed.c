/* Measures put and get of u64 pairs, and of strings of 16 and 32 bytes, once all records are there. benches/speed.rs
 * does the same through the Rust interface; scripts/c-speed runs both. */
#include <outlast.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RECORDS = 1000000 };

static void check(outlast_code code) {
    if (code < 0) {
        fprintf(stderr, "%s\n", outlast_error_message());
        exit(1);
    }
}

/* The order of the keys: that of a linear congruential generator, which passes each number once. */
static uint64_t next(uint64_t number) {
    return (number * 1664525 + 1013904223) % (1 << 20);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void report(const char *what, double begun) {
    printf("%s %.0f\n", what, RECORDS / (now() - begun) / 1000);
}

static outlast_map *map_of(outlast_pool *pool, const char *type) {
    outlast_map *map;
    check(outlast_map_open(pool, type, type, type, &map));
    return map;
}

int main(int argc, char **argv) {
    outlast_options options = {.initial_size = 256 << 20, .flags = OUTLAST_NO_JOURNAL};
    outlast_pool *pool;
    outlast_map *words, *strings;
    uint64_t number, sum = 0;
    double begun;
    if (argc != 2) {
        return 2;
    }
    check(outlast_create(argv[1], &options, &pool));
    words = map_of(pool, "u64");
    strings = map_of(pool, "bytes");

    for (int pass = 0; pass < 2; pass++) {
        begun = now();
        number = 0;
        for (int i = 0; i < RECORDS; i++, number = next(number)) {
            check(outlast_u64_put(words, number, number));
        }
    }
    report("put, u64", begun);

    begun = now();
    number = 0;
    for (int i = 0; i < RECORDS; i++, number = next(number)) {
        uint64_t value = 0;
        check(outlast_u64_get(words, number, &value));
        sum += value;
    }
    report("get, u64", begun);

    for (int pass = 0; pass < 2; pass++) {
        begun = now();
        number = 0;
        for (int i = 0; i < RECORDS; i++, number = next(number)) {
            uint64_t key[2] = {number, ~number}, value[4] = {number, 1, 2, 3};
            check(outlast_put(strings, OUTLAST_VALUE(key), OUTLAST_VALUE(value)));
        }
    }
    report("put, strings", begun);

    begun = now();
    number = 0;
    for (int i = 0; i < RECORDS; i++, number = next(number)) {
        uint64_t key[2] = {number, ~number}, value[4];
        check(outlast_get(strings, OUTLAST_VALUE(key), value, sizeof value, NULL));
        sum += value[0];
    }
    report("get, strings", begun);
    fprintf(stderr, "sum %llu\n", (unsigned long long)sum);
    return 0;
}

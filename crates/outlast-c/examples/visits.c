/* Counts visits, and keeps the pages in order. Run it several times: the counts go on, even if you kill it.
 *
 *     cc visits.c $(pkg-config --cflags --libs outlast) -o visits && ./visits visits.pool /index.html
 */
#include <outlast.h>
#include <stdio.h>
#include <stdlib.h>

static void check(outlast_code code) {
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", outlast_code_name(code), outlast_error_message());
        exit(1);
    }
}

static int print(outlast_bytes key, outlast_bytes value, void *context) {
    uint64_t count;
    (void)context;
    memcpy(&count, value.data, sizeof count);
    printf("%.*s: %llu\n", (int)key.len, (const char *)key.data, (unsigned long long)count);
    return 0;
}

int main(int argc, char **argv) {
    outlast_pool *pool;
    outlast_map *visits;
    if (argc < 2) {
        fprintf(stderr, "usage: %s POOL [PAGE]...\n", argv[0]);
        return 2;
    }
    check(outlast_open_or_create(argv[1], NULL, &pool));
    check(outlast_ordered_map_open(pool, "visits", "str", "u64", &visits));
    for (int i = 2; i < argc; i++) {
        check(outlast_add(visits, OUTLAST_TEXT(argv[i]), 1, NULL));
    }
    check(outlast_each(visits, print, NULL));
    outlast_map_free(visits);
    check(outlast_close(pool));
    outlast_pool_free(pool);
    return 0;
}

// The C++ layer: handles that free themselves, and exceptions.
extern "C" {
#include "harness.h"
}
#include <outlast.hpp>

#include <string>
#include <thread>
#include <vector>

using std::uint64_t;

static outlast_code code_of(const std::function<void()> &run) {
    try {
        run();
    } catch (const outlast::error &error) {
        EXPECT(std::string(error.what()).size() > 5);
        return error.code();
    }
    return OUTLAST_OK;
}

static void records_are_strings_and_numbers() {
    outlast::pool pool = outlast::pool::create(file, small());
    outlast::map ages = pool.map("ages", "str", "u64");
    EXPECT(ages.insert("Ada", uint64_t{36}));
    EXPECT(!ages.insert("Ada", uint64_t{37}));
    EXPECT(ages.get_number<uint64_t>("Ada") == 36 && !ages.get_number<uint64_t>("Bob"));
    EXPECT(ages.add("Ada", 1) == 37);
    EXPECT(ages.compare_swap("Ada", uint64_t{37}, uint64_t{38}));
    EXPECT(!ages.compare_remove("Ada", uint64_t{37}));
    EXPECT(outlast::number<uint64_t>(*ages.get("Ada")) == 38);

    outlast::map names = pool.map("names", "u64", "bytes");
    std::string zeros("a\0b", 3);
    names.put(uint64_t{1}, zeros);
    EXPECT(names.get(uint64_t{1}) == zeros && names.contains(uint64_t{1}));
    EXPECT(names.exchange(uint64_t{1}, "x") == zeros);
    EXPECT(names.update(uint64_t{1}, "y") && !names.update(uint64_t{2}, "y"));
    EXPECT(names.take(uint64_t{1}) == "y" && !names.take(uint64_t{1}) && !names.remove(uint64_t{1}));
    pool.verify();
    pool.wait_durable();
    pool.snapshot(other_file);
    pool.close();
    EXPECT(code_of([&] { ages.get("Ada"); }) == OUTLAST_ERROR_NOT_OPEN);
}

static void ranges_take_lambdas() {
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map log = pool.ordered_map("log", "str", "u64");
    for (const char *key : {"b", "a", "c", "ab"}) {
        log.put(key, uint64_t{1});
    }
    std::string seen;
    log.each([&](std::string_view key, std::string_view) { seen += key; });
    EXPECT(seen == "aabbc");
    seen.clear();
    log.each(outlast::range().above("a").below("c").reverse(), [&](std::string_view key, std::string_view) {
        seen += key;
        return key != "b";
    });
    EXPECT(seen == "b" || seen == "bab");
    seen.clear();
    log.each_with_prefix("a", [&](std::string_view key, std::string_view) { seen += key; });
    EXPECT(seen == "aab");
    EXPECT(log.first()->first == "a" && log.first(outlast::range().reverse())->first == "c");
    EXPECT(log.first(outlast::range().from("bb"))->first == "c" && !log.first(outlast::range().from("d")));
    EXPECT(log.count() == 4);
    log.clear();
    EXPECT(!log.first());
}

static void exceptions_pass_by_the_library() {
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map map = pool.map("map", "str", "str");
    map.put("a", "1");
    map.put("b", "2");
    int calls = 0;
    try {
        map.each([&](std::string_view, std::string_view) {
            calls++;
            throw std::logic_error("from the callback");
        });
        EXPECT(false);
    } catch (const std::logic_error &error) {
        EXPECT(std::string(error.what()) == "from the callback" && calls == 1);
    }
    EXPECT(code_of([&] { pool.map("map", "str", "u64"); }) == OUTLAST_ERROR_MAP_MISMATCH);
    EXPECT(code_of([&] { outlast::pool::open("/no/such/pool"); }) == OUTLAST_ERROR_NO_SUCH_POOL);
    outlast::pool moved = std::move(pool);
    EXPECT(code_of([&] { pool.sync(); }) == OUTLAST_ERROR_INVALID);
    moved.sync();
}

static void batches_are_chained() {
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map map = pool.map("map", "str", "str");
    outlast::batch batch = pool.batch();
    batch.require_absent(map, "a").put(map, "a", "1").put(map, "b", "2");
    EXPECT(batch.commit());
    batch.require(map, "a", "2").remove(map, "a");
    EXPECT(!batch.commit() && map.get("a") == "1");
}

static void transactions_take_lambdas() {
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map map = pool.map("map", "str", "str");
    std::string text(1000, 'x');
    map.put("a", text);
    EXPECT(pool.transaction([&](outlast::transaction &t) {
        t.put(map, "b", *t.get(map, "a"));
        t.remove(map, "a");
        return !t.get(map, "a");
    }));
    EXPECT(map.get("b") == text && !map.get("a"));
    EXPECT(!pool.transaction([&](outlast::transaction &t) {
        t.remove(map, "b");
        return false;
    }));
    try {
        pool.transaction([&](outlast::transaction &t) {
            t.remove(map, "b");
            throw std::logic_error("thrown");
        });
        EXPECT(false);
    } catch (const std::logic_error &) {
    }
    EXPECT(map.contains("b"));
}

static void times_are_those_of_chrono() {
    using namespace std::chrono_literals;
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map map = pool.expiring_map("map", "str", "str");
    auto end = std::chrono::system_clock::now() + 60s;
    map.put_until("a", "1", end);
    EXPECT(map.expiry_of("a") == end && !map.expiry_of("b"));
    EXPECT(map.persist("a") && !map.expiry_of("a") && map.contains("a"));
    EXPECT(map.expire_at("a", end) && map.expiry_of("a") == end && !map.expire_for("b", 1s));
    EXPECT(map.expire_for("a", -1s) && !map.contains("a"));
    map.put_for("a", "2", 60s);
    EXPECT(map.get("a") == "2" && map.expiry_of("a") > end - 1s);
    EXPECT(pool.batch().put_until(map, "b", "3", end).commit() && map.expiry_of("b") == end);
    EXPECT(pool.transaction([&](outlast::transaction &t) { t.put_until(map, "c", *t.get(map, "b"), end); }));
    EXPECT(map.get("c") == "3" && map.expiry_of("c") == end);
}

static void caches_are_bounded() {
    using namespace std::chrono_literals;
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast_cache_options options{};
    options.records = 50;
    outlast::cache cache = pool.cache("cache", "u64", "str", options);
    std::string text(1000, 'x');
    for (uint64_t key = 0; key < 200; key++) {
        cache.insert(key, text);
    }
    EXPECT(cache.stats().records <= 50 && cache.stats().evictions >= 150);
    EXPECT(cache.get(uint64_t{199}) == text && !cache.get(uint64_t{1000}));
    EXPECT(cache.remove(uint64_t{199}) && !cache.remove(uint64_t{199}));
    cache.insert_for(uint64_t{7}, "gone", 0s);
    EXPECT(!cache.get(uint64_t{7}));
    std::size_t seen = 0;
    cache.each([&](std::string_view, std::string_view value) { seen += value == text; });
    EXPECT(seen == cache.stats().records);
    cache.clear();
    EXPECT(cache.stats().records == 0);
}

static void threads_share_objects() {
    outlast::pool pool = outlast::pool::anonymous(small());
    outlast::map map = pool.map("map", "str", "u64");
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            for (int n = 0; n < 1000; n++) {
                map.add("k", 1);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT(map.get_number<uint64_t>("k") == 4000);
}

int main() {
    RUN(records_are_strings_and_numbers);
    RUN(ranges_take_lambdas);
    RUN(exceptions_pass_by_the_library);
    RUN(batches_are_chained);
    RUN(transactions_take_lambdas);
    RUN(times_are_those_of_chrono);
    RUN(caches_are_bounded);
    RUN(threads_share_objects);
    return summary();
}

// outlast for C++17: handles that free themselves, exceptions instead of codes, std::string_view for bytes.
//
// Everything is inline, over outlast.h, whose rules hold: threads may share these objects, except to move or destroy
// them, or to add to one batch. An object is empty after it was moved from; calls on it throw.
#ifndef OUTLAST_HPP
#define OUTLAST_HPP

#include "outlast.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace outlast {

// An error of the library.
class error : public std::runtime_error {
  public:
    error(outlast_code code, const std::string &message, std::uint64_t offset)
        : std::runtime_error(message), code_(code), offset_(offset) {}

    outlast_code code() const noexcept { return code_; }

    // Where in the pool the damage is, or OUTLAST_NO_OFFSET.
    std::uint64_t offset() const noexcept { return offset_; }

  private:
    outlast_code code_;
    std::uint64_t offset_;
};

// Throws if a code is an error; returns it otherwise.
inline outlast_code check(outlast_code code) {
    if (code < 0) {
        throw error(code, outlast_error_message(), outlast_error_offset());
    }
    return code;
}

namespace detail {

template <auto Free>
struct freer {
    template <typename T>
    void operator()(T *handle) const noexcept {
        Free(handle);
    }
};

using pool_handle = std::unique_ptr<outlast_pool, freer<outlast_pool_free>>;
using map_handle = std::unique_ptr<outlast_map, freer<outlast_map_free>>;
using cache_handle = std::unique_ptr<outlast_cache, freer<outlast_cache_free>>;
using batch_handle = std::unique_ptr<outlast_batch, freer<outlast_batch_free>>;

// Carries an exception of a callback past outlast, through which it must not unwind.
template <typename F>
struct callback {
    F &run;
    std::exception_ptr thrown = nullptr;

    void rethrow() const {
        if (thrown) {
            std::rethrow_exception(thrown);
        }
    }

    // Returns whether more records are wanted. A callback that returns nothing wants all of them.
    template <typename... A>
    bool operator()(A &&...arguments) noexcept {
        try {
            if constexpr (std::is_void_v<std::invoke_result_t<F &, A...>>) {
                std::invoke(run, std::forward<A>(arguments)...);
                return true;
            } else {
                return std::invoke(run, std::forward<A>(arguments)...);
            }
        } catch (...) {
            thrown = std::current_exception();
            return false;
        }
    }
};

inline std::string_view view_of(outlast_bytes bytes) {
    return {static_cast<const char *>(bytes.data), bytes.len};
}

template <typename F>
int receive_record(outlast_bytes key, outlast_bytes value, void *context) {
    return (*static_cast<callback<F> *>(context))(view_of(key), view_of(value)) ? 0 : 1;
}

// Durations and times of C; what cannot be told is never, and what is past is now.
inline std::uint64_t nanoseconds(std::chrono::nanoseconds duration) {
    return duration.count() < 0 ? 0 : static_cast<std::uint64_t>(duration.count());
}

inline std::uint64_t nanoseconds(std::chrono::system_clock::time_point time) {
    return nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()));
}

inline void receive_value(outlast_bytes value, void *context) {
    // Running out of memory here ends the program: there is no way to give the value back.
    auto copy = [&]() noexcept { static_cast<std::optional<std::string> *>(context)->emplace(view_of(value)); };
    copy();
}

} // namespace detail

// The bytes of a key or a value. Made of text, or of a number of the map's type: `outlast::bytes(std::uint64_t{7})`
// holds a copy of the number.
class bytes {
  public:
    bytes(std::string_view text) : text_(text) {}
    bytes(const std::string &text) : text_(text) {}
    bytes(const char *text) : text_(text) {}

    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    bytes(T number) : len_(sizeof number) {
        std::memcpy(number_, &number, sizeof number);
    }

    operator outlast_bytes() const {
        return len_ > 0 ? outlast_bytes_of(number_, len_) : outlast_bytes_of(text_.data(), text_.size());
    }

  private:
    std::string_view text_;
    unsigned char number_[16] = {};
    std::size_t len_ = 0;
};

// Reads a number from the bytes of a value.
template <typename T>
T number(std::string_view value) {
    static_assert(std::is_arithmetic_v<T>);
    if (value.size() != sizeof(T)) {
        throw std::invalid_argument("the value has another size than this type");
    }
    T result;
    std::memcpy(&result, value.data(), sizeof result);
    return result;
}

// A range of keys: all of them, unless bounds are set.
class range {
  public:
    range &from(const bytes &key) { return set(low_, raw_.low_bound, key, OUTLAST_INCLUDED); }
    range &above(const bytes &key) { return set(low_, raw_.low_bound, key, OUTLAST_EXCLUDED); }
    range &to(const bytes &key) { return set(high_, raw_.high_bound, key, OUTLAST_INCLUDED); }
    range &below(const bytes &key) { return set(high_, raw_.high_bound, key, OUTLAST_EXCLUDED); }
    range &reverse() {
        raw_.is_reverse = 1;
        return *this;
    }

    // The same for C, valid as long as this object.
    outlast_range raw() const {
        outlast_range range = raw_;
        range.low = outlast_bytes_of(low_.data(), low_.size());
        range.high = outlast_bytes_of(high_.data(), high_.size());
        return range;
    }

  private:
    range &set(std::string &bound, std::uint32_t &kind, outlast_bytes key, std::uint32_t new_kind) {
        bound = detail::view_of(key);
        kind = new_kind;
        return *this;
    }

    outlast_range raw_{};
    std::string low_, high_;
};

// A hash map or an ordered map.
class map {
  public:
    explicit map(outlast_map *handle) : handle_(handle) {}

    // Returns the value of a key.
    std::optional<std::string> get(const bytes &key) const {
        struct copy {
            std::string value;
            std::exception_ptr thrown = nullptr;
            outlast_code code = OUTLAST_OK;
        } found;
        auto receive = [](const outlast_view *view, void *context) {
            copy &found = *static_cast<copy *>(context);
            try {
                found.value.resize(outlast_view_len(view));
                found.code = outlast_view_read(view, 0, found.value.data(), found.value.size());
            } catch (...) {
                found.thrown = std::current_exception();
            }
        };
        if (check(outlast_get_view(get(), key, receive, &found)) == OUTLAST_NOT_FOUND) {
            return std::nullopt;
        }
        if (found.thrown) {
            std::rethrow_exception(found.thrown);
        }
        check(found.code);
        return std::move(found.value);
    }

    // Returns the value of a key as a number.
    template <typename T>
    std::optional<T> get_number(const bytes &key) const {
        T value;
        std::size_t len = 0;
        outlast_code code = check(outlast_get(get(), key, &value, sizeof value, &len));
        if (code == OUTLAST_NOT_FOUND) {
            return std::nullopt;
        }
        if (len != sizeof value) {
            throw std::invalid_argument("the values of the map have another size than this type");
        }
        return value;
    }

    bool contains(const bytes &key) const { return is_ok(outlast_contains(get(), key)); }

    // Returns whether the key was absent, so that the value was inserted.
    bool insert(const bytes &key, const bytes &value) { return is_ok(outlast_insert(get(), key, value)); }

    void put(const bytes &key, const bytes &value) { check(outlast_put(get(), key, value)); }

    // Puts a value, and returns the one before.
    std::optional<std::string> exchange(const bytes &key, const bytes &value) {
        std::optional<std::string> before;
        check(outlast_exchange(get(), key, value, detail::receive_value, &before));
        return before;
    }

    // Returns whether the key was present, so that its value was replaced.
    bool update(const bytes &key, const bytes &value) { return is_ok(outlast_update(get(), key, value)); }

    // Returns whether the key was present.
    bool remove(const bytes &key) { return is_ok(outlast_remove(get(), key)); }

    // Removes a key, and returns the value that it had.
    std::optional<std::string> take(const bytes &key) {
        std::optional<std::string> before;
        check(outlast_take(get(), key, detail::receive_value, &before));
        return before;
    }

    // Returns whether the value was the expected one, so that it was replaced.
    bool compare_swap(const bytes &key, const bytes &expected, const bytes &desired) {
        return is_ok(outlast_compare_swap(get(), key, expected, desired));
    }

    bool compare_remove(const bytes &key, const bytes &expected) {
        return is_ok(outlast_compare_remove(get(), key, expected));
    }

    // Adds to a counter, and returns the sum.
    std::uint64_t add(const bytes &key, std::uint64_t amount) {
        std::uint64_t sum = 0;
        check(outlast_add(get(), key, amount, &sum));
        return sum;
    }

    // Puts a value in a record that expires. For maps made with pool::expiring_map.
    void put_for(const bytes &key, const bytes &value, std::chrono::nanoseconds duration) {
        check(outlast_put_for(get(), key, value, detail::nanoseconds(duration)));
    }
    void put_until(const bytes &key, const bytes &value, std::chrono::system_clock::time_point time) {
        check(outlast_put_until(get(), key, value, detail::nanoseconds(time)));
    }

    // Sets when a record expires. Returns whether the key is present.
    bool expire_for(const bytes &key, std::chrono::nanoseconds duration) {
        return is_ok(outlast_expire_for(get(), key, detail::nanoseconds(duration)));
    }
    bool expire_at(const bytes &key, std::chrono::system_clock::time_point time) {
        return is_ok(outlast_expire_at(get(), key, detail::nanoseconds(time)));
    }

    // Makes a record one that never expires. Returns whether the key is present.
    bool persist(const bytes &key) { return is_ok(outlast_persist(get(), key)); }

    // Returns when a record expires: nothing if the key is absent or the record does not expire.
    std::optional<std::chrono::system_clock::time_point> expiry_of(const bytes &key) const {
        std::uint64_t time = OUTLAST_NEVER;
        check(outlast_expiry_of(get(), key, &time));
        if (time == OUTLAST_NEVER) {
            return std::nullopt;
        }
        using clock = std::chrono::system_clock;
        std::chrono::nanoseconds since(static_cast<std::int64_t>(time));
        return clock::time_point(std::chrono::duration_cast<clock::duration>(since));
    }

    // Goes through all records. `run` gets key and value as std::string_view; if it returns false, that is the end.
    template <typename F>
    void each(F &&run) const {
        walk(run, [&](auto receive, void *context) { return outlast_each(get(), receive, context); });
    }

    // Goes through a range of an ordered map.
    template <typename F>
    void each(const range &keys, F &&run) const {
        outlast_range raw = keys.raw();
        walk(run, [&](auto receive, void *context) {
            return outlast_range_each(get(), &raw, receive, context);
        });
    }

    // Goes through the records of an ordered map whose keys begin with `prefix`.
    template <typename F>
    void each_with_prefix(const bytes &prefix, F &&run) const {
        walk(run, [&](auto receive, void *context) {
            return outlast_prefix_each(get(), prefix, false, receive, context);
        });
    }

    // Returns the first record of a range of an ordered map.
    std::optional<std::pair<std::string, std::string>> first(const range &keys = {}) const {
        std::optional<std::pair<std::string, std::string>> found;
        outlast_range raw = keys.raw();
        auto keep = [&](std::string_view key, std::string_view value) { found.emplace(key, value); };
        walk(keep, [&](auto receive, void *context) {
            return outlast_range_first(get(), &raw, receive, context);
        });
        return found;
    }

    std::uint64_t count() const {
        std::uint64_t records = 0;
        check(outlast_count(get(), &records));
        return records;
    }

    void clear() { check(outlast_clear(get(), nullptr)); }

    // The handle, for what this class lacks.
    outlast_map *get() const noexcept { return handle_.get(); }

  private:
    static bool is_ok(outlast_code code) { return check(code) == OUTLAST_OK; }

    template <typename F, typename Walk>
    static void walk(F &run, Walk walk) {
        detail::callback<F> callback{run};
        outlast_code code = walk(detail::receive_record<F>, &callback);
        callback.rethrow();
        check(code);
    }

    detail::map_handle handle_;
};

// A hash map that evicts records when it is full, and whose records can expire.
class cache {
  public:
    explicit cache(outlast_cache *handle) : handle_(handle) {}

    // Returns the value of a key. This is a use of the record.
    std::optional<std::string> get(const bytes &key) const {
        std::string value(64, 0);
        std::size_t len = 0;
        outlast_code code;
        do {
            value.resize(len > value.size() ? len : value.size());
            code = check(outlast_cache_get(get(), key, value.data(), value.size(), &len));
        } while (code == OUTLAST_BUFFER_TOO_SMALL);
        value.resize(len);
        return code == OUTLAST_OK ? std::optional(std::move(value)) : std::nullopt;
    }

    void insert(const bytes &key, const bytes &value) { check(outlast_cache_insert(get(), key, value)); }
    void insert_for(const bytes &key, const bytes &value, std::chrono::nanoseconds duration) {
        check(outlast_cache_insert_for(get(), key, value, detail::nanoseconds(duration)));
    }

    // Returns whether the key was present.
    bool remove(const bytes &key) { return check(outlast_cache_remove(get(), key)) == OUTLAST_OK; }

    outlast_cache_counts stats() const {
        outlast_cache_counts counts;
        check(outlast_cache_stats(get(), &counts));
        return counts;
    }

    // Goes through all records, as map::each does. This is no use of a record.
    template <typename F>
    void each(F &&run) const {
        detail::callback<F> callback{run};
        outlast_code code = outlast_each(outlast_cache_map(get()), detail::receive_record<F>, &callback);
        callback.rethrow();
        check(code);
    }

    void clear() { check(outlast_clear(outlast_cache_map(get()), nullptr)); }

    outlast_cache *get() const noexcept { return handle_.get(); }

  private:
    detail::cache_handle handle_;
};

// Changes of which a crash leaves all or none. Only one thread may add to a batch at a time.
class batch {
  public:
    explicit batch(outlast_batch *handle) : handle_(handle) {}

    batch &put(const map &map, const bytes &key, const bytes &value) {
        return done(outlast_batch_put(get(), map.get(), key, value));
    }
    batch &put_until(const map &map, const bytes &key, const bytes &value,
                     std::chrono::system_clock::time_point time) {
        return done(outlast_batch_put_until(get(), map.get(), key, value, detail::nanoseconds(time)));
    }
    batch &remove(const map &map, const bytes &key) {
        return done(outlast_batch_remove(get(), map.get(), key));
    }
    batch &require(const map &map, const bytes &key, const bytes &value) {
        return done(outlast_batch_require(get(), map.get(), key, value));
    }
    batch &require_absent(const map &map, const bytes &key) {
        return done(outlast_batch_require_absent(get(), map.get(), key));
    }

    // Makes all changes. Returns false if a requirement does not hold; nothing is changed then.
    bool commit() { return check(outlast_batch_commit(get(), nullptr)) == OUTLAST_OK; }

    outlast_batch *get() const noexcept { return handle_.get(); }

  private:
    batch &done(outlast_code code) {
        check(code);
        return *this;
    }

    detail::batch_handle handle_;
};

// A transaction under way; see pool::transaction.
class transaction {
  public:
    explicit transaction(const outlast_transaction *handle) : handle_(handle) {}

    std::optional<std::string> get(const map &map, const bytes &key) {
        std::string value(64, 0);
        std::size_t len = 0;
        outlast_code code;
        do {
            value.resize(len > value.size() ? len : value.size());
            code = check(outlast_transaction_get(handle_, map.get(), key, value.data(), value.size(), &len));
        } while (code == OUTLAST_BUFFER_TOO_SMALL);
        value.resize(len);
        return code == OUTLAST_OK ? std::optional(std::move(value)) : std::nullopt;
    }

    template <typename T>
    std::optional<T> get_number(const map &map, const bytes &key) {
        std::optional<std::string> value = get(map, key);
        return value ? std::optional(number<T>(*value)) : std::nullopt;
    }

    void put(const map &map, const bytes &key, const bytes &value) {
        check(outlast_transaction_put(handle_, map.get(), key, value));
    }

    void put_until(const map &map, const bytes &key, const bytes &value,
                   std::chrono::system_clock::time_point time) {
        check(outlast_transaction_put_until(handle_, map.get(), key, value, detail::nanoseconds(time)));
    }

    void remove(const map &map, const bytes &key) { check(outlast_transaction_remove(handle_, map.get(), key)); }

  private:
    const outlast_transaction *handle_;
};

// An open pool. It is closed when it and its maps and batches are gone; `close` tells whether that worked.
class pool {
  public:
    explicit pool(outlast_pool *handle) : handle_(handle) {}

    static pool open(const std::string &path, const outlast_options *options = nullptr) {
        return make(outlast_open, path.c_str(), options);
    }
    static pool create(const std::string &path, const outlast_options *options = nullptr) {
        return make(outlast_create, path.c_str(), options);
    }
    static pool open_or_create(const std::string &path, const outlast_options *options = nullptr) {
        return make(outlast_open_or_create, path.c_str(), options);
    }
    static pool open_read_only(const std::string &path, const outlast_options *options = nullptr) {
        return make(outlast_open_read_only, path.c_str(), options);
    }
    static pool anonymous(const outlast_options *options = nullptr) {
        return make(outlast_open_anonymous, options);
    }

    outlast::map map(const std::string &name, const char *key_type, const char *value_type) const {
        return opened(outlast_map_open, name, key_type, value_type);
    }
    outlast::map ordered_map(const std::string &name, const char *key_type, const char *value_type) const {
        return opened(outlast_ordered_map_open, name, key_type, value_type);
    }

    // Opens a map whose records can expire. `scheme` is the name of one, or null for a hash map.
    outlast::map expiring_map(const std::string &name, const char *key_type, const char *value_type,
                              const char *scheme = nullptr) const {
        outlast_map *handle = nullptr;
        check(outlast_expiring_map_open(get(), name.c_str(), key_type, value_type, scheme, &handle));
        return outlast::map(handle);
    }

    outlast::cache cache(const std::string &name, const char *key_type, const char *value_type,
                         const outlast_cache_options &options) const {
        outlast_cache *handle = nullptr;
        check(outlast_cache_open(get(), name.c_str(), key_type, value_type, &options, &handle));
        return outlast::cache(handle);
    }

    void drop_map(const std::string &name) { check(outlast_map_drop(get(), name.c_str())); }

    outlast::batch batch() const {
        outlast_batch *handle = nullptr;
        check(outlast_batch_begin(get(), &handle));
        return outlast::batch(handle);
    }

    // Runs `run` with a transaction, again if another thread has interfered, and then makes all of its changes as
    // one. If it returns false or throws, nothing is changed. Returns whether the changes were made.
    template <typename F>
    bool transaction(F &&run) {
        detail::callback<F> callback{run};
        auto call = [](const outlast_transaction *handle, void *context) {
            outlast::transaction transaction(handle);
            return (*static_cast<detail::callback<F> *>(context))(transaction) ? 0 : 1;
        };
        outlast_code code = outlast_transaction_run(get(), call, &callback);
        callback.rethrow();
        return check(code) == OUTLAST_OK;
    }

    void wait_durable() { check(outlast_wait_durable(get())); }
    void sync() { check(outlast_sync(get())); }
    void snapshot(const std::string &path) const { check(outlast_snapshot(get(), path.c_str())); }
    void verify() const { check(outlast_verify(get(), nullptr, nullptr, nullptr)); }
    void close() { check(outlast_close(get())); }

    outlast_pool *get() const noexcept { return handle_.get(); }

  private:
    template <typename F, typename... A>
    static pool make(F open, A... arguments) {
        outlast_pool *handle = nullptr;
        check(open(arguments..., &handle));
        return pool(handle);
    }

    template <typename F>
    outlast::map opened(F open, const std::string &name, const char *key_type, const char *value_type) const {
        outlast_map *handle = nullptr;
        check(open(get(), name.c_str(), key_type, value_type, &handle));
        return outlast::map(handle);
    }

    detail::pool_handle handle_;
};

} // namespace outlast

#endif // OUTLAST_HPP

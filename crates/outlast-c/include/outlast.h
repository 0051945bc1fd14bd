/*
 * outlast: crash-proof concurrent hash maps and ordered maps in a mapped file.
 *
 * cbindgen writes this file (crates/outlast-c). docs/c.md has a first program; docs/model.md says what survives which
 * failure. Once a call returns, its effect survives the death of the process.
 *
 * What holds for every function
 *
 * - Codes. A function returns 0 (OUTLAST_OK), another answer above 0, or an error below 0. After an error, and only
 *   then, outlast_error_message and outlast_error_offset tell the same thread more. No error loses data: a call on
 *   one key that fails has no effect.
 *
 * - Arguments. A null handle, a null text, a null place for a needed result, and bytes that are null with a length
 *   above 0 are OUTLAST_ERROR_INVALID. A handle must come from the function that makes it, and must not have been
 *   freed; this cannot be checked. Texts end with a 0 and are UTF-8; a path may have any bytes. The integers and
 *   floats in outlast_bytes are those of the machine: `&number` and `sizeof number`. They need no alignment.
 *
 * - Memory. outlast copies what it keeps of its arguments, and reads them only during the call, with one exception:
 *   outlast_options.progress. It keeps no pointer to a buffer. Handles are freed with their _free functions, in any
 *   order: a map or a batch keeps what it needs of its pool. What a callback gets is valid until it returns.
 *
 * - Threads. Any number of threads may use any handles at the same time, with one exception: no thread may use a
 *   handle while another one frees it, or afterwards. Messages are kept for each thread.
 *
 * - Callbacks run in the thread that made the call, except outlast_progress_fn. No lock is held, so a callback may
 *   call outlast, and change the map; it must not free the handle in use. It must not throw an exception, nor leave
 *   by longjmp (outlast.hpp carries exceptions past outlast).
 *
 * - Panics, that is, bugs in outlast, end as OUTLAST_ERROR_PANIC. Only if memory runs out, the process aborts, which
 *   loses nothing that a call had acknowledged.
 *
 * - Fork. In a child that fork makes, calls fail with OUTLAST_ERROR_NOT_OPEN, and handles can be freed.
 *
 * - The file. While a pool is open, nothing but outlast may write or truncate its file. outlast locks the file
 *   against other users of outlast, but cannot lock out other programs. After a truncation, calls raise SIGBUS.
 */


#ifndef OUTLAST_H
#define OUTLAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OUTLAST_VERSION_MAJOR 0
#define OUTLAST_VERSION_MINOR 1

// What outlast_error_offset returns if the error has no offset.
#define OUTLAST_NO_OFFSET UINT64_MAX

// A flag of outlast_options: gives an existing pool a journal, so that it survives a power loss on an ordinary disk.
// New pools have one anyway, and a pool that has a journal keeps it.
#define OUTLAST_JOURNAL 1

// A flag: closing keeps the working file, so that the pool opens faster until the next reboot.
#define OUTLAST_KEEP_WORKING_FILE 2

// A flag: opening fails with OUTLAST_ERROR_JOURNAL if the working file of a pool with a journal is gone although the
// machine was not restarted.
#define OUTLAST_REQUIRE_WORKING_FILE 4

// A flag: opens a pool that a power loss may have torn, to verify it and to copy out what can be read.
#define OUTLAST_ACCEPT_POSSIBLY_TORN 8

// A flag: no background thread. outlast_step then does its work.
#define OUTLAST_NO_BACKGROUND 16

// A flag: the background thread does not sync a pool that nobody changes.
#define OUTLAST_NO_IDLE_SYNC 32

// A flag: the pool keeps free space instead of giving it back to the file system.
#define OUTLAST_NO_TRIM 64

// A flag: a new pool need not survive a power loss, so it has no journal. After a power loss, it is what it was when
// it was last closed or synced, if nothing has changed since; otherwise it is refused.
#define OUTLAST_NO_JOURNAL 128

// A bound of a range: there is none.
#define OUTLAST_UNBOUNDED 0

// A bound of a range: a key that belongs to it.
#define OUTLAST_INCLUDED 1

// A bound of a range: a key that does not belong to it.
#define OUTLAST_EXCLUDED 2

// A time that never comes: that of a record that does not expire.
#define OUTLAST_NEVER UINT64_MAX

// What a call returns. 0 and positive codes are answers; negative ones are errors, for which
// outlast_error_message has a message.
typedef enum outlast_code {
    // Done.
    OUTLAST_OK = 0,
    // The key is absent, or there is no such record.
    OUTLAST_NOT_FOUND = 1,
    // The key is present already, so nothing was inserted.
    OUTLAST_EXISTS = 2,
    // The value is not the expected one, or a requirement of a batch does not hold. Nothing was changed.
    OUTLAST_DIFFERS = 3,
    // The buffer is shorter than what belongs in it. Nothing was copied; the needed length was stored.
    OUTLAST_BUFFER_TOO_SMALL = 4,
    // The callback returned something other than 0, so the call ended early.
    OUTLAST_STOPPED = 5,
    // An argument is null, out of range, or does not apply.
    OUTLAST_ERROR_INVALID = -1,
    // The system reported an error.
    OUTLAST_ERROR_IO = -2,
    // There is no file at this path.
    OUTLAST_ERROR_NO_SUCH_POOL = -3,
    // The pool has no map of this name.
    OUTLAST_ERROR_NO_SUCH_MAP = -4,
    // A map of this name exists with other types, or with another scheme.
    OUTLAST_ERROR_MAP_MISMATCH = -5,
    // The map was dropped.
    OUTLAST_ERROR_MAP_DROPPED = -6,
    // The pool has as many maps as it can hold.
    OUTLAST_ERROR_TOO_MANY_MAPS = -7,
    // The map's scheme is not in this build.
    OUTLAST_ERROR_NOT_BUILT = -8,
    // Another process has the pool open, or another handle in this one.
    OUTLAST_ERROR_LOCKED = -9,
    // The pool is in use and has no journal, so only the process that has it open can copy it.
    OUTLAST_ERROR_NO_JOURNAL = -10,
    // The pool is open read-only.
    OUTLAST_ERROR_READ_ONLY = -11,
    // The pool was closed, or this process is a fork of the one that opened it.
    OUTLAST_ERROR_NOT_OPEN = -12,
    // The pool is full, and may not grow.
    OUTLAST_ERROR_POOL_FULL = -13,
    // The disk is full.
    OUTLAST_ERROR_DISK_FULL = -14,
    // There is too little address space.
    OUTLAST_ERROR_ADDRESS_SPACE = -15,
    // The key or the value is too long.
    OUTLAST_ERROR_TOO_LARGE = -16,
    // The sum or the difference is not a value of the map's type.
    OUTLAST_ERROR_OVERFLOW = -17,
    // The file is not a pool.
    OUTLAST_ERROR_NOT_A_POOL = -18,
    // The pool is of a version, or uses a feature, that this build does not know.
    OUTLAST_ERROR_VERSION = -19,
    // The pool is damaged. outlast_error_offset may say where.
    OUTLAST_ERROR_DAMAGED = -20,
    // A power loss may have torn the pool, or it is a copy of a pool in use.
    OUTLAST_ERROR_POSSIBLY_TORN = -21,
    // The pool's journal or its working file is missing, incomplete, or another pool's.
    OUTLAST_ERROR_JOURNAL = -22,
    // The pool was not closed; open it for writing once.
    OUTLAST_ERROR_UNFINISHED = -23,
    // The pool's file was removed or replaced while the pool was open.
    OUTLAST_ERROR_FILE_GONE = -24,
    // The disk may lack part of the pool; verify it.
    OUTLAST_ERROR_SUSPECT = -25,
    // outlast has a bug: it panicked. The pool may refuse further calls until it is opened again.
    OUTLAST_ERROR_PANIC = -26,
    // Another error; its message says which.
    OUTLAST_ERROR_OTHER = -27,
} outlast_code;

// Changes of several records, of which a crash leaves all or none. Threads that use one handle at the same time wait
// for each other.
typedef struct outlast_batch outlast_batch;

// An open cache of a pool: a hash map that evicts records when it is full, and whose records can expire. It outlives
// its process, even SIGKILL. Any number of threads may use a handle at the same time.
typedef struct outlast_cache outlast_cache;

// An open map of a pool: a hash map or an ordered map. Any number of threads may use a handle at the same time.
typedef struct outlast_map outlast_map;

// An open pool: one file that holds many maps. Any number of threads may use a handle at the same time.
typedef struct outlast_pool outlast_pool;

// A transaction under way. It is valid during the call of an outlast_transaction_fn, in the thread of that call.
typedef struct outlast_transaction outlast_transaction;

// A value in the pool, which has not been copied yet. It is valid during the call of an outlast_view_fn, in the
// thread of that call.
typedef struct outlast_view outlast_view;

// Receives the progress of an opening: `done` of `all` parts. Any of the opening threads may call it, several at the
// same time. It must not call outlast.
typedef void (*outlast_progress_fn)(uint64_t done, uint64_t all, void *context);

// Options of a pool. `outlast_options options = {0};` sets all defaults, and so does a null pointer in its place.
// A call reads the options, and keeps nothing of them but the progress function and its context.
typedef struct outlast_options {
    // OUTLAST_JOURNAL and the like, or'ed.
    uint32_t flags;
    // Log2 of the page size of a new pool, from 12 to 20. 0: 16. Pools below some megabytes need small pages.
    uint32_t page_bits;
    // Size of a new pool in bytes. 0: 2 MiB.
    uint64_t initial_size;
    // Size that the pool may not exceed, in bytes. 0: no limit for a new pool, the stored limit for an existing one.
    uint64_t max_size;
    // Threads that open a map whose scheme reads all of it. 0: one for each processor.
    uint32_t recovery_threads;
    // With a journal: milliseconds until a change becomes durable if no thread waits for it. 0: 10.
    uint32_t journal_interval_ms;
    // With a journal: the length that it should not exceed, in bytes. 0: twice the pool's size, at least 256 MiB.
    uint64_t journal_limit;
    // With a journal: its directory. Null: the pool's path with ".journal" appended.
    const char *journal_directory;
    // With a journal: the directory of the working file. Null: /dev/shm, if it has room.
    const char *working_directory;
    // Receives the progress of opening, or null. It and its context must be usable until the last handle of the
    // pool, its maps and its batches is freed.
    outlast_progress_fn progress;
    // Passed to `progress`.
    void *progress_context;
    // For later versions; 0.
    uint64_t reserved[8];
} outlast_options;

// Receives a map's name, the types of its keys and values, and its scheme. The texts are valid during the call. If
// it returns something other than 0, no more maps follow.
typedef int (*outlast_map_fn)(const char *name,
                              const char *key_type,
                              const char *value_type,
                              const char *scheme,
                              void *context);

// Which failures an open pool survives.
typedef struct outlast_durability {
    // Whether the effect of every call that has returned survives the death of the process. Only a pool in memory
    // does not.
    bool survives_process_death;
    // Whether it survives a power loss without outlast_wait_durable, as on persistent memory.
    bool survives_power_loss;
    // Whether what outlast_wait_durable confirms survives a power loss. False in memory and on a tmpfs, and as long
    // as writes to the disk fail.
    bool confirmed_survives_power_loss;
    // Whether the disk may lack part of the pool; see OUTLAST_ERROR_SUSPECT.
    bool is_suspect;
    // With a journal: milliseconds until a change becomes durable if no thread waits for it. Otherwise 0.
    uint32_t journal_interval_ms;
} outlast_durability;

// What verifying a pool has found.
typedef struct outlast_verification {
    // Whether there is neither damage nor lost space.
    bool is_sound;
    // Records in all maps.
    uint64_t records;
    // Damaged places.
    uint64_t damaged;
    // Bytes that belong to maps.
    uint64_t used_bytes;
    // Bytes that neither belong to a map nor are free. 0 if that is not known.
    uint64_t leaked_bytes;
} outlast_verification;

// Receives a damaged place: its offset in the pool, and a text that describes the damage, which is valid during the
// call. If it returns something other than 0, it is not called again.
typedef int (*outlast_damage_fn)(uint64_t offset, const char *message, void *context);

// Bytes that belong to somebody else. `data` may be null if `len` is 0.
typedef struct outlast_bytes {
    // The first byte.
    const void *data;
    // Their number.
    size_t len;
} outlast_bytes;

// Receives the value that a key had. The bytes are valid during the call.
typedef void (*outlast_value_fn)(struct outlast_bytes value, void *context);

// Receives a value.
typedef void (*outlast_view_fn)(const struct outlast_view *view, void *context);

// Receives a record. The bytes are valid during the call. It may call outlast, and change the map. If it returns
// something other than 0, no more records follow, and the call that goes through them returns OUTLAST_STOPPED.
typedef int (*outlast_record_fn)(struct outlast_bytes key, struct outlast_bytes value, void *context);

// A range of keys. `outlast_range range = {0};` is all keys.
typedef struct outlast_range {
    // The lower bound, unless it is unbounded.
    struct outlast_bytes low;
    // The upper bound, unless it is unbounded.
    struct outlast_bytes high;
    // OUTLAST_UNBOUNDED, OUTLAST_INCLUDED or OUTLAST_EXCLUDED.
    uint32_t low_bound;
    // The same, for the upper bound.
    uint32_t high_bound;
    // Whether the greatest key comes first: 0 or 1.
    uint32_t is_reverse;
} outlast_range;

// Reads and changes records through `transaction`. If it returns something other than 0, nothing is changed. It can
// be called several times for one transaction, so it must not have effects elsewhere, and must not add up what it
// finds.
typedef int (*outlast_transaction_fn)(const struct outlast_transaction *transaction, void *context);

// Options of a cache. Begin with `outlast_cache_options options = {0};`.
typedef struct outlast_cache_options {
    // The bound in bytes: each record counts as the block that it takes, and 24 bytes for its slot. 0: bounded by
    // `records`.
    uint64_t bytes;
    // The bound in records. 0: bounded by `bytes`. Exactly one of both must be given.
    uint64_t records;
    // Nanoseconds after which a record expires that is inserted without a duration. 0: it does not.
    uint64_t live_for;
    // For later versions; 0.
    uint64_t reserved[5];
} outlast_cache_options;

// What a cache holds, and what it did since its pool was opened.
typedef struct outlast_cache_counts {
    // Lookups that found a value.
    uint64_t hits;
    // Lookups that found none.
    uint64_t misses;
    // Records that were evicted to make room.
    uint64_t evictions;
    // Records that were removed because their time had passed.
    uint64_t expired;
    // Records that the cache holds, expired ones that were not removed yet included.
    uint64_t records;
    // The space of these records, in bytes.
    uint64_t bytes;
} outlast_cache_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the calling thread's last error, or "" if there was none. A call that succeeds leaves it
// as it is. The text is valid until the same thread's next call of outlast fails, or until the thread ends.
const char *outlast_error_message(void);

// Returns the offset, in the pool, of the damage that the calling thread's last error is about, or
// OUTLAST_NO_OFFSET.
uint64_t outlast_error_offset(void);

// Returns the name of a code, such as "OUTLAST_ERROR_LOCKED", or "unknown". The text is valid forever.
const char *outlast_code_name(int32_t code);

// Returns the version of the library, such as "0.1.0". The text is valid forever.
const char *outlast_version(void);

// Opens an existing pool. After a crash, it is as it was: every call that had returned has taken effect. Stores a
// handle in `*pool`, or null on an error. Free the handle with outlast_pool_free.
//
// OUTLAST_ERROR_LOCKED if it is open already; OUTLAST_ERROR_POSSIBLY_TORN after a power loss, if the pool was in use
// and has no journal.
enum outlast_code outlast_open(const char *path,
                               const struct outlast_options *options,
                               struct outlast_pool **pool);

// Creates a pool. OUTLAST_ERROR_IO if the file exists. Otherwise as outlast_open.
enum outlast_code outlast_create(const char *path,
                                 const struct outlast_options *options,
                                 struct outlast_pool **pool);

// Opens a pool, or creates it if there is no file. Otherwise as outlast_open.
enum outlast_code outlast_open_or_create(const char *path,
                                         const struct outlast_options *options,
                                         struct outlast_pool **pool);

// Opens a pool for reading. Several processes may do so at the same time, while none has it open for writing.
// Changes fail with OUTLAST_ERROR_READ_ONLY. Otherwise as outlast_open.
enum outlast_code outlast_open_read_only(const char *path,
                                         const struct outlast_options *options,
                                         struct outlast_pool **pool);

// Creates a pool in memory, for tests. It ends with its last handle.
enum outlast_code outlast_open_anonymous(const struct outlast_options *options, struct outlast_pool **pool);

// Closes a pool: makes it durable and marks it as closed cleanly. From then on, calls on this handle, and on the
// handles of its maps and batches, fail with OUTLAST_ERROR_NOT_OPEN. Calls that other threads are in end first. The
// handles still have to be freed. On an error, the pool is closed all the same, and opens as after a crash.
enum outlast_code outlast_close(struct outlast_pool *pool);

// Frees the handle of a pool; null is ignored. If the pool was not closed, it is closed once its last handle is
// freed, the handles of maps and batches included; an error is lost then, so close it first. In a forked child
// process, this frees memory and leaves the parent's pool alone.
void outlast_pool_free(struct outlast_pool *pool);

// Waits until everything that was done before the call survives a power loss: changes whose calls have returned,
// and changes that a thread has read. With a journal, threads that wait at the same time share one sync of the disk.
// On an ordinary file without a journal, this is outlast_sync.
enum outlast_code outlast_wait_durable(const struct outlast_pool *pool);

// Makes the effects of all calls that have returned durable against a power loss. Writers wait meanwhile; readers do
// not.
enum outlast_code outlast_sync(const struct outlast_pool *pool);

// Copies an open pool to `path` as a cleanly closed pool, and replaces any file there. Once this returns, the copy
// is durable. Writers wait meanwhile.
enum outlast_code outlast_snapshot(const struct outlast_pool *pool,
                                   const char *path);

// Copies the pool at `path` to `to`, as outlast_snapshot does. If another process has it open, it must have a
// journal; otherwise OUTLAST_ERROR_NO_JOURNAL. The copy holds everything that was durable when this began. Of the
// options, only the directories of the journal and of its working file matter, and the progress function.
enum outlast_code outlast_backup(const char *path,
                                 const char *to,
                                 const struct outlast_options *options);

// Does one step of background work, for pools opened with OUTLAST_NO_BACKGROUND. Stores in `*more`, unless that is
// null, whether there may be more to do.
enum outlast_code outlast_step(const struct outlast_pool *pool,
                               bool *more);

// Drops a map. Once this returns, the map is gone; a crash before that leaves it either intact or gone. Calls on its
// handles fail with OUTLAST_ERROR_MAP_DROPPED, and its space is freed once they are freed.
enum outlast_code outlast_map_drop(const struct outlast_pool *pool,
                                   const char *name);

// Calls `receive` for every map of the pool. A damaged map is OUTLAST_ERROR_DAMAGED, after all others.
enum outlast_code outlast_maps(const struct outlast_pool *pool, outlast_map_fn receive, void *context);

// Stores in `*durability` which failures the pool survives.
enum outlast_code outlast_pool_durability(const struct outlast_pool *pool,
                                          struct outlast_durability *durability);

// Copies the pool's numbers into `buffer` as text for Prometheus, in which the pool is called `name`. The text does
// not end with a 0. Buffers are described at outlast_get.
enum outlast_code outlast_pool_stats(const struct outlast_pool *pool,
                                     const char *name,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *len);

// Checks every structure and every record, and accounts for every block. Writers wait meanwhile. Stores what it has
// found in `*found`, and calls `damage` for each damaged place; either may be null.
//
// OUTLAST_OK if the pool is sound. OUTLAST_ERROR_DAMAGED if it is not; its message and its offset are those of the
// first damaged place. Other errors say that the check could not be made.
enum outlast_code outlast_verify(const struct outlast_pool *pool,
                                 struct outlast_verification *found,
                                 outlast_damage_fn damage,
                                 void *context);

// Opens the hash map `name`, or creates it if there is none. The types, which docs/guide.md compares with those of
// other languages, are "bytes", "str" (UTF-8), "u8" to "u64", "i8" to "i64", "bool", "f32", "f64". A map opens only
// with the types that it was created with, whatever language created it; with others, OUTLAST_ERROR_MAP_MISMATCH. If
// both types are null, this opens an existing map with its own types. Stores a handle in `*map`, or null on an error.
// Free it with outlast_map_free.
enum outlast_code outlast_map_open(const struct outlast_pool *pool,
                                   const char *name,
                                   const char *key_type,
                                   const char *value_type,
                                   struct outlast_map **map);

// Opens the ordered map `name`, or creates it if there is none. Otherwise as outlast_map_open. Numbers are in the
// order of their values, strings in that of their bytes.
enum outlast_code outlast_ordered_map_open(const struct outlast_pool *pool,
                                           const char *name,
                                           const char *key_type,
                                           const char *value_type,
                                           struct outlast_map **map);

// As outlast_map_open, for a map of this scheme, such as "clevel". An existing map must have this scheme.
enum outlast_code outlast_map_open_scheme(const struct outlast_pool *pool,
                                          const char *name,
                                          const char *key_type,
                                          const char *value_type,
                                          const char *scheme,
                                          struct outlast_map **map);

// Frees the handle of a map; null is ignored. The records stay in the pool.
void outlast_map_free(struct outlast_map *map);

// Inserts `value` if `key` is absent; otherwise OUTLAST_EXISTS. If several threads insert the same key at the same
// time, exactly one of them gets OUTLAST_OK.
enum outlast_code outlast_insert(const struct outlast_map *map,
                                 struct outlast_bytes key,
                                 struct outlast_bytes value);

// Inserts `value`, or replaces the value of `key`.
enum outlast_code outlast_put(const struct outlast_map *map,
                              struct outlast_bytes key,
                              struct outlast_bytes value);

// Puts `value` as outlast_put does, and then calls `before` with the value that was replaced, if the key had one.
enum outlast_code outlast_exchange(const struct outlast_map *map,
                                   struct outlast_bytes key,
                                   struct outlast_bytes value,
                                   outlast_value_fn before,
                                   void *context);

// Replaces the value of `key` if it is present; otherwise OUTLAST_NOT_FOUND.
enum outlast_code outlast_update(const struct outlast_map *map,
                                 struct outlast_bytes key,
                                 struct outlast_bytes value);

// Removes `key`; OUTLAST_NOT_FOUND if it is absent. A removal needs no space, so it works in a full pool.
enum outlast_code outlast_remove(const struct outlast_map *map, struct outlast_bytes key);

// Removes `key` as outlast_remove does, and then calls `before` with the value that it had.
enum outlast_code outlast_take(const struct outlast_map *map,
                               struct outlast_bytes key,
                               outlast_value_fn before,
                               void *context);

// Replaces the value of `key` by `desired` if its bytes are `expected`; otherwise, and if the key is absent,
// OUTLAST_DIFFERS.
enum outlast_code outlast_compare_swap(const struct outlast_map *map,
                                       struct outlast_bytes key,
                                       struct outlast_bytes expected,
                                       struct outlast_bytes desired);

// Removes `key` if the bytes of its value are `expected`; otherwise, and if it is absent, OUTLAST_DIFFERS.
enum outlast_code outlast_compare_remove(const struct outlast_map *map,
                                         struct outlast_bytes key,
                                         struct outlast_bytes expected);

// Adds `amount` to the value of `key`, atomically, and stores the sum in `*sum`, unless that is null. An absent key
// counts as 0 and is inserted. For maps whose values are u8 to u64. OUTLAST_ERROR_OVERFLOW, and no change, if the
// sum is not a value of their type.
enum outlast_code outlast_add(const struct outlast_map *map,
                              struct outlast_bytes key,
                              uint64_t amount,
                              uint64_t *sum);

// Subtracts `amount` from the value of `key`. Otherwise as outlast_add.
enum outlast_code outlast_subtract(const struct outlast_map *map,
                                   struct outlast_bytes key,
                                   uint64_t amount,
                                   uint64_t *difference);

// As outlast_add, for maps whose values are i8 to i64. `amount` may be negative.
enum outlast_code outlast_add_signed(const struct outlast_map *map,
                                     struct outlast_bytes key,
                                     int64_t amount,
                                     int64_t *sum);

// Removes every record that is present throughout the call, and stores their number in `*removed`, unless that is
// null. A crash may leave some removed and others not. outlast_map_drop removes a map in one step.
enum outlast_code outlast_clear(const struct outlast_map *map,
                                uint64_t *removed);

// Counts the records, and stores their number in `*records`. This goes through the whole map.
enum outlast_code outlast_count(const struct outlast_map *map, uint64_t *records);

// Estimates the number of records from a sample of the map. Much faster than outlast_count.
enum outlast_code outlast_count_estimate(const struct outlast_map *map, uint64_t *records);

// Returns the length of the value. Null has 0.
size_t outlast_view_len(const struct outlast_view *view);

// Copies `len` bytes of the value, beginning with the byte at `offset`, to `to`. OUTLAST_ERROR_INVALID if it has not
// that many; OUTLAST_ERROR_NOT_OPEN if the pool was closed meanwhile.
enum outlast_code outlast_view_read(const struct outlast_view *view,
                                    size_t offset,
                                    void *to,
                                    size_t len);

// Copies the value of `key` into `buffer`, and stores its length in `*len`, unless `len` is null. If the buffer's
// `capacity` is less than that, nothing is copied, and the call returns OUTLAST_BUFFER_TOO_SMALL: the length is the
// needed one, but another thread may replace the value before the next call. `buffer` may be null if `capacity` is
// 0. OUTLAST_NOT_FOUND if the key is absent.
enum outlast_code outlast_get(const struct outlast_map *map,
                              struct outlast_bytes key,
                              void *buffer,
                              size_t capacity,
                              size_t *len);

// Calls `receive` with a view of the value of `key`, from which it can copy what it needs. While it runs, the value
// stays as it is, even if another thread replaces or removes it, and the pool cannot reuse the space of other
// records; so it must not wait for long. OUTLAST_NOT_FOUND, without a call, if the key is absent.
enum outlast_code outlast_get_view(const struct outlast_map *map,
                                   struct outlast_bytes key,
                                   outlast_view_fn receive,
                                   void *context);

// OUTLAST_OK if the map has a value for `key`, otherwise OUTLAST_NOT_FOUND.
enum outlast_code outlast_contains(const struct outlast_map *map, struct outlast_bytes key);

// Calls `receive` for every record. A record that is present throughout the call is received exactly once; one that
// is inserted or removed meanwhile, once or not at all. An ordered map has its records in order.
enum outlast_code outlast_each(const struct outlast_map *map,
                               outlast_record_fn receive,
                               void *context);

// Calls `receive` for the records of an ordered map whose keys are in `*range`, in the order of the keys or against
// it. A null range is all keys. `receive` gets the same as from outlast_each. OUTLAST_ERROR_INVALID if the map has no
// order.
enum outlast_code outlast_range_each(const struct outlast_map *map,
                                     const struct outlast_range *range,
                                     outlast_record_fn receive,
                                     void *context);

// As outlast_range_each, for the keys that begin with `prefix`. The keys must be "bytes" or "str".
enum outlast_code outlast_prefix_each(const struct outlast_map *map,
                                      struct outlast_bytes prefix,
                                      bool is_reverse,
                                      outlast_record_fn receive,
                                      void *context);

// Calls `receive` for the first record, in its order, whose key is in `*range`; OUTLAST_NOT_FOUND if there is none.
// With a null range, that is the record with the least key. With an upper bound and is_reverse, it is the record at
// or below a key. What `receive` returns does not matter.
enum outlast_code outlast_range_first(const struct outlast_map *map,
                                      const struct outlast_range *range,
                                      outlast_record_fn receive,
                                      void *context);

// Calls `receive` for every record that can be read, and `damage`, unless it is null, for every damaged place, and
// goes on after it. OUTLAST_OK even if there was damage.
enum outlast_code outlast_salvage(const struct outlast_map *map,
                                  outlast_record_fn receive,
                                  outlast_damage_fn damage,
                                  void *context);

// Stores the value of `key` in `*value`. OUTLAST_NOT_FOUND if the key is absent. This and the other functions for
// u64 are for maps whose keys and values are both "u64"; the functions for all types work on these maps, too.
enum outlast_code outlast_u64_get(const struct outlast_map *map,
                                  uint64_t key,
                                  uint64_t *value);

// As outlast_contains.
enum outlast_code outlast_u64_contains(const struct outlast_map *map, uint64_t key);

// As outlast_insert.
enum outlast_code outlast_u64_insert(const struct outlast_map *map, uint64_t key, uint64_t value);

// As outlast_put.
enum outlast_code outlast_u64_put(const struct outlast_map *map, uint64_t key, uint64_t value);

// As outlast_update.
enum outlast_code outlast_u64_update(const struct outlast_map *map, uint64_t key, uint64_t value);

// As outlast_remove.
enum outlast_code outlast_u64_remove(const struct outlast_map *map, uint64_t key);

// As outlast_compare_swap.
enum outlast_code outlast_u64_compare_swap(const struct outlast_map *map,
                                           uint64_t key,
                                           uint64_t expected,
                                           uint64_t desired);

// As outlast_compare_remove.
enum outlast_code outlast_u64_compare_remove(const struct outlast_map *map, uint64_t key, uint64_t expected);

// As outlast_add.
enum outlast_code outlast_u64_add(const struct outlast_map *map,
                                  uint64_t key,
                                  uint64_t amount,
                                  uint64_t *sum);

// Begins a batch, and stores its handle in `*batch`. Nothing is changed before outlast_batch_commit. Free it with
// outlast_batch_free.
enum outlast_code outlast_batch_begin(const struct outlast_pool *pool,
                                      struct outlast_batch **batch);

// Adds a change: `key` gets this value in `map`, which must be of the batch's pool. If a batch has several changes
// of a key, the last one counts. Keys and values are copied.
enum outlast_code outlast_batch_put(const struct outlast_batch *batch,
                                    const struct outlast_map *map,
                                    struct outlast_bytes key,
                                    struct outlast_bytes value);

// Adds a change: `key` is removed from `map`, if it is present.
enum outlast_code outlast_batch_remove(const struct outlast_batch *batch,
                                       const struct outlast_map *map,
                                       struct outlast_bytes key);

// Requires that `key` has this value before the first change of the batch. If it has not, outlast_batch_commit
// changes nothing.
enum outlast_code outlast_batch_require(const struct outlast_batch *batch,
                                        const struct outlast_map *map,
                                        struct outlast_bytes key,
                                        struct outlast_bytes value);

// Requires that `key` is absent before the first change of the batch.
enum outlast_code outlast_batch_require_absent(const struct outlast_batch *batch,
                                               const struct outlast_map *map,
                                               struct outlast_bytes key);

// Makes all changes of the batch, and empties it. Once this returns, all of them have been made; a crash before that
// leaves all of them or none. No other thread changes a record of the pool meanwhile; readers can see a part.
//
// If a requirement does not hold: OUTLAST_DIFFERS, nothing is changed, the batch is empty, and `*failed` is the
// number of the requirement, from 0, in the order in which they were added. `failed` may be null. On an error, the
// batch keeps its changes, and can be committed again.
enum outlast_code outlast_batch_commit(const struct outlast_batch *batch,
                                       size_t *failed);

// Frees the handle of a batch with the changes that were not committed; null is ignored.
void outlast_batch_free(struct outlast_batch *batch);

// Runs a transaction: calls `run`, and then makes all its changes as one, or none. If another thread has meanwhile
// changed a record that `run` has read, `run` is called again. A crash leaves all of the changes or none. If `run`
// only reads, what it has read in the end was there together at one moment.
//
// OUTLAST_STOPPED, and no change, if `run` returns something other than 0; the message of an error in `run` is kept.
enum outlast_code outlast_transaction_run(const struct outlast_pool *pool,
                                          outlast_transaction_fn run,
                                          void *context);

// Copies the value of `key` into `buffer`, as outlast_get does. What the transaction has changed, it reads as
// changed.
enum outlast_code outlast_transaction_get(const struct outlast_transaction *transaction,
                                          const struct outlast_map *map,
                                          struct outlast_bytes key,
                                          void *buffer,
                                          size_t capacity,
                                          size_t *len);

// Puts a value: `key` has it in `map` once the transaction ends.
enum outlast_code outlast_transaction_put(const struct outlast_transaction *transaction,
                                          const struct outlast_map *map,
                                          struct outlast_bytes key,
                                          struct outlast_bytes value);

// Removes `key` from `map`, if it is present, once the transaction ends.
enum outlast_code outlast_transaction_remove(const struct outlast_transaction *transaction,
                                             const struct outlast_map *map,
                                             struct outlast_bytes key);

// As outlast_map_open, for a map whose records can expire. `scheme` is a name such as "phast", for an ordered map, or
// null, for a hash map. OUTLAST_ERROR_MAP_MISMATCH if the map exists and was made without expiry.
//
// A record whose time has passed is absent for every operation. outlast_put and outlast_insert make records that never
// expire. What changes the value of a record, such as outlast_update, outlast_compare_swap and outlast_add, leaves
// its time as it is.
//
// Times are nanoseconds since 1970-01-01 00:00 UTC, by the system's clock; durations are nanoseconds, too.
// OUTLAST_SECONDS makes them of seconds.
enum outlast_code outlast_expiring_map_open(const struct outlast_pool *pool,
                                            const char *name,
                                            const char *key_type,
                                            const char *value_type,
                                            const char *scheme,
                                            struct outlast_map **map);

// Inserts `value`, or replaces the value of `key`, in a record that expires at `time`; OUTLAST_NEVER: not at all. If
// the time has passed, the key is removed. OUTLAST_ERROR_INVALID if the map was made without expiry.
enum outlast_code outlast_put_until(const struct outlast_map *map,
                                    struct outlast_bytes key,
                                    struct outlast_bytes value,
                                    uint64_t time);

// As outlast_put_until; the record expires once `duration` has passed from now on.
enum outlast_code outlast_put_for(const struct outlast_map *map,
                                  struct outlast_bytes key,
                                  struct outlast_bytes value,
                                  uint64_t duration);

// Sets when the record of `key` expires; OUTLAST_NOT_FOUND if the key is absent. If the time has passed, the key is
// removed. A record that has expired is not renewed.
enum outlast_code outlast_expire_at(const struct outlast_map *map,
                                    struct outlast_bytes key,
                                    uint64_t time);

// As outlast_expire_at; the record expires once `duration` has passed from now on.
enum outlast_code outlast_expire_for(const struct outlast_map *map,
                                     struct outlast_bytes key,
                                     uint64_t duration);

// Makes the record of `key` one that never expires; OUTLAST_NOT_FOUND if the key is absent.
enum outlast_code outlast_persist(const struct outlast_map *map, struct outlast_bytes key);

// Stores in `*time` when the record of `key` expires, or OUTLAST_NEVER. OUTLAST_NOT_FOUND if the key is absent.
enum outlast_code outlast_expiry_of(const struct outlast_map *map,
                                    struct outlast_bytes key,
                                    uint64_t *time);

// As outlast_batch_put, in a record that expires at `time`. OUTLAST_ERROR_INVALID if the map was made without expiry.
enum outlast_code outlast_batch_put_until(const struct outlast_batch *batch,
                                          const struct outlast_map *map,
                                          struct outlast_bytes key,
                                          struct outlast_bytes value,
                                          uint64_t time);

// As outlast_transaction_put, in a record that expires at `time`. OUTLAST_ERROR_INVALID if the map was made without
// expiry.
enum outlast_code outlast_transaction_put_until(const struct outlast_transaction *transaction,
                                                const struct outlast_map *map,
                                                struct outlast_bytes key,
                                                struct outlast_bytes value,
                                                uint64_t time);

// Opens the cache `name`, or creates it if there is none. The types are those of outlast_map_open, and must not be
// null. The bound of a cache is that with which it was opened last; a cache that holds more shrinks as records are
// inserted. Stores a handle in `*cache`, or null on an error. Free it with outlast_cache_free.
//
// Opening a cache that holds records reads the slots of its table, to count what they take.
enum outlast_code outlast_cache_open(const struct outlast_pool *pool,
                                     const char *name,
                                     const char *key_type,
                                     const char *value_type,
                                     const struct outlast_cache_options *options,
                                     struct outlast_cache **cache);

// Frees the handle of a cache; null is ignored. The records stay in the pool.
void outlast_cache_free(struct outlast_cache *cache);

// Copies the value of `key` into `buffer`, as outlast_get does. This is a use of the record: the least used records
// are evicted first.
enum outlast_code outlast_cache_get(const struct outlast_cache *cache,
                                    struct outlast_bytes key,
                                    void *buffer,
                                    size_t capacity,
                                    size_t *len);

// Inserts `value`, or replaces the value of `key`. If there is no room, evicts other records first. A record that is
// larger than the cache is not inserted, and OUTLAST_OK all the same.
enum outlast_code outlast_cache_insert(const struct outlast_cache *cache,
                                       struct outlast_bytes key,
                                       struct outlast_bytes value);

// As outlast_cache_insert; the record expires once `duration` (nanoseconds) has passed.
enum outlast_code outlast_cache_insert_for(const struct outlast_cache *cache,
                                           struct outlast_bytes key,
                                           struct outlast_bytes value,
                                           uint64_t duration);

// Removes `key`; OUTLAST_NOT_FOUND if it is absent.
enum outlast_code outlast_cache_remove(const struct outlast_cache *cache, struct outlast_bytes key);

// Stores in `*counts` what the cache holds, and what it did since its pool was opened.
enum outlast_code outlast_cache_stats(const struct outlast_cache *cache, struct outlast_cache_counts *counts);

// Returns the map in which the cache is kept, for what a cache has no functions for: outlast_each, outlast_clear,
// outlast_contains, outlast_expiry_of, outlast_expire_for. To read through it is no use of a record. It belongs to the
// cache's handle, is valid until that is freed, and must not be freed itself. Null has none.
const struct outlast_map *outlast_cache_map(const struct outlast_cache *cache);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* The bytes of a text that ends with a 0, without the 0; of a variable, such as a uint64_t; and none. */
#define OUTLAST_TEXT(text) outlast_bytes_of((text), strlen(text))
#define OUTLAST_VALUE(variable) outlast_bytes_of(&(variable), sizeof(variable))
#define OUTLAST_NOTHING outlast_bytes_of(NULL, 0)

/* Nanoseconds, of seconds. */
#define OUTLAST_SECONDS(seconds) ((uint64_t)(seconds) * 1000000000u)

/* Makes the bytes of an argument. */
static inline outlast_bytes outlast_bytes_of(const void *data, size_t len) {
    outlast_bytes bytes;
    bytes.data = data;
    bytes.len = len;
    return bytes;
}

#endif  /* OUTLAST_H */

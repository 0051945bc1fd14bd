//! The seeded bugs that schemes share: those of the pool, and of the code that most of them have in
//! common.

use crate::parts::bugs::Checker::{Alone, Guard, Held, Refused, Stopped};
use crate::parts::bugs::{Line, SIZE_TOLD_EARLY, UNDURABLE_GROWTH, bug, bytes, cannot, inline};
use crate::parts::published::*;
use outlast::internals::db::bugs as db_bugs;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::pmem::Seeded;
use outlast::internals::pool::bugs as pool_bugs;
use outlast::internals::pool::points;

/// The lines that every scheme shares, unless it has its own line for the same bug.
pub(super) const LINES: &[Line] = &[
    bug(POOL_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: pool creation", Alone),
    bug(
        POOL_NOT_ATOMIC,
        Seeded::InCode(&pool_bugs::HEADER_FIRST),
        "Core::create: header before what it promises",
        Alone,
    ),
    bug(
        ROOT_NOT_ATOMIC,
        Seeded::InCode(&pool_bugs::ROOT_COMMITTED_FIRST),
        "roots::commit: commit word first",
        Alone,
    ),
    bug(UNDURABLE_ROOT, Seeded::InCode(&db_bugs::ROOT_READ_EARLY), "Store::settled", Stopped),
    bug(TABLE_LEAKED, Seeded::InCode(&pool_bugs::NEVER_FREED), "Core::retire_by", Alone),
    bug(CAPACITY_UNDURABLE, Seeded::InCode(&pool_bugs::SIZE_NOT_TOLD), "Core::grow", Alone),
    bug(FREED_TWICE, Seeded::InCode(&pool_bugs::FREED_TWICE), "Core::retire_by", Alone),
    cannot(
        VALUE_SIZE,
        "records carry their lengths and roots carry schemas, which opening compares; the \
         library's own tests open a map with others",
    ),
    bytes(
        READ_FREED,
        Seeded::InCode(&pool_bugs::FREED_UNDER_READERS),
        "Core::retire_by: no grace period",
        Guard,
    ),
    cannot(
        FEW_INTERLEAVINGS,
        "a bug of tests, not of a structure; here, threads are stopped at every access",
    ),
    cannot(
        DRAM_POINTER,
        "the seam has no way to store one: words are addressed by offset, and every offset \
         read is checked. Each image is opened at another address",
    ),
    cannot(
        EQUAL_VALUES,
        "records are identified by their keys; only compare-and-swap compares values. A removal \
         that goes by the fingerprint is one of the bugs above",
    ),
    bug(
        "Saved free state trusted though the pool was modified since",
        Seeded::InCode(&pool_bugs::NOT_MARKED_DIRTY),
        "Core::mark_dirty_controlled",
        Alone,
    ),
    bug(
        "A block reused while it is still linked after a crash",
        Seeded::InCode(&db_bugs::SWEPT_UNTRACED),
        "Store::advance: the sweep before the trace",
        Alone,
    ),
    bug(
        "An entry of a list of runs is used though the run was released since",
        Seeded::InCode(&pool_bugs::STALE_ENTRY_ACCEPTED),
        "Alloc::refill: a run of another class",
        Alone,
    ),
    bytes(
        "A block is freed an epoch before its last reader is gone",
        Seeded::InCode(&pool_bugs::FREED_EPOCH_EARLY),
        "Core::retire_by",
        Guard,
    ),
    bug(
        SIZE_TOLD_EARLY,
        Seeded::InCode(&pool_bugs::SIZE_TOLD_EARLY),
        "Core::grow",
        Held("pool-growth"),
    ),
    // Only inline. The code is the same in both forms, but in clevel's runs with byte strings no
    // thread happens to read a growth that is not durable.
    inline(
        UNDURABLE_GROWTH,
        Seeded::NoFence(&points::HEADER_SIZE),
        "seam: the header's fence",
        Held("pool-growth"),
    ),
    bug(
        "A pool's file is unlocked before the pool is closed",
        Seeded::InCode(&pool_bugs::FILE_UNLOCKED_EARLY),
        "Core::close: before it waits for writers",
        Held("reopen"),
    ),
    bytes(
        "A read returns although the pool was closed and reopened meanwhile",
        Seeded::InCode(&pool_bugs::OPEN_CHECKED_EARLY),
        "Core::while_open: the gate is checked before the read",
        Held("hold"),
    ),
    bytes(
        "A dropped map's blocks are reused while a reference leads to one",
        Seeded::InCode(&db_bugs::DROPPED_IN_USE),
        "Store::free_dropped",
        Held("hold-dropped"),
    ),
    bug(
        "A batch that a crash has cut short stays as it is",
        Seeded::InCode(&db_bugs::BATCH_FORGOTTEN),
        "Store::finish_batch",
        Alone,
    ),
    bug(
        "A batch makes its changes before its log is sure to be found",
        Seeded::InCode(&db_bugs::BATCH_MADE_EARLY),
        "Store::log_and_make",
        Alone,
    ),
    bug(
        "A batch is over before its changes are made",
        Seeded::InCode(&db_bugs::BATCH_CLEARED_EARLY),
        "Store::log_and_make",
        Alone,
    ),
    bug(
        "A batch that fails does not restore a record whose change was not made yet",
        Seeded::InCode(&db_bugs::LAST_BEFORE_LOST),
        "Store::log_and_make: the value before",
        Alone,
    ),
    bug(
        "The log of a batch is not durable when its word is",
        Seeded::NoFlush(&points::BATCH_LOG),
        "seam: log",
        Alone,
    ),
    bug(
        "What a batch requires is checked before the batch keeps others from changing it",
        Seeded::InCode(&db_bugs::REQUIRED_EARLY),
        "Store::make_batch: the requirements before the gate",
        Held("batch-if"),
    ),
    bug(
        "A batch that fails cannot be taken back in a full pool",
        Seeded::InCode(&db_bugs::KEPT_TOO_LONG),
        "Part::take_back: the block set aside is freed too late",
        Refused,
    ),
    cannot(STALLS, "not a bug of a structure; the benchmark measures stalls"),
    cannot(OTHER_MAKERS, "the flush in use is part of what the pool reports as its durability"),
    // Bugs of the kit, and of parts that most schemes have in common.
    bug(TOKEN_FIRST, Seeded::InCode(&index_bugs::COMMIT_BEFORE_VALUE), "Slot::fill", Alone),
    bug(CLEAR_THEN_SET, Seeded::InCode(&index_bugs::UPDATE_EMPTIES_FIRST), "replace", Alone),
    bug(
        READ_UNDURABLE,
        Seeded::InCode(&index_bugs::CHANGING_IGNORED),
        "read_once: lookups do not wait",
        Stopped,
    ),
    cannot(
        MICRO_LOG,
        "there is no log to leave out; one word commits a split, which the mutants and the torn \
         store above test",
    ),
    cannot(NOT_LINEARIZABLE, "a bug of another structure, for which histories are checked"),
    bug(
        INSERTS_NEVER_END,
        Seeded::InCode(&index_bugs::LOCK_NOT_RELEASED),
        "HeldLock::unlock",
        Alone,
    ),
    bug(REMOVED_FOUND, Seeded::InCode(&index_bugs::REMOVES_NOTHING), "remove", Alone),
    bug(
        "A change that compares the value is made whatever the value is",
        Seeded::InCode(&index_bugs::COMPARISON_IGNORED),
        "decide; in clevel, attempt",
        Alone,
    ),
    bug(
        REHASH_NOT_RESUMED,
        Seeded::InCode(&db_bugs::NOT_RECLAIMED),
        "Store::with_alive: the reclaim is not resumed",
        Alone,
    ),
];

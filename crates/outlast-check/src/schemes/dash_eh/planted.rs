//! What stands for published bugs in Dash-EH, apart from the pool's.

use crate::planted::published::*;
use crate::planted::table::Checker::{Alone, EachStep, Held, Paused, Stopped};
use crate::planted::table::{Line, bug, bytes, cannot};
use outlast::index::dash_eh::points;
use outlast::pmem::Planted;

/// Its lines.
pub(super) const LINES: &[Line] = &[
    bug(TOKEN_FIRST, Planted::CommitBeforeValue, "fill_unfenced", Alone),
    bug(WRONG_EDGE, Planted::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Planted::WrongLine(&points::NODE_NEW), "seam: new overflow node", Alone),
    bug(UNFENCED_NODE, Planted::NoFence(&points::SPLIT_NEW), "seam: split", Alone),
    bug(
        TWO_STORES,
        Planted::SlotNotEmptied,
        "fill_unfenced: the new second word beside the old first",
        Alone,
    ),
    bug(
        TORN,
        Planted::TornStore(&points::SPLIT_COMMIT),
        "seam: split's commit in two halves",
        Alone,
    ),
    bug(INDEX_UNFLUSHED, Planted::NoFlush(&points::CREATE), "seam: map creation", Alone),
    bug(CLEAR_THEN_SET, Planted::UpdateEmptiesFirst, "change_present", Alone),
    bug(
        SET_THEN_CLEAR,
        Planted::DisplaceRemovesFirst,
        "copy_record: the other order, which loses it",
        Alone,
    ),
    bug(TWICE_AFTER_MOVE, Planted::SecondCopyKept, "has_copy: recovery keeps both", Alone),
    bug(
        HALF_RESIZE_REDONE,
        Planted::SplitRedoneBlindly,
        "complete_split: entries that a later split has set",
        Alone,
    ),
    bug(
        REMOVED_STAYS,
        Planted::NoFlush(&points::REPAIR_DUPLICATE),
        "seam: the second copy's removal is not durable",
        Alone,
    ),
    bug(
        SEPARATE_WORDS,
        Planted::TornStore(&points::DOUBLE_COMMIT),
        "seam: directory and depth in two stores",
        Alone,
    ),
    bug(DEPTH_FIRST, Planted::SplitUnnamed, "split_locked: depth without the partner", Alone),
    bug(NEW_TABLE_UNFLUSHED, Planted::NoFlush(&points::DOUBLE_NEW), "seam: doubling", Alone),
    bug(
        RANGE_OFF_BY_ONE,
        Planted::EntriesOneShort,
        "split_locked: the last entry is left out",
        Alone,
    ),
    bug(
        RESIZE_BEFORE_DURABLE,
        Planted::DoubledBeforeDurable,
        "double: published before the root is durable",
        Stopped,
    ),
    bug(ONE_HASH, Planted::DoubledWithoutEnd, "may_double", Alone),
    bug(
        RESIZED_MEANWHILE,
        Planted::SplitNotRechecked,
        "split: no second look under the locks",
        Paused,
    ),
    bug(SERVED_UNREPAIRED, Planted::HalfSplitServed, "first_touch", Alone),
    bug(
        UNDURABLE_SIBLING,
        Planted::NoFence(&points::NODE_COMMIT),
        "seam: link of an overflow node",
        Stopped,
    ),
    bug(READ_UNDURABLE, Planted::ChangingIgnored, "find_from: lookups do not wait", Stopped),
    bug(
        EXISTS_UNDURABLE,
        Planted::ShownBeforeDurable,
        "insert_absent: published before its fence",
        Stopped,
    ),
    bug(LOCKS_IN_PM, Planted::LocksKept, "repair_bucket", Alone),
    cannot(
        MICRO_LOG,
        "there is no log to leave out; one word commits a split, which the mutants and the torn \
         store above test",
    ),
    bug(ERASE_DEADLOCKS, Planted::LockedTwice, "remove_at", Alone),
    bug(WRONG_COMPARISON, Planted::FingerprintDecides, "probe", Alone),
    cannot(NOT_LINEARIZABLE, "a bug of another structure, for which histories are checked"),
    bug(INSERTS_NEVER_END, Planted::LockNotReleased, "Locked::drop", Alone),
    bug(REOPEN_HANGS, Planted::NoFlush(&points::SPLIT_DIRECTORY), "seam: split's entries", Alone),
    bug(REMOVED_FOUND, Planted::RemovesNothing, "remove_at", Alone),
    bug(
        REHASH_NOT_RESUMED,
        Planted::NotReclaimed,
        "Store::with_alive: the reclaim is not resumed",
        Alone,
    ),
    bug(
        "A crash undoes a removal: the old copy of a displaced record is left",
        Planted::MovedUnlockedEarly,
        "displace: the copy's lock is released first",
        EachStep("duel-row-back"),
    ),
    bytes(
        "The blocks of a map that is dropped beside the reclaim are not marked",
        Planted::DroppedUnmarked,
        "Store::drop_map",
        Held("maps-reclaim"),
    ),
    bytes(
        "A split does not mark, for the reclaim, the overflow records that stay",
        Planted::StayingUnmarked,
        "split_locked",
        Held("reclaim"),
    ),
    bug(
        "A lookup misses a record of a row of displaced ones, or reads half another",
        Planted::RowHomeUnmarked,
        "move_away: only the first copy's home is marked",
        EachStep("duel-row-back"),
    ),
];

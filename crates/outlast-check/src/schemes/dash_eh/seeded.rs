//! The seeded bugs of Dash-EH. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, EachStep, Held, Paused, Stopped};
use crate::parts::bugs::{Line, bug, bytes};
use crate::parts::published::*;
use outlast::internals::db::bugs as db_bugs;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::dash_eh::bugs as dash_eh_bugs;
use outlast::internals::index::dash_eh::points;
use outlast::internals::pmem::Seeded;

/// Its lines.
pub(super) const LINES: &[Line] = &[
    bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Seeded::WrongLine(&points::NODE_NEW), "seam: new overflow node", Alone),
    bug(UNFENCED_NODE, Seeded::NoFence(&points::SPLIT_NEW), "seam: split", Alone),
    bug(
        TWO_STORES,
        Seeded::InCode(&index_bugs::SLOT_NOT_EMPTIED),
        "Slot::fill: the new second word beside the old first",
        Alone,
    ),
    bug(
        TORN,
        Seeded::TornStore(&points::SPLIT_COMMIT),
        "seam: split's commit in two halves",
        Alone,
    ),
    bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
    bug(
        SET_THEN_CLEAR,
        Seeded::InCode(&dash_eh_bugs::DISPLACE_REMOVES_FIRST),
        "copy_record: the other order, which loses it",
        Alone,
    ),
    bug(
        TWICE_AFTER_MOVE,
        Seeded::InCode(&dash_eh_bugs::SECOND_COPY_KEPT),
        "has_copy: recovery keeps both",
        Alone,
    ),
    bug(
        HALF_RESIZE_REDONE,
        Seeded::InCode(&dash_eh_bugs::SPLIT_REDONE_BLINDLY),
        "complete_split: entries that a later split has set",
        Alone,
    ),
    bug(
        REMOVED_STAYS,
        Seeded::NoFlush(&points::REPAIR_DUPLICATE),
        "seam: the second copy's removal is not durable",
        Alone,
    ),
    bug(
        SEPARATE_WORDS,
        Seeded::TornStore(&points::DOUBLE_COMMIT),
        "seam: directory and depth in two stores",
        Alone,
    ),
    bug(
        DEPTH_FIRST,
        Seeded::InCode(&index_bugs::SPLIT_UNNAMED),
        "split_locked: depth without the partner",
        Alone,
    ),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::DOUBLE_NEW), "seam: doubling", Alone),
    bug(
        RANGE_OFF_BY_ONE,
        Seeded::InCode(&dash_eh_bugs::ENTRIES_ONE_SHORT),
        "publish_split: the last entry is left out",
        Alone,
    ),
    bug(
        RESIZE_BEFORE_DURABLE,
        Seeded::InCode(&dash_eh_bugs::DOUBLED_BEFORE_DURABLE),
        "double: published before the root is durable",
        Stopped,
    ),
    bug(ONE_HASH, Seeded::InCode(&index_bugs::DOUBLED_WITHOUT_END), "may_double", Alone),
    bug(
        RESIZED_MEANWHILE,
        Seeded::InCode(&index_bugs::SPLIT_NOT_RECHECKED),
        "split: no second look under the locks",
        Paused,
    ),
    bug(SERVED_UNREPAIRED, Seeded::InCode(&index_bugs::HALF_SPLIT_SERVED), "first_touch", Alone),
    bug(
        UNDURABLE_SIBLING,
        Seeded::NoFence(&points::NODE_COMMIT),
        "seam: link of an overflow node",
        Stopped,
    ),
    bug(
        EXISTS_UNDURABLE,
        Seeded::InCode(&index_bugs::SHOWN_BEFORE_DURABLE),
        "insert_into: published before its fence",
        Stopped,
    ),
    bug(
        "Changes that share a fence are found before it, and a crash undoes them",
        Seeded::InCode(&index_bugs::ROW_SHOWN_EARLY),
        "Row::make: shown before the fence",
        Stopped,
    ),
    bug(LOCKS_IN_PM, Seeded::InCode(&index_bugs::LOCKS_KEPT), "repair_bucket", Alone),
    bug(ERASE_DEADLOCKS, Seeded::InCode(&dash_eh_bugs::LOCKED_TWICE), "empty_slot", Alone),
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "probe_pair", Alone),
    bug(REOPEN_HANGS, Seeded::NoFlush(&points::SPLIT_DIRECTORY), "seam: split's entries", Alone),
    bug(REMOVED_FOUND, Seeded::InCode(&index_bugs::REMOVES_NOTHING), "remove_overflowed", Alone),
    bug(
        "A crash undoes a removal: the old copy of a displaced record is left",
        Seeded::InCode(&dash_eh_bugs::MOVED_UNLOCKED_EARLY),
        "displace: the copy's lock is released first",
        EachStep("duel-row-back"),
    ),
    bytes(
        "The blocks of a map that is dropped beside the reclaim are not marked",
        Seeded::InCode(&db_bugs::DROPPED_UNMARKED),
        "Store::drop_map",
        Held("maps-reclaim"),
    ),
    bytes(
        "A split does not mark, for the reclaim, the overflow records that stay",
        Seeded::InCode(&dash_eh_bugs::STAYING_UNMARKED),
        "split_locked",
        Held("reclaim"),
    )
    .slow(),
    bug(
        "A lookup misses a record of a row of displaced ones, or reads half another",
        Seeded::InCode(&dash_eh_bugs::ROW_HOME_UNMARKED),
        "move_away: only the first copy's home is marked",
        EachStep("duel-row-back"),
    ),
    bug(
        "A slot that was free before its bucket was locked is taken from another thread's record",
        Seeded::InCode(&dash_eh_bugs::NEXT_NOT_RECHECKED),
        "insert_absent: no second look at the next bucket",
        Held("full-home"),
    ),
    bug(
        "The same in changes that share a fence",
        Seeded::InCode(&dash_eh_bugs::ROW_NEXT_NOT_RECHECKED),
        "Row::decide: no second look at the next bucket",
        Held("full-home"),
    ),
];

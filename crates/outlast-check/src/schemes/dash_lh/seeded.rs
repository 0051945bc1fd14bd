//! The seeded bugs of Dash-LH. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, Held, Paused, Refused, Stopped};
use crate::parts::bugs::{Line, bug, bytes, cannot};
use crate::parts::published::*;
use outlast::internals::db::bugs as db_bugs;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::dash_lh::bugs as dash_lh_bugs;
use outlast::internals::index::dash_lh::points;
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
        Seeded::InCode(&dash_lh_bugs::DISPLACE_REMOVES_FIRST),
        "copy_record: the other order, which loses it",
        Alone,
    ),
    bug(
        TWICE_AFTER_MOVE,
        Seeded::InCode(&dash_lh_bugs::SECOND_COPY_KEPT),
        "has_copy: recovery keeps both",
        Alone,
    ),
    cannot(HALF_RESIZE_REDONE, "nothing is redone: a split's commit is its last store"),
    bug(
        REMOVED_STAYS,
        Seeded::NoFlush(&points::REPAIR_DUPLICATE),
        "seam: the second copy's removal is not durable",
        Alone,
    ),
    bug(
        SEPARATE_WORDS,
        Seeded::TornStore(&points::TURN),
        "seam: depth and next in two stores",
        Alone,
    ),
    cannot(DEPTH_FIRST, "the place of the new segment follows from the depth"),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::DOUBLE_NEW), "seam: doubling", Alone),
    bug(
        RANGE_OFF_BY_ONE,
        Seeded::InCode(&dash_lh_bugs::PLACE_OFF_BY_ONE),
        "place_new: the place beside",
        Alone,
    ),
    bug(
        RESIZE_BEFORE_DURABLE,
        Seeded::NoFence(&points::SPLIT_COMMIT),
        "seam: both halves are used before the commit is durable",
        Stopped,
    ),
    cannot(ONE_HASH, "an overflow node adds one segment at most, and from the ninth on none"),
    bug(
        RESIZED_MEANWHILE,
        Seeded::InCode(&index_bugs::SPLIT_NOT_RECHECKED),
        "split: no second look under the locks",
        Paused,
    ),
    bug(
        SERVED_UNREPAIRED,
        Seeded::InCode(&index_bugs::HALF_SPLIT_SERVED),
        "touch: the depth that the turn allows",
        Alone,
    ),
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
    bug(ERASE_DEADLOCKS, Seeded::InCode(&dash_lh_bugs::LOCKED_TWICE), "empty_slot", Alone),
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "probe_pair", Alone),
    bug(REOPEN_HANGS, Seeded::NoFlush(&points::TURN), "seam: turn", Alone),
    bug(REMOVED_FOUND, Seeded::InCode(&index_bugs::REMOVES_NOTHING), "remove_overflowed", Alone),
    bytes(
        "The blocks of a map that is dropped beside the reclaim are not marked",
        Seeded::InCode(&db_bugs::DROPPED_UNMARKED),
        "Store::drop_map",
        Held("maps-reclaim"),
    ),
    bug(
        "A crash brings back overflow nodes whose blocks are in use again",
        Seeded::InCode(&dash_lh_bugs::NODES_FREED_EARLY),
        "free_empty_nodes: the link's removal is not durable",
        Alone,
    ),
    bug(
        "After a refused allocation, the table never grows again",
        Seeded::InCode(&dash_lh_bugs::GROWING_KEPT),
        "split_next: the mark of the thread that allocates stays",
        Refused,
    ),
    bug(
        "What a dead process has erased and not flushed comes back: there is nothing left to erase",
        Seeded::InCode(&dash_lh_bugs::ERASED_UNFLUSHED),
        "erase_header: flushes only if it finds a header",
        Alone,
    ),
];

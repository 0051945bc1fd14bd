//! The seeded bugs of group hashing. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, EachStep, Paused, Stopped};
use crate::parts::bugs::{Line, bug, bytes, cannot};
use crate::parts::published::*;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::group::bugs as group_bugs;
use outlast::internals::index::group::points;
use outlast::internals::pmem::Seeded;

const NO_DIRECTORY: &str = "each opening makes the directory; none is written";

/// Its lines.
pub(super) const LINES: &[Line] = &[
    bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Seeded::WrongLine(&points::NODE_NEW), "seam: new overflow node", Alone),
    bug(UNFENCED_NODE, Seeded::NoFence(&points::SPLIT_NEW), "seam: split", Alone),
    // Not for inline records: there, a cell that a split left behind holds a key outside the
    // segment's range, so it counts as empty whatever its second word is.
    bytes(
        TWO_STORES,
        Seeded::InCode(&index_bugs::SLOT_NOT_EMPTIED),
        "Slot::fill: the new second word beside the old first",
        Alone,
    ),
    bug(TORN, Seeded::TornStore(&points::SPLIT_COMMIT), "seam: a link in two halves", Alone),
    bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
    cannot(SET_THEN_CLEAR, "no record moves within a segment, and a split clears nothing"),
    bug(
        TWICE_AFTER_MOVE,
        Seeded::InCode(&group_bugs::LEFT_BEHIND_KEPT),
        "record_in: what a split has left behind",
        Alone,
    ),
    cannot(HALF_RESIZE_REDONE, "a split is one store; nothing is redone"),
    bug(REMOVED_STAYS, Seeded::NoFlush(&points::REMOVE), "seam: removal", Alone),
    cannot(SEPARATE_WORDS, "growth is one word: a segment's depth and its link"),
    bug(DEPTH_FIRST, Seeded::NoFlush(&points::SPLIT_COMMIT), "seam: a segment's link", Alone),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::SPLIT_NEW), "seam: new segment", Alone),
    cannot(RANGE_OFF_BY_ONE, NO_DIRECTORY),
    bug(
        RESIZE_BEFORE_DURABLE,
        Seeded::InCode(&group_bugs::SPLIT_BEFORE_DURABLE),
        "split_locked: used before the link is durable",
        Stopped,
    ),
    bug(ONE_HASH, Seeded::InCode(&index_bugs::DOUBLED_WITHOUT_END), "may_split", Alone),
    bug(
        RESIZED_MEANWHILE,
        Seeded::InCode(&index_bugs::SPLIT_NOT_RECHECKED),
        "split: no second look under the lock",
        Paused,
    ),
    bug(SERVED_UNREPAIRED, Seeded::NoFlush(&points::OPENING), "seam: opening", Alone),
    bug(UNDURABLE_SIBLING, Seeded::NoFence(&points::NODE_COMMIT), "seam: link of a node", Stopped),
    bug(
        EXISTS_UNDURABLE,
        Seeded::InCode(&index_bugs::SHOWN_BEFORE_DURABLE),
        "attempt: marked before its fence",
        Stopped,
    ),
    bug(LOCKS_IN_PM, Seeded::InCode(&index_bugs::LOCKS_KEPT), "forget", Alone),
    cannot(ERASE_DEADLOCKS, "a removal takes one lock, and waits for no other while it holds it"),
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "holds", Alone),
    cannot(REOPEN_HANGS, "opening follows links of ascending ranges only, so it ends"),
    // Mistakes in the paper as printed, and in the ways around them.
    bug(
        "group hashing: an insert does not look for its key (Algorithm 1)",
        Seeded::InCode(&group_bugs::KEY_NOT_SOUGHT),
        "attempt",
        Alone,
    ),
    bug(
        "group hashing: cells that are free are compared (Algorithms 2 and 3)",
        Seeded::InCode(&group_bugs::FREE_CELLS_READ),
        "search: the home, whatever its mark",
        Stopped,
    ),
    bug(
        "An iteration reports a record that a lookup after it misses",
        Seeded::InCode(&group_bugs::COUNTED_LATE),
        "publish: the mark, then the count",
        EachStep("second-level"),
    )
    .slow(),
    bug(
        "A removal makes lookups miss other records of the same home",
        Seeded::InCode(&group_bugs::OVERFLOW_FORGOTTEN),
        "unpublish: the count",
        Alone,
    ),
];

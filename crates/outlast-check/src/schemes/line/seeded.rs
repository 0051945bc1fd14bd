//! The seeded bugs of line hashing. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, EachStep, Held, Stopped};
use crate::parts::bugs::{Line, bug, cannot};
use crate::parts::published::*;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::line::bugs as line_bugs;
use outlast::internals::index::line::points;
use outlast::internals::pmem::Seeded;

const NO_MOVES: &str = "no record moves within a segment, and a rebuild clears nothing";

/// Its lines.
pub(super) const LINES: &[Line] = &[
    bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Seeded::WrongLine(&points::NODE_NEW), "seam: new overflow node", Alone),
    bug(UNFENCED_NODE, Seeded::NoFence(&points::REBUILD_NEW), "seam: rebuild", Alone),
    bug(
        TWO_STORES,
        Seeded::InCode(&index_bugs::COMMIT_BEFORE_VALUE),
        "Slot::fill_empty: the first word first",
        Alone,
    ),
    bug(TORN, Seeded::TornStore(&points::REBUILD_COMMIT), "seam: the intent in two halves", Alone),
    bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
    cannot(SET_THEN_CLEAR, NO_MOVES),
    cannot(TWICE_AFTER_MOVE, NO_MOVES),
    bug(
        HALF_RESIZE_REDONE,
        Seeded::InCode(&line_bugs::INTENT_LATE),
        "commit: the intent after the cells",
        Alone,
    ),
    bug(REMOVED_STAYS, Seeded::NoFlush(&points::REMOVE), "seam: removal", Alone),
    bug(
        SEPARATE_WORDS,
        Seeded::TornStore(&points::DOUBLE_COMMIT),
        "seam: directory and depth in two stores",
        Alone,
    ),
    bug(
        DEPTH_FIRST,
        Seeded::InCode(&line_bugs::SIBLING_MISSING),
        "rebuild: the first new segment does not name the second",
        Alone,
    ),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::DOUBLE_NEW), "seam: doubling", Alone),
    bug(
        RANGE_OFF_BY_ONE,
        Seeded::InCode(&line_bugs::CELLS_ONE_SHORT),
        "commit: the last cell is left out",
        Alone,
    ),
    bug(
        RESIZE_BEFORE_DURABLE,
        Seeded::InCode(&line_bugs::SHOWN_BEFORE_CELLS),
        "commit: readers are led to the new segments first",
        Stopped,
    ),
    cannot(ONE_HASH, "records of one hash never fill half of a segment, so nothing grows for them"),
    bug(
        RESIZED_MEANWHILE,
        Seeded::InCode(&line_bugs::CELL_NOT_RECHECKED),
        "leads_to: no second look under the lock",
        Held("race-frozen"),
    ),
    bug(SERVED_UNREPAIRED, Seeded::InCode(&index_bugs::HALF_SPLIT_SERVED), "settle", Alone),
    bug(
        UNDURABLE_SIBLING,
        Seeded::NoFence(&points::NODE_COMMIT),
        "seam: link of an overflow node",
        Stopped,
    ),
    bug(
        EXISTS_UNDURABLE,
        Seeded::InCode(&index_bugs::SHOWN_BEFORE_DURABLE),
        "insert_absent: not marked as changing",
        Stopped,
    ),
    cannot(LOCKS_IN_PM, "locks are in DRAM, and begin as zeros"),
    cannot(ERASE_DEADLOCKS, "a removal takes one lock, and waits for no other while it holds it"),
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "search_line", Alone),
    bug(REOPEN_HANGS, Seeded::NoFlush(&points::REBUILD_CELLS), "seam: a rebuild's cells", Alone),
    bug(REMOVED_FOUND, Seeded::InCode(&index_bugs::REMOVES_NOTHING), "remove", Alone),
    bug(
        "A rebuild copies a segment while a change that began before it is under way",
        Seeded::InCode(&line_bugs::GRACE_SKIPPED),
        "rebuild: no grace",
        EachStep("duel-rebuild"),
    ),
    bug(
        "A rebuild's cells are not durable when another thread's intent replaces its own",
        Seeded::NoFence(&points::REBUILD_CELLS),
        "seam: a rebuild's cells",
        Held("rebuild"),
    )
    .slow(),
    bug(
        "Changes that share a fence are found before it, and a crash undoes them",
        Seeded::InCode(&index_bugs::ROW_SHOWN_EARLY),
        "the kit's row: shown before the fence",
        Stopped,
    ),
    bug(
        "Recovery completes the first segment of a rebuild only",
        Seeded::InCode(&line_bugs::SETTLE_ONE_SEGMENT),
        "settle",
        Alone,
    ),
    bug(
        "A record in a node is not found: its block's hints lack it",
        Seeded::InCode(&line_bugs::BEYOND_NOT_SET),
        "insert_beyond",
        Alone,
    ),
    bug(
        "A change in a segment that is being rebuilt is lost",
        Seeded::InCode(&line_bugs::FROZEN_IGNORED),
        "leads_to: a frozen cell is taken for what it was",
        Held("race-frozen"),
    ),
    bug(
        "An iteration reads a segment that was freed and used again",
        Seeded::InCode(&line_bugs::CELL_UNCHECKED),
        "is_valid",
        Held("scan-rebuild"),
    ),
    bug(
        "A lookup reads an old segment whose block has another use",
        Seeded::InCode(&line_bugs::FREED_BEFORE_SWITCH),
        "rebuild: freed before readers are led away",
        Held("rebuild"),
    ),
    bug(
        "First touch leaves the stash in the caches of the process that died",
        Seeded::InCode(&line_bugs::FOUND_STASH_UNFLUSHED),
        "persist_found",
        Alone,
    ),
    bug(
        "A removal makes lookups miss records of its block in nodes",
        Seeded::InCode(&line_bugs::BEYOND_CLEARED),
        "hint_of_block: the flags",
        Alone,
    ),
    bug(
        "A removal makes lookups miss records of its block in the stash",
        Seeded::InCode(&line_bugs::REHINT_BLOCK_ONLY),
        "hint_of_block: the stash",
        Alone,
    ),
    bug(
        "A rebuild loses the records beyond the first node",
        Seeded::InCode(&line_bugs::NODES_NOT_CARRIED),
        "rebuild",
        Alone,
    ),
    bug(
        "A lookup reads a segment that was freed and used again",
        Seeded::InCode(&line_bugs::CELL_UNCHECKED),
        "is_valid",
        Held("late-rebuild"),
    ),
    bug(
        "A rebuild does not mark, for the reclaim, the segments that it frees: they are freed twice",
        Seeded::InCode(&line_bugs::OLD_UNMARKED),
        "rebuild",
        Held("reclaim"),
    ),
];

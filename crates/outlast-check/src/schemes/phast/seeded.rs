//! The seeded bugs of PhaST. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, EachStep, Held, Schedules, Stopped};
use crate::parts::bugs::{Line, bug, bytes, cannot, inline};
use crate::parts::published::*;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::phast::bugs as phast_bugs;
use outlast::internals::index::phast::points;
use outlast::internals::pmem::Seeded;

const NO_DIRECTORY: &str = "each opening rebuilds the inner part; no directory is written";

/// Its lines.
pub(super) const LINES: &[Line] = &[
    bug(TOKEN_FIRST, Seeded::NoFence(&points::INSERT_PAIR), "seam: the pair's fence", Alone),
    bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Seeded::WrongLine(&points::SPLIT_COMMIT), "seam: a leaf's link", Alone),
    bug(UNFENCED_NODE, Seeded::NoFence(&points::SPLIT_NEW), "seam: split", Alone),
    cannot(TWO_STORES, "one word says which pairs exist, and their number follows from it"),
    bug(TORN, Seeded::TornStore(&points::SPLIT_COMMIT), "seam: a link in two halves", Alone),
    bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
    cannot(CLEAR_THEN_SET, "a value or a link is replaced by one store, with no bit cleared"),
    bug(
        SET_THEN_CLEAR,
        Seeded::InCode(&index_bugs::SPLIT_UNNAMED),
        "split_at: the link is not marked",
        Alone,
    ),
    cannot(TWICE_AFTER_MOVE, "a record has one leaf; its place does not depend on other records"),
    bug(HALF_RESIZE_REDONE, Seeded::InCode(&index_bugs::HALF_SPLIT_SERVED), "mend", Alone),
    bug(
        REMOVED_STAYS,
        Seeded::NoFlush(&points::REPAIR_CLEAR),
        "seam: bits that recovery clears",
        Alone,
    ),
    cannot(SEPARATE_WORDS, "growth is one word, the link to a new leaf"),
    bug(DEPTH_FIRST, Seeded::NoFence(&points::SPLIT_COMMIT), "seam: bits before the link", Alone),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::SPLIT_NEW), "seam: new leaf", Alone),
    cannot(RANGE_OFF_BY_ONE, NO_DIRECTORY),
    cannot(RESIZE_BEFORE_DURABLE, NO_DIRECTORY),
    cannot(ONE_HASH, "hashes are only fingerprints; keys of one hash have different places"),
    cannot(RESIZED_MEANWHILE, NO_DIRECTORY),
    bug(SERVED_UNREPAIRED, Seeded::NoFlush(&points::REPAIR_FOUND), "seam: opening", Alone),
    cannot(UNDURABLE_SIBLING, "a new leaf is entered in its node after its link is durable"),
    bug(READ_UNDURABLE, Seeded::InCode(&index_bugs::CHANGING_IGNORED), "help", Stopped),
    bug(
        EXISTS_UNDURABLE,
        Seeded::NoFence(&points::HELP),
        "seam: an insert that finds its key",
        Stopped,
    ),
    cannot(LOCKS_IN_PM, "locks are in DRAM, in memory of their own"),
    cannot(ERASE_DEADLOCKS, "a removal takes one lock, and waits for no other while it holds it"),
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "probe", Alone),
    bug(
        NOT_LINEARIZABLE,
        Seeded::InCode(&index_bugs::INSERT_UNCHECKED),
        "fill: as in the paper, two inserts of one key succeed",
        EachStep("race-leaf"),
    ),
    bug(
        INSERTS_NEVER_END,
        Seeded::InCode(&index_bugs::LOCK_NOT_RELEASED),
        "change: the leaf stays busy",
        Alone,
    ),
    cannot(REOPEN_HANGS, "opening follows links of ascending keys only, so it ends"),
    // What the paper leaves out.
    bug(
        "A merge is committed before its copies have bits",
        Seeded::InCode(&phast_bugs::MERGE_COMMITTED_FIRST),
        "merge: the link, then the bits",
        Alone,
    ),
    bug(
        "A merge's copies have bits while the link does not say so",
        Seeded::NoFlush(&points::MERGE_COPY),
        "seam: merge",
        Alone,
    ),
    bug(
        "A lookup uses a leaf that was split since it was found",
        Seeded::InCode(&phast_bugs::LEAF_NOT_RECHECKED),
        "is_still",
        EachStep("growth"),
    ),
    bug(
        "A scan is in a leaf that is merged away and freed",
        Seeded::InCode(&phast_bugs::LEAF_NOT_RECHECKED),
        "is_still",
        EachStep("merge"),
    ),
    bug(
        "An entry of the master array outlives its leaf",
        Seeded::InCode(&phast_bugs::ENTRY_KEPT),
        "merge: the partition is not joined with the one before it",
        Alone,
    ),
    bug(
        "Opening after a crash flushes too few lines of a leaf",
        Seeded::InCode(&phast_bugs::FOUND_LINES_SHORT),
        "flush_found: the first line of pairs",
        Alone,
    ),
    inline(
        "After a power loss, opening keeps the bit of a pair that was lost",
        Seeded::InCode(&phast_bugs::UNWRITTEN_SERVED),
        "mend: no bit is cleared",
        Alone,
    ),
    inline(
        "An insert in a blank slot does not flush its pair",
        Seeded::NoFlush(&points::INSERT_PAIR),
        "seam: the pair's line",
        Alone,
    ),
    inline(
        "Compacting a leaf leaves removed pairs in the slots that it frees",
        Seeded::InCode(&phast_bugs::COMPACTED_UNBLANKED),
        "tidy: as in maps without blank slots",
        Alone,
    ),
    inline(
        "Inserts use compacted slots before the blanks are durable",
        Seeded::NoFlush(&points::COMPACT_BLANK),
        "seam: compacting",
        Alone,
    ),
    inline(
        "A split leaves pairs in the slots that it frees",
        Seeded::InCode(&phast_bugs::SPLIT_UNBLANKED),
        "split_at: as in maps without blank slots",
        Alone,
    ),
    inline(
        "The lower half of a split is opened before its blanks are durable",
        Seeded::NoFlush(&points::SPLIT_BLANK),
        "seam: split",
        Alone,
    ),
    inline(
        "A merge leaves removed pairs in the slots that it frees",
        Seeded::InCode(&phast_bugs::MERGE_UNBLANKED),
        "copy_pairs: as in maps without blank slots",
        Alone,
    ),
    inline(
        "Changes that share a fence are found before it, and a crash undoes them",
        Seeded::InCode(&phast_bugs::ROW_ENDED_EARLY),
        "Row::end: the states before the fence",
        Stopped,
    ),
    inline(
        "Opening takes the free slots of a leaf for blank",
        Seeded::InCode(&phast_bugs::FOUND_TAKEN_FOR_BLANK),
        "read_leaf_header",
        Alone,
    ),
    bytes(
        "The upper half of a split is changed before the lower one's bits are durable",
        Seeded::InCode(&phast_bugs::SPLIT_OPENED_UNFLUSHED),
        "split_at: opened between the store and its flush",
        Held("growth"),
    ),
    bug(
        "A lookup that finds nothing depends on a removal that is not durable",
        Seeded::InCode(&phast_bugs::ABSENCE_UNHELPED),
        "help_reader",
        Held("duel"),
    )
    .slow(),
    // Inline only: with byte strings, each removal increments a counter, so a lookup notices
    // anyway.
    inline(
        "Readers do not notice that a merge reuses slots",
        Seeded::InCode(&phast_bugs::MERGE_UNTOLD),
        "merge: the node's version stays",
        Held("duel-merge"),
    ),
    bytes(
        "A replaced record's block is retired before readers can notice",
        Seeded::InCode(&phast_bugs::RETIRED_UNNOTED),
        "replace_busy",
        Held("duel"),
    )
    .slow(),
    bug(
        "An insert in flight beside a split is taken for a duplicated key",
        Seeded::InCode(&phast_bugs::PAIRS_COUNTED_LATE),
        "check_keys: the bits are read again",
        Schedules("race-brim"),
    ),
];

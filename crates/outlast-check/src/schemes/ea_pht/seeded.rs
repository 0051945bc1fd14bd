//! The seeded bugs of the EA-PHT family. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, Held, Paused, Refused, Stopped};
use crate::parts::bugs::{Line, bug, bytes, cannot};
use crate::parts::bugs::{SIZE_TOLD_EARLY, UNDURABLE_GROWTH};
use crate::parts::published::*;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::ea_pht::bugs as own_bugs;
use outlast::internals::index::ea_pht::points;
use outlast::internals::pmem::Seeded;
use outlast::internals::pool::bugs as pool_bugs;

const DRAM_ONLY: &str = "each opening makes what DRAM holds; no directory is written";

/// A line of the schemes whose changes wait for the end of a resize.
const WAITING: Line = bug(
    RESIZE_BEFORE_DURABLE,
    Seeded::InCode(&own_bugs::RESIZED_BEFORE_DURABLE),
    "finish: used before the root is durable",
    Held("resize"),
);

/// The lines of all three schemes, and what a scheme adds.
macro_rules! lines {
    ($($own:expr),* $(,)?) => { &[
        bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
        bug(WRONG_CHAIN, Seeded::WrongLine(&points::NODE_NEW), "seam: new overflow bucket", Alone),
        bug(UNFENCED_NODE, Seeded::NoFence(&points::NODE_NEW), "seam: overflow bucket", Alone),
        cannot(TWO_STORES, "no slot keeps words of a record that is gone"),
        bug(TORN, Seeded::TornStore(&points::RESIZE_COMMIT), "seam: a root in two halves", Alone),
        bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
        cannot(SET_THEN_CLEAR, "no record moves within a table, and a move clears nothing"),
        cannot(TWICE_AFTER_MOVE, "a record is in one chain, and of two tables one counts"),
        cannot(HALF_RESIZE_REDONE, "a resize that is redone writes all copies again"),
        bug(REMOVED_STAYS, Seeded::NoFlush(&points::REMOVE), "seam: removal", Alone),
        cannot(SEPARATE_WORDS, "a table's offset and size are one word"),
        bug(DEPTH_FIRST, Seeded::NoFlush(&points::RESIZE_COMMIT), "seam: the root", Alone),
        bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::RESIZE_NEW), "seam: new table", Alone),
        cannot(RANGE_OFF_BY_ONE, DRAM_ONLY),
        bug(ONE_HASH, Seeded::InCode(&index_bugs::DOUBLED_WITHOUT_END), "is_due", Alone),
        bug(RESIZED_MEANWHILE, Seeded::InCode(&own_bugs::MOVED_UNNOTICED), "attempt", Paused),
        bug(SERVED_UNREPAIRED, Seeded::NoFlush(&points::OPENING), "seam: opening", Alone),
        bug(UNDURABLE_SIBLING, Seeded::NoFence(&points::NODE_COMMIT), "seam: link", Stopped),
        bug(
            EXISTS_UNDURABLE,
            Seeded::InCode(&index_bugs::SHOWN_BEFORE_DURABLE),
            "insert: shown before its fence",
            Stopped,
        ),
        bug(LOCKS_IN_PM, Seeded::InCode(&index_bugs::LOCKS_KEPT), "make_ready", Alone),
        cannot(MICRO_LOG, "there is no log to leave out; one word commits a resize"),
        cannot(ERASE_DEADLOCKS, "a removal takes one lock, and waits for no other meanwhile"),
        bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "search", Alone),
        cannot(REOPEN_HANGS, "opening follows links to buckets that no other links to, so it ends"),
        // Mistakes of the thesis, and some that are easy to make.
        bug(
            "EA-PHT: the allocator's counter is not flushed",
            Seeded::NoFlush(&points::COUNTER),
            "seam: counter",
            Alone,
        ),
        bug(
            "EA-PHT: a next offset is stored before the new pair is durable",
            Seeded::NoFlush(&points::NODE_NEW),
            "seam: overflow bucket",
            Alone,
        ),
        bug(
            "EA-PHT: recovery hands out buckets that are linked",
            Seeded::InCode(&own_bugs::LINKED_SPARED),
            "recover_table",
            Alone,
        ),
        bug(
            "EA-PHT: that a bucket has no owner is not durable when it is handed out",
            Seeded::NoFlush(&points::DISOWN),
            "seam: no owner",
            Alone,
        ),
        bug(
            "EA-PHT: a bucket has an owner before the link to it is durable",
            Seeded::InCode(&own_bugs::OWNED_EARLY),
            "insert_overflow",
            Alone,
        ),
        bug(
            "EA-PHT: two inserts of one key both succeed",
            Seeded::InCode(&index_bugs::INSERT_UNCHECKED),
            "attempt",
            Alone,
        ),
        // A bug of the pool: inserts take space only for the blocks of byte strings.
        bytes(
            SIZE_TOLD_EARLY,
            Seeded::InCode(&pool_bugs::SIZE_TOLD_EARLY),
            "Core::grow",
            Held("pool-growth"),
        ),
        bug(
            "A resize that was refused space stays under way for ever",
            Seeded::InCode(&own_bugs::RESIZING_KEPT),
            "resize: the mark of the thread that resizes stays",
            Refused,
        ),
        bug(
            "A resize that was refused space leaves the overflow buckets closed",
            Seeded::InCode(&own_bugs::CLOSED_KEPT),
            "resize: the allocator is not opened again",
            Refused,
        ),
        bug(
            "A resize that was refused space is never tried again",
            Seeded::InCode(&own_bugs::RETRIED_NEVER),
            "resize: the number of buckets at which it is tried again",
            Refused,
        ),
        cannot(UNDURABLE_GROWTH, "runs of other schemes show it; here no two threads grow the pool"),
        $($own),*
    ] };
}

/// Another seeded bug, which shows only in records that are read through a link.
const RETIRED_LATE: Line = bytes(
    "EA-PHT: the new table is current before the old one is retired",
    Seeded::InCode(&own_bugs::RETIRED_LATE),
    "finish",
    Held("late"),
)
.slow();

/// The lines of EA-PHT. The last bug shows only in this scheme, whose opening resets locks first,
/// after the dirty mark. In the others the owner would be the first word that opening stores, so
/// the fence of the dirty mark would make the link durable before it.
pub(super) const PLAIN: &[Line] = lines!(
    WAITING,
    RETIRED_LATE,
    bug(
        "EA-PHT: opening gives a bucket an owner before the link to it is durable",
        Seeded::InCode(&own_bugs::REOWNED_EARLY),
        "make_ready",
        Alone,
    ),
);
/// The lines of EA-PHT-H.
pub(super) const HYBRID: &[Line] = lines!(WAITING, RETIRED_LATE);
/// The lines of EA-PHT-HPR.
pub(super) const PARALLEL: &[Line] = lines!(
    cannot(RESIZE_BEFORE_DURABLE, "the mark of a moved bucket is durable before others see it"),
    bug(
        "EA-PHT-HPR: old tables are reused before the root is durable",
        Seeded::NoFence(&points::RESIZE_COMMIT),
        "seam: root",
        Held("finish"),
    ),
    bug(
        "EA-PHT-HPR: a section is resized twice",
        Seeded::InCode(&own_bugs::MOVED_TWICE),
        "move_bucket",
        Alone,
    ),
    bug(
        "EA-PHT-HPR: after a crash, a copy that no chain links to keeps its owner",
        Seeded::InCode(&own_bugs::OWNER_KEPT),
        "check_spare",
        Alone,
    ),
    bug(
        "EA-PHT-HPR: the mark of a moved bucket is not durable",
        Seeded::NoFlush(&points::MOVE_COMMIT),
        "seam: bucket moved",
        Alone,
    ),
    bug(
        "EA-PHT-HPR: a change that slept moves a bucket of a table that was reused",
        Seeded::InCode(&own_bugs::MOVED_LATE),
        "make_room",
        Held("late"),
    ),
    bug(
        "EA-PHT-HPR: a late mover asks the next table for buckets for ever",
        Seeded::InCode(&own_bugs::CLOSED_ASKED_AGAIN),
        "move_bucket",
        Held("late"),
    ),
    bug(
        "EA-PHT-HPR: a bucket is given back before its counter is durable",
        Seeded::InCode(&own_bugs::GIVEN_BACK_UNCOUNTED),
        "Reserved::drop",
        Held("late"),
    )
    .slow(),
);

//! The seeded bugs of clevel. Bugs that many schemes share are in `seeded/shared.rs`.

use crate::parts::bugs::Checker::{Alone, EachStep, Forever, Held, Met, Stopped};
use crate::parts::bugs::{Line, bug, cannot};
use crate::parts::published::*;
use outlast::internals::db::bugs as db_bugs;
use outlast::internals::index::bugs as index_bugs;
use outlast::internals::index::clevel::bugs as clevel_bugs;
use outlast::internals::index::clevel::points;
use outlast::internals::pmem::Seeded;

/// Its lines.
pub(super) const LINES: &[Line] = &[
    // Order and durability of a single operation.
    bug(TOKEN_FIRST, Seeded::NoFlush(&points::RECORD), "seam: record block", Alone),
    bug(WRONG_EDGE, Seeded::WrongLine(&points::REMOVE), "seam: removal", Alone),
    bug(WRONG_CHAIN, Seeded::WrongLine(&points::NODE), "seam: new overflow node", Alone),
    bug(UNFENCED_NODE, Seeded::NoFence(&points::CONTEXT), "seam: new context", Alone),
    cannot(TWO_STORES, "slot, state and root are a word each; nothing else is changed in place"),
    bug(TORN, Seeded::TornStore(&points::UPDATE), "seam: a record's state in two halves", Alone),
    bug(INDEX_UNFLUSHED, Seeded::NoFlush(&points::CREATE), "seam: map creation", Alone),
    // Two-step changes.
    bug(
        SET_THEN_CLEAR,
        Seeded::InCode(&clevel_bugs::REHASH_REMOVES_FIRST),
        "drain_slot: the other order, which loses it",
        Alone,
    ),
    bug(TWICE_AFTER_MOVE, Seeded::InCode(&clevel_bugs::SCANNED_TWICE), "scan_next", Alone),
    cannot(
        HALF_RESIZE_REDONE,
        "rehashing can be repeated at any time: a second copy leads to the same record",
    ),
    bug(
        REMOVED_STAYS,
        Seeded::InCode(&clevel_bugs::ONE_SLOT_UNLINKED),
        "relink: of two slots after a crash in rehashing, one stays",
        Alone,
    ),
    // Resize.
    bug(
        SEPARATE_WORDS,
        Seeded::TornStore(&points::CONTEXT_COMMIT),
        "seam: the context's word in two halves",
        Alone,
    ),
    bug(DEPTH_FIRST, Seeded::NoFlush(&points::LEVEL), "seam: new level", Alone),
    bug(NEW_TABLE_UNFLUSHED, Seeded::NoFlush(&points::CONTEXT), "seam: new context", Alone),
    bug(
        RANGE_OFF_BY_ONE,
        Seeded::InCode(&clevel_bugs::PARTS_ONE_SHORT),
        "drain_part: the last bucket of a level is left out",
        Alone,
    ),
    bug(RESIZE_BEFORE_DURABLE, Seeded::NoFlush(&points::MET_ROOT), "seam: root met", Met),
    bug(ONE_HASH, Seeded::InCode(&index_bugs::DOUBLED_WITHOUT_END), "make_room", Alone),
    cannot(
        RESIZED_MEANWHILE,
        "an expansion is one exchange of the context's word, which fails if it is not the one \
         that was read",
    ),
    bug(SERVED_UNREPAIRED, Seeded::InCode(&clevel_bugs::ANNOUNCED_KEPT), "touch_bucket", Alone),
    bug(UNDURABLE_SIBLING, Seeded::NoFlush(&points::MET_LINK), "seam: link met", Met),
    // Reads and decisions that depend on what is not yet durable.
    bug(READ_UNDURABLE, Seeded::NoFlush(&points::MET_SLOT), "seam: slot met", Stopped),
    bug(EXISTS_UNDURABLE, Seeded::NoFence(&points::MET_SLOT), "seam: slot met", Met),
    // Locks, leaks, reclamation.
    cannot(LOCKS_IN_PM, "there are no locks; announcements that survive are among the bugs above"),
    cannot(
        MICRO_LOG,
        "there is no log to leave out; one word adds or drops a level, which the mutants and the \
         torn store above test",
    ),
    cannot(
        ERASE_DEADLOCKS,
        "no operation waits; the harness stops threads at each step to show it",
    ),
    // Tests that could not see the bug.
    bug(WRONG_COMPARISON, Seeded::InCode(&index_bugs::FINGERPRINT_DECIDES), "meet", Alone),
    bug(
        NOT_LINEARIZABLE,
        Seeded::InCode(&index_bugs::INSERT_UNCHECKED),
        "decide: as in the paper, two inserts of one key succeed",
        EachStep("race"),
    ),
    // Seen on this kind of machine.
    bug(INSERTS_NEVER_END, Seeded::InCode(&clevel_bugs::RIVAL_AWAITED), "decide", Forever),
    bug(REOPEN_HANGS, Seeded::NoFlush(&points::CONTEXT_COMMIT), "seam: root", Alone),
    bug(REHASH_NOT_RESUMED, Seeded::InCode(&clevel_bugs::REHASH_NOT_RESUMED), "rehash", Alone),
    // Mistakes in the paper as printed, and in the ways around them.
    bug(
        "clevel: an update beside rehashing is lost, or comes back (4.2, 4.4)",
        Seeded::InCode(&clevel_bugs::UPDATED_IN_ONE_SLOT),
        "replace: as in the paper, the slot is changed and not the record",
        EachStep("duel-rehash"),
    ),
    bug(
        "clevel: a key that is moved while it is looked for is missed (3.2.1)",
        Seeded::InCode(&clevel_bugs::CONTEXT_NOT_RECHECKED),
        "search, find_at_once: the levels that were added meanwhile are left out",
        EachStep("moved-rehash"),
    ),
    bug(
        "A level is dropped under a thread that is still emptying it",
        Seeded::InCode(&clevel_bugs::LEVEL_DROPPED_EARLY),
        "rehash: work that was begun counts as done",
        EachStep("duel-rehash"),
    ),
    bug(
        "The blocks of a dropped map are traced from another map's root in its slot",
        Seeded::InCode(&db_bugs::SLOT_FREED_EARLY),
        "Store::free_dropped: the slot is free before the blocks are known",
        EachStep("maps-freed"),
    ),
    bug(
        "A record is removed from its old level before its copy is durable",
        Seeded::NoFence(&points::CONFIRM),
        "seam: copy confirmed",
        Alone,
    ),
    bug(
        "Rehashing freezes an insert that is announced but not decided",
        Seeded::InCode(&clevel_bugs::UNDECIDED_FROZEN),
        "drain_slot",
        Held("shrink"),
    )
    .slow(),
    bug(
        "Reclamation ends a phase too early",
        Seeded::InCode(&db_bugs::GRACE_SKIPPED),
        "Store::advance: the sweep without the grace period",
        Held("reclaim-update"),
    ),
    bug(
        "A copy is confirmed after its record was replaced or removed",
        Seeded::InCode(&clevel_bugs::COPY_UNCHECKED),
        "copy: the state is not looked at again",
        Held("rehash"),
    )
    .slow(),
    bug(
        "A search ends when all levels that it knew are gone",
        Seeded::InCode(&clevel_bugs::SEARCH_ENDS_WITH_LEVELS),
        "search",
        Held("shrink"),
    )
    .slow(),
    bug(
        "A record leaves its old level while the copy that another thread made is not durable",
        Seeded::InCode(&clevel_bugs::OTHER_COPY_UNFLUSHED),
        "copy",
        Held("rehash"),
    )
    .slow(),
    bug(
        "An emptied slot comes back and leads to a block that is reused for something else",
        Seeded::NoFlush(&points::REMOVE_SLOT),
        "seam: removal",
        Alone,
    ),
];

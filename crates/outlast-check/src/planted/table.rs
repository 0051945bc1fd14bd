//! The table of planted bugs: each line of the list of published bugs, and what stands for
//! it here.

use outlast::index::dash_eh::points as dash;
use outlast::pmem::Planted;
use outlast::pool::points as pool;

/// Which checker must find a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checker {
    /// Runs of one thread: their answers, what is durable at each, crash images, and second
    /// lives.
    Alone,
    /// One thread stopped for ever, another one builds on what it left.
    Stopped,
    /// One thread stopped for a while, another one works meanwhile.
    Paused,
    /// One thread paused before each of its steps in turn, another one works on what it moves,
    /// with crashes.
    EachStep,
    /// A reference that is held while its record is replaced.
    Guard,
}

impl Checker {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Checker::Alone => "one thread",
            Checker::Stopped => "a thread stopped",
            Checker::Paused => "a thread paused",
            Checker::EachStep => "paused at each step",
            Checker::Guard => "a guard held",
        }
    }
}

/// What stands for a line of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// A bug, patched into the shipped operations.
    Bug {
        /// The switch.
        bug: Planted,
        /// Where it is made.
        place: &'static str,
        /// Who must find it.
        checker: Checker,
        /// Whether it can only be made where records are byte strings in blocks.
        bytes_only: bool,
    },
    /// It cannot apply: why.
    Cannot(&'static str),
}

/// A line of the list of published bugs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// What went wrong, and where.
    pub published: &'static str,
    /// What stands for it.
    pub stand: Stand,
}

const fn bug(published: &'static str, bug: Planted, place: &'static str, checker: Checker) -> Line {
    Line { published, stand: Stand::Bug { bug, place, checker, bytes_only: false } }
}

const fn bytes(
    published: &'static str,
    bug: Planted,
    place: &'static str,
    checker: Checker,
) -> Line {
    Line { published, stand: Stand::Bug { bug, place, checker, bytes_only: true } }
}

const fn cannot(published: &'static str, why: &'static str) -> Line {
    Line { published, stand: Stand::Cannot(why) }
}

use Checker::{Alone, EachStep, Guard, Paused, Stopped};

/// Every line.
pub const ALL: &[Line] = &[
    // Order and durability of a single operation.
    bug(
        "Level hashing: slot token set before the pair is durable (W7-16)",
        Planted::CommitBeforeValue,
        "fill_unfenced",
        Alone,
    ),
    bug(
        "FAST&FAIR: delete's shift flushes the wrong edge of a line (W3)",
        Planted::WrongLine(&dash::REMOVE),
        "seam: removal",
        Alone,
    ),
    bug(
        "P-CLHT: flush walks the wrong chain pointer (W30)",
        Planted::WrongLine(&dash::NODE_NEW),
        "seam: new overflow node",
        Alone,
    ),
    bug(
        "P-HOT: no fence between flushing a node and publishing its pointer (W36-37)",
        Planted::NoFence(&dash::SPLIT_NEW),
        "seam: split",
        Alone,
    ),
    bug(
        "P-ART, WOART: child and count are two stores, not atomic (W2, W26-27)",
        Planted::SlotNotEmptied,
        "fill_unfenced: the new second word beside the old first",
        Alone,
    ),
    bug(
        "Torn fields: multi-byte stores the compiler may split (Yashme; RECIPE PR 20)",
        Planted::TornStore(&dash::SPLIT_COMMIT),
        "seam: split's commit in two halves",
        Alone,
    ),
    bug(
        "Constructors and pool creation never flushed (J; Witcher issue 1)",
        Planted::NoFlush(&pool::CREATE),
        "seam: pool creation",
        Alone,
    ),
    bug(
        "Constructors of an index never flushed (J)",
        Planted::NoFlush(&dash::CREATE),
        "seam: map creation",
        Alone,
    ),
    bug(
        "Pool creation not atomic (Witcher issue 1)",
        Planted::HeaderFirst,
        "Core::create: header before what it promises",
        Alone,
    ),
    bug(
        "Root creation not atomic (Witcher issue 1)",
        Planted::RootCommittedFirst,
        "roots::commit: commit word first",
        Alone,
    ),
    // Two-step changes.
    bug(
        "Level hashing: update as clear-old then set-new loses the key (W22-23)",
        Planted::UpdateEmptiesFirst,
        "change_present",
        Alone,
    ),
    bug(
        "Level hashing: movement as set-new then clear-old leaves the key twice (W19-21)",
        Planted::DisplaceRemovesFirst,
        "copy_record: the other order, which loses it",
        Alone,
    ),
    bug(
        "Dash: a key in home and neighbour bucket after a crash in displacement",
        Planted::SecondCopyKept,
        "has_copy: recovery keeps both",
        Alone,
    ),
    bug(
        "Dash: redoing half a split needs a uniqueness check",
        Planted::SplitRedoneBlindly,
        "complete_split: entries that a later split has set",
        Alone,
    ),
    bug(
        "FAST&FAIR: delete after a crashed insert answers success and the key stays (W4)",
        Planted::NoFlush(&dash::REPAIR_DUPLICATE),
        "seam: the second copy's removal is not durable",
        Alone,
    ),
    // Resize.
    bug(
        "Level hashing: capacity, level count and pointers as separate stores (W17-18)",
        Planted::TornStore(&dash::DOUBLE_COMMIT),
        "seam: directory and depth in two stores",
        Alone,
    ),
    bug(
        "CCEH: local depth durable before the directory doubled; pattern changed before the \
         new segment is reachable (W24)",
        Planted::SplitUnnamed,
        "split_locked: depth without the partner",
        Alone,
    ),
    bug(
        "CCEH: the new directory never flushed (W24, J)",
        Planted::NoFlush(&dash::DOUBLE_NEW),
        "seam: doubling",
        Alone,
    ),
    bug(
        "CCEH: range-update order and an off-by-one in depth",
        Planted::EntriesOneShort,
        "split_locked: the last entry is left out",
        Alone,
    ),
    bug(
        "CCEH: doubling visible before durable, so another thread's insert is lost (SEPH \
         issue 2)",
        Planted::DoubledBeforeDurable,
        "double: published before the root is durable",
        Stopped,
    ),
    bug(
        "CCEH: 65 keys with one hash split without end and crash (CCEH issue 11)",
        Planted::DoubledWithoutEnd,
        "may_double",
        Alone,
    ),
    bug(
        "Dash: a split updates a directory that was doubled meanwhile",
        Planted::SplitNotRechecked,
        "split: no second look under the locks",
        Paused,
    ),
    bug(
        "Dash: a segment served before its partner's directory entries are repaired",
        Planted::HalfSplitServed,
        "first_touch",
        Alone,
    ),
    bug(
        "FAST&FAIR: insert through a sibling pointer that is not yet durable (W5-6, R)",
        Planted::NoFence(&dash::NODE_COMMIT),
        "seam: link of an overflow node",
        Stopped,
    ),
    bug(
        "P-CLHT: insert through a new root that is not yet durable (R)",
        Planted::RootReadEarly,
        "Store::settled",
        Stopped,
    ),
    bug(
        "P-CLHT: old or new table leaked around the swap (R)",
        Planted::NeverFreed,
        "Core::retire",
        Alone,
    ),
    // Reads and decisions on what is not yet durable.
    bug(
        "CCEH, P-CLHT, APEX: a get returns a value that the crash takes back (SEPH issue 3, \
         RECIPE issue 13, APEX issue 7, D)",
        Planted::ChangingIgnored,
        "find_from: lookups do not wait",
        Stopped,
    ),
    bug(
        "Level hashing: the duplicate check sees a token that is not durable (SEPH issue 1)",
        Planted::ShownBeforeDurable,
        "insert_absent: published before its fence",
        Stopped,
    ),
    bug(
        "CCEH: allocation decided on an unpersisted capacity (R)",
        Planted::SizeNotTold,
        "Core::grow",
        Alone,
    ),
    // Locks, leaks, reclamation.
    bug(
        "CCEH, P-CLHT: locks kept in PM survive the crash held (R)",
        Planted::LocksKept,
        "repair_bucket",
        Alone,
    ),
    cannot(
        "FPTree ports without the micro-log leak or corrupt on split",
        "there is no log to leave out; a split is committed by one word, which the canaries \
         and the torn store above are for",
    ),
    bug(
        "P-CLHT: garbage collection frees twice (RECIPE issue 24)",
        Planted::FreedTwice,
        "Core::retire",
        Alone,
    ),
    bug("cmap: erase deadlocks", Planted::LockedTwice, "remove_at", Alone),
    cannot(
        "cmap: value size not checked on reopen",
        "records carry their lengths and the root its schemas, which opening compares: the \
         library's own tests open a map with other ones",
    ),
    bytes(
        "CCEH, clevel's comparison: a search reads what another thread has freed",
        Planted::FreedUnderReaders,
        "Core::retire: no grace period",
        Guard,
    ),
    // Tests that could not see the bug.
    bug(
        "FAST&FAIR issue 10: a search that compared the wrong thing was never noticed",
        Planted::FingerprintDecides,
        "probe",
        Alone,
    ),
    cannot(
        "Few interleavings: a reader inside the window is rare under real threads",
        "of tests, not of a structure; here, threads are stopped at every access",
    ),
    cannot(
        "Level hashing as published is not linearizable without a crash either",
        "of another structure; the histories are for it",
    ),
    // Seen on this kind of machine.
    bug(
        "Dash-LH, CCEH: inserts by two threads never end",
        Planted::LockNotReleased,
        "Locked::drop",
        Alone,
    ),
    bug(
        "IcebergHT: reopen after a kill hangs",
        Planted::NoFlush(&dash::SPLIT_DIRECTORY),
        "seam: split's entries",
        Alone,
    ),
    bug(
        "Viper: removals answer success and removed keys are still found",
        Planted::RemovesNothing,
        "remove_at",
        Alone,
    ),
    cannot(
        "FAST&FAIR, P-CLHT: a fault on reopen, from a DRAM pointer kept in PM",
        "the seam has no way to store one: words are addressed by offset, and every offset \
         read is checked. Each image is opened at another address",
    ),
    cannot(
        "FAST&FAIR: equal values in neighbouring pairs make a removal answer \"not found\"",
        "records are told by their keys; values are never compared but by compare-and-swap. \
         A removal that goes by the fingerprint is among the above",
    ),
    bug(
        "clevel: nothing restarts the rehashing thread on reopen",
        Planted::NotReclaimed,
        "Store::with_alive: the reclaim is not resumed",
        Alone,
    ),
    bug(
        "Saved free state trusted though the pool was modified since",
        Planted::NotMarkedDirty,
        "Core::mark_dirty",
        Alone,
    ),
    bug(
        "A block reused while it is still linked after a crash",
        Planted::SweptUntraced,
        "Store::advance: the sweep before the trace",
        Alone,
    ),
    bug(
        "A removal that a crash takes back: the old copy of a displaced record is left",
        Planted::MovedUnlockedEarly,
        "displace: the copy's lock is given back first",
        EachStep,
    ),
    bug(
        "A lookup misses a record of a row of displaced ones, or reads half another",
        Planted::RowHomeUnmarked,
        "move_away: only the first copy's home is marked",
        EachStep,
    ),
    cannot("Stalls of a single insert", "no bug of a structure; the benchmark measures them"),
    cannot(
        "PMDK's fork refuses clwb on other makers' processors, silently",
        "the flush in use is part of what the pool reports as its durability",
    ),
];

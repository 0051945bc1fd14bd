//! The seam: the one way to read, write, flush and order persistent memory.
//!
//! [`Seam`] is a type parameter of the pool and of every index. The public maps fix it
//! to [`Real`](super::Real), which compiles to the bare instructions;
//! [`Traced`](super::Traced) records every access for the proof harness. Nothing else
//! in the library touches mapped memory.

use super::{OfShared, Word};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// A commit point: the identity of the stores, flush and fence of one step of one
/// operation, and which of them the operation performs under it.
///
/// It is named by the operation that needs it and handed down to the helper that
/// performs it, so that the proof harness can drop, delay or shorten exactly this one.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// Who declares it: `pool`, `dash-eh`, ...
    pub owner: &'static str,
    /// Its row in the owner's table of commit points.
    pub name: &'static str,
    /// Stores are made under it.
    pub store: bool,
    /// Lines are flushed under it.
    pub flush: bool,
    /// A fence is made under it.
    pub fence: bool,
    /// What is stored under it is never meant to be durable: DRAM state that lies in PM,
    /// or a mark that only saves a later open some work.
    pub volatile: bool,
}

impl Point {
    /// A point that does nothing yet.
    pub const fn new(owner: &'static str, name: &'static str) -> Point {
        Point { owner, name, store: false, flush: false, fence: false, volatile: false }
    }

    /// The point that also stores.
    #[must_use]
    pub const fn store(self) -> Point {
        Point { store: true, ..self }
    }

    /// The point that also flushes.
    #[must_use]
    pub const fn flush(self) -> Point {
        Point { flush: true, ..self }
    }

    /// The point that also fences.
    #[must_use]
    pub const fn fence(self) -> Point {
        Point { fence: true, ..self }
    }

    /// The point that stores what is never meant to be durable.
    #[must_use]
    pub const fn volatile(self) -> Point {
        Point { store: true, volatile: true, ..self }
    }
}

/// Declares the commit points of one owner as a module-level table: the name of each row
/// and, after a colon, what the operation does under it, out of `store`, `flush`, `fence`;
/// or `volatile`, for stores that are never flushed.
#[macro_export]
#[doc(hidden)]
macro_rules! commit_points {
    ($owner:literal: $($(#[$doc:meta])* $id:ident = $name:literal: $($does:ident),+;)*) => {
        $($(#[$doc])* pub static $id: $crate::pmem::Point =
            $crate::pmem::Point::new($owner, $name)$(.$does())+;)*
        /// Every commit point declared here, in the order of the table.
        pub static ALL: &[&$crate::pmem::Point] = &[$(&$id),*];
    };
}

/// A bug that the proof harness has a recorder make, to show that it would be found. Those
/// at a commit point are made by the recorder itself, the others where they are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Nothing is flushed under this point.
    NoFlush(&'static Point),
    /// No fence is made under this point.
    NoFence(&'static Point),
    /// Flushes under this point take the line after the one that was stored to.
    WrongLine(&'static Point),
    /// Words are stored in two halves under this point.
    TornStore(&'static Point),
    /// A slot's commit word is stored before the other one.
    CommitBeforeValue,
    /// A slot is filled without being emptied first.
    SlotNotEmptied,
    /// An update empties the slot first, durably.
    UpdateEmptiesFirst,
    /// A displacement removes the record before it copies it.
    DisplaceRemovesFirst,
    /// A displacement unlocks the bucket with the copy before the old slot is filled.
    MovedUnlockedEarly,
    /// Of a row of displaced records, only the home of the first copied is marked as changing.
    RowHomeUnmarked,
    /// Recovery keeps the second copy of a record.
    SecondCopyKept,
    /// Recovery keeps locks as it finds them.
    LocksKept,
    /// A record is shown to readers before it is durable.
    ShownBeforeDurable,
    /// Lookups do not wait while a home is being changed.
    ChangingIgnored,
    /// A split takes its segment for unchanged, whatever happened before it had its locks.
    SplitNotRechecked,
    /// A split's commit does not name the new segment.
    SplitUnnamed,
    /// A split leaves out the last of its directory entries.
    EntriesOneShort,
    /// Recovery serves half a split as it is.
    HalfSplitServed,
    /// Recovery completes a split over entries that a later one has set.
    SplitRedoneBlindly,
    /// A doubled directory is used before the root that names it is durable.
    DoubledBeforeDurable,
    /// Directories are doubled for keys that no split separates.
    DoubledWithoutEnd,
    /// A removal from overflow answers and removes nothing.
    RemovesNothing,
    /// A key is told by its fingerprint.
    FingerprintDecides,
    /// A removal takes its lock twice.
    LockedTwice,
    /// A bucket stays locked after a change.
    LockNotReleased,
    /// Inserts of one key do not look at each other.
    InsertUnchecked,
    /// An insert waits for a stronger one of its key, and does not decide it.
    RivalAwaited,
    /// A search ends with the levels that were there when it began.
    ContextNotRechecked,
    /// Rehashing takes a record away before it has copied it.
    RehashRemovesFirst,
    /// A replacement changes the slot that it finds first, and not the record.
    UpdatedInOneSlot,
    /// A level is dropped once all of it was begun to be emptied.
    LevelDroppedEarly,
    /// Of a level that is emptied, the last part is left out.
    PartsOneShort,
    /// What was begun to be emptied before an opening is not emptied after it.
    RehashNotResumed,
    /// Recovery keeps announcements of inserts as it finds them.
    AnnouncedKept,
    /// Of the slots that lead to a record, only the first is changed.
    OneSlotUnlinked,
    /// An iteration reports a record for each slot that leads to it.
    ScannedTwice,
    /// A merge is committed before its copies have bits.
    MergeCommittedFirst,
    /// What was read of a leaf counts, whatever happened to the leaf meanwhile.
    LeafNotRechecked,
    /// A merge leaves the entry of the master array that names the leaf.
    EntryKept,
    /// The pairs of a full leaf are counted after their keys were read, and not with them.
    PairsCountedLate,
    /// The upper half of a split is changed while the lower one still has its pairs.
    SplitOpenedEarly,
    /// An insert compares its key with what a replaced record's block holds by then.
    InsertReadsFreed,
    /// The slot of a dropped map is free before its blocks are.
    SlotFreedEarly,
    /// A new map's commit word is stored before the words that it vouches for.
    RootCommittedFirst,
    /// Roots are read while they change.
    RootReadEarly,
    /// A new pool's header is written before what it promises.
    HeaderFirst,
    /// A growth is not told to the header.
    SizeNotTold,
    /// A changed pool stays marked clean, with its saved free state.
    NotMarkedDirty,
    /// An unlinked block is freed twice.
    FreedTwice,
    /// An unlinked block is never freed.
    NeverFreed,
    /// An unlinked block is freed under its readers.
    FreedUnderReaders,
    /// Space is swept before it was traced.
    SweptUntraced,
    /// Nothing resumes the reclaim after a crash.
    NotReclaimed,
    /// A list of runs with free blocks is believed, though a run was released since and its
    /// pages are one of another class.
    StaleEntryAccepted,
    /// A retired block is freed an epoch before its last reader can be gone.
    FreedEpochEarly,
    /// Space is claimed in what a pool has grown by before the header tells of it.
    SizeToldEarly,
    /// Space is swept while operations from before the end of the trace are under way.
    GraceSkipped,
    /// An announced insert that is not decided is frozen with its slot.
    UndecidedFrozen,
    /// A search ends where all levels that it knew are gone.
    SearchEndsWithLevels,
    /// A copy that another thread has made is taken for durable.
    OtherCopyUnflushed,
    /// Of what a crash left of a leaf, only the first line of pairs is made durable.
    FoundLinesShort,
    /// The upper half of a split is opened before the lower one's bits are durable.
    SplitOpenedUnflushed,
    /// Readers are not told that a merge uses slots again.
    MergeUntold,
    /// The block of a replaced record is retired before its readers are told.
    RetiredUnnoted,
    /// A split does not mark, for the trace, the overflow records that stay.
    StayingUnmarked,
    /// A copy is confirmed though its record was replaced or removed since it was looked at.
    CopyUnchecked,
    /// The blocks of a map that is dropped are not marked for the trace.
    DroppedUnmarked,
    /// Whether the pool is open is looked at before a read, and not after it.
    OpenCheckedEarly,
    /// A closed pool's file is unlocked before its writers are done.
    FileUnlockedEarly,
    /// The blocks of a dropped map are free though references to them are left.
    DroppedUnretired,
    /// A lookup that finds nothing does not make the removal durable that it rests on.
    AbsenceUnhelped,
}

/// A call of the index interface, as the recorder sees it: its begin and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// An operation begins; the text names it for a person.
    Begin(String),
    /// The calling thread's operation has answered.
    End(String),
    /// The process died and another one took over, or will: flushes that no fence has
    /// completed never do, stores stay in the caches.
    Death,
}

/// How persistent memory is accessed.
///
/// All methods take words by reference: whoever has a `&Word` has already had its
/// offset checked.
pub trait Seam: Clone + Send + Sync + 'static {
    /// Whether one thread may make a fence for all others by a system call, so that theirs
    /// cost nothing. The call interrupts every core.
    const ASYMMETRIC_FENCES: bool = true;

    /// Tells the seam where the memory is. Called once, before any access.
    fn attach(&self, _base: *const u8) {}

    /// Reads a word.
    fn load(&self, word: &Word, order: Ordering) -> u64;

    /// Writes a word.
    fn store(&self, word: &Word, value: u64, order: Ordering, at: &'static Point);

    /// Compares and exchanges a word. Not a fence for durability.
    fn compare_exchange(
        &self,
        word: &Word,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
        at: &'static Point,
    ) -> Result<u64, u64>;

    /// Writes a word past the caches. Durable after the next [`Seam::fence`].
    ///
    /// Must not share a line with an unfenced cached store whose order matters.
    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point);

    /// Starts the write-back of every line that holds one of `words`.
    fn flush(&self, words: &[Word], at: &'static Point);

    /// Waits until this thread's earlier flushes and non-temporal stores are durable.
    fn fence(&self, at: &'static Point);

    /// Asks for the line in which something begins, before it is needed. A hint.
    #[inline(always)]
    fn prefetch<T>(&self, _line: &T) {}

    /// The scheduling point before an access to a [`Shared`](super::Shared), which alone can call
    /// it.
    #[inline(always)]
    fn shared(&self, _by: OfShared) {}

    /// One turn of waiting for another thread, in a loop. `turn` counts the turns.
    fn wait(&self, turn: &mut u32);

    /// Locks a mutex in DRAM; another thread may run while this one waits.
    ///
    /// A poisoned mutex is taken as it is: no code that can panic by the user's doing
    /// runs under one of ours.
    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the allocator hands a freed block out again at once, before any other, and blocks
    /// that wait for their readers are looked at each time; and whether what is freed is
    /// overwritten. So what still leads to it meets other content. For the proof harness; what
    /// ships spreads its reuse.
    #[inline(always)]
    fn reuses_at_once(&self) -> bool {
        false
    }

    /// Whether this planted bug is to be made here. Never in what ships: the answer is known
    /// when it is compiled, and nothing of the bug is left.
    #[inline(always)]
    fn planted(&self, _bug: Planted) -> bool {
        false
    }

    /// Notes an operation boundary. The text is made only where someone records.
    #[inline]
    fn mark(&self, _mark: impl FnOnce() -> Mark) {}
}

//! The seam: the only way to read, write, flush and order persistent memory.
//!
//! [`Seam`] is a type parameter of the pool and of every index. The public maps fix it to
//! [`Real`](super::Real), which compiles to the bare instructions. [`Traced`](super::Traced)
//! records every access for the test harness. Nothing else in the library touches mapped memory.

use super::{OfShared, Word};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// A commit point: identifies the stores, the flush and the fence of one step of one operation, and
/// says which of them that step performs.
///
/// The operation names the point and passes it to the helper that performs the accesses. So the
/// test harness can drop, delay or weaken exactly this step.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// The component that declares it: `pool`, `dash-eh`, ...
    pub owner: &'static str,
    /// Its row in the component's table of commit points.
    pub name: &'static str,
    /// Whether the step stores.
    pub store: bool,
    /// Whether the step flushes lines.
    pub flush: bool,
    /// Whether the step fences.
    pub fence: bool,
    /// Whether the stores are never meant to be durable: DRAM state that lies in PM, or a mark that
    /// only saves a later open some work.
    pub volatile: bool,
}

impl Point {
    /// Declares a point that does nothing yet.
    pub const fn new(owner: &'static str, name: &'static str) -> Point {
        Point { owner, name, store: false, flush: false, fence: false, volatile: false }
    }

    /// Adds stores to the point.
    #[must_use]
    pub const fn store(self) -> Point {
        Point { store: true, ..self }
    }

    /// Adds a flush to the point.
    #[must_use]
    pub const fn flush(self) -> Point {
        Point { flush: true, ..self }
    }

    /// Adds a fence to the point.
    #[must_use]
    pub const fn fence(self) -> Point {
        Point { fence: true, ..self }
    }

    /// Adds stores that are never meant to be durable.
    #[must_use]
    pub const fn volatile(self) -> Point {
        Point { store: true, volatile: true, ..self }
    }
}

/// Declares the commit points of one component as a module-level table. Each row has a name and,
/// after a colon, what the step does: some of `store`, `flush` and `fence`, or `volatile` for
/// stores that are never flushed.
#[macro_export]
#[doc(hidden)]
macro_rules! commit_points {
    ($owner:literal: $($(#[$doc:meta])* $id:ident = $name:literal: $($does:ident),+;)*) => {
        $($(#[$doc])* pub static $id: $crate::pmem::Point =
            $crate::pmem::Point::new($owner, $name)$(.$does())+;)*
        /// Every commit point declared here, in table order.
        pub static ALL: &[&$crate::pmem::Point] = &[$(&$id),*];
    };
}

/// A seeded bug: the test harness puts it into the code on purpose, to show that the tests would
/// find it. The recorder itself implements those that name a commit point; the others are
/// implemented where they are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Flushes at this point are skipped.
    NoFlush(&'static Point),
    /// Fences at this point are skipped.
    NoFence(&'static Point),
    /// Flushes at this point flush the line after the one that was stored to.
    WrongLine(&'static Point),
    /// Words are stored in two halves at this point.
    TornStore(&'static Point),
    /// A slot's commit word is stored before its other word.
    CommitBeforeValue,
    /// A slot is filled without being emptied first.
    SlotNotEmptied,
    /// An update empties the slot first, durably.
    UpdateEmptiesFirst,
    /// A displacement removes the record before it copies it.
    DisplaceRemovesFirst,
    /// A displacement unlocks the bucket with the copy before the old slot is filled.
    MovedUnlockedEarly,
    /// When several records in a row are displaced, only the home of the one copied first is marked
    /// as changing.
    RowHomeUnmarked,
    /// Recovery keeps the second copy of a record.
    SecondCopyKept,
    /// Recovery leaves locks as it finds them.
    LocksKept,
    /// An insert becomes visible to readers before it is durable.
    ShownBeforeDurable,
    /// Lookups do not wait while a key's home bucket is being changed.
    ChangingIgnored,
    /// A split assumes that its segment is unchanged, whatever happened before it had its locks.
    SplitNotRechecked,
    /// A split's commit does not name the new segment.
    SplitUnnamed,
    /// A split leaves out the last of its directory entries.
    EntriesOneShort,
    /// Recovery serves a half-completed split as it is.
    HalfSplitServed,
    /// Recovery completes a split over directory entries that a later split has set.
    SplitRedoneBlindly,
    /// A doubled directory is used before the root that names it is durable.
    DoubledBeforeDurable,
    /// Directories are doubled for keys that no split can separate.
    DoubledWithoutEnd,
    /// A removal from an overflow node returns success and removes nothing.
    RemovesNothing,
    /// A fingerprint match counts as a key match.
    FingerprintDecides,
    /// A removal takes its lock twice.
    LockedTwice,
    /// A bucket stays locked after a change.
    LockNotReleased,
    /// Concurrent inserts of one key do not check for each other.
    InsertUnchecked,
    /// An insert waits for a stronger insert of its key instead of deciding it.
    RivalAwaited,
    /// A search covers only the levels that existed when it began.
    ContextNotRechecked,
    /// Rehashing removes a record before it has copied it.
    RehashRemovesFirst,
    /// A replacement changes the slot that it finds first instead of the record.
    UpdatedInOneSlot,
    /// A level is dropped once the emptying of all its parts has begun.
    LevelDroppedEarly,
    /// The last part of a level is not emptied.
    PartsOneShort,
    /// The emptying of a level that began before an opening is not resumed.
    RehashNotResumed,
    /// Recovery leaves announced inserts as it finds them.
    AnnouncedKept,
    /// Of the slots that lead to a record, only the first is changed.
    OneSlotUnlinked,
    /// An iteration returns a record once for each slot that leads to it.
    ScannedTwice,
    /// A merge is committed before the bits of its copies are set.
    MergeCommittedFirst,
    /// A lookup uses what it read from a leaf, whatever happened to the leaf meanwhile.
    LeafNotRechecked,
    /// A merge leaves the master array's entry for the leaf in place.
    EntryKept,
    /// The pairs of a full leaf are counted after their keys were read, instead of together with
    /// them.
    PairsCountedLate,
    /// The upper half of a split can be changed while the lower half still has its pairs.
    SplitOpenedEarly,
    /// An insert compares its key with a replaced record's block, which may have been reused.
    InsertReadsFreed,
    /// The slot of a dropped map is reused before the map's blocks are free.
    SlotFreedEarly,
    /// A new map's commit word is stored before the words that it vouches for.
    RootCommittedFirst,
    /// Roots are read while they are being changed.
    RootReadEarly,
    /// A new pool's header is written before what it promises is durable.
    HeaderFirst,
    /// A growth is not recorded in the header.
    SizeNotTold,
    /// A modified pool stays marked clean, with its saved free state.
    NotMarkedDirty,
    /// An unlinked block is freed twice.
    FreedTwice,
    /// An unlinked block is never freed.
    NeverFreed,
    /// An unlinked block is freed while readers may still use it.
    FreedUnderReaders,
    /// Space is swept before it was traced.
    SweptUntraced,
    /// The reclaim after a crash is never resumed.
    NotReclaimed,
    /// A list of runs with free blocks is trusted, although a run on it was released and its pages
    /// now belong to another class.
    StaleEntryAccepted,
    /// A retired block is freed an epoch before its last reader must be gone.
    FreedEpochEarly,
    /// Space that a pool has grown by is claimed before the header records the growth.
    SizeToldEarly,
    /// Space is swept while operations that began before the end of the trace are under way.
    GraceSkipped,
    /// An announced insert that is not decided is frozen together with its slot.
    UndecidedFrozen,
    /// A search ends when all levels that it knew are gone.
    SearchEndsWithLevels,
    /// A copy made by another thread is assumed to be durable.
    OtherCopyUnflushed,
    /// Of the pairs that a crash left in a leaf, only the first line is made durable.
    FoundLinesShort,
    /// The upper half of a split is opened before the lower half's bits are durable.
    SplitOpenedUnflushed,
    /// Readers are not notified that a merge reuses slots.
    MergeUntold,
    /// The block of a replaced record is retired before its readers are notified.
    RetiredUnnoted,
    /// A split does not mark, for the trace, the overflow records that stay in place.
    StayingUnmarked,
    /// A copy is confirmed although its record was replaced or removed since it was checked.
    CopyUnchecked,
    /// The blocks of a dropped map are not marked for the trace.
    DroppedUnmarked,
    /// A read checks that the pool is open before it reads, and not after.
    OpenCheckedEarly,
    /// A closed pool's file is unlocked before its writers are done.
    FileUnlockedEarly,
    /// The blocks of a dropped map are freed although references to them are left.
    DroppedUnretired,
    /// A lookup that finds nothing does not persist the removal that its result depends on.
    AbsenceUnhelped,
}

/// A call of the index interface, as the recorder sees it: its begin and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// An operation begins. The text describes it for the reader of a report.
    Begin(String),
    /// The calling thread's operation has returned.
    End(String),
    /// The process died, and another one has taken over or will. Flushes that no fence has
    /// completed never complete; stores stay in the caches.
    Death,
}

/// Access to persistent memory.
///
/// All methods take words by reference: a caller that holds a `&Word` has had its offset checked.
pub trait Seam: Clone + Send + Sync + 'static {
    /// Whether one thread may make a fence for all others with a system call, so that theirs cost
    /// nothing. The call interrupts every core.
    const ASYMMETRIC_FENCES: bool = true;

    /// Tells the seam the address of the memory. Called once, before any access.
    fn attach(&self, _base: *const u8) {}

    /// Loads a word.
    fn load(&self, word: &Word, order: Ordering) -> u64;

    /// Stores a word.
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

    /// Stores a word past the caches. It is durable after the next [`Seam::fence`].
    ///
    /// The word must not share a line with an unfenced cached store whose order matters.
    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point);

    /// Starts the flush of every line that holds one of `words`.
    fn flush(&self, words: &[Word], at: &'static Point);

    /// Waits until this thread's earlier flushes and non-temporal stores are durable.
    fn fence(&self, at: &'static Point);

    /// Prefetches the cache line at `line`. A hint.
    #[inline(always)]
    fn prefetch<T>(&self, _line: &T) {}

    /// The scheduling point before an access to a [`Shared`](super::Shared). Only `Shared` can call
    /// it.
    #[inline(always)]
    fn shared(&self, _by: OfShared) {}

    /// Waits one turn for another thread, in a loop. `turn` counts the turns.
    fn wait(&self, turn: &mut u32);

    /// Locks a mutex in DRAM. Another thread may run while this one waits.
    ///
    /// Poisoning is ignored: no code that a user can make panic runs under one of our mutexes.
    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the allocator exposes uses of freed blocks. If so, it reuses a freed block at once,
    /// before any other; it checks on every retirement which retired blocks can be freed; and it
    /// overwrites what is freed. Code that still follows a link to a freed block then finds other
    /// content. For the test harness only; release builds spread their reuse.
    #[inline(always)]
    fn reuses_at_once(&self) -> bool {
        false
    }

    /// Returns whether this seeded bug is to be made here. In release builds the answer is a
    /// compile-time constant, so nothing of the bug is left.
    #[inline(always)]
    fn planted(&self, _bug: Planted) -> bool {
        false
    }

    /// Records an operation boundary. The text is built only if anything is recorded.
    #[inline]
    fn mark(&self, _mark: impl FnOnce() -> Mark) {}
}

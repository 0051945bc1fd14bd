//! Seeded bugs of the pool.

crate::seeded_bugs! {
    /// A new map's commit word is stored before the words that it vouches for.
    ROOT_COMMITTED_FIRST = "RootCommittedFirst";
    /// A new pool's header is written before what it promises is durable.
    HEADER_FIRST = "HeaderFirst";
    /// An opening leaves the header where it found it, perhaps only in the caches.
    FOUND_HEADER_CACHED = "FoundHeaderCached";
    /// A growth is not recorded in the header.
    SIZE_NOT_TOLD = "SizeNotTold";
    /// A modified pool stays marked clean, with its saved free state.
    NOT_MARKED_DIRTY = "NotMarkedDirty";
    /// An unlinked block is freed twice.
    FREED_TWICE = "FreedTwice";
    /// An unlinked block is never freed.
    NEVER_FREED = "NeverFreed";
    /// An unlinked block is freed while readers may still use it.
    FREED_UNDER_READERS = "FreedUnderReaders";
    /// A list of runs with free blocks is trusted, although a run on it was released and its pages
    /// now belong to another class.
    STALE_ENTRY_ACCEPTED = "StaleEntryAccepted";
    /// A retired block is freed an epoch before its last reader must be gone.
    FREED_EPOCH_EARLY = "FreedEpochEarly";
    /// Space that a pool has grown by is claimed before the header records the growth.
    SIZE_TOLD_EARLY = "SizeToldEarly";
    /// A read checks that the pool is open before it reads, and not after.
    OPEN_CHECKED_EARLY = "OpenCheckedEarly";
    /// A closed pool's file is unlocked before its writers are done.
    FILE_UNLOCKED_EARLY = "FileUnlockedEarly";
}

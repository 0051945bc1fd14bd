//! Seeded bugs of the journal.

use crate::pmem::SeededBug;

crate::seeded_bugs! {
    /// Segments of another life count.
    LIFE_IGNORED = "LifeIgnored";
    /// An epoch counts as durable before it is synced.
    TOLD_BEFORE_SYNC = "ToldBeforeSync";
    /// A failed sync is repeated, and believed when it succeeds.
    SYNC_REPEATED = "SyncRepeated";
    /// Blocks are read whose checksum is wrong.
    CHECKSUM_IGNORED = "ChecksumIgnored";
    /// Epochs count that a later segment has voided.
    VOID_EPOCHS_COUNT = "VoidEpochsCount";
    /// A journal that has reached its limit takes no more epochs.
    LIMIT_REFUSES = "LimitRefuses";
    /// A segment whose header is damaged counts as no segment.
    HEADER_DAMAGE_IGNORED = "HeaderDamageIgnored";
    /// A segment that was cut short is read as far as it goes.
    LENGTH_IGNORED = "LengthIgnored";
    /// Blocks behind the end of the epochs mean nothing.
    STRAYS_IGNORED = "StraysIgnored";
    /// The epoch that a spare segment names need not be there.
    SPARES_IGNORED = "SparesIgnored";
    /// A file that no crash leaves does not keep the journal from being used.
    DAMAGE_IGNORED = "DamageIgnored";
    /// A working file that is older than the journal is used.
    OLDER_USED = "OlderUsed";
    /// The working file does not learn which epoch is written next.
    BEGUN_UNTOLD = "BegunUntold";
    /// A journal that lacks epochs of the working file is continued as it is.
    SHORT_CONTINUED = "ShortContinued";
    /// A life begins without a segment.
    BEGUN_WITHOUT_SEGMENT = "BegunWithoutSegment";
    /// A life ends although a power loss may bring back segments of the one before it.
    DELETIONS_UNSYNCED = "DeletionsUnsynced";
    /// Segments are deleted before the base holds what is in them.
    FORGOTTEN_EARLY = "ForgottenEarly";
    /// A checkpoint writes its pages without waiting for an epoch.
    PAGES_NOT_AWAITED = "PagesNotAwaited";
    /// A checkpoint does not tell how far its pages reach.
    REACHED_UNTOLD = "ReachedUntold";
    /// A checkpoint ends before the base is synced.
    BASE_UNSYNCED = "BaseUnsynced";
    /// A checkpoint that failed forgets its pages.
    PAGES_DROPPED = "PagesDropped";
    /// A checkpoint forgets the pages that changed while it was under way.
    MARKS_CLEARED = "MarksCleared";
    /// A rebuild is content with fewer epochs than the base needs.
    MISSING_IGNORED = "MissingIgnored";
    /// A rebuild does not check how long the base is.
    SIZE_IGNORED = "SizeIgnored";
    /// A wait returns once the cut that was under way is durable.
    WAITS_FOR_LAST_CUT = "WaitsForLastCut";
    /// A wait returns at once if nothing was noted since the last cut.
    WAITS_FOR_NOTES = "WaitsForNotes";
    /// The working file learns of an epoch before it learns of the epoch's checksum.
    EPOCH_BEFORE_SUM = "EpochBeforeSum";
    /// The working file does not learn of durable epochs.
    DURABLE_UNTOLD = "DurableUntold";
    /// Notes are removed when they are cut.
    NOTES_REMOVED_EARLY = "NotesRemovedEarly";
}

/// Returns whether the calling thread should misbehave as this seeded bug describes. Only the proof
/// harness makes it do so.
#[inline]
pub(crate) fn seeded(bug: &'static SeededBug) -> bool {
    #[cfg(any(test, feature = "traced"))]
    return crate::pmem::Traced::seeds(bug);
    #[cfg(not(any(test, feature = "traced")))]
    {
        let _ = bug;
        false
    }
}

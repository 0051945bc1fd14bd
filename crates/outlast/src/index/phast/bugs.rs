//! Seeded bugs of PhaST.

crate::seeded_bugs! {
    /// A merge is committed before the bits of its copies are set.
    MERGE_COMMITTED_FIRST = "MergeCommittedFirst";
    /// A lookup uses what it read from a leaf, even if the leaf changed meanwhile.
    LEAF_NOT_RECHECKED = "LeafNotRechecked";
    /// A merge leaves the master array's entry for the leaf in place.
    ENTRY_KEPT = "EntryKept";
    /// The pairs of a full leaf are counted after their keys were read, instead of together with
    /// them.
    PAIRS_COUNTED_LATE = "PairsCountedLate";
    /// The upper half of a split can be changed while the lower half still has its pairs.
    SPLIT_OPENED_EARLY = "SplitOpenedEarly";
    /// An insert compares its key with a replaced record's block, which may have been reused.
    INSERT_READS_FREED = "InsertReadsFreed";
    /// Recovery makes only the first line of the pairs in a leaf durable.
    FOUND_LINES_SHORT = "FoundLinesShort";
    /// The upper half of a split is opened before the lower half's bits are durable.
    SPLIT_OPENED_UNFLUSHED = "SplitOpenedUnflushed";
    /// Readers are not notified that a merge reuses slots.
    MERGE_UNTOLD = "MergeUntold";
    /// The block of a replaced record is retired before its readers are notified.
    RETIRED_UNNOTED = "RetiredUnnoted";
    /// An insert that is given up frees its slot, though it has stored its pair.
    GIVEN_UP_FREED = "GivenUpFreed";
    /// Compacting a leaf leaves removed pairs in the slots that it frees.
    COMPACTED_UNBLANKED = "CompactedUnblanked";
    /// A split leaves pairs in the slots that it frees.
    SPLIT_UNBLANKED = "SplitUnblanked";
    /// A merge leaves removed pairs in the slots that it frees.
    MERGE_UNBLANKED = "MergeUnblanked";
    /// The changes of a row end before their fence.
    ROW_ENDED_EARLY = "RowEndedEarly";
    /// A leaf's free slots are taken for blank when the map is opened.
    FOUND_TAKEN_FOR_BLANK = "FoundTakenForBlank";
    /// Recovery keeps the bit of a pair that was not written.
    UNWRITTEN_SERVED = "UnwrittenServed";
    /// A lookup that finds nothing does not persist the removal that its result depends on.
    ABSENCE_UNHELPED = "AbsenceUnhelped";
}

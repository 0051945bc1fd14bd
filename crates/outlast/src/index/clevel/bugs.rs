//! Seeded bugs of clevel.

crate::seeded_bugs! {
    /// An insert waits for a stronger insert of its key instead of deciding it.
    RIVAL_AWAITED = "RivalAwaited";
    /// A search covers only the levels that existed when it began.
    CONTEXT_NOT_RECHECKED = "ContextNotRechecked";
    /// Rehashing removes a record before it has copied it.
    REHASH_REMOVES_FIRST = "RehashRemovesFirst";
    /// A replacement changes the slot that it finds first instead of the record.
    UPDATED_IN_ONE_SLOT = "UpdatedInOneSlot";
    /// A level is dropped once the emptying of all its parts has begun.
    LEVEL_DROPPED_EARLY = "LevelDroppedEarly";
    /// The last part of a level is not emptied.
    PARTS_ONE_SHORT = "PartsOneShort";
    /// The emptying of a level that began before an opening is not resumed.
    REHASH_NOT_RESUMED = "RehashNotResumed";
    /// Recovery leaves announced inserts as it finds them.
    ANNOUNCED_KEPT = "AnnouncedKept";
    /// Only the first of the slots that lead to a record is changed.
    ONE_SLOT_UNLINKED = "OneSlotUnlinked";
    /// An iteration returns a record once for each slot that leads to it.
    SCANNED_TWICE = "ScannedTwice";
    /// An announced insert that is not decided is frozen together with its slot.
    UNDECIDED_FROZEN = "UndecidedFrozen";
    /// A search ends when all levels that it knew are gone.
    SEARCH_ENDS_WITH_LEVELS = "SearchEndsWithLevels";
    /// A copy made by another thread is assumed to be durable.
    OTHER_COPY_UNFLUSHED = "OtherCopyUnflushed";
    /// A copy is confirmed although its record was replaced or removed since it was checked.
    COPY_UNCHECKED = "CopyUnchecked";
}

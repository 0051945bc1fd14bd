//! Seeded bugs of maps and their reclaim.

crate::seeded_bugs! {
    /// The slot of a dropped map is reused before the map's blocks are free.
    SLOT_FREED_EARLY = "SlotFreedEarly";
    /// Roots are read while they are being changed.
    ROOT_READ_EARLY = "RootReadEarly";
    /// Space is swept before it was traced.
    SWEPT_UNTRACED = "SweptUntraced";
    /// The reclaim after a crash is never resumed.
    NOT_RECLAIMED = "NotReclaimed";
    /// Space is swept while operations that began before the end of the trace are under way.
    GRACE_SKIPPED = "GraceSkipped";
    /// A batch is over before its last change is made.
    BATCH_CLEARED_EARLY = "BatchClearedEarly";
    /// A batch that a crash has cut short is not made again.
    BATCH_FORGOTTEN = "BatchForgotten";
    /// A batch makes its changes before its word is stored.
    BATCH_MADE_EARLY = "BatchMadeEarly";
    /// The value that the key of a batch's last change had before is lost.
    LAST_BEFORE_LOST = "LastBeforeLost";
    /// What a batch requires is checked before the batch holds the gate.
    REQUIRED_EARLY = "RequiredEarly";
    /// The block that is set aside for an old record is free only once the record is written again.
    KEPT_TOO_LONG = "KeptTooLong";
    /// The blocks of a dropped map are not marked for the trace.
    DROPPED_UNMARKED = "DroppedUnmarked";
    /// The blocks of a dropped map are freed although handles to it are left.
    DROPPED_IN_USE = "DroppedInUse";
}

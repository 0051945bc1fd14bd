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
    /// The blocks of a dropped map are not marked for the trace.
    DROPPED_UNMARKED = "DroppedUnmarked";
    /// The blocks of a dropped map are freed although references to them are left.
    DROPPED_UNRETIRED = "DroppedUnretired";
}

//! Seeded bugs of segments.

crate::seeded_bugs! {
    /// A displacement removes the record before it copies it.
    DISPLACE_REMOVES_FIRST = "DisplaceRemovesFirst";
    /// A displacement unlocks the bucket with the copy before the old slot is filled.
    MOVED_UNLOCKED_EARLY = "MovedUnlockedEarly";
    /// When several records in a row are displaced, only the home of the one copied first is marked
    /// as changing.
    ROW_HOME_UNMARKED = "RowHomeUnmarked";
    /// Recovery keeps the second copy of a record.
    SECOND_COPY_KEPT = "SecondCopyKept";
    /// A removal locks a bucket twice.
    LOCKED_TWICE = "LockedTwice";
    /// An insert looks for a free slot of the next bucket before it has locked that bucket.
    NEXT_NOT_RECHECKED = "NextNotRechecked";
    /// The same in changes that share a fence.
    ROW_NEXT_NOT_RECHECKED = "RowNextNotRechecked";
    /// A split does not mark, for the trace, the overflow records that stay in place.
    STAYING_UNMARKED = "StayingUnmarked";
    /// Overflow nodes that a split has emptied are freed before the link to them is durably gone.
    NODES_FREED_EARLY = "NodesFreedEarly";
}

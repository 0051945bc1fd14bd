//! Seeded bugs of segments.

crate::seeded_bugs! {
    /// A slot's commit word is stored before its other word.
    COMMIT_BEFORE_VALUE = "CommitBeforeValue";
    /// A slot is filled without being emptied first.
    SLOT_NOT_EMPTIED = "SlotNotEmptied";
    /// A displacement removes the record before it copies it.
    DISPLACE_REMOVES_FIRST = "DisplaceRemovesFirst";
    /// A displacement unlocks the bucket with the copy before the old slot is filled.
    MOVED_UNLOCKED_EARLY = "MovedUnlockedEarly";
    /// When several records in a row are displaced, only the home of the one copied first is marked
    /// as changing.
    ROW_HOME_UNMARKED = "RowHomeUnmarked";
    /// Recovery keeps the second copy of a record.
    SECOND_COPY_KEPT = "SecondCopyKept";
    /// Recovery leaves locks as it finds them.
    LOCKS_KEPT = "LocksKept";
    /// An insert becomes visible to readers before it is durable.
    SHOWN_BEFORE_DURABLE = "ShownBeforeDurable";
    /// A split does not check whether its segment was split before it had the locks.
    SPLIT_NOT_RECHECKED = "SplitNotRechecked";
    /// A removal locks a bucket twice.
    LOCKED_TWICE = "LockedTwice";
    /// A split does not mark, for the trace, the overflow records that stay in place.
    STAYING_UNMARKED = "StayingUnmarked";
}

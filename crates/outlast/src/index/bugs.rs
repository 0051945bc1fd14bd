//! Seeded bugs that more than one scheme can have.

crate::seeded_bugs! {
    /// An update removes the old record first, durably.
    UPDATE_EMPTIES_FIRST = "UpdateEmptiesFirst";
    /// Lookups ignore a concurrent change: in Dash-EH they do not wait while a key's home bucket
    /// is marked as changing, in PhaST they do not persist what they read.
    CHANGING_IGNORED = "ChangingIgnored";
    /// A split's commit does not say that the split has to be completed: in Dash-EH it does not
    /// name the new segment, in PhaST it does not mark the link as moving.
    SPLIT_UNNAMED = "SplitUnnamed";
    /// Recovery serves a half-completed split as it is.
    HALF_SPLIT_SERVED = "HalfSplitServed";
    /// The table grows for keys that no growth can separate.
    DOUBLED_WITHOUT_END = "DoubledWithoutEnd";
    /// A removal returns success and removes nothing; in Dash-EH, only from the stash and overflow
    /// nodes.
    REMOVES_NOTHING = "RemovesNothing";
    /// A fingerprint match counts as a key match.
    FINGERPRINT_DECIDES = "FingerprintDecides";
    /// A bucket or leaf stays locked after a change.
    LOCK_NOT_RELEASED = "LockNotReleased";
    /// A slot's commit word is stored before its other word.
    COMMIT_BEFORE_VALUE = "CommitBeforeValue";
    /// A slot is filled without being emptied first.
    SLOT_NOT_EMPTIED = "SlotNotEmptied";
    /// An insert becomes visible to readers before it is durable.
    SHOWN_BEFORE_DURABLE = "ShownBeforeDurable";
    /// Changes that share a fence are shown to readers before it.
    ROW_SHOWN_EARLY = "RowShownEarly";
    /// A split does not check whether its segment was split before it had the locks.
    SPLIT_NOT_RECHECKED = "SplitNotRechecked";
    /// Recovery leaves locks as it finds them.
    LOCKS_KEPT = "LocksKept";
    /// A change that compares the value is made whatever the value is.
    COMPARISON_IGNORED = "ComparisonIgnored";
    /// Concurrent inserts of one key do not check for each other.
    INSERT_UNCHECKED = "InsertUnchecked";
}

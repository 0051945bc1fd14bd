//! Seeded bugs that more than one scheme can have.

crate::seeded_bugs! {
    /// An update empties the slot first, durably.
    UPDATE_EMPTIES_FIRST = "UpdateEmptiesFirst";
    /// Lookups do not wait while a key's home bucket is being changed.
    CHANGING_IGNORED = "ChangingIgnored";
    /// A split's commit does not name the new segment.
    SPLIT_UNNAMED = "SplitUnnamed";
    /// Recovery serves a half-completed split as it is.
    HALF_SPLIT_SERVED = "HalfSplitServed";
    /// Directories are doubled for keys that no split can separate.
    DOUBLED_WITHOUT_END = "DoubledWithoutEnd";
    /// A removal from an overflow node returns success and removes nothing.
    REMOVES_NOTHING = "RemovesNothing";
    /// A fingerprint match counts as a key match.
    FINGERPRINT_DECIDES = "FingerprintDecides";
    /// A bucket stays locked after a change.
    LOCK_NOT_RELEASED = "LockNotReleased";
    /// Concurrent inserts of one key do not check for each other.
    INSERT_UNCHECKED = "InsertUnchecked";
}

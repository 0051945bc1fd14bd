//! Seeded bugs of group hashing.

crate::seeded_bugs! {
    /// An insert does not look for its key (Algorithm 1 of the paper).
    KEY_NOT_SOUGHT = "KeyNotSought";
    /// A lookup reads cells that are free (Algorithm 2, line 9, and Algorithm 3, lines 3 and 15).
    FREE_CELLS_READ = "FreeCellsRead";
    /// Recovery counts what a split has left behind as records again.
    LEFT_BEHIND_KEPT = "LeftBehindKept";
    /// A removal in the second level forgets that its home has more records there.
    OVERFLOW_FORGOTTEN = "OverflowForgotten";
    /// A record in the second level is marked before its home counts it.
    COUNTED_LATE = "CountedLate";
    /// A split's new segment is used before the link to it is durable.
    SPLIT_BEFORE_DURABLE = "SplitBeforeDurable";
}

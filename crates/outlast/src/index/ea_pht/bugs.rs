//! Seeded bugs of the EA-PHT family.

crate::seeded_bugs! {
    /// Recovery treats linked buckets as spare, so that they are handed out again. (The published
    /// bug: it does not relink a bucket whose link was lost.)
    LINKED_SPARED = "LinkedSpared";
    /// A bucket is moved a second time.
    MOVED_TWICE = "MovedTwice";
    /// A change goes on in a bucket whose records are in the next table.
    MOVED_UNNOTICED = "MovedUnnoticed";
    /// A mover tries for ever to take a bucket of a table that hands out none.
    CLOSED_ASKED_AGAIN = "ClosedAskedAgain";
    /// A bucket is given back before its counter is durable.
    GIVEN_BACK_UNCOUNTED = "GivenBackUncounted";
    /// A bucket has an owner before the link to it is durable.
    OWNED_EARLY = "OwnedEarly";
    /// Opening gives a bucket an owner before the link to it is durable.
    REOWNED_EARLY = "ReownedEarly";
    /// After a crash, a copy that no chain links to keeps its owner.
    OWNER_KEPT = "OwnerKept";
    /// A change moves a bucket of a table whose resize has ended meanwhile.
    MOVED_LATE = "MovedLate";
    /// A resized table is current before the old one is retired.
    RETIRED_LATE = "RetiredLate";
    /// A resize that finds no space leaves the mark that it is under way.
    RESIZING_KEPT = "ResizingKept";
    /// A resize that finds no space leaves the table's overflow buckets closed.
    CLOSED_KEPT = "ClosedKept";
    /// A resize that finds no space is never tried again.
    RETRIED_NEVER = "RetriedNever";
    /// A resize is used before its root is durable.
    RESIZED_BEFORE_DURABLE = "ResizedBeforeDurable";
}

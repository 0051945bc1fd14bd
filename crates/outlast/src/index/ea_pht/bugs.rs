//! Seeded bugs of the EA-PHT family.

crate::seeded_bugs! {
    /// Recovery does not relink a bucket; here, it hands out buckets again that are linked.
    LINKED_SPARED = "LinkedSpared";
    /// A bucket is moved a second time.
    MOVED_TWICE = "MovedTwice";
    /// A change goes on in a bucket whose records are in the next table.
    MOVED_UNNOTICED = "MovedUnnoticed";
    /// A resize is used before its root is durable.
    RESIZED_BEFORE_DURABLE = "ResizedBeforeDurable";
}

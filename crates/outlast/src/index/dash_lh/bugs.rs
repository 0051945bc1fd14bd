//! Seeded bugs of Dash-LH besides those of its segments.

pub use crate::index::dash::bugs::*;

crate::seeded_bugs! {
    /// A split puts the new segment one place too far.
    PLACE_OFF_BY_ONE = "PlaceOffByOne";
    /// A refused allocation leaves the mark that a thread allocates what the next turn needs.
    GROWING_KEPT = "GrowingKept";
    /// A stale header that a process erased is flushed by that process only.
    ERASED_UNFLUSHED = "ErasedUnflushed";
}

//! The commit points of Dash-LH besides those of its segments. [`super`] says what each is for.

pub use crate::index::dash::points::*;

crate::commit_points! { "dash-lh" and crate::index::dash::points::ALL:
    /// The directory's entry of a new array. Fenced by [`ERASED`].
    ARRAY = "expansion: array": store, flush;
    /// Doubling's commit: the root. Flushed with the turn, which is in the same line.
    DOUBLE_COMMIT = "doubling: root": store;
    /// Recovery flushes a segment's state before it uses the segments that were split off from it.
    /// Fenced by [`REPAIR_FOUND`].
    REPAIR_STATE = "repair: state of a segment": flush;
    /// Erases a stale header at the place of a segment that is still to be made. The fence comes
    /// before the turn's store, and also covers the entry of a new array.
    ERASED = "expansion: no new segment": store, flush, fence;
    /// Stores the turn, for one of two reasons. It passes on to the next segment: the split flushes
    /// it, and [`SPLIT_NEW`] fences. Or it records that there are *late* segments, whose split has
    /// failed ([`ERASED`] fences) or was cut short by a crash ([`REPAIR_FOUND`] fences).
    TURN = "expansion: turn": store, flush;
}

//! The commit points of Dash-LH beside those of its segments. [`super`] says what each is for.

pub use crate::index::dash::points::*;

crate::commit_points! { "dash-lh" and crate::index::dash::points::ALL:
    /// The header that announces maps of this scheme: durable before there is one.
    FEATURE = "header copy: feature": store, flush, fence;
    /// The directory's entry of a new array. Fenced by [`ERASED`].
    ARRAY = "expansion: array": store, flush;
    /// Doubling's commit: the root. Flushed with the turn, which is in the same line.
    DOUBLE_COMMIT = "doubling: root": store;
    /// Recovery: a segment's state, before the segments that were split off from it are used. Fenced by
    /// [`REPAIR_FOUND`].
    REPAIR_STATE = "repair: state of a segment": flush;
    /// No header at the place of a segment that does not exist yet. The fence comes before the turn, and
    /// also covers the entry of a new array. Recovery fences with [`REPAIR_FOUND`].
    ERASED = "expansion: no new segment": store, flush, fence;
    /// The turn passes on to the next segment. Flushed by the split, and fenced by [`SPLIT_NEW`]. Also
    /// that a segment is late: fenced by [`ERASED`] if a split has failed, by [`REPAIR_FOUND`] after
    /// a crash.
    TURN = "expansion: turn": store, flush;
}

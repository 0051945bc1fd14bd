//! The commit points of Dash-EH besides those of its segments. [`super`] says what each is for.

pub use crate::index::dash::points::*;

crate::commit_points! { "dash-eh" and crate::index::dash::points::ALL:
    /// A split's directory entries.
    SPLIT_DIRECTORY = "split: directory entries": store, flush, fence;
    /// Doubling's commit: the root.
    DOUBLE_COMMIT = "doubling: root": store, flush, fence;
    /// Recovery: flushes the commit of a split, and the entries that the dead process has set, before it
    /// stores the others.
    REPAIR_STATE = "repair: state of a split": flush, fence;
    /// Recovery: a split's directory entries.
    REPAIR_DIRECTORY = "repair: directory entries": store, flush, fence;
}

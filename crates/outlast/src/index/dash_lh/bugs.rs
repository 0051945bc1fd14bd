//! Seeded bugs of Dash-LH beside those of its segments.

pub use crate::index::dash::bugs::*;

crate::seeded_bugs! {
    /// The end of a split leaves the old segment's entry as it was.
    OLD_DEPTH_KEPT = "OldDepthKept";
}

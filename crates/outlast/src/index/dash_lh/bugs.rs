//! Seeded bugs of Dash-LH besides those of its segments.

pub use crate::index::dash::bugs::*;

crate::seeded_bugs! {
    /// A split puts the new segment one place too far.
    PLACE_OFF_BY_ONE = "PlaceOffByOne";
}

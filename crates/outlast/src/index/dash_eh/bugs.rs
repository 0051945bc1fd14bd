//! Seeded bugs of Dash-EH besides those of its segments.

pub use crate::index::dash::bugs::*;

crate::seeded_bugs! {
    /// A split leaves out the last of its directory entries.
    ENTRIES_ONE_SHORT = "EntriesOneShort";
    /// Recovery completes a split and overwrites directory entries that a later split has set.
    SPLIT_REDONE_BLINDLY = "SplitRedoneBlindly";
    /// A doubled directory is used before the root that names it is durable.
    DOUBLED_BEFORE_DURABLE = "DoubledBeforeDurable";
}

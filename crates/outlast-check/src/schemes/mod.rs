//! What each scheme adds to the harness, in one folder per scheme. All folders have these files:
//!
//! - `scenarios.rs`: runs for the scheme's own code paths, and what the common scenarios must reach
//! - `workloads.rs`: workloads of schedules for these code paths
//! - `seeded.rs`: the seeded bug for each published bug, or why there is none
//!
//! `plays.rs` has the runs that scenarios of several schemes share.
//!
//! The maps of each scheme are described in [`structures`](crate::structures). The rest of the
//! harness uses [`parts`] and knows no scheme.

pub mod clevel;
pub mod dash_eh;
pub mod dash_lh;
pub mod ea_pht;
pub mod group;
pub mod line;
pub mod phast;
mod plays;

use crate::parts::Parts;
use outlast::Scheme;

/// Returns what a scheme adds.
pub fn parts(scheme: Scheme) -> &'static Parts {
    match scheme {
        Scheme::DashEh => &dash_eh::PARTS,
        Scheme::Clevel => &clevel::PARTS,
        Scheme::Phast => &phast::PARTS,
        Scheme::Group => &group::PARTS,
        Scheme::DashLh => &dash_lh::PARTS,
        Scheme::EaPht => &ea_pht::PLAIN,
        Scheme::EaPhtH => &ea_pht::HYBRID,
        Scheme::EaPhtHpr => &ea_pht::PARALLEL,
        Scheme::Line => &line::PARTS,
        other => unreachable!("{other} has no folder in the harness"),
    }
}

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
use crate::parts::scenario::Expected;
use outlast::internals::pmem::Point;
use outlast::{RecordForm, Scheme};

/// The points of changes that the schemes with slots have, each under its own name.
struct Changes {
    insert: &'static Point,
    remove: &'static Point,
    /// Of a value, and of the link to a record.
    update: [&'static Point; 2],
    record: &'static Point,
    /// Of changes that share a fence, and of their records; if the scheme has such changes.
    many: Option<[&'static Point; 2]>,
    /// What records of one hash reach, besides an update.
    collide: &'static [&'static Point],
}

impl Changes {
    /// Returns what a common scenario must reach of these points.
    fn expected(&self, name: &str, form: RecordForm) -> Expected {
        let bytes = form == RecordForm::Bytes;
        let update = self.update[usize::from(bytes)];
        let mut expected = Expected::default();
        match (name, self.many) {
            ("change", _) => expected.reaches.extend([self.remove, self.insert, update]),
            ("collide", _) => {
                expected.reaches.extend(self.collide);
                expected.reaches.push(update);
            }
            ("many", Some([many, records])) => {
                expected.reaches.push(many);
                expected.reaches.extend(bytes.then_some(records));
            }
            _ => {}
        }
        if bytes && !["pool", "maps"].contains(&name) {
            expected.reaches.push(self.record);
        }
        expected
    }
}

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

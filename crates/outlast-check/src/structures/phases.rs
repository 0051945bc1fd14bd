//! Finds the phases of the algorithms that a run went through, from its trace.
//!
//! A scenario declares the phases that it is for, and the tests hold it to that. Otherwise a change
//! of sizes or keys could silently make it miss them.

use super::Shape;
use outlast::internals::pmem::{Event, Point};
use std::collections::{BTreeSet, HashSet};

/// The name of a phase: `owner/name` of a commit point, or a name from the scheme's folder.
pub type Phase = String;

/// Returns the phase of a commit point.
pub fn phase(point: &Point) -> Phase {
    format!("{}/{}", point.owner, point.name)
}

/// Returns the phases in a trace of maps of this shape.
pub fn phases_of(events: &[Event], shape: Shape) -> BTreeSet<Phase> {
    let points: HashSet<&'static Point> = events.iter().filter_map(|event| event.point).collect();
    let mut found = (shape.structure().phases)(events, shape.config);
    found.extend(points.into_iter().map(phase));
    found
}

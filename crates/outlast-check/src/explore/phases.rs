//! Which phases of the algorithms a run went through, told from its trace.
//!
//! A scenario says which phases it is for; the tests hold it to that, so that a change of
//! sizes or keys cannot silently make it miss them.

use crate::schemes::parts;
use crate::session::Shape;
use outlast::pmem::{Event, Point};
use std::collections::{BTreeSet, HashSet};

/// The name of a phase: `owner/name` of a commit point, or one that the scheme's folder names.
pub type Phase = String;

/// The phase that a commit point stands for.
pub fn phase(point: &Point) -> Phase {
    format!("{}/{}", point.owner, point.name)
}

/// The phases in a trace of maps of this shape.
pub fn phases_of(events: &[Event], shape: Shape) -> BTreeSet<Phase> {
    let points: HashSet<&'static Point> = events.iter().filter_map(|event| event.point).collect();
    let mut found = (parts(shape.scheme()).phases)(events, shape.config);
    found.extend(points.into_iter().map(phase));
    found
}

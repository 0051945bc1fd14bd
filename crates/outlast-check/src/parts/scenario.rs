//! The runs whose crashes are explored.

use super::play::Play;
use crate::session::PoolShape;
use crate::state::Checked;
use crate::structures::Shape;
use crate::structures::phases::{Phase, phase};
use outlast::internals::pmem::Point;

/// A named run.
#[derive(Clone)]
pub struct Scenario {
    /// Its name, which includes the shape of its maps if the same run is made with several shapes.
    pub name: String,
    /// What it is for.
    pub about: &'static str,
    /// The shape of its maps.
    pub shape: Shape,
    /// The shape of its pool.
    pub pool: PoolShape,
    /// Phases that it must go through.
    pub reaches: Vec<Phase>,
    /// Phases that the recovery of some of its images must go through.
    pub mends: Vec<Phase>,
    /// Whether every other round and one second run are enough, because each image takes long to
    /// check.
    pub costly: bool,
    /// The commit point at which exploration begins, if not with the first step after preparation.
    pub begin: Option<&'static Point>,
    /// Makes the run.
    pub(crate) play: fn(&mut Play) -> Checked,
}

impl Scenario {
    pub(crate) fn new(
        name: impl Into<String>,
        about: &'static str,
        shape: Shape,
        play: fn(&mut Play) -> Checked,
    ) -> Scenario {
        Scenario {
            name: name.into(),
            about,
            shape,
            pool: PoolShape::default(),
            reaches: Vec::new(),
            mends: Vec::new(),
            costly: false,
            begin: None,
            play,
        }
    }

    /// Sets a pool other than the usual one.
    #[must_use]
    pub(crate) fn in_pool(self, pool: PoolShape) -> Scenario {
        Scenario { pool, ..self }
    }

    #[must_use]
    pub(crate) fn expecting(mut self, expected: Expected) -> Scenario {
        self.reaches.extend(expected.reaches.into_iter().map(phase));
        self.reaches.extend(expected.phases.into_iter().map(Phase::from));
        self.mends.extend(expected.mends.into_iter().map(phase));
        self
    }

    /// Adds a commit point that the scenario must reach.
    pub(crate) fn expect(&mut self, point: &Point) {
        self.reaches.push(phase(point));
    }

    /// Starts the exploration where this point is reached.
    #[must_use]
    pub(crate) fn beginning_at(self, point: &'static Point) -> Scenario {
        Scenario { begin: Some(point), ..self }
    }

    /// Declares that each image takes long to check.
    #[must_use]
    pub(crate) fn costly(self) -> Scenario {
        Scenario { costly: true, ..self }
    }
}

/// What a run must go through.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The points that the run itself must reach.
    pub reaches: Vec<&'static Point>,
    /// The phases it must reach that no single commit point shows.
    pub phases: Vec<&'static str>,
    /// The points that the recovery of some of its images must reach.
    pub mends: Vec<&'static Point>,
}

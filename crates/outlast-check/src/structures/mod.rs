//! What the maps of each scheme are like: their shapes, when they grow, the commit points of their
//! growth and creation, what must hold of them, and which parts of the algorithms a trace went
//! through ([`phases`]).
//!
//! The tests that need this are in [`schemes`](crate::schemes).

pub mod clevel;
pub mod dash_eh;
pub mod dash_lh;
pub mod ea_pht;
pub mod group;
pub mod line;
pub mod phases;
pub mod phast;

use crate::state::Checked;
use outlast::internals::db::roots::MapInfo;
use outlast::internals::index::IndexStats;
use outlast::internals::pmem::{Event, Point};
use outlast::{Config, RecordForm, Scheme};
use outlast_offline::MapReport;
pub use phases::Phase;
use std::collections::BTreeSet;

/// What the maps of a scheme are like.
pub struct Structure {
    /// The shapes of the maps in the common scenarios, each with the suffix that it adds to a
    /// scenario's name. The first is the smallest map.
    pub shapes: &'static [(&'static str, Config)],
    /// How many records a new map of this shape takes without growing. The figure is a little low,
    /// because keys do not spread evenly.
    pub brim: fn(Config) -> u64,
    /// How many keys of one hash a new map takes before the scheme needs a special measure, such as
    /// overflow nodes.
    pub crowd: u64,
    /// The commit point of growth, such as a split or an expansion.
    pub growth: &'static Point,
    /// The commit point of a new map's blocks.
    pub creation: &'static Point,
    /// Options that make the maps of torture and of live histories grow all the time.
    pub small: fn(RecordForm) -> Config,
    /// Makes a small configuration from two numbers: the log2 of the size of the scheme's smallest
    /// part, and the scheme's other setting.
    pub config: fn(u32, u32) -> Config,
    /// Checks what must hold for a map once all background work is done.
    pub at_rest: fn(&IndexStats) -> Checked,
    /// Checks what the offline walk of a closed pool reports of a map.
    pub closed: fn(&MapReport) -> Checked,
    /// Finds in a trace those phases that no single commit point shows.
    pub phases: fn(&[Event], Config) -> BTreeSet<Phase>,
    /// Finds the words of records that a trace moves from one place to another.
    pub moved: fn(&[Event]) -> Vec<u64>,
}

/// Returns what the maps of a scheme are like.
pub fn structure(scheme: Scheme) -> &'static Structure {
    match scheme {
        Scheme::DashEh => &dash_eh::STRUCTURE,
        Scheme::Clevel => &clevel::STRUCTURE,
        Scheme::Phast => &phast::STRUCTURE,
        Scheme::Group => &group::STRUCTURE,
        Scheme::DashLh => &dash_lh::STRUCTURE,
        Scheme::EaPht => &ea_pht::plain::STRUCTURE,
        Scheme::EaPhtH => &ea_pht::hybrid::STRUCTURE,
        Scheme::EaPhtHpr => &ea_pht::parallel::STRUCTURE,
        Scheme::Line => &line::STRUCTURE,
        other => unreachable!("{other} has no folder in the harness"),
    }
}

/// The form and configuration of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The record form.
    pub form: RecordForm,
    /// The scheme, with its settings.
    pub config: Config,
}

impl Shape {
    /// Returns the shape of the scheme's smallest map, which a few inserts make grow.
    pub fn smallest(scheme: Scheme, form: RecordForm) -> Shape {
        Shape { form, config: structure(scheme).shapes[0].1 }
    }

    /// Returns the scheme.
    pub fn scheme(self) -> Scheme {
        self.config.scheme()
    }

    /// Returns what the maps of the scheme are like.
    pub fn structure(self) -> &'static Structure {
        structure(self.scheme())
    }

    /// Lists the smallest shape of each scheme and record form.
    pub fn all() -> impl Iterator<Item = Shape> {
        let forms = |&scheme| RecordForm::ALL.map(|form| Shape::smallest(scheme, form));
        Scheme::ALL.iter().flat_map(forms)
    }

    /// Returns whether this is the smallest shape.
    pub fn is_smallest(self) -> bool {
        self == Shape::smallest(self.scheme(), self.form)
    }

    /// Describes a map of this shape with this name.
    pub fn info(self, name: &str) -> MapInfo {
        let schema = |word: &str, bytes: &str| match self.form {
            RecordForm::Inline => word.to_owned(),
            RecordForm::Bytes => bytes.to_owned(),
        };
        MapInfo {
            name: name.into(),
            form: self.form,
            key_schema: schema("u64", "[u8]"),
            value_schema: schema("u64", "[u8]"),
            config: self.config,
            expires: false,
        }
    }
}

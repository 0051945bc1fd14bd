//! What a session consists of: steps, the shapes of its maps, changes of keys.

use crate::schemes::parts;
use crate::state::State;
use outlast::Config;
use outlast::db::roots::MapInfo;
use outlast::{RecordForm, Scheme};
use std::fmt;
use std::sync::Arc;

/// The kind of operation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Creates a pool.
    CreatePool,
    /// Opens a pool, usually after a crash.
    Open,
    /// Closes a pool and opens it again.
    Reopen,
    /// Creates a map.
    CreateMap,
    /// Drops a map.
    DropMap,
    /// Inserts if absent.
    Insert,
    /// Inserts or replaces.
    Put,
    /// Replaces if present.
    Update,
    /// Compares and swaps.
    Swap,
    /// Removes.
    Remove,
    /// Lookups and iteration. They store when they are the first to touch something after a crash.
    Read,
    /// Syncs.
    Sync,
    /// Copies the pool.
    Snapshot,
    /// Does one step of background work.
    Background,
    /// Verifies the pool.
    Verify,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::CreatePool => "create pool",
            Kind::Open => "open",
            Kind::Reopen => "close and reopen",
            Kind::CreateMap => "create map",
            Kind::DropMap => "drop map",
            Kind::Insert => "insert",
            Kind::Put => "put",
            Kind::Update => "update",
            Kind::Swap => "swap",
            Kind::Remove => "remove",
            Kind::Read => "read",
            Kind::Sync => "sync",
            Kind::Snapshot => "snapshot",
            Kind::Background => "background",
            Kind::Verify => "verify",
        })
    }
}

/// A step of a session, which a crash may interrupt.
#[derive(Debug, Clone)]
pub struct Step {
    /// The kind of operation.
    pub kind: Kind,
    /// A description for people.
    pub text: String,
    /// The pool's contents before; `None` before the pool was created.
    pub before: Option<Arc<State>>,
    /// The contents once the step has returned.
    pub after: Arc<State>,
}

/// The form and configuration of a session's maps.
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
        Shape { form, config: parts(scheme).shapes[0].1 }
    }

    /// Returns the scheme.
    pub fn scheme(self) -> Scheme {
        self.config.scheme()
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
        }
    }
}

/// A change of one key, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Do {
    /// Inserts if absent.
    Insert(u64),
    /// Inserts or replaces.
    Put(u64),
    /// Replaces if present.
    Update(u64),
    /// Replaces the value if it equals the first one, by the second one.
    Swap(u64, u64),
    /// Removes if present.
    Remove,
}

impl Do {
    /// Returns the kind of operation.
    pub fn kind(self) -> Kind {
        match self {
            Do::Insert(_) => Kind::Insert,
            Do::Put(_) => Kind::Put,
            Do::Update(_) => Kind::Update,
            Do::Swap(..) => Kind::Swap,
            Do::Remove => Kind::Remove,
        }
    }

    /// Returns whether the change applies to a key with this value, and the value afterwards.
    pub fn on(self, before: Option<u64>) -> (bool, Option<u64>) {
        match (self, before) {
            (Do::Insert(value), None) | (Do::Put(value), _) | (Do::Update(value), Some(_)) => {
                (true, Some(value))
            }
            (Do::Swap(expected, new), Some(found)) if expected == found => (true, Some(new)),
            (Do::Remove, Some(_)) => (true, None),
            _ => (false, before),
        }
    }
}

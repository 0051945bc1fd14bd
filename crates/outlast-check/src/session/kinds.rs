//! What a session consists of: steps, and changes of keys.

use crate::codec::Form;
use crate::state::State;
use outlast::internals::index::Change;
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
    /// Compares and removes.
    CompareRemove,
    /// Changes several keys.
    Many,
    /// Makes a batch.
    Batch,
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
            Kind::CompareRemove => "compare and remove",
            Kind::Many => "many",
            Kind::Batch => "batch",
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
    /// What else a crash during the step can leave, if the step consists of several changes.
    pub between: Vec<Arc<State>>,
}

/// A change of a batch: the map, the key, and the value to put, or `None` to remove the key.
pub type Batched = (&'static str, u64, Option<u64>);

/// A change of one key, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Do {
    /// Inserts if absent.
    Insert(u64),
    /// Inserts or replaces.
    Put(u64),
    /// Replaces if present.
    Update(u64),
    /// Replaces the value with the second one if it equals the first one.
    Swap(u64, u64),
    /// Removes if present.
    Remove,
    /// Removes if the value equals this one.
    CompareRemove(u64),
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
            Do::CompareRemove(_) => Kind::CompareRemove,
        }
    }

    /// Returns the values that the change needs. Where it needs none, they have the number 0.
    pub(crate) fn operands<R: Form>(self) -> [R::Owned; 2] {
        match self {
            Do::Insert(v) | Do::Put(v) | Do::Update(v) | Do::CompareRemove(v) => [v, 0],
            Do::Swap(expected, new) => [expected, new],
            Do::Remove => [0, 0],
        }
        .map(R::nth_value)
    }

    /// Returns the change with its [operands](Self::operands).
    pub(crate) fn with<R: Form>(self, operands: &[R::Owned; 2]) -> Change<'_, R> {
        let [first, second] = operands.each_ref().map(R::value_of);
        match self {
            Do::Insert(_) => Change::Insert(first),
            Do::Put(_) => Change::Put(first),
            Do::Update(_) => Change::Update(first),
            Do::Swap(..) => Change::Swap { expected: first, new: second },
            Do::Remove => Change::Remove,
            Do::CompareRemove(_) => Change::CompareRemove(first),
        }
    }

    /// Returns whether the change applies to a key with the value `before` (`None` if it is
    /// absent), and the value afterwards.
    pub fn on(self, before: Option<u64>) -> (bool, Option<u64>) {
        match (self, before) {
            (Do::Insert(value), None) | (Do::Put(value), _) | (Do::Update(value), Some(_)) => {
                (true, Some(value))
            }
            (Do::Swap(expected, new), Some(found)) if expected == found => (true, Some(new)),
            (Do::Remove, Some(_)) => (true, None),
            (Do::CompareRemove(expected), Some(found)) if expected == found => (true, None),
            _ => (false, before),
        }
    }
}

//! Changes of one key.

use crate::index::{Change, Record};

/// A change, taken apart.
pub(crate) struct Plan<'a, R: Record> {
    /// What to store; `None` to remove.
    pub(crate) value: Option<R::Value<'a>>,
    /// The value that must be there.
    pub(crate) expected: Option<R::Value<'a>>,
    /// Whether it applies to an absent key.
    pub(crate) inserts: bool,
    /// Whether it applies to a present one.
    pub(crate) replaces: bool,
    /// Whether the value before is asked for.
    pub(crate) want_before: bool,
}

impl<'a, R: Record> Plan<'a, R> {
    #[inline(always)]
    pub(crate) fn of(change: &Change<'a, R>, want_before: bool) -> Self {
        let (value, expected, inserts, replaces) = match *change {
            Change::Insert(value) => (Some(value), None, true, false),
            Change::Put(value) => (Some(value), None, true, true),
            Change::Update(value) => (Some(value), None, false, true),
            Change::Swap { expected, new } => (Some(new), Some(expected), false, true),
            Change::Remove => (None, None, false, true),
        };
        Plan { value, expected, inserts, replaces, want_before }
    }
}

/// Applies a change in an arm of its own for each kind, so that the compiler knows the kind in it.
#[inline(always)]
pub(crate) fn by_kind<'a, R: Record, T>(
    change: Change<'a, R>,
    apply: impl Fn(Change<'a, R>) -> T,
) -> T {
    match change {
        Change::Insert(value) => apply(Change::Insert(value)),
        Change::Put(value) => apply(Change::Put(value)),
        Change::Update(value) => apply(Change::Update(value)),
        Change::Swap { expected, new } => apply(Change::Swap { expected, new }),
        Change::Remove => apply(Change::Remove),
    }
}

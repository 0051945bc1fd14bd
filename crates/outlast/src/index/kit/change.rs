//! The protocol of a change of one key.
//!
//! The kit passes the gate, decides by what is there, marks the old record's block before it is
//! unlinked and retires it afterwards, and tries again. A scheme supplies an attempt.

use super::table::{HashedKey, Table};
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, SlotWords};
use crate::index::{Change, Changed};
use crate::pmem::Seam;
use crate::pool::core::Core;

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

impl<R: Record> Clone for Plan<'_, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for Plan<'_, R> {}

impl<'a, R: Record> Plan<'a, R> {
    #[inline(always)]
    fn of(change: Change<'a, R>, want_before: bool) -> Self {
        let (value, expected, inserts, replaces) = match change {
            Change::Insert(value) => (Some(value), None, true, false),
            Change::Put(value) => (Some(value), None, true, true),
            Change::Update(value) => (Some(value), None, false, true),
            Change::Swap { expected, new } => (Some(new), Some(expected), false, true),
            Change::Remove => (None, None, false, true),
        };
        Plan { value, expected, inserts, replaces, want_before }
    }
}

/// The result of a part of a change. Its error is a pointer: what is returned through several
/// calls is small.
pub(crate) type Attempt<T> = Result<T, Box<Error>>;

impl From<Damage> for Box<Error> {
    #[cold]
    fn from(damage: Damage) -> Self {
        Box::new(Error::Damaged(damage))
    }
}

/// What became of one attempt.
pub(crate) enum Step<R: Record, F> {
    Done(Changed<R>),
    /// Something else came first.
    Again,
    /// There is no room.
    Full(F),
}

impl<R: Record, F> Step<R, F> {
    /// The key was absent.
    #[inline(always)]
    pub(crate) fn absent(applied: bool) -> Self {
        Step::Done(Changed { applied, before: None, present: false })
    }
}

/// Changes of one key.
pub(crate) trait Update<S: Seam, R: Record>: Table<S, R> {
    /// What one attempt leaves to the next: the new record, as a rule.
    type Progress<'t>: Default
    where
        Self: 't;
    /// What is known of the place that has no room.
    type Full<'t>
    where
        Self: 't;

    /// Begins a change, or ends it where that takes no attempt. What can wait or fail, as the
    /// writing of a record's block, comes before anything is locked.
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        progress: &mut Self::Progress<'t>,
    ) -> Attempt<Option<Changed<R>>>;

    /// The first attempt, where a scheme has one that takes fewer instructions. `None` leaves the
    /// change to [`attempt`](Self::attempt): nothing has happened.
    #[inline(always)]
    fn attempt_first<'t>(
        &'t self,
        _key: HashedKey<'_, R>,
        _plan: &Plan<'_, R>,
        _progress: &mut Self::Progress<'t>,
    ) -> Option<Changed<R>> {
        None
    }

    /// Attempts a change.
    fn attempt<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        progress: &mut Self::Progress<'t>,
    ) -> Attempt<Step<R, Self::Full<'t>>>;

    /// Makes room for a key, unless another thread has.
    fn grow(&self, key: HashedKey<'_, R>, full: Self::Full<'_>) -> Result<()>;
}

/// Changes a key: see [`Index::change`](crate::index::Index::change).
#[inline(always)]
pub(crate) fn change<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    change: Change<'_, R>,
    want_before: bool,
) -> Result<Changed<R>> {
    // One arm each, so that the compiler knows the kind in it. (A closure for what they have in
    // common would not be inlined.)
    match change {
        Change::Insert(new) => enter(table, key, Plan::of(Change::Insert(new), want_before)),
        Change::Put(new) => enter(table, key, Plan::of(Change::Put(new), want_before)),
        Change::Update(new) => enter(table, key, Plan::of(Change::Update(new), want_before)),
        Change::Swap { expected, new } => {
            enter(table, key, Plan::of(Change::Swap { expected, new }, want_before))
        }
        Change::Remove => enter(table, key, Plan::of(Change::Remove, want_before)),
    }
}

/// Passes the gate.
#[inline(always)]
fn enter<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    plan: Plan<'_, R>,
) -> Result<Changed<R>> {
    R::check_size(key, plan.value)?;
    let Some(inside) = table.core().pass_to_change() else {
        return enter_later(table, key, plan);
    };
    let mut space = [0; 8];
    let changed = repeat(table, HashedKey::of(table, key, &mut space), &plan);
    inside.leave();
    changed.map_err(|error| *error)
}

/// As [`enter`], whatever that takes.
#[cold]
#[inline(never)]
fn enter_later<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    plan: Plan<'_, R>,
) -> Result<Changed<R>> {
    let _writing = table.core().enter_to_change()?;
    let mut space = [0; 8];
    repeat(table, HashedKey::of(table, key, &mut space), &plan).map_err(|error| *error)
}

/// Attempts a change until it is made.
#[inline(always)]
fn repeat<'t, S: Seam, R: Record, T: Update<S, R>>(
    table: &'t T,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
) -> Attempt<Changed<R>> {
    let mut progress = T::Progress::<'t>::default();
    if let Some(changed) = table.begin(key, plan, &mut progress)? {
        return Ok(changed);
    }
    if let Some(changed) = table.attempt_first(key, plan, &mut progress) {
        return Ok(changed);
    }
    // Copies: what calls can see of has to stand in memory, and would from the beginning.
    let (plan, mut progress) = (*plan, std::mem::take(&mut progress));
    loop {
        match table.attempt(key, &plan, &mut progress)? {
            Step::Done(changed) => return Ok(changed),
            Step::Again => {}
            Step::Full(full) => table.grow(key, full)?,
        }
    }
}

/// What is decided on a key that is present, and which nobody else changes.
pub(crate) struct Decision<R: Record> {
    before: Option<R::Owned>,
    /// The block of the record before, offset and bytes.
    old_block: Option<(u64, u64)>,
    /// Whether the change applies: it is to be stored, durably, and then
    /// [finished](Self::finish).
    pub(crate) applied: bool,
}

/// Decides on a key whose record is in a slot of these words.
#[inline(always)]
pub(crate) fn decide<S: Seam, R: Record>(
    core: &Core<S>,
    plan: &Plan<'_, R>,
    words: SlotWords,
) -> Result<Decision<R>, Damage> {
    let before = if plan.want_before { Some(R::value(core, words)?) } else { None };
    let old_block = R::block(core, words)?;
    let applied = plan.replaces
        && match plan.expected {
            Some(expected) => R::value_is(core, words, expected)?,
            None => true,
        };
    if applied && let Some((offset, _)) = old_block {
        core.before_unlink(offset)?;
    }
    Ok(Decision { before, old_block, applied })
}

impl<R: Record> Decision<R> {
    /// Retires the old record's block, to which nothing links any more.
    #[inline(always)]
    pub(crate) fn finish<S: Seam>(self, core: &Core<S>) -> Changed<R> {
        if self.applied
            && let Some((offset, bytes)) = self.old_block
        {
            core.retire(offset, bytes);
        }
        Changed { applied: self.applied, before: self.before, present: true }
    }
}

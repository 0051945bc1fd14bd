//! The protocol of a change of one key.
//!
//! The kit passes the gate, and has the scheme begin and attempt the change until another thread no longer
//! interferes. The scheme's `begin` and `attempt` call back: `prepare` makes the new record, `decide`
//! tells by the present record whether the change applies and marks the old record's block for the
//! trace before it is unlinked, `finish` retires the block.

use super::lookup::{self, Optimistic};
use super::table::{HashedKey, Lookup};
use super::unlinked::UnlinkedRecord;
use crate::error::{Boxed, Damage, Error, Result};
use crate::index::bugs;
use crate::index::record::{Record, SlotRecord, SlotWords};
use crate::index::{BATCH, Change, Changed, Previous, RecordForm};
use crate::pmem::{Point, Seam};
use crate::pool::core::Core;

/// A change, broken down into its conditions and its effect.
pub(crate) struct Plan<'a, R: Record> {
    /// The value to store; `None` to remove the key.
    pub(crate) value: Option<R::Value<'a>>,
    /// The value that must be there, if the change depends on it.
    pub(crate) expected: Option<R::Value<'a>>,
    /// Whether the change applies to an absent key.
    pub(crate) inserts: bool,
    /// Whether the change applies to a present key.
    pub(crate) replaces: bool,
    /// Whether the caller wants the value before the change.
    pub(crate) before: Previous<R>,
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
    pub(crate) fn of(change: Change<'a, R>, before: Previous<R>) -> Self {
        let (value, expected, inserts, replaces) = match change {
            Change::Insert(value) => (Some(value), None, true, false),
            Change::Put(value) => (Some(value), None, true, true),
            Change::Update(value) => (Some(value), None, false, true),
            Change::Swap { expected, new } => (Some(new), Some(expected), false, true),
            Change::Remove => (None, None, false, true),
            Change::CompareRemove(expected) => (None, Some(expected), false, true),
        };
        Plan { value, expected, inserts, replaces, before }
    }
}

/// The outcome of one attempt.
pub(crate) enum Step<R: Record, F> {
    Done(Changed<R>),
    /// The attempt has to start over, because another thread interfered.
    Again,
    /// The attempt cannot succeed before [`grow`](Update::grow) has made room for the record, or
    /// has removed another obstacle.
    Full(F),
}

impl<R: Record, F> Step<R, F> {
    /// Returns the outcome of a change whose key was absent.
    #[inline(always)]
    pub(crate) fn absent(applied: bool) -> Self {
        Step::Done(Changed { applied, before: None, present: false })
    }
}

/// Changes of one key.
pub(crate) trait Update<S: Seam, R: Record>: Lookup<S, R> {
    /// What one attempt passes on to the next: usually the new record.
    type Progress<'t>: Default
    where
        Self: 't;
    /// What an attempt passes to [`grow`](Self::grow): the place that is full, or another obstacle.
    type Full<'t>
    where
        Self: 't;

    /// Begins a change, or completes it if it needs no attempt. What must not be done under a lock
    /// happens here, such as allocating the record's block, which can wait for space and fail.
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        progress: &mut Self::Progress<'t>,
    ) -> Boxed<Option<Changed<R>>>;

    /// Makes the first attempt on the hot path, if the scheme has one. `None` means that nothing
    /// has happened, and leaves the change to [`attempt`](Self::attempt).
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
    ) -> Boxed<Step<R, Self::Full<'t>>>;

    /// Makes room for a key, or removes another obstacle, unless another thread already has. The
    /// kit then attempts the change again.
    fn grow(&self, key: HashedKey<'_, R>, full: Self::Full<'_>) -> Result<()>;

    /// Makes changes of at most [`BATCH`] keys, in order, and adds the result of each to `done`, up
    /// to the first change that fails. A scheme can let them share their fences.
    fn change_in_row(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()>
    where
        Self: Sized,
    {
        lookup::prefetch(self, changes.iter().map(|(key, _)| *key));
        for (key, plan) in changes {
            done.push(repeat(self, *key, plan)?);
        }
        Ok(())
    }
}

/// Changes a key: see [`Index::change`](crate::index::Index::change).
#[inline(always)]
pub(crate) fn change<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    change: Change<'_, R>,
    before: Previous<R>,
) -> Boxed<Changed<R>> {
    // One arm for each kind, so that the compiler knows the kind inside it. (A closure for the
    // common part would not be inlined.)
    match change {
        Change::Insert(new) => enter(table, key, Plan::of(Change::Insert(new), before)),
        Change::Put(new) => enter(table, key, Plan::of(Change::Put(new), before)),
        Change::Update(new) => enter(table, key, Plan::of(Change::Update(new), before)),
        Change::Swap { expected, new } => {
            enter(table, key, Plan::of(Change::Swap { expected, new }, before))
        }
        Change::Remove => enter(table, key, Plan::of(Change::Remove, before)),
        // This kind uses the code that is compiled for all kinds, because one more copy of the hot
        // path would make the code of every index larger.
        Change::CompareRemove(expected) => {
            R::check_size(key, None)?;
            enter_later(table, key, Plan::of(Change::CompareRemove(expected), before))
        }
    }
}

/// Makes a change inside the gate. If the gate cannot be passed immediately, leaves the change to
/// [`enter_later`].
#[inline(always)]
fn enter<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    plan: Plan<'_, R>,
) -> Boxed<Changed<R>> {
    R::check_size(key, plan.value)?;
    let Some(inside) = table.core().pass_to_change() else {
        return enter_later(table, key, plan);
    };
    let mut space = [0; 8];
    let changed = repeat(table, HashedKey::of(table, key, &mut space), &plan);
    inside.leave();
    changed.or_else(|error| enter_with_room(table, key, plan, error))
}

/// Makes a change once more that has failed for lack of space, if the pool could get some outside of the
/// gate.
#[cold]
#[inline(never)]
pub(crate) fn enter_with_room<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    plan: Plan<'_, R>,
    error: Box<Error>,
) -> Boxed<Changed<R>> {
    if !table.core().make_room(&error)? {
        return Err(error);
    }
    let _writing = table.core().enter_to_change()?;
    let mut space = [0; 8];
    repeat(table, HashedKey::of(table, key, &mut space), &plan)
}

/// The slow path of [`enter`], which can wait and fail. The key's size has been checked.
#[cold]
#[inline(never)]
fn enter_later<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    key: R::Key<'_>,
    plan: Plan<'_, R>,
) -> Boxed<Changed<R>> {
    let writing = table.core().enter_to_change()?;
    let mut space = [0; 8];
    let changed = repeat(table, HashedKey::of(table, key, &mut space), &plan);
    drop(writing);
    changed.or_else(|error| enter_with_room(table, key, plan, error))
}

/// Changes several keys: see [`Index::change_many`](crate::index::Index::change_many).
pub(crate) fn change_many<S: Seam, R: Record>(
    table: &impl Update<S, R>,
    keys: &[R::Key<'_>],
    changes: &[Change<'_, R>],
    done: &mut Vec<Changed<R>>,
) -> Result<()> {
    debug_assert_eq!(keys.len(), changes.len());
    for (keys, changes) in keys.chunks(BATCH).zip(changes.chunks(BATCH)) {
        let mut spaces = [[0; 8]; BATCH];
        let mut row = Vec::with_capacity(BATCH);
        let mut failed = None;
        for ((&key, &change), space) in keys.iter().zip(changes).zip(&mut spaces) {
            let plan = Plan::of(change, Previous::UNWANTED);
            if let Err(error) = R::check_size(key, plan.value) {
                failed = Some(error);
                break;
            }
            row.push((HashedKey::of(table, key, space), plan));
        }
        if !row.is_empty() {
            let _writing = table.core().enter_to_change()?;
            table.change_in_row(&row, done)?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Attempts a change until an attempt completes it. Calls [`grow`](Update::grow) after each attempt
/// that found no room or another obstacle.
#[inline(always)]
pub(crate) fn repeat<'t, S: Seam, R: Record, T: Update<S, R>>(
    table: &'t T,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
) -> Boxed<Changed<R>> {
    let mut progress = T::Progress::<'t>::default();
    if let Some(changed) = table.begin(key, plan, &mut progress)? {
        return Ok(changed);
    }
    go_on(table, key, plan, &mut progress)
}

/// Does what [`repeat`] does, once the change has been [begun](Update::begin).
#[inline(always)]
pub(crate) fn go_on<'t, S: Seam, R: Record, T: Update<S, R>>(
    table: &'t T,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
    progress: &mut T::Progress<'t>,
) -> Boxed<Changed<R>> {
    if let Some(changed) = table.attempt_first(key, plan, progress) {
        return Ok(changed);
    }
    // The loop gets copies, because its calls take them by reference, which forces them into
    // memory. Without the copies, the originals would live in memory on the hot path too.
    let (plan, mut progress) = (*plan, std::mem::take(progress));
    loop {
        match table.attempt(key, &plan, &mut progress)? {
            Step::Done(changed) => return Ok(changed),
            Step::Again => {}
            Step::Full(full) => table.grow(key, full)?,
        }
    }
}

/// Begins a change in a scheme whose slots are two words: prepares the new record, unless the change
/// is a removal.
#[inline(always)]
pub(crate) fn prepare<'t, S: Seam, R: SlotRecord, T: Optimistic<S, R>>(
    table: &'t T,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
    at: &'static Point,
    new: &mut Option<UnlinkedRecord<'t, S, R>>,
) -> Boxed<Option<Changed<R>>> {
    // This returns early if the key's presence alone decides that the change does not apply. For byte
    // strings, no block is written in vain then.
    if can_decide_early::<S, R, T>(plan)
        && let Some(changed) = decide_early(table, key, plan)?
    {
        return Ok(Some(changed));
    }
    if let Some(value) = plan.value {
        *new = Some(UnlinkedRecord::prepare(table.core(), key.key, value, key.hash, at)?);
    }
    Ok(None)
}

/// Whether it is worth a lookup to find out whether a change applies: its block could be needless, or
/// its lock.
#[inline(always)]
fn can_decide_early<S: Seam, R: SlotRecord, T: Optimistic<S, R>>(plan: &Plan<'_, R>) -> bool {
    let has_block = R::FORM == RecordForm::Bytes && plan.value.is_some();
    (has_block || T::SEARCHES_FIRST) && plan.inserts != plan.replaces
}

/// Returns whether a change needs a block, as far as can be said before it is decided.
pub(crate) fn seems_to_need_block<S: Seam, R: SlotRecord, T: Optimistic<S, R>>(
    table: &T,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
) -> bool {
    let is_decided = || matches!(decide_early(table, key, plan), Ok(Some(_)));
    plan.value.is_some() && !(can_decide_early::<S, R, T>(plan) && is_decided())
}

/// Returns the result of an insert whose key is present, or of another change whose key is absent. `None`
/// if the change has to be attempted.
fn decide_early<S: Seam, R: SlotRecord>(
    table: &impl Optimistic<S, R>,
    key: HashedKey<'_, R>,
    plan: &Plan<'_, R>,
) -> Boxed<Option<Changed<R>>> {
    let read = |words| match plan.inserts {
        true => plan.before.take(|| R::value(table.core(), words)),
        false => Ok(None),
    };
    let found = match lookup::find_fast(table, key, read) {
        Some(found) => found,
        None => lookup::find(table, key, 1, read)?,
    };
    Ok((found.is_some() == plan.inserts).then(|| Changed {
        applied: false,
        before: found.flatten(),
        present: plan.inserts,
    }))
}

/// The decision about a present key that no other thread can change meanwhile.
pub(crate) struct Decision<R: Record> {
    before: Option<R::Owned>,
    /// The block of the old record: its offset and its size.
    old_block: Option<(u64, u64)>,
    /// Whether the change applies. If so, the caller stores it durably and then
    /// [finishes](Self::finish) it.
    pub(crate) applied: bool,
}

/// Decides a change of a key whose record is in a slot with these words. If the change applies,
/// marks the record's block for the trace.
#[inline(always)]
pub(crate) fn decide<S: Seam, R: SlotRecord>(
    core: &Core<S>,
    plan: &Plan<'_, R>,
    words: SlotWords,
) -> Result<Decision<R>, Damage> {
    let before = plan.before.take(|| R::value(core, words))?;
    let old_block = R::block(core, words)?;
    let applied = plan.replaces
        && match plan.expected {
            Some(_) if core.memory.seam().seeded(&bugs::COMPARISON_IGNORED) => true,
            Some(expected) => R::value_is(core, words, expected)?,
            None => true,
        };
    if applied && let Some((offset, _)) = old_block {
        core.before_unlink(offset)?;
    }
    Ok(Decision { before, old_block, applied })
}

impl<R: Record> Decision<R> {
    /// Retires the old record's block, if the change has unlinked it, and returns the result.
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

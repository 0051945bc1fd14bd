//! Changes of several keys that share one fence.
//!
//! The thread first takes the locks of all of them and decides each, then stores and flushes all, and
//! fences once. Only after that does it show the changes to readers and unlock, so no other thread can
//! depend on a change that is not durable. The locks come first because taking one is a
//! read-modify-write, which on x86-64 waits for all earlier flushes, like a fence.
//!
//! While it holds locks, the thread takes others only if they are free, and allocates nothing. So it
//! never waits for a thread that may be waiting for it. A change that needs more than that (another
//! thread's lock, growth, a record in the stash) ends the row: the changes so far are made, and that
//! change is made by itself.

use super::change::{Decision, Plan, Update, decide, go_on, repeat, seems_to_need_block};
use super::lookup::{Optimistic, prefetch};
use super::table::HashedKey;
use super::unlinked::UnlinkedRecord;
use crate::error::Boxed;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{BATCH, Changed, RecordForm, bugs};
use crate::pmem::{Point, Seam};

/// The commit points of rows.
pub(crate) struct RowPoints {
    /// A new record's block.
    pub(crate) record: &'static Point,
    /// The fence of such blocks.
    pub(crate) records: &'static Point,
    /// The fence of the changes.
    pub(crate) many: &'static Point,
}

/// What a scheme says of a change in a row.
pub(crate) enum InRow<P, W> {
    /// The key is absent. The change would store here.
    Absent(P),
    /// The key is present, and the slot has these words.
    Present(P, W),
}

/// A scheme whose changes can share a fence.
pub(crate) trait Rows<S: Seam, R: SlotRecord>: Update<S, R> + Optimistic<S, R> {
    /// Its commit points.
    const POINTS: RowPoints;

    /// The place of a change, with the locks that it needs. Dropping it unlocks them.
    type Place<'t>
    where
        Self: 't;

    /// Takes the locks of a change and finds its place. An absent key needs a place only if the
    /// change inserts; otherwise `None` is enough. Returns `None`, with nothing done, if that is not
    /// possible.
    fn place<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
    ) -> Option<InRow<Option<Self::Place<'t>>, SlotWords>>;

    /// Stores a change and flushes it: these words of a new record, or another value for a present
    /// one, or `None` to remove the record.
    fn store(&self, place: &mut Self::Place<'_>, present: bool, words: Option<SlotWords>);

    /// Shows a change to readers, before its locks are dropped.
    fn show(&self, place: &mut Self::Place<'_>);

    /// Returns what a change passes to its first attempt when its record is written.
    fn progress<'t>(new: UnlinkedRecord<'t, S, R>) -> Self::Progress<'t>;
}

/// A change that is decided.
struct Decided<'t, S: Seam, R: SlotRecord, T: Rows<S, R> + 't> {
    place: T::Place<'t>,
    words: Option<SlotWords>,
    decision: Option<Decision<R>>,
}

/// The decided changes of one thread, whose locks it holds.
struct Row<'t, S: Seam, R: SlotRecord, T: Rows<S, R>> {
    table: &'t T,
    changes: Vec<Decided<'t, S, R, T>>,
}

impl<'t, S: Seam, R: SlotRecord, T: Rows<S, R>> Row<'t, S, R, T> {
    /// Makes the changes, durably, shows them to readers and unlocks.
    fn make(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let (table, core) = (self.table, &**self.table.core());
        for change in &mut self.changes {
            table.store(&mut change.place, change.decision.is_some(), change.words);
        }
        let is_early = core.memory.seam().seeded(&bugs::ROW_SHOWN_EARLY);
        if !is_early {
            core.memory.fence(T::POINTS.many);
        }
        let mut decisions = [const { None }; BATCH];
        for (change, decision) in self.changes.iter_mut().zip(&mut decisions) {
            table.show(&mut change.place);
            *decision = change.decision.take();
        }
        // Unlocks.
        self.changes.clear();
        if is_early {
            core.memory.fence(T::POINTS.many);
        }
        // No lock is held any more when blocks are retired.
        for decision in decisions.into_iter().flatten() {
            decision.finish(core);
        }
    }

    /// Takes the locks of a change and decides it. Returns `None`, with nothing done, if that is not
    /// possible.
    #[inline(always)]
    fn decide(
        &mut self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Option<Changed<R>> {
        let core = &**self.table.core();
        let words = new.as_ref().map(UnlinkedRecord::words);
        let (place, present, decision) = match self.table.place(key, plan)? {
            InRow::Absent(_) if !plan.inserts => {
                return Some(Changed { applied: false, before: None, present: false });
            }
            InRow::Absent(place) => {
                words?;
                (place, false, None)
            }
            InRow::Present(place, found) => {
                let decision = decide(core, plan, found).ok()?;
                if !decision.applied {
                    return Some(decision.finish(core));
                }
                if words.is_none() && plan.value.is_some() {
                    return None;
                }
                (place, true, Some(decision))
            }
        };
        let place = place?;
        if let Some(mut new) = new.take() {
            new.set_linked();
        }
        self.changes.push(Decided { place, words, decision });
        Some(Changed { applied: true, before: None, present })
    }
}

/// Makes changes of at most [`BATCH`] keys, in order: see
/// [`change_in_row`](Update::change_in_row).
pub(crate) fn change_sharing_fence<S: Seam, R: SlotRecord, T: Rows<S, R>>(
    table: &T,
    changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
    done: &mut Vec<Changed<R>>,
) -> Boxed<()> {
    let core = &**table.core();
    prefetch(table, changes.iter().map(|(key, _)| *key));
    // Blocks are allocated before any lock is taken. If one cannot be had, its change and those
    // after it that need a block are made by themselves, and report the error.
    let mut records = [const { None }; BATCH];
    for ((key, plan), new) in changes.iter().zip(&mut records) {
        if let Some(value) = plan.value
            && seems_to_need_block(table, *key, plan)
        {
            let (at, fence) = (T::POINTS.record, T::POINTS.records);
            let written =
                UnlinkedRecord::prepare_unfenced(core, key.key, value, key.hash, at, fence);
            let Ok(written) = written else { break };
            *new = Some(written);
        }
    }
    if R::FORM == RecordForm::Bytes && records.iter().any(Option::is_some) {
        core.memory.fence(T::POINTS.records);
        records.iter_mut().flatten().for_each(UnlinkedRecord::set_fenced);
    }
    let mut row = Row { table, changes: Vec::with_capacity(BATCH) };
    for (n, (key, plan)) in changes.iter().enumerate() {
        if let Some(changed) = row.decide(*key, plan, &mut records[n]) {
            done.push(changed);
            continue;
        }
        row.make();
        let made = match records[n].take() {
            Some(new) => go_on(table, *key, plan, &mut T::progress(new)),
            None => repeat(table, *key, plan),
        };
        done.push(match made {
            // The records of later changes may have taken the last space.
            Err(error) if error.is_full() && records.iter().any(Option::is_some) => {
                records = [const { None }; BATCH];
                repeat(table, *key, plan)?
            }
            made => made?,
        });
    }
    row.make();
    Ok(())
}

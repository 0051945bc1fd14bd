//! Changes of several keys that share one fence.
//!
//! The thread first stores all changes, then flushes all, and fences once. Only after that does it end
//! them in the states of their leaves. Until then another thread that finds one of them makes it durable
//! itself, as it does for a change by itself. No line is flushed before the last change is stored,
//! because reserving a slot is a read-modify-write, which on x86-64 waits for all earlier flushes.
//!
//! The places of all keys are found before the first change. If the node of a place has changed since,
//! its key is searched for again. That only saves time: each change checks its place by itself, after
//! it has announced itself in the leaf.
//!
//! While changes of it have not ended, the thread waits for no change of another thread, and allocates
//! nothing. A change that needs more than that (a leaf that another thread is changing, one that this
//! thread itself is updating, a split, a slot that is not blank) ends the row: the changes so far are
//! made durable, and that change is made by itself. The thread may have to wait until an inner node has
//! changed. The thread that changes the node does not wait for this one: splits and merges close their
//! leaves, which waits for the changes there, before they lock a node. Byte strings are changed one by
//! one.

use super::route::Located;
use super::state::{BUSY, Leaf, State};
use super::{OrderedRecord, Phast, bugs, points};
use crate::error::Boxed;
use crate::index::kit::change::{Plan, decide, repeat};
use crate::index::kit::lookup::stage;
use crate::index::kit::table::HashedKey;
use crate::index::{BATCH, Changed, RecordForm};
use crate::pmem::Seam;

/// What a change has stored.
#[derive(Clone, Copy)]
enum Stored {
    /// A pair and its bit.
    Insert,
    /// The value of a pair.
    Update,
    /// The bitmap.
    Remove,
}

/// A change that is stored and has not ended.
struct Pending<'t> {
    stored: Stored,
    leaf: &'t Leaf,
    offset: u64,
    slot: u32,
}

/// The changes of one thread that share a fence.
struct Row<'t, 'k, S: Seam, R: OrderedRecord> {
    index: &'t Phast<S, R>,
    pending: Vec<Pending<'t>>,
    /// Keys whose removal left so few pairs in a leaf that a merge may be possible.
    sparse: Vec<R::Key<'k>>,
}

impl<'k, S: Seam, R: OrderedRecord> Row<'_, 'k, S, R> {
    /// Makes the changes durable and ends them.
    fn end(&mut self) {
        let index = self.index;
        if self.pending.is_empty() {
            return;
        }
        let (seam, memory) = (index.seam(), &index.core.memory);
        let is_early = index.seeded(&bugs::ROW_ENDED_EARLY);
        let end = |pending: &Pending<'_>| match pending.stored {
            Stored::Insert => pending.leaf.finish_insert(seam),
            Stored::Update | Stored::Remove => pending.leaf.finish_change(seam),
        };
        if is_early {
            self.pending.iter().for_each(end);
        }
        for &Pending { stored, offset, slot, .. } in &self.pending {
            match stored {
                Stored::Insert => index.flush_insert(offset, slot, true),
                Stored::Update => memory.flush(index.pair(offset, slot), &points::UPDATE),
                Stored::Remove => {
                    memory.flush(&index.header(offset).head.bitmap, &points::REMOVE);
                }
            }
        }
        memory.fence(&points::MANY);
        if !is_early {
            self.pending.iter().for_each(end);
        }
        self.pending.clear();
        for key in self.sparse.drain(..) {
            index.merge_if_possible(key);
        }
    }

    /// Stores a change, or finds that it does not apply. Returns `None`, with nothing done, if that
    /// takes more than a row can do. `at` is the place of the key, if that was found before.
    #[inline(always)]
    fn store(
        &mut self,
        at: Option<Located<'_>>,
        key: HashedKey<'k, R>,
        plan: &Plan<'_, R>,
    ) -> Option<Changed<R>> {
        let index = self.index;
        let at = match at {
            Some(at) if index.is_current(&at) => at,
            _ => index.locate(key.key).ok()?,
        };
        let offset = index.offset_to_read(&at, index.leaf(at.leaf)).ok()??;
        let is_there = || index.probe(offset, index.bitmap(offset), key);
        if plan.replaces && (!plan.inserts || is_there().ok()?.is_some()) {
            self.replace(&at, offset, key, plan)
        } else {
            self.insert(&at, offset, key, plan)
        }
    }

    #[inline(always)]
    fn insert(
        &mut self,
        at: &Located<'_>,
        offset: u64,
        key: HashedKey<'k, R>,
        plan: &Plan<'_, R>,
    ) -> Option<Changed<R>> {
        let (index, seam) = (self.index, self.index.seam());
        let words = index.prepare(key, plan.value?).ok()?.words();
        let leaf = index.leaf(at.leaf);
        let reserved = index.reserve(at, leaf, offset, key).ok()?.ok()?;
        let slot = reserved.slot;
        if !reserved.blank {
            leaf.give_up_insert(seam, slot);
            return None;
        }
        if !matches!(index.fill(at.leaf, offset, reserved, words, key), Ok(true)) {
            leaf.finish_insert(seam);
            return None;
        }
        self.pending.push(Pending { stored: Stored::Insert, leaf, offset, slot });
        Some(Changed { applied: true, before: None, present: false })
    }

    /// Updates or removes a key.
    #[inline(always)]
    fn replace(
        &mut self,
        at: &Located<'_>,
        offset: u64,
        key: HashedKey<'k, R>,
        plan: &Plan<'_, R>,
    ) -> Option<Changed<R>> {
        let (index, seam) = (self.index, self.index.seam());
        let leaf = index.leaf(at.leaf);
        let state = leaf.state(seam);
        let is_free = !state.is_closed() && !state.is_tentative();
        if !is_free || !leaf.exchange(seam, state, State(state.0 | BUSY)) {
            return None;
        }
        let changed = self.replace_busy(at, offset, key, plan);
        // A change that is stored ends with the row.
        if changed.as_ref().is_none_or(|changed| !changed.applied) {
            leaf.finish_change(seam);
        }
        changed
    }

    #[inline(always)]
    fn replace_busy(
        &mut self,
        at: &Located<'_>,
        offset: u64,
        key: HashedKey<'k, R>,
        plan: &Plan<'_, R>,
    ) -> Option<Changed<R>> {
        let (index, core) = (self.index, &*self.index.core);
        if !index.is_current(at) {
            return None;
        }
        let Some(found) = index.probe(offset, index.bitmap(offset), key).ok()? else {
            let absent = Changed { applied: false, before: None, present: false };
            return (!plan.inserts).then_some(absent);
        };
        let leaf = index.leaf(at.leaf);
        if leaf.state(index.seam()).has_inserts() {
            // The pair may come from an insert that is not durable yet.
            return None;
        }
        let decision = decide(core, plan, found.words).ok()?;
        let slot = found.slot;
        let stored = match plan.value {
            _ if !decision.applied => return Some(decision.finish(core)),
            Some(value) => {
                let words = index.prepare(key, value).ok()?.words();
                let pair = index.pair(offset, slot);
                core.memory.store_release(&pair.second, words.second, &points::UPDATE);
                Stored::Update
            }
            None => {
                if index.clear_bit(offset, slot) {
                    self.sparse.push(key.key);
                }
                Stored::Remove
            }
        };
        self.pending.push(Pending { stored, leaf, offset, slot });
        Some(decision.finish(core))
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Makes changes of at most [`BATCH`] keys, in order: see
    /// [`Update::change_in_row`](crate::index::kit::change::Update::change_in_row).
    pub(super) fn change_sharing_fence(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()> {
        let pending = Vec::with_capacity(BATCH);
        let mut row = Row { index: self, pending, sparse: Vec::new() };
        let mut staged = [const { None }; BATCH];
        // Errors are ignored here: a change of the key reports them.
        let _ = stage(self, &(), changes.iter().map(|(key, _)| *key), &mut staged);
        for ((key, plan), staged) in changes.iter().zip(&staged) {
            let at = staged.as_ref().and_then(|staged| staged.at);
            let stored = match R::FORM {
                RecordForm::Inline => row.store(at, *key, plan),
                RecordForm::Bytes => None,
            };
            done.push(match stored {
                Some(changed) => changed,
                None => {
                    row.end();
                    repeat(self, *key, plan)?
                }
            });
        }
        row.end();
        Ok(())
    }
}

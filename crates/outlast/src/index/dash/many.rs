//! Changes of several keys that share one fence.
//!
//! The thread first takes the locks of all of them and decides each, then stores and flushes all, and
//! fences once. Only after that does it show the changes to readers and unlock the buckets, so no other
//! thread can depend on a change that is not durable. The locks come first because taking one is a
//! read-modify-write, which on x86-64 waits for all earlier flushes, like a fence.
//!
//! While it holds locks, the thread takes others only if they are free, and allocates nothing. So it
//! never waits for a thread that may be waiting for it. A change that needs more than that (another
//! thread's lock, a split, a record in the stash) ends the row: the changes so far are made, and that
//! change is made by itself.

use super::change::{Progress, prefers_home};
use super::lock::Locked;
use super::lookup::Part;
use super::metadata::{BucketRef, Overflow};
use super::{Addressing, Dash, bugs, points};
use crate::error::Boxed;
use crate::index::kit::change::{Decision, Plan, decide, go_on, repeat, seems_to_need_block};
use crate::index::kit::lock::Guarded;
use crate::index::kit::lookup::prefetch;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{BATCH, Changed, RecordForm};
use crate::pmem::Seam;

/// How a change alters its slot.
#[derive(Clone, Copy)]
enum Action {
    /// It gets a new record, which is not at home in the bucket if `is_guest`.
    Fill { fingerprint: u8, is_guest: bool },
    /// It gets another value.
    Replace,
    /// It is emptied.
    Empty,
}

/// A change that is decided.
struct Decided<'t, S: Seam, R: SlotRecord> {
    action: Action,
    bucket: BucketRef<'t>,
    slot: usize,
    hash: u64,
    words: SlotWords,
    decision: Option<Decision<R>>,
    here: Guarded<Locked<'t, S>>,
    _next: Option<Guarded<Locked<'t, S>>>,
}

/// The decided changes of one thread, whose buckets it has locked.
struct Row<'t, S: Seam, R: SlotRecord, A: Addressing> {
    table: &'t Dash<S, R, A>,
    changes: Vec<Decided<'t, S, R>>,
}

impl<'t, S: Seam, R: SlotRecord, A: Addressing> Row<'t, S, R, A> {
    /// Makes the changes, durably, shows them to readers and unlocks their buckets.
    fn make(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let (table, core) = (self.table, &*self.table.core);
        for change in &mut self.changes {
            change.store(table);
        }
        let is_early = table.seeded(&bugs::ROW_SHOWN_EARLY);
        if !is_early {
            core.memory.fence(&points::MANY);
        }
        let mut decisions = [const { None }; BATCH];
        for (change, decision) in self.changes.iter_mut().zip(&mut decisions) {
            let Decided { bucket, slot, .. } = *change;
            match change.action {
                Action::Fill { fingerprint, is_guest } => {
                    table.publish(bucket, slot, fingerprint, is_guest);
                }
                Action::Empty => {
                    bucket.metadata.set_bits(table.seam(), table.bits(bucket).without(slot));
                }
                Action::Replace => {}
            }
            *decision = change.decision.take();
        }
        // Unlocks the buckets.
        self.changes.clear();
        if is_early {
            core.memory.fence(&points::MANY);
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
        let table = self.table;
        let route = table.ready_route(key.hash)?;
        let home = table.home(key.hash);
        let try_lock = |bucket| table.try_hold(bucket).map(Guarded::new);
        let here = try_lock(table.bucket(route.segment, home))?;
        let (bucket, next) = (here.bucket, table.bucket(route.segment, table.next(home)));
        let (bits, next_bits) = (table.bits(bucket), table.bits(next));
        let found = match table.probe_pair((bucket, bits), (next, next_bits), key) {
            Ok(found) if table.is_current(&route) => found,
            _ => return None,
        };
        let none = SlotWords { first: 0, second: 0 };
        let words = new.as_ref().map_or(none, UnlinkedRecord::words);
        let Some(place) = found else {
            if !Overflow::of(here.word()).is_none() {
                return None;
            }
            if !plan.inserts {
                return Some(Changed { applied: false, before: None, present: false });
            }
            new.as_ref()?;
            let first = Dash::<S, R, A>::first_slot(key.hash);
            let at_home = bits.free_slot(first).filter(|_| prefers_home(bits, next_bits, first));
            let (bucket, slot, locked) = match at_home {
                Some(slot) => (bucket, slot, None),
                None => {
                    let locked = try_lock(next)?;
                    // The bucket may have filled up before it was locked.
                    let is_late = table.seeded(&bugs::ROW_NEXT_NOT_RECHECKED);
                    let next_bits = if is_late { next_bits } else { table.bits(next) };
                    (next, next_bits.free_slot(first)?, Some(locked))
                }
            };
            let action = Action::Fill { fingerprint: key.hash as u8, is_guest: locked.is_some() };
            let hash = key.hash;
            self.changes.push(Decided {
                action,
                bucket,
                slot,
                hash,
                words,
                decision: None,
                here,
                _next: locked,
            });
            link(new);
            return Some(Changed { applied: true, before: None, present: false });
        };
        let decision = decide(&table.core, plan, place.words).ok()?;
        if !decision.applied {
            return Some(decision.finish(&table.core));
        }
        let (action, locked) = match place.part {
            _ if new.is_some() => (Action::Replace, None),
            _ if plan.value.is_some() => return None,
            Part::Home => (Action::Empty, None),
            Part::Next => (Action::Empty, Some(try_lock(next)?)),
            _ => return None,
        };
        link(new);
        self.changes.push(Decided {
            action,
            bucket: place.bucket,
            slot: place.slot,
            hash: key.hash,
            words,
            decision: Some(decision),
            here,
            _next: locked,
        });
        Some(Changed { applied: true, before: None, present: true })
    }
}

/// Keeps a new record's block, because a slot will link to it.
fn link<S: Seam, R: SlotRecord>(new: &mut Option<UnlinkedRecord<'_, S, R>>) {
    if let Some(mut new) = new.take() {
        new.set_linked();
    }
}

impl<S: Seam, R: SlotRecord> Decided<'_, S, R> {
    /// Stores the change and flushes it.
    #[inline(always)]
    fn store<A: Addressing>(&mut self, table: &Dash<S, R, A>) {
        let memory = &table.core.memory;
        let slot = &self.bucket.slots[self.slot];
        let empty = table.empty(self.hash);
        match self.action {
            Action::Fill { .. } => {
                slot.fill(memory, self.words, empty, &points::INSERT);
                memory.flush(slot, &points::INSERT);
            }
            Action::Replace => {
                self.here.changing();
                let (value, link) = (&points::UPDATE, &points::UPDATE_LINK);
                slot.replace_unfenced::<S, R>(memory, self.words, value, link);
            }
            Action::Empty => {
                self.here.changing();
                memory.store_release(&slot.first, empty, &points::REMOVE);
                memory.flush(slot, &points::REMOVE);
            }
        }
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    /// Makes changes of at most [`BATCH`] keys, in order: see
    /// [`Update::change_in_row`](crate::index::kit::change::Update::change_in_row).
    pub(super) fn change_sharing_fence(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()> {
        let core = &*self.core;
        prefetch(self, changes.iter().map(|(key, _)| *key));
        // Blocks are allocated before any lock is taken. If one cannot be had, its change and those
        // after it that need a block are made by themselves, and report the error.
        let mut records = [const { None }; BATCH];
        for ((key, plan), new) in changes.iter().zip(&mut records) {
            if let Some(value) = plan.value
                && seems_to_need_block(self, *key, plan)
            {
                let (at, fence) = (&points::RECORD, &points::MANY_RECORDS);
                let written =
                    UnlinkedRecord::prepare_unfenced(core, key.key, value, key.hash, at, fence);
                let Ok(written) = written else { break };
                *new = Some(written);
            }
        }
        if R::FORM == RecordForm::Bytes && records.iter().any(Option::is_some) {
            core.memory.fence(&points::MANY_RECORDS);
            records.iter_mut().flatten().for_each(UnlinkedRecord::set_fenced);
        }
        let mut row = Row { table: self, changes: Vec::with_capacity(BATCH) };
        for (n, (key, plan)) in changes.iter().enumerate() {
            if let Some(changed) = row.decide(*key, plan, &mut records[n]) {
                done.push(changed);
                continue;
            }
            row.make();
            let made = match records[n].take() {
                Some(new) => go_on(self, *key, plan, &mut Progress::of(new)),
                None => repeat(self, *key, plan),
            };
            done.push(match made {
                // The records of later changes may have taken the last space.
                Err(error) if error.is_full() && records.iter().any(Option::is_some) => {
                    records = [const { None }; BATCH];
                    repeat(self, *key, plan)?
                }
                made => made?,
            });
        }
        row.make();
        Ok(())
    }
}

//! Changes of several keys that share one fence.
//!
//! The thread first takes the locks of all of them and decides each, then stores and flushes all, and
//! fences once. Only after that does it show the changes to readers and unlock the buckets, so no other
//! thread can depend on a change that is not durable. The locks come first because taking one is a
//! read-modify-write, which on x86-64 waits for all earlier flushes, like a fence.
//!
//! An insert whose two buckets are full displaces one record. Its copy is one of the stores before that
//! fence. The new record takes the place of the original after it, and a second fence follows, which
//! all such inserts share.
//!
//! While it holds locks, the thread takes others only if they are free, and allocates nothing. So it
//! never waits for a thread that may be waiting for it. A change that needs more than that (a lock
//! that is taken, also by an earlier change of the row, a split, a record in the stash) ends the row:
//! the changes so far are made, and that change is made by itself.

use super::change::{Progress, prefers_home};
use super::lock::Locked;
use super::lookup::Part;
use super::metadata::{BucketRef, Overflow};
use super::{Addressing, Dash, Route, bugs, points};
use crate::error::Boxed;
use crate::index::kit::change::{Decision, Plan, decide, go_on, repeat, seems_to_need_block};
use crate::index::kit::lock::Guarded;
use crate::index::kit::lookup::prefetch;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{Record, SlotWords};
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
struct Decided<'t, S: Seam, R: Record> {
    action: Action,
    bucket: BucketRef<'t>,
    slot: usize,
    hash: u64,
    words: SlotWords,
    decision: Option<Decision<R>>,
    here: Guarded<Locked<'t, S>>,
    _next: Option<Guarded<Locked<'t, S>>>,
}

/// An insert that displaces a record.
struct Displacing<'t, S: Seam> {
    /// The words of the new record, and its fingerprint.
    words: SlotWords,
    fingerprint: u8,
    hash: u64,
    /// The words of the record that moves.
    moved: SlotWords,
    /// The slot that it leaves, and the slot that it moves to.
    from: (BucketRef<'t>, usize),
    to: (BucketRef<'t>, usize),
    /// Whether it moves from its home to the next bucket, or back to its home.
    forward: bool,
    _here: Guarded<Locked<'t, S>>,
    next: Guarded<Locked<'t, S>>,
    elsewhere: Guarded<Locked<'t, S>>,
}

/// The decided changes of one thread, whose buckets it has locked.
struct Row<'t, S: Seam, R: Record, A: Addressing> {
    table: &'t Dash<S, R, A>,
    changes: Vec<Decided<'t, S, R>>,
    displacing: Vec<Displacing<'t, S>>,
}

impl<'t, S: Seam, R: Record, A: Addressing> Row<'t, S, R, A> {
    /// Makes the changes, durably, shows them to readers and unlocks their buckets.
    fn make(&mut self) {
        if self.changes.is_empty() && self.displacing.is_empty() {
            return;
        }
        let (table, core) = (self.table, &*self.table.core);
        for change in &mut self.changes {
            change.store(table);
        }
        for change in &mut self.displacing {
            change.copy(table);
        }
        let is_early = table.seeded(&bugs::ROW_SHOWN_EARLY);
        let displaces = !self.displacing.is_empty();
        if !is_early && !(displaces && table.seeded(&bugs::ROW_COPIES_UNFENCED)) {
            core.memory.fence(&points::MANY);
        }
        if displaces {
            self.displacing.iter().for_each(|change| change.fill(table));
            core.memory.fence(&points::MANY_DISPLACED);
            for Displacing { from, fingerprint, forward, .. } in &self.displacing {
                table.publish(from.0, from.1, *fingerprint, *forward);
            }
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
        self.displacing.clear();
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
        let route = table.known_route(key.hash)?;
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
                    let Some(slot) = table.bits(next).free_slot(first) else {
                        let displacing = table.displacing(&route, key.hash, words, here, locked)?;
                        self.displacing.push(displacing);
                        link(new);
                        return Some(Changed { applied: true, before: None, present: false });
                    };
                    (next, slot, Some(locked))
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
fn link<S: Seam, R: Record>(new: &mut Option<UnlinkedRecord<'_, S, R>>) {
    if let Some(mut new) = new.take() {
        new.set_linked();
    }
}

impl<S: Seam, R: Record> Decided<'_, S, R> {
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

impl<S: Seam> Displacing<'_, S> {
    /// Stores the copy of the record that moves, and flushes it.
    fn copy<R: Record, A: Addressing>(&mut self, table: &Dash<S, R, A>) {
        let home = if self.forward { &mut self.next } else { &mut self.elsewhere };
        home.changing();
        let (memory, slot) = (&table.core.memory, &self.to.0.slots[self.to.1]);
        slot.fill(memory, self.moved, table.empty(self.hash), &points::DISPLACE_COPY);
        memory.flush(slot, &points::DISPLACE_COPY);
    }

    /// Shows the copy, which is durable, and stores the new record over the original.
    fn fill<R: Record, A: Addressing>(&self, table: &Dash<S, R, A>) {
        table.show_copy(self.from.0, self.from.1, self.to.0, self.to.1, self.forward);
        let (memory, slot) = (&table.core.memory, &self.from.0.slots[self.from.1]);
        slot.fill(memory, self.words, table.empty(self.hash), &points::DISPLACE_FILL);
        memory.flush(slot, &points::DISPLACE_FILL);
    }
}

impl<S: Seam, R: Record, A: Addressing> Dash<S, R, A> {
    /// Decides which record an insert displaces, whose two buckets, both locked, are full. Returns
    /// `None` if that takes more than one lock that is free, or more than one record.
    fn displacing<'t>(
        &'t self,
        route: &Route<'_, A>,
        hash: u64,
        words: SlotWords,
        here: Guarded<Locked<'t, S>>,
        next: Guarded<Locked<'t, S>>,
    ) -> Option<Displacing<'t, S>> {
        let (home, second) = (here.bucket, next.bucket);
        if self.bits(home).free_slot(0).is_some() {
            return None;
        }
        let index = self.home(hash);
        let ways = [
            (second, self.bits(second).own(), self.next(self.next(index)), true),
            (home, self.bits(home).guests(), self.previous(index), false),
        ];
        for (bucket, movable, other, forward) in ways {
            let other = self.bucket(route.segment, other);
            if movable == 0 || self.bits(other).free_slot(0).is_none() {
                continue;
            }
            let Some(elsewhere) = self.try_hold(other).map(Guarded::new) else { continue };
            // The bucket may have filled up before it was locked.
            let Some(free) = self.bits(other).free_slot(0) else { continue };
            let slot = movable.trailing_zeros() as usize;
            let moved = self.words(&bucket.slots[slot]);
            if R::FORM == RecordForm::Bytes {
                self.core.before_unlink(R::extent(&self.core, moved).ok()?.0).ok()?;
            }
            return Some(Displacing {
                words,
                fingerprint: hash as u8,
                hash,
                moved,
                from: (bucket, slot),
                to: (other, free),
                forward,
                _here: here,
                next,
                elsewhere,
            });
        }
        None
    }

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
        let decided = Vec::with_capacity(BATCH);
        let mut row = Row { table: self, changes: decided, displacing: Vec::new() };
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

//! Changes of several keys that share one fence.
//!
//! Each change is stored and flushed, but its bucket stays locked, so no other thread can see the
//! change yet or depend on it. One fence then makes all of them durable, and only after it are they
//! shown to readers and their buckets unlocked.
//!
//! While it holds locks, the thread takes others only if they are free, and allocates nothing. So it
//! never waits for a thread that may be waiting for it. A change that needs more than that (another
//! thread's lock, a split, a record in the stash) ends the row: the changes so far get their fence, and
//! that change is made by itself.

use super::change::prefers_home;
use super::lock::Locked;
use super::lookup::Part;
use super::metadata::{BucketRef, Overflow};
use super::{Addressing, Dash, bugs, points};
use crate::index::kit::change::{Attempt, Decision, Plan, decide, repeat};
use crate::index::kit::lock::Guarded;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::Record;
use crate::index::{BATCH, Changed, RecordForm};
use crate::pmem::Seam;

/// What happens to a slot once its change is durable.
enum Then<'t> {
    /// Its record, which is not at home in the bucket if `is_guest`, is shown to readers.
    Show { bucket: BucketRef<'t>, slot: usize, fingerprint: u8, is_guest: bool },
    /// It is free.
    Free { bucket: BucketRef<'t>, slot: usize },
    /// Nothing: it has another value.
    Stay,
}

/// A change that is flushed and not fenced.
struct Change<'t, S: Seam, R: Record> {
    then: Then<'t>,
    decision: Option<Decision<R>>,
    _here: Guarded<Locked<'t, S>>,
    _next: Option<Guarded<Locked<'t, S>>>,
}

/// Changes of one thread that are flushed and not fenced. Dropping this settles them.
struct Unfenced<'t, S: Seam, R: Record, A: Addressing> {
    table: &'t Dash<S, R, A>,
    changes: Vec<Change<'t, S, R>>,
}

impl<S: Seam, R: Record, A: Addressing> Drop for Unfenced<'_, S, R, A> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.settle();
        }
    }
}

impl<'t, S: Seam, R: Record, A: Addressing> Unfenced<'t, S, R, A> {
    /// Makes the changes durable, shows them to readers and unlocks their buckets.
    fn settle(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let (table, core) = (self.table, &*self.table.core);
        let is_early = table.seeded(&bugs::ROW_SHOWN_EARLY);
        if !is_early {
            core.memory.fence(&points::MANY);
        }
        let mut decisions = [const { None }; BATCH];
        for (change, decision) in self.changes.drain(..).zip(&mut decisions) {
            match change.then {
                Then::Show { bucket, slot, fingerprint, is_guest } => {
                    table.publish(bucket, slot, fingerprint, is_guest);
                }
                Then::Free { bucket, slot } => {
                    bucket.metadata.set_bits(table.seam(), table.bits(bucket).without(slot));
                }
                Then::Stay => {}
            }
            *decision = change.decision;
        }
        if is_early {
            core.memory.fence(&points::MANY);
        }
        // No lock is held any more when blocks are retired.
        for decision in decisions.into_iter().flatten() {
            decision.finish(core);
        }
    }

    /// Makes a change without its fence. Returns `None`, and has stored nothing, if that is not
    /// possible.
    #[inline(always)]
    fn make(
        &mut self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Option<Changed<R>> {
        let table = self.table;
        let memory = &table.core.memory;
        let route = table.known_route(key.hash)?;
        let home = table.home(key.hash);
        let try_lock = |bucket| table.try_hold(bucket).map(Guarded::new);
        let mut here = try_lock(table.bucket(route.segment, home))?;
        let (bucket, next) = (here.bucket, table.bucket(route.segment, table.next(home)));
        let (bits, next_bits) = (table.bits(bucket), table.bits(next));
        let found = match table.probe_pair((bucket, bits), (next, next_bits), key) {
            Ok(found) if table.is_current(&route) => found,
            _ => return None,
        };
        let Some(place) = found else {
            if !Overflow::of(here.word()).is_none() {
                return None;
            }
            let Some(new) = new.as_mut().filter(|_| plan.inserts) else {
                return Some(Changed { applied: false, before: None, present: false });
            };
            let first = Dash::<S, R, A>::first_slot(key.hash);
            let at_home = bits.free_slot(first).filter(|_| prefers_home(bits, next_bits, first));
            let (bucket, slot, locked) = match at_home {
                Some(slot) => (bucket, slot, None),
                None => {
                    let locked = try_lock(next)?;
                    // The bucket may have filled up before it was locked.
                    (next, table.bits(next).free_slot(first)?, Some(locked))
                }
            };
            let target = &bucket.slots[slot];
            target.fill(memory, new.words(), table.empty(key.hash), &points::INSERT);
            memory.flush(target, &points::INSERT);
            new.set_linked();
            let (fingerprint, is_guest) = (key.hash as u8, locked.is_some());
            let then = Then::Show { bucket, slot, fingerprint, is_guest };
            self.add(then, None, here, locked);
            return Some(Changed { applied: true, before: None, present: false });
        };
        let decision = decide(&table.core, plan, place.words).ok()?;
        if !decision.applied {
            return Some(decision.finish(&table.core));
        }
        let target = &place.bucket.slots[place.slot];
        let (then, locked) = if let Some(new) = new {
            here.changing();
            target.replace_unfenced::<S, R>(
                memory,
                new.words(),
                &points::UPDATE,
                &points::UPDATE_LINK,
            );
            new.set_linked();
            (Then::Stay, None)
        } else {
            let locked = match place.part {
                Part::Home => None,
                Part::Next => Some(try_lock(next)?),
                _ => return None,
            };
            here.changing();
            memory.store_release(&target.first, table.empty(key.hash), &points::REMOVE);
            memory.flush(target, &points::REMOVE);
            (Then::Free { bucket: place.bucket, slot: place.slot }, locked)
        };
        self.add(then, Some(decision), here, locked);
        Some(Changed { applied: true, before: None, present: true })
    }

    fn add(
        &mut self,
        then: Then<'t>,
        decision: Option<Decision<R>>,
        here: Guarded<Locked<'t, S>>,
        next: Option<Guarded<Locked<'t, S>>>,
    ) {
        self.changes.push(Change { then, decision, _here: here, _next: next });
    }
}

impl<S: Seam, R: Record, A: Addressing> Dash<S, R, A> {
    /// Makes changes of at most [`BATCH`] keys, in order: see
    /// [`Update::change_in_row`](crate::index::kit::change::Update::change_in_row).
    pub(super) fn change_sharing_fence(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Attempt<()> {
        let core = &*self.core;
        // Blocks are allocated before any lock is taken. If one cannot be had, its change is made by
        // itself, which reports the error if it needs the block.
        let mut records = [const { None }; BATCH];
        for ((key, plan), new) in changes.iter().zip(&mut records) {
            if let Some(value) = plan.value {
                let (at, fence) = (&points::RECORD, &points::MANY_RECORDS);
                let written =
                    UnlinkedRecord::prepare_unfenced(core, key.key, value, key.hash, at, fence);
                *new = written.ok();
            }
        }
        if R::FORM == RecordForm::Bytes && records.iter().any(Option::is_some) {
            core.memory.fence(&points::MANY_RECORDS);
        }
        let mut unfenced = Unfenced { table: self, changes: Vec::with_capacity(BATCH) };
        for ((key, plan), new) in changes.iter().zip(&mut records) {
            let has_block = plan.value.is_none() || new.is_some();
            let made = if has_block { unfenced.make(*key, plan, new) } else { None };
            done.push(match made {
                Some(changed) => changed,
                None => {
                    unfenced.settle();
                    *new = None;
                    repeat(self, *key, plan)?
                }
            });
        }
        Ok(())
    }
}

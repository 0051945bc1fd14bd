//! Changes of several keys that share one fence: see the kit's `row`.

use super::change::{Progress, prefers_home};
use super::lock::Locked;
use super::lookup::Part;
use super::metadata::{BucketRef, Overflow};
use super::{Addressing, Dash, bugs, points};
use crate::index::kit::change::Plan;
use crate::index::kit::lock::Guarded;
use crate::index::kit::row::{InRow, RowPoints, Rows};
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::Seam;

/// How a change alters its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// It gets a new record, which is not at home in the bucket if `is_guest`.
    Fill { is_guest: bool },
    /// It gets another value.
    Replace,
    /// It is emptied.
    Empty,
}

/// The place of a change.
pub(crate) struct RowPlace<'t, S: Seam> {
    action: Action,
    bucket: BucketRef<'t>,
    slot: usize,
    hash: u64,
    here: Guarded<Locked<'t, S>>,
    _next: Option<Guarded<Locked<'t, S>>>,
}

impl<S: Seam, R: SlotRecord, A: Addressing> Rows<S, R> for Dash<S, R, A> {
    const POINTS: RowPoints =
        RowPoints { record: &points::RECORD, records: &points::MANY_RECORDS, many: &points::MANY };

    type Place<'t> = RowPlace<'t, S>;

    #[inline(always)]
    fn place<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
    ) -> Option<InRow<Option<RowPlace<'t, S>>, SlotWords>> {
        let hash = key.hash;
        let route = self.ready_route(hash)?;
        let home = self.home(hash);
        let try_lock = |bucket| self.try_hold(bucket).map(Guarded::new);
        let here = try_lock(self.bucket(route.segment, home))?;
        let (bucket, next) = (here.bucket, self.bucket(route.segment, self.next(home)));
        let (bits, next_bits) = (self.bits(bucket), self.bits(next));
        let found = match self.probe_pair((bucket, bits), (next, next_bits), key) {
            Ok(found) if self.is_current(&route) => found,
            _ => return None,
        };
        let Some(place) = found else {
            if !Overflow::of(here.word()).is_none() {
                return None;
            }
            if !plan.inserts {
                return Some(InRow::Absent(None));
            }
            let first = Self::first_slot(hash);
            let at_home = bits.free_slot(first).filter(|_| prefers_home(bits, next_bits, first));
            let (bucket, slot, locked) = match at_home {
                Some(slot) => (bucket, slot, None),
                None => {
                    let locked = try_lock(next)?;
                    // The bucket may have filled up before it was locked.
                    let is_late = self.seeded(&bugs::ROW_NEXT_NOT_RECHECKED);
                    let next_bits = if is_late { next_bits } else { self.bits(next) };
                    (next, next_bits.free_slot(first)?, Some(locked))
                }
            };
            let action = Action::Fill { is_guest: locked.is_some() };
            return Some(InRow::Absent(Some(RowPlace {
                action,
                bucket,
                slot,
                hash,
                here,
                _next: locked,
            })));
        };
        let (action, locked) = match place.part {
            _ if plan.value.is_some() => (Action::Replace, None),
            Part::Home => (Action::Empty, None),
            Part::Next => (Action::Empty, Some(try_lock(next)?)),
            _ => return None,
        };
        let found =
            RowPlace { action, bucket: place.bucket, slot: place.slot, hash, here, _next: locked };
        Some(InRow::Present(Some(found), place.words))
    }

    #[inline(always)]
    fn store(&self, place: &mut RowPlace<'_, S>, _: bool, words: Option<SlotWords>) {
        let memory = &self.core.memory;
        let slot = &place.bucket.slots[place.slot];
        let empty = self.empty(place.hash);
        match (place.action, words) {
            (Action::Fill { .. }, Some(words)) => {
                slot.fill(memory, words, empty, &points::INSERT);
                memory.flush(slot, &points::INSERT);
            }
            (Action::Replace, Some(words)) => {
                place.here.changing();
                let (value, link) = (&points::UPDATE, &points::UPDATE_LINK);
                slot.replace_unfenced::<S, R>(memory, words, value, link);
            }
            _ => {
                place.here.changing();
                memory.store_release(&slot.first, empty, &points::REMOVE);
                memory.flush(slot, &points::REMOVE);
            }
        }
    }

    #[inline(always)]
    fn show(&self, place: &mut RowPlace<'_, S>) {
        let (bucket, slot) = (place.bucket, place.slot);
        match place.action {
            Action::Fill { is_guest } => self.publish(bucket, slot, place.hash as u8, is_guest),
            Action::Empty => {
                bucket.metadata.set_bits(self.seam(), self.bits(bucket).without(slot));
            }
            Action::Replace => {}
        }
    }

    fn progress<'t>(new: UnlinkedRecord<'t, S, R>) -> Progress<'t, S, R> {
        (Some(new), false)
    }
}

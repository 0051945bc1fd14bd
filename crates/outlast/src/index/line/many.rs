//! Changes of several keys that share one fence: see the kit's `row`.

use super::change::Progress;
use super::layout::{FROZEN, Slot};
use super::lookup::Part;
use super::{Line, Spot, bugs, points};
use crate::index::kit::change::Plan;
use crate::index::kit::lock::{Guarded, HeldLock};
use crate::index::kit::row::{InRow, RowPoints, Rows};
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::Seam;

/// The place of a change.
pub(crate) struct RowPlace<'t, S: Seam> {
    slot: &'t Slot,
    hash: u64,
    here: Guarded<HeldLock<'t, S>>,
}

impl<S: Seam, R: SlotRecord> Rows<S, R> for Line<S, R> {
    const POINTS: RowPoints = RowPoints {
        record: &points::RECORD,
        records: &points::MANY_RECORDS,
        many: &points::MANY,
        shown_early: &bugs::ROW_SHOWN_EARLY,
    };

    type Place<'t> = RowPlace<'t, S>;

    /// Finds a record in its home line or, if it stays where it is, elsewhere; and room in the home
    /// line only. A stripe that this row holds already is not free, so the row ends there.
    #[inline(always)]
    fn place<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
    ) -> Option<InRow<Option<RowPlace<'t, S>>, SlotWords>> {
        let hash = key.hash;
        let word = self.cells.find(self.seam(), hash);
        if word == 0 || word & FROZEN != 0 {
            return None;
        }
        let spot: Spot<'t, S> = self.spot(word, hash);
        let here = Guarded::new(spot.lock.try_hold()?);
        if !self.leads_to(word, hash) {
            return None;
        }
        let Some(found) = self.search(&spot, key, || true).ok()? else {
            if !plan.inserts {
                return Some(InRow::Absent(None));
            }
            let free = self.free(spot.home(), self.empty(hash));
            if free == 0 {
                return None;
            }
            let slot = &spot.home().slots[free.trailing_zeros() as usize / 2];
            return Some(InRow::Absent(Some(RowPlace { slot, hash, here })));
        };
        // The hints of a record that is away change with it.
        if plan.value.is_none() && found.part != Part::Home {
            return None;
        }
        Some(InRow::Present(Some(RowPlace { slot: found.slot, hash, here }), found.words))
    }

    #[inline(always)]
    fn store(&self, place: &mut RowPlace<'_, S>, present: bool, words: Option<SlotWords>) {
        let (memory, slot) = (&self.core.memory, place.slot);
        place.here.changing();
        match words {
            Some(words) if present => {
                let (value, link) = (&points::UPDATE, &points::UPDATE_LINK);
                slot.replace_unfenced::<S, R>(memory, words, value, link);
            }
            Some(words) => {
                slot.fill_empty(memory, words, &points::INSERT);
                memory.flush(slot, &points::INSERT);
            }
            None => {
                memory.store_release(&slot.first, self.empty(place.hash), &points::REMOVE);
                memory.flush(slot, &points::REMOVE);
            }
        }
    }

    fn show(&self, _: &mut RowPlace<'_, S>) {}

    fn progress<'t>(new: UnlinkedRecord<'t, S, R>) -> Progress<'t, S, R> {
        Progress::of(new)
    }
}

//! Changes of several keys that share one fence: see the kit's `row`.

use super::change::Progress;
use super::layout::{OPEN, Slot};
use super::lookup::{Found, Part, undisturbed};
use super::{Line, Spot, points};
use crate::index::kit::change::Plan;
use crate::index::kit::lock::{Guarded, HeldLock};
use crate::index::kit::row::{InRow, RowPoints, Rows};
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::Seam;

/// The place of a change.
pub(crate) struct RowPlace<'t, S: Seam> {
    spot: Spot<'t, S>,
    part: Part,
    slot: &'t Slot,
    here: Guarded<HeldLock<'t, S>>,
}

impl<S: Seam, R: SlotRecord> Rows<S, R> for Line<S, R> {
    const POINTS: RowPoints =
        RowPoints { record: &points::RECORD, records: &points::MANY_RECORDS, many: &points::MANY };

    type Place<'t> = RowPlace<'t, S>;

    /// Finds a record wherever it is, and room in the block only: the stash has another lock. A stripe
    /// that this row holds already is not free, so the row ends there.
    #[inline(always)]
    fn place<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
    ) -> Option<InRow<Option<RowPlace<'t, S>>, SlotWords>> {
        let hash = key.hash;
        let (cell, word) = self.cells.find_cell(self.seam(), hash);
        if word & OPEN == 0 {
            return None;
        }
        let spot: Spot<'t, S> = self.spot(word, hash);
        let here = Guarded::new(spot.lock.try_hold()?);
        if !self.leads_to(cell, word) {
            return None;
        }
        let (part, slot, words) = match self.search(&spot, key, undisturbed).ok()? {
            Some(Found { part, slot, words }) => (part, slot, Some(words)),
            None if !plan.inserts => return Some(InRow::Absent(None)),
            None => {
                let (place, slot) = self.room_in_block(&spot)?;
                (if place == 0 { Part::Home } else { Part::Away(place) }, slot, None)
            }
        };
        let place = Some(RowPlace { spot, part, slot, here });
        Some(match words {
            Some(words) => InRow::Present(place, words),
            None => InRow::Absent(place),
        })
    }

    #[inline(always)]
    fn store(&self, place: &mut RowPlace<'_, S>, present: bool, words: Option<SlotWords>) {
        let (memory, slot, spot) = (&self.core.memory, place.slot, &place.spot);
        place.here.changing();
        match (words, place.part) {
            (Some(words), _) if present => {
                let (value, link) = (&points::UPDATE, &points::UPDATE_LINK);
                slot.replace_unfenced::<S, R>(memory, words, value, link);
            }
            (Some(words), part) => {
                let at = match part {
                    Part::Away(place) => {
                        self.note(spot, place);
                        &points::INSERT_AWAY
                    }
                    _ => &points::INSERT,
                };
                slot.fill_empty(memory, words, at);
                memory.flush(slot, at);
            }
            (None, part) => {
                memory.store_release(&slot.first, self.empty(spot.hash), &points::REMOVE);
                memory.flush(slot, &points::REMOVE);
                if let Part::Away(place) = part {
                    self.forget(spot, place);
                }
            }
        }
    }

    fn show(&self, _: &mut RowPlace<'_, S>) {}

    fn progress<'t>(new: UnlinkedRecord<'t, S, R>) -> Progress<'t, S, R> {
        (Some(new), 0)
    }
}

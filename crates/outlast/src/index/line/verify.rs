//! Verification: checks every structure, every slot and every record.

use super::layout::{Segment, Slot};
use super::lookup::undisturbed;
use super::{At, Line};
use crate::error::Result;
use crate::index::kit::audit::Audit;
use crate::index::kit::table::{Verify, Walk};
use crate::index::record::SlotRecord;
use crate::index::{Cursor, CursorState, Schemas, Verified, Visitor};
use crate::pmem::Seam;

impl<S: Seam, R: SlotRecord> Verify<S, R> for Line<S, R> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        let mut cursor = Cursor::start();
        // Traces the directory here and not in the trace's first step, so that damage to it does
        // not hide the first segment.
        audit.report(self.seam().lock(&self.structure).directory.trace(visit))?;
        cursor.state = CursorState::Inside;
        while !cursor.is_done() {
            // First touch checks header, cells and slots. The trace follows the links.
            let at = cursor.low;
            let step = self.trace(&mut cursor, visit);
            match audit.report(step)? {
                Some(()) => {
                    let segment = Segment::of(self.cell(at, 1)?, at);
                    self.verify_segment(&segment, &mut audit)?;
                }
                None => cursor.pass(self.end_of_cell(at)),
            }
        }
        let intent = self.seam().lock(&self.structure).intent.clone();
        audit.verified.damage.extend(intent);
        Ok(audit.finish(&self.core))
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    fn verify_segment(&self, segment: &Segment, audit: &mut Audit<R>) -> Result<()> {
        audit.begin_part();
        for line in self.lines(segment) {
            let Some((at, line)) = audit.report(line.map_err(Into::into))? else { break };
            for slot in &line.slots {
                self.verify_slot(segment, at, slot, audit)?;
            }
        }
        Ok(())
    }

    fn verify_slot(
        &self,
        segment: &Segment,
        at: At,
        slot: &Slot,
        audit: &mut Audit<R>,
    ) -> Result<()> {
        let record = self.record_in(segment, at, slot);
        if let Some(Some((words, hash, _))) = audit.report(record.map_err(Into::into))? {
            let offset = self.core.memory.offset_of(slot).raw();
            audit.check_slot(&self.core, offset, words, |sought| {
                let spot = self.spot(segment.word(), hash);
                Ok(self.search(&spot, sought, undisturbed)?.map(|found| found.words))
            });
        }
        Ok(())
    }
}

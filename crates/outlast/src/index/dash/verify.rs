//! Verification: checks every structure, every slot and every record.

use super::layout::SLOTS;
use super::metadata::BucketRef;
use super::{Addressing, Dash, Segment};
use crate::error::Result;
use crate::index::kit::audit::Audit;
use crate::index::kit::table::{Verify, Walk};
use crate::index::record::SlotRecord;
use crate::index::version::LockWord;
use crate::index::{Cursor, CursorState, Schemas, Verified, Visitor};
use crate::pmem::Seam;
use std::sync::atomic::Ordering;

impl<S: Seam, R: SlotRecord, A: Addressing> Verify<S, R> for Dash<S, R, A> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        let mut cursor = Cursor::start();
        // Traces the directory here and not in the trace's first step, so that damage to it does
        // not hide the first segment.
        audit.report(A::trace(self, visit))?;
        cursor.state = CursorState::Inside;
        while !cursor.is_done() {
            // First touch checks header, directory range and slots. The trace follows the links.
            let at = cursor.low;
            let step = self.trace(&mut cursor, visit);
            match audit.report(step)? {
                Some(()) => self.verify_segment(self.route_inside(at)?.segment, &mut audit)?,
                // Skips the directory entry that could not be followed.
                None => cursor.pass(self.addressing.end_of_entry(self.seam(), at)),
            }
        }
        Ok(audit.finish(&self.core))
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    fn verify_segment(&self, segment: Segment, audit: &mut Audit<R>) -> Result<()> {
        audit.begin_part();
        for place in self.all_buckets(segment) {
            let Some((bucket, index)) = audit.report(place.map_err(Into::into))? else { break };
            for slot in 0..SLOTS {
                self.verify_slot(segment, bucket, index, slot, audit)?;
            }
        }
        Ok(())
    }

    fn verify_slot(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        index: Option<u32>,
        slot: usize,
        audit: &mut Audit<R>,
    ) -> Result<()> {
        let at = self.core.memory.offset_of(&bucket.slots[slot]).raw();
        let record = self.record_in(segment, bucket, slot, index);
        let Some(record) = audit.report(record.map_err(Into::into))? else { return Ok(()) };
        let listed = self.bits(bucket).allocated() & 1 << slot != 0;
        if listed != record.is_some() {
            let expected = format!("a slot that is {}", if listed { "in use" } else { "free" });
            audit.wrong(at, &expected, format!("{record:?}"));
        }
        let Some((words, _)) = record else {
            audit.verified.damage.extend(self.stray(segment, &bucket.slots[slot]));
            return Ok(());
        };
        audit.check_slot(&self.core, at, words, |slot| {
            let home = self.bucket(segment, self.home(slot.hash));
            let lock = self.lock_of(home).load(Ordering::Relaxed);
            Ok(self.search(segment, lock, slot)?.map(|place| place.words))
        });
        Ok(())
    }
}

//! Verification: checks every structure, every cell and every record.

use super::cells::Cell;
use super::{Group, Segment};
use crate::error::Result;
use crate::index::kit::audit::Audit;
use crate::index::kit::table::{Verify, Walk};
use crate::index::record::SlotRecord;
use crate::index::{Cursor, Schemas, Verified, Visitor};
use crate::pmem::Seam;

impl<S: Seam, R: SlotRecord> Verify<S, R> for Group<S, R> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        let mut cursor = Cursor::start();
        if let (_, Some(missing)) = self.follow_list()
            && self.missing.is_empty()
        {
            // The list was damaged after opening.
            audit.verified.damage.push(missing.damage);
        }
        while !cursor.is_done() {
            // The trace follows the links.
            let at = cursor.low;
            let step = self.trace(&mut cursor, visit);
            match (audit.report(step)?, self.route(at)) {
                (Some(()), Ok(route)) => {
                    for node in self.nodes(route.segment) {
                        let checked = node.and_then(|node| self.check_node(node));
                        audit.report(checked.map_err(Into::into))?;
                    }
                    audit.begin_part();
                    for cells in self.all_cells(route.segment) {
                        let Some(cells) = audit.report(cells.map_err(Into::into))? else { break };
                        for cell in cells.all() {
                            self.verify_cell(route.segment, cell, &mut audit)?;
                        }
                    }
                }
                // Continue after the part that cannot be read.
                (_, Ok(route)) => cursor.pass(route.segment.high()),
                (_, Err(_)) => cursor.pass(self.missing_at(at).high),
            }
        }
        Ok(audit.finish(&self.core))
    }
}

impl<S: Seam, R: SlotRecord> Group<S, R> {
    fn verify_cell(&self, segment: Segment, cell: Cell<'_>, audit: &mut Audit<R>) -> Result<()> {
        let at = self.core.memory.offset_of(cell.slot()).raw();
        let record = self.record_in(segment, cell).map_err(Into::into);
        let Some(record) = audit.report(record)? else { return Ok(()) };
        let free = cell.mark(self.seam()).is_free();
        if free != record.is_none() {
            let expected = format!("a cell that is {}", if free { "free" } else { "in use" });
            audit.wrong(at, &expected, format!("{record:?}"));
        }
        match record {
            Some((words, _)) => audit.check_slot(&self.core, at, words, |slot| {
                Ok(self.search(segment, slot)?.map(|(_, words)| words))
            }),
            None => audit.verified.damage.extend(self.stray(segment, cell)),
        }
        Ok(())
    }
}

//! First touch: completes a split and makes the segment ready before it is used.

use super::layout::{SegmentHeader, State};
use super::{DashEh, Prefixes, Route, Segment, Structure, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::record::Record;
use crate::pmem::{Offset, Seam};

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Touches the segment of a hash for the first time. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<Route<'_, Prefixes>> {
        let structure = self.seam().lock(&self.addressing.structure);
        loop {
            if let Some(route) = self.known_route(hash) {
                return Ok(route);
            }
            let entry =
                &structure.entries_of(&self.core.memory, hash, structure.directory.depth)?[0];
            let offset = self.core.memory.load(entry);
            let (low, state) = self.check_segment(offset)?;
            if state.partner != 0 && !self.seeded(&index_bugs::HALF_SPLIT_SERVED) {
                self.complete_split(&structure, offset, low, state)?;
                continue;
            }
            let segment = Segment { offset, depth: state.depth, low };
            if let Some((entry, other)) = self.foreign_entry(&structure, segment, hash)? {
                // A split of `other` may have set only some of its entries before a crash. Its new
                // segment is used only once all of them are set.
                match self.check_segment(other) {
                    Ok((low, state)) if state.partner == offset => {
                        self.complete_split(&structure, other, low, state)?;
                        continue;
                    }
                    _ => {
                        let expected = format!("the segment {offset:#x} of depth {}", state.depth);
                        return Err(Damage::new(entry, expected, format!("{other:#x}")).into());
                    }
                }
            }
            let way = structure.entries_of(&self.core.memory, segment.low, segment.depth)?;
            self.make_ready(segment, way)?;
            self.addressing.dram.fill(self.seam(), segment);
        }
    }

    /// Checks a segment's range against the directory. Returns the first entry in the range that
    /// points elsewhere, and where it points.
    fn foreign_entry(
        &self,
        structure: &Structure,
        segment: Segment,
        hash: u64,
    ) -> Result<Option<(u64, u64)>, Damage> {
        let Segment { offset, depth, low } = segment;
        if depth > structure.directory.depth || low << depth != 0 || !segment.holds(hash) {
            return Err(Damage::new(
                offset + 8,
                format!("a segment that holds hash {hash:#x}"),
                format!("first hash {low:#x}, depth {depth}"),
            ));
        }
        Ok(structure.entries_of(&self.core.memory, low, depth)?.iter().find_map(|entry| {
            let found = self.core.memory.load(entry);
            (found != offset).then(|| (self.core.memory.offset_of(entry).raw(), found))
        }))
    }

    /// Completes a split that has committed: sets the directory entries of the upper half.
    ///
    /// It sets only those that still point to the old segment. An earlier process may have split
    /// the new segment further without ever touching the old one.
    fn complete_split(
        &self,
        structure: &Structure,
        offset: u64,
        low: u64,
        state: State,
    ) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let bit = 1 << (64 - state.depth);
        let (partner_low, partner_state) = self.check_segment(state.partner)?;
        if state.depth > structure.directory.depth
            || low & (bit | (bit - 1)) != 0
            || partner_low != low | bit
            || partner_state.depth < state.depth
        {
            return Err(Damage::new(
                offset + 16,
                format!("a split of the segment at {low:#x} that matches its partner"),
                format!("{state:?}, partner at {partner_low:#x}: {partner_state:?}"),
            ));
        }
        // The state may never have been flushed. It must be durable before the entries that depend
        // on it.
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        memory.persist(&header.state, &points::REPAIR_STATE);
        let upper = structure.entries_of(memory, partner_low, state.depth)?;
        for entry in upper {
            if memory.load(entry) == offset || self.seeded(&bugs::SPLIT_REDONE_BLINDLY) {
                memory.store(entry, state.partner, &points::REPAIR_DIRECTORY);
            }
        }
        memory.flush_words(upper, &points::REPAIR_DIRECTORY);
        memory.fence(&points::REPAIR_DIRECTORY);
        let done = State { depth: state.depth, partner: 0 };
        memory.store_release(&header.state, done.pack(offset), &points::SPLIT_DONE);
        Ok(())
    }
}

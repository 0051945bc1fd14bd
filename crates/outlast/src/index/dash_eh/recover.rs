//! First touch: completes a split and makes the segment ready before it is used.

use super::layout::{Bucket, SegmentHeader, State};
use super::{DashEh, Prefixes, Route, Segment, Structure, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::media::check_block;
use crate::index::record::SlotRecord;
use crate::pmem::{Offset, Seam, Word};

impl<S: Seam, R: SlotRecord> DashEh<S, R> {
    /// Touches the segment of a hash for the first time. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<Route<'_, Prefixes>> {
        let structure = self.seam().lock(&self.addressing.structure);
        loop {
            if let Some(route) = self.ready_route(hash) {
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
                // A crash may have cut short the split of `other` that made this segment, when only
                // some entries were set. The segment is used only once all of them are.
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

    /// Finds the segment of a hash whose first touch has failed, and the last hash from there on
    /// that leads to it. If the segment's header is damaged, the directory tells which hashes the
    /// segment holds, unless a crash may have cut a split short.
    #[cold]
    pub(super) fn find_unready(&self, hash: u64) -> Result<(Segment, u64)> {
        let structure = self.seam().lock(&self.addressing.structure);
        let (core, depth) = (&self.core, structure.directory.depth);
        let offset = core.memory.load(&structure.entries_of(&core.memory, hash, depth)?[0]);
        // This does not check that the allocator knows such a block, because the header alone tells
        // whether this is a segment.
        let check = |offset: u64| {
            core.memory.at(Offset::<Bucket>::new(offset))?;
            self.check_header(offset).map(|header| (offset, header))
        };
        let entries = structure.entries_of(&core.memory, 0, 0)?;
        let leads = |entry: &Word| core.memory.load(entry) == offset;
        let own = (hash >> (64 - depth)) as usize;
        let same = entries[own..].iter().take_while(|entry| leads(entry)).count();
        let end = ((own + same - 1) as u64) << (64 - depth) | u64::MAX >> depth;
        let mut found = check(offset);
        if let Ok((_, (_, state))) = found
            && state.partner != 0
            && (1..=depth).contains(&state.depth)
            && hash >> (64 - state.depth) & 1 == 1
        {
            found = check(state.partner);
        }
        let damage = match found {
            Ok((offset, (low, state))) => {
                let segment = Segment { offset, depth: state.depth, low };
                let fits = (1..=depth).contains(&state.depth) && low << state.depth == 0;
                if fits && segment.holds(hash) {
                    return Ok((segment, end.min(segment.high())));
                }
                let found = format!("first hash {low:#x}, depth {}", state.depth);
                Damage::new(offset + 8, format!("a segment that holds hash {hash:#x}"), found)
            }
            Err(damage) => damage,
        };
        if core.alloc().old_frontier() != 0 {
            return Err(damage.into());
        }
        check_block(core, offset, self.size.bytes())?;
        let count = entries.iter().filter(|entry| leads(entry)).count();
        let first = entries.iter().position(leads).unwrap_or(0);
        let aligned = count.is_power_of_two() && first.is_multiple_of(count);
        if !aligned || count == entries.len() || !entries[first..first + count].iter().all(leads) {
            return Err(damage.into());
        }
        let low = (first as u64) << (64 - depth);
        let segment = Segment { offset, depth: depth - count.ilog2(), low };
        Ok((segment, segment.high()))
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
    /// Only entries that still point to the old segment are set, because an earlier process may
    /// have split the new segment further without ever touching the old one.
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
        // The process that died may not have flushed the state. It commits the split, so it must be
        // durable before the directory entries that depend on it. So must an entry that led here.
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let upper = structure.entries_of(memory, partner_low, state.depth)?;
        memory.flush_words(upper, &points::REPAIR_STATE);
        memory.persist(&header.state, &points::REPAIR_STATE);
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

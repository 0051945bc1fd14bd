//! Opening, and first touch: makes a segment ready before it is used.

use super::layout::{Made, SegmentHeader, Turn};
use super::segments::{Segments, Unready};
use super::{
    Array, Config, Dash, DashLh, Directory, LinearSegments, Route, Segment, Structure, bugs, points,
};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::media::check_block;
use crate::index::record::SlotRecord;
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::{Core, root_offset};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

impl<S: Seam, R: SlotRecord> DashLh<S, R> {
    /// Opens the table whose root is in `slot`. Reads its directory of arrays and no segment.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let memory = &core.memory;
        let directory = Directory::open(core, &super::layout::DIRECTORY, slot)?;
        let offset = Offset::<Word>::new(root_offset(slot).raw() + 16);
        let word = memory.load(memory.at(offset)?);
        // This fails only in a forged file: no map is created whose first array is larger than the
        // largest block.
        let arrays = config.arrays(core).map_err(|error| {
            let damage = Damage::new(offset.raw(), "segments that fit a block", error.to_string());
            Error::DamagedRoot { slot, damage }
        })?;
        let entries = directory.entries(memory)?;
        let known = |turn: &Turn| {
            // DRAM gets an entry for each segment, so a turn must not imply more segments than the
            // pool can hold.
            let segments = (1 << turn.depth) + turn.next;
            turn.depth >= config.initial_depth
                && arrays.count(*turn) <= entries.len()
                && segments <= memory.len() / config.size().bytes()
        };
        let turn = Turn::unpack(word).filter(known).ok_or_else(|| {
            let expected = format!("the segment that is split next, of {} arrays", entries.len());
            let damage = Damage::new(offset.raw(), expected, format!("{word:#x}"));
            Error::DamagedRoot { slot, damage }
        })?;
        let blocks: Vec<u64> =
            entries.iter().take(arrays.count(turn)).map(|entry| memory.load(entry)).collect();
        let mut seen = HashSet::from([directory.offset()]);
        if let Some(array) = blocks.iter().position(|block| !seen.insert(*block)) {
            let at = memory.offset_of(&entries[array]).raw();
            let found = format!("{:#x} for the second time", blocks[array]);
            return Err(Damage::new(at, "an array of its own", found).into());
        }
        let blocks = blocks.into_iter().map(|offset| Array { offset, checked: false }).collect();
        let segments = Segments::new(memory.seam(), config.initial_depth, turn);
        let addressing = LinearSegments {
            initial: config.initial_depth,
            arrays,
            turn: offset,
            opened: turn,
            segments,
            structure: Mutex::new(Structure { directory, turn, arrays: blocks, growing: false }),
        };
        Dash::new(core, config.size(), addressing)
    }

    /// Touches the segment of a hash for the first time. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<Route<'_, LinearSegments>> {
        self.touch(&mut self.seam().lock(&self.addressing.structure), hash)
    }

    /// Reads the headers on the way to a hash's segment, and makes the segment ready, unless it
    /// already is.
    pub(super) fn touch(
        &self,
        structure: &mut Structure,
        hash: u64,
    ) -> Result<Route<'_, LinearSegments>> {
        let touched = self.find_or_read(structure, hash);
        if touched.is_err() && self.is_after_crash() {
            // Fence for the headers that were flushed. If nothing fails, the segment's own fence
            // covers them.
            self.core.memory.fence(&points::REPAIR_FOUND);
        }
        touched
    }

    fn find_or_read(
        &self,
        structure: &mut Structure,
        hash: u64,
    ) -> Result<Route<'_, LinearSegments>> {
        let segments = &self.addressing.segments;
        let mut last = None;
        loop {
            match segments.follow(self.seam(), hash) {
                Ok((segment, way)) => return Ok(Route { segment, way }),
                Err(Unready::Unknown(made)) => {
                    // The next segment on the way exists because the last header says so, so that
                    // header's state must be durable first.
                    last.take().map_or(Ok(()), |passed| self.flush_state(passed))?;
                    let segment = self.read_header(structure, made)?;
                    segments.note(self.seam(), segment);
                    last = Some(segment);
                }
                Err(Unready::Unread(segment)) => {
                    if let Err(damage) = self.make_ready(segment, &[]) {
                        self.flush_state(segment)?;
                        return Err(damage.into());
                    }
                    segments.set(self.seam(), segment);
                }
            }
        }
    }

    /// Finds the segment of a hash whose first touch has failed. If the header of a segment on the
    /// way is damaged, the segments that were split off from it tell how deep it is.
    #[cold]
    pub(super) fn find_unready(&self, hash: u64) -> Result<Segment, Damage> {
        let initial = self.addressing.initial;
        let mut structure = self.seam().lock(&self.addressing.structure);
        let mut made_at = initial;
        loop {
            let made = Made::of(hash >> (64 - made_at), made_at, initial);
            let low = made.low(initial);
            let offset = self.place(&mut structure, made)?;
            let depths = made_at..=structure.turn.depth_of(low);
            let depth = match self.check_segment(offset) {
                Ok((first, state)) if first == low && depths.contains(&state.depth) => state.depth,
                _ => self.depth_by_halves(&mut structure, low, depths)?,
            };
            // As in `Segments::follow`.
            let left_at = made_at + 1 + (hash << made_at).leading_zeros();
            if left_at > depth {
                return Ok(Segment { offset, depth, low });
            }
            made_at = left_at;
        }
    }

    /// Returns the depth of a segment according to the segments that were split off from it: the
    /// greatest depth in `depths` at which there is one, or else the least.
    fn depth_by_halves(
        &self,
        structure: &mut Structure,
        low: u64,
        depths: RangeInclusive<u32>,
    ) -> Result<u32, Damage> {
        let initial = self.addressing.initial;
        let least = *depths.start();
        for depth in depths.rev().take_while(|&depth| depth > least) {
            let half = Made::of(low >> (64 - depth) | 1, depth, initial);
            let at = self.place(structure, half)?;
            if self.find_segment(at, half.low(initial))?.is_some() {
                return Ok(depth);
            }
        }
        Ok(least)
    }

    fn is_after_crash(&self) -> bool {
        self.core.alloc().old_frontier() != 0 && !self.core.options().read_only
    }

    /// After a crash, flushes a segment's state as it was found, because the segments that were
    /// split off from it depend on that state.
    fn flush_state(&self, segment: Segment) -> Result<(), Damage> {
        if self.is_after_crash() {
            let memory = &self.core.memory;
            let header = memory.at(Offset::<SegmentHeader>::new(segment.offset))?;
            memory.flush(&header.state, &points::REPAIR_STATE);
        }
        Ok(())
    }

    /// Reads and checks the header of a segment, which exists because the segment that it was split
    /// off from says so.
    fn read_header(&self, structure: &mut Structure, made: Made) -> Result<Segment, Damage> {
        let initial = self.addressing.initial;
        let offset = self.place(structure, made)?;
        let (low, state) = self.check_segment(offset)?;
        let most = structure.turn.depth_of(low);
        if low != made.low(initial) || !(made.depth..=most).contains(&state.depth) {
            let (first, least) = (made.low(initial), made.depth);
            let expected = format!("first hash {first:#x}, depth {least} to {most}");
            return Err(Damage::new(offset + 8, expected, format!("{low:#x}, {state:?}")));
        }
        if state.partner != 0 {
            let half = Made::of(low >> (64 - state.depth) | 1, state.depth, initial);
            let partner = self.place(structure, half)?;
            if state.depth == made.depth || partner != state.partner {
                let expected = format!("no partner, or {partner:#x}");
                return Err(Damage::new(offset + 16, expected, format!("{:#x}", state.partner)));
            }
        }
        if state.depth < self.addressing.opened.depth_of(low) {
            self.check_unsplit(structure, low, state.depth)?;
        }
        let served = if self.seeded(&index_bugs::HALF_SPLIT_SERVED) { most } else { state.depth };
        Ok(Segment { offset, depth: served, low })
    }

    /// Handles a segment that was not split although its turn had passed when the table was opened.
    ///
    /// After a crash, its split may have been cut short. This erases the header that the split may
    /// have left at the place of the new half, and records in the turn that there are late
    /// segments. In a pool whose free space is known, such a segment is damaged, unless the turn
    /// says that there are late ones and its new half has no header (invariant 4). A pool that is
    /// open read-only after a crash stays as it is.
    fn check_unsplit(&self, structure: &mut Structure, low: u64, depth: u32) -> Result<(), Damage> {
        let made = Made::of(low >> (63 - depth) | 1, depth + 1, self.addressing.initial);
        if self.is_after_crash() {
            self.erase_header(structure, made)?;
            // That there is no header, or was none, must be durable before anything is stored
            // because of it.
            self.core.memory.fence(&points::ERASED);
            return self.note_late(structure);
        }
        let offset = self.place(structure, made)?;
        let has_half = self.find_segment(offset, made.low(self.addressing.initial))?.is_some();
        if self.core.alloc().old_frontier() == 0 && (has_half || !structure.turn.late) {
            let expected = format!("the new half of the segment {low:#x}");
            let found = format!("one that is not split, of depth {depth}");
            return Err(Damage::new(offset, expected, found));
        }
        Ok(())
    }

    /// Erases the header at the place of a segment that does not exist, if there is one, and flushes
    /// that line. The caller fences.
    pub(super) fn erase_header(&self, structure: &mut Structure, made: Made) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let offset = self.place(structure, made)?;
        let found = self.find_segment(offset, made.low(self.addressing.initial))?;
        if let Some(first) = found {
            memory.store(first, 0, &points::ERASED);
        } else if self.seeded(&bugs::ERASED_UNFLUSHED) {
            return Ok(());
        }
        // Flush even if there is no header: a process that has died may have erased it without
        // flushing the line.
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        memory.flush(&header.identity, &points::ERASED);
        Ok(())
    }

    /// Returns the offset of a segment, whether it exists yet or not. Its array must exist.
    pub(super) fn place(&self, structure: &mut Structure, made: Made) -> Result<u64, Damage> {
        let (number, index) = self.addressing.arrays.place(made);
        Ok(self.array(structure, number)? + index * self.size.bytes())
    }

    /// Returns the offset of an array, after a check that there is a block of the array's size.
    pub(super) fn array(&self, structure: &mut Structure, number: usize) -> Result<u64, Damage> {
        let Some(array) = structure.arrays.get_mut(number) else {
            let expected = format!("{} arrays of segments and more", number + 1);
            let at = self.addressing.turn.raw();
            return Err(Damage::new(at, expected, structure.arrays.len().to_string()));
        };
        if !array.checked {
            let bytes = self.addressing.arrays.len(number) * self.size.bytes();
            check_block(&self.core, array.offset, bytes)?;
            array.checked = true;
        }
        Ok(array.offset)
    }
}

//! Opening, and first touch: makes a segment ready before it is used.

use super::layout::{Made, Turn};
use super::resize::no_array;
use super::segments::{Segments, Unready};
use super::{Config, Dash, DashLh, Directory, LinearSegments, Route, Segment, Structure};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::media::check_block;
use crate::index::record::Record;
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::{Core, root_offset};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

impl<S: Seam, R: Record> DashLh<S, R> {
    /// Opens the table whose root is in `slot`. Reads its directory of arrays and no segment.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let memory = &core.memory;
        let directory = Directory::open(core, slot)?;
        let offset = Offset::<Word>::new(root_offset(slot).raw() + 16);
        let word = memory.load(memory.at(offset)?);
        let (arrays, entries) = (config.arrays(core)?, directory.entries(memory)?);
        let known = |turn: &Turn| {
            turn.depth >= config.initial_depth && arrays.count(*turn) <= entries.len()
        };
        let turn = Turn::unpack(word).filter(known).ok_or_else(|| {
            let expected = format!("the segment that is split next, of {} arrays", entries.len());
            let damage = Damage::new(offset.raw(), expected, format!("{word:#x}"));
            Error::DamagedRoot { slot, damage }
        })?;
        let mut seen = HashSet::new();
        for (array, entry) in entries.iter().take(arrays.count(turn)).enumerate() {
            let block = memory.load(entry);
            check_block(core, block, arrays.len(array) * config.size().bytes())?;
            if !seen.insert(block) {
                let found = format!("{block:#x} for the second time");
                let at = memory.offset_of(entry).raw();
                return Err(Damage::new(at, "an array of its own", found).into());
            }
        }
        let segments = Segments::new(memory.seam(), config.initial_depth, turn);
        let addressing = LinearSegments {
            initial: config.initial_depth,
            arrays,
            turn: offset,
            segments,
            structure: Mutex::new(Structure { directory, turn }),
        };
        Dash::new(core, config.size(), addressing)
    }

    /// Touches the segment of a hash for the first time. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<Route<'_, LinearSegments>> {
        let structure = self.seam().lock(&self.addressing.structure);
        loop {
            match self.addressing.segments.follow(self.seam(), hash) {
                Ok((segment, way)) => return Ok(Route { segment, way }),
                // The segments that it was split off from are ready, and so durable.
                Err(Unready(made)) => self.touch(&structure, made)?,
            }
        }
    }

    /// Makes a segment ready. The depth of the one that it was split off from says that it exists.
    fn touch(&self, structure: &Structure, made: Made) -> Result<(), Damage> {
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
        let served = if self.seeded(&index_bugs::HALF_SPLIT_SERVED) { most } else { state.depth };
        let segment = Segment { offset, depth: served, low };
        self.make_ready(segment, &[])?;
        self.addressing.segments.set(self.seam(), segment);
        Ok(())
    }

    /// Returns the offset of a segment.
    pub(super) fn place(&self, structure: &Structure, made: Made) -> Result<u64, Damage> {
        let memory = &self.core.memory;
        let (array, index) = self.addressing.arrays.place(made);
        match structure.directory.entries(memory)?.get(array) {
            Some(entry) if array < self.addressing.arrays.count(structure.turn) => {
                Ok(memory.load(entry) + index * self.size.bytes())
            }
            _ => Err(no_array(self.addressing.turn.raw() - 8, array)),
        }
    }
}

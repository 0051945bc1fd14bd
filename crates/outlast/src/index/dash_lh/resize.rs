//! Growth: overflow nodes, and the splits that they trigger.

use super::layout::{self, Arrays, DIRECTORY_DEPTH, INITIAL_DEPTHS, MAX_DEPTH, Made, Turn};
use super::{
    Array, Config, DashLh, Directory, LinearSegments, Route, Segment, Structure, bugs, points,
};
use crate::error::{Damage, Error, Result};
use crate::index::dash::{Doubled, write_empty};
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::iter::{once, repeat};
use std::sync::Arc;

/// Splits for each overflow node. With fewer, segments are fuller, and more records are in nodes.
const TURNS: u64 = 4;
/// A segment with more overflow nodes than this may have keys that no split separates. So it makes
/// the table grow only each time that the number of its nodes has doubled.
const CROWDED: usize = 8;

/// Writes a new map's directory and first array and flushes them. The fence before the root's commit
/// word makes them durable.
pub(super) fn create<S: Seam, R: SlotRecord>(
    core: &Arc<Core<S>>,
    config: Config,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let (size, depth) = (config.size(), config.initial_depth);
    let empty = empty_words::<S, R>(core)?;
    let arrays = config.arrays(core)?;
    let array = UnlinkedBlock::allocate(core, arrays.len(0) * size.bytes());
    let mut array = array.map_err(|error| match error {
        Error::PoolFull { needed, limit, note: None } if depth > *INITIAL_DEPTHS.start() => {
            let note = format!(
                "a new map needs them for its 2^{depth} segments; a smaller `initial_depth` needs \
                 fewer"
            );
            Error::PoolFull { needed, limit, note: Some(note) }
        }
        error => error,
    })?;
    for prefix in 0..arrays.len(0) {
        let offset = array.offset() + prefix * size.bytes();
        let segment = Segment { offset, depth, low: prefix << (64 - depth) };
        let empty = empty[(segment.low >> 63) as usize];
        write_empty(&core.memory, size, segment, empty, &points::CREATE)?;
    }
    let entries = once(array.offset()).chain(repeat(0)).take(1 << DIRECTORY_DEPTH);
    let (mut directory, word) =
        Directory::create(core, &layout::DIRECTORY, DIRECTORY_DEPTH, entries)?;
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = word;
    words[1] = Turn { late: false, depth, next: 0 }.pack();
    array.set_linked();
    directory.set_linked();
    Ok(words)
}

impl<S: Seam, R: SlotRecord> DashLh<S, R> {
    /// Makes room in a full segment: splits it if its turn has passed, otherwise adds an overflow
    /// node and splits the segments whose turns come next. The caller retries afterwards.
    pub(super) fn make_room(&self, route: &Route<'_, LinearSegments>, hash: u64) -> Result<()> {
        let turn = self.seam().lock(&self.addressing.structure).turn;
        if turn.depth_of(route.segment.low) > route.segment.depth {
            // Another thread is splitting the segment, or the segment is late.
            match self.split(route, hash) {
                Err(error) if leaves_room(&error) => {}
                split => return split,
            }
        }
        let Some(nodes) = self.extend_chain(route)? else { return Ok(()) };
        if nodes > CROWDED && !nodes.is_power_of_two() {
            return Ok(());
        }
        for _ in 0..TURNS {
            match self.split_next() {
                Err(error) if leaves_room(&error) => return Ok(()),
                split => split?,
            }
        }
        Ok(())
    }

    /// Passes the turn on, and splits the segment whose turn it was.
    fn split_next(&self) -> Result<()> {
        let (mut spare, mut grows) = ([None, None], false);
        let passed = loop {
            // No thread allocates while it holds a lock.
            match self.pass_turn(&mut spare, grows) {
                Ok(Pass::Needs(what, bytes)) => {
                    grows = true;
                    match UnlinkedBlock::allocate(&self.core, bytes) {
                        Ok(block) => spare[what as usize] = Some((bytes, block)),
                        Err(error) => break Err(error),
                    }
                }
                passed => break passed,
            }
        };
        if grows && !(passed.is_err() && self.seeded(&bugs::GROWING_KEPT)) {
            self.seam().lock(&self.addressing.structure).growing = false;
        }
        let (turn, doubled) = match passed? {
            Pass::Passed(turn, doubled) => (turn, doubled),
            _ => return Ok(()),
        };
        let split = self.split_of(turn);
        if split.is_err() {
            self.note_late(&mut self.seam().lock(&self.addressing.structure))?;
            // The split may have failed before the fence that would have made the turn durable.
            self.core.memory.fence(&points::ERASED);
        }
        if let Some(doubled) = doubled {
            doubled.retire(&self.core);
        }
        split
    }

    /// Splits the segment of a turn that has passed. If this succeeds, the turn is durable.
    fn split_of(&self, turn: Turn) -> Result<()> {
        let low = turn.next << (64 - turn.depth);
        loop {
            // An earlier split of this segment may be late.
            let route = self.route_inside(low)?;
            if route.segment.depth > turn.depth {
                return Ok(());
            }
            self.split(&route, low)?;
        }
    }

    /// Passes the turn on, once there is a place for the new segment. `grows` says that this thread
    /// has set `growing`, and so allocates the blocks that the turn needs. `spare` has those that
    /// it has allocated.
    fn pass_turn(&self, spare: &mut [Option<Spare<'_, S>>; 2], grows: bool) -> Result<Pass> {
        let (memory, addressing) = (&self.core.memory, &self.addressing);
        let mut structure = self.seam().lock(&addressing.structure);
        let turn = structure.turn;
        if turn.depth >= MAX_DEPTH {
            return Ok(Pass::End);
        }
        // If the segment is damaged, or is deeper than the turn allows because the turn itself is
        // damaged, growth ends here: what the turn would overwrite may be in use.
        self.touch(&mut structure, turn.next << (64 - turn.depth))?;
        let depth = turn.depth + 1;
        let made = Made::of(turn.next << 1 | 1, depth, addressing.initial);
        let (array, _) = addressing.arrays.place(made);
        let entry = structure.directory.entries(memory)?.get(array);
        let mut doubled = None;
        if array == structure.arrays.len() {
            let of =
                |spare: &Option<Spare<'_, S>>, bytes| spare.as_ref().is_some_and(|s| s.0 == bytes);
            let larger = layout::DIRECTORY.bytes(structure.directory.depth + 1);
            if entry.is_none() && larger > self.core.geometry.large_max() {
                return Ok(Pass::End);
            }
            if !grows && std::mem::replace(&mut structure.growing, true) {
                // Another thread is allocating the array. If this thread did so too, one of the two
                // blocks would be useless.
                return Ok(Pass::End);
            }
            let bytes = addressing.arrays.len(array) * self.size.bytes();
            if !of(&spare[NewBlock::Array as usize], bytes) {
                return Ok(Pass::Needs(NewBlock::Array, bytes));
            }
            if entry.is_none() && !of(&spare[NewBlock::Directory as usize], larger) {
                return Ok(Pass::Needs(NewBlock::Directory, larger));
            }
            let [block, new] = std::mem::take(spare).map(|spare| spare.map(|(_, block)| block));
            let mut block = block.expect("it was there");
            match (entry, new) {
                (None, Some(new)) => {
                    let at = &points::DOUBLE_COMMIT;
                    let twice = |mut old: Vec<u64>| {
                        old.resize(2 * old.len(), 0);
                        old[array] = block.offset();
                        old
                    };
                    doubled = Some(structure.directory.double(&self.core, new, twice, at)?);
                    self.counters.doublings.add_one();
                }
                (entry, _) => {
                    let entry = entry.expect("the directory need not be doubled");
                    memory.store_release(entry, block.offset(), &points::ARRAY);
                    memory.flush(entry, &points::ARRAY);
                }
            }
            block.set_linked();
            structure.arrays.push(Array { offset: block.offset(), checked: true });
            self.core.announce(addressing.arrays.len(array + 1) * self.size.bytes());
        }
        // The space may have belonged to another map. Erase what could look like the new half of
        // the split, because the split may never be made.
        self.erase_header(&mut structure, made)?;
        // The array and the erased header must be durable before the turn is.
        memory.fence(&points::ERASED);
        addressing.segments.make_entries(self.seam(), depth);
        // `touch` may have set `late` in `structure.turn` since `turn` was copied from it.
        structure.turn = structure.turn.following();
        // The turn's word shares a line with the word that names the directory. Stores to a line
        // become durable in the order in which they were made, so no turn is durable before its
        // directory.
        let word = memory.at(addressing.turn)?;
        memory.store_release(word, structure.turn.pack(), &points::TURN);
        Ok(Pass::Passed(turn, doubled))
    }

    /// Notes that a segment whose turn has passed was not split, and flushes the turn. The caller fences.
    pub(super) fn note_late(&self, structure: &mut Structure) -> Result<(), Damage> {
        let memory = &self.core.memory;
        structure.turn.late = true;
        let word = memory.at(self.addressing.turn)?;
        memory.store_release(word, structure.turn.pack(), &points::TURN);
        memory.flush(word, &points::TURN);
        Ok(())
    }

    /// Returns the place of the segment that a split of `old` makes. Flushes the turn, which the fence
    /// before the split's commit makes durable, whichever thread has passed it on.
    pub(super) fn place_new(&self, old: Segment) -> Result<UnlinkedBlock<'_, S>> {
        let memory = &self.core.memory;
        let mut structure = self.seam().lock(&self.addressing.structure);
        let turn = memory.at(self.addressing.turn)?;
        // Another thread may have stored the turn. Outside x86, a flush is ordered only after accesses of
        // the same thread to the line, so this thread reads it first.
        let _ = memory.load_acquire(turn);
        memory.flush(turn, &points::TURN);
        let prefix = old.low >> (63 - old.depth) | 1;
        let mut made = Made::of(prefix, old.depth + 1, self.addressing.initial);
        seed!(self, bugs::PLACE_OFF_BY_ONE => made.index ^= 1);
        Ok(UnlinkedBlock::part(&self.core, self.place(&mut structure, made)?))
    }

    /// Makes both halves of a split reachable for operations. The split is durable.
    pub(super) fn publish_split(&self, old: Segment, new: Segment, mark: impl FnOnce()) {
        let (seam, segments) = (self.seam(), &self.addressing.segments);
        mark();
        segments.set(seam, new);
        segments.set(seam, old);
        let depth = old.depth - 1;
        let turn = Turn { late: false, depth, next: old.low >> (64 - depth) };
        segments.reach(seam, turn.following());
    }
}

/// Returns whether an insert can go on although a split has failed with this error: an overflow
/// node takes its record.
fn leaves_room(split: &Error) -> bool {
    split.is_full() || matches!(split, Error::Damaged(_))
}

/// What a block is for.
#[derive(Clone, Copy)]
enum NewBlock {
    Array,
    Directory,
}

/// The size of a block that was allocated before the lock was taken, and the block.
type Spare<'c, S> = (u64, UnlinkedBlock<'c, S>);

/// The result of an attempt to pass the turn on.
enum Pass {
    /// This turn has passed. Neither its passing nor the doubling is durable yet.
    Passed(Turn, Option<Doubled>),
    /// Passing the turn on takes a block of this many bytes, for this purpose.
    Needs(NewBlock, u64),
    /// The turn stays: the table cannot grow any further, or another thread is allocating what the
    /// turn needs.
    End,
}

impl Config {
    /// Returns the arrays of a map in this pool.
    pub(super) fn arrays<S: Seam>(self, core: &Core<S>) -> Result<Arrays> {
        let (bytes, most) = (self.size().bytes(), core.geometry.large_max());
        Arrays::new(self.initial_depth, bytes, most).ok_or_else(|| {
            let segments = 1u64 << self.initial_depth;
            let why = format!(
                "{segments} segments of {bytes} bytes do not fit a block of this pool, which has at \
                 most {most} bytes; a smaller initial_depth or larger pages help"
            );
            Error::Invalid { what: "map options", why }
        })
    }
}

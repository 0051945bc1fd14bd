//! The segments in DRAM: which are ready for use, and the depth of each.

use super::Segment;
use super::layout::{MAX_DEPTH, Made, Turn};
use crate::index::kit::media::LOW48;
use crate::pmem::{Seam, Shared, SharedWord};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// A segment's offset, from bit 48 on its depth, and in bit 63 [`READY`]. 0 if nothing is known of
/// the segment.
type Entry = SharedWord;

/// The entries of the segments that were made at a depth, in the order of their prefixes.
type Entries = Shared<OnceLock<Box<[Entry]>>>;

/// The bit of an entry whose segment is ready for use. Without it, only the segment's header has
/// been read.
const READY: u64 = 1 << 63;

/// The entry by which an operation reached its segment.
#[derive(Clone, Copy)]
pub struct Way<'t> {
    entry: &'t Entry,
    found: u64,
}

/// All segments of a table. It only grows, and nothing in it moves.
pub(super) struct Segments {
    initial: u32,
    /// The turn after the last one whose split has ended. It is a hint that tells lookups where to
    /// begin; the entries decide.
    turn: SharedWord,
    /// The entries, by the depth at which their segments were made.
    made: Box<[Entries]>,
}

/// Why a hash has no segment that is ready for use.
pub(super) enum Unready {
    /// Nothing is known of this segment, which is on the way to the hash's segment.
    Unknown(Made),
    /// The hash belongs to this segment, of which only the header has been read.
    Unread(Segment),
}

impl Segments {
    /// Returns the segments of a table that was just opened. None is ready.
    pub(super) fn new(seam: &impl Seam, initial: u32, turn: Turn) -> Self {
        let made = (0..=MAX_DEPTH).map(|_| Shared::once()).collect();
        let segments = Segments { initial, turn: SharedWord::new(turn.bits()), made };
        (initial..=turn.depth + 1).for_each(|depth| segments.make_entries(seam, depth));
        segments
    }

    /// Makes the entries of the segments that are made at this depth, if there are none yet.
    pub(super) fn make_entries(&self, seam: &impl Seam, depth: u32) {
        let Some(entries) = self.made.get(depth as usize) else { return };
        let count = 1 << if depth == self.initial { depth } else { depth - 1 };
        entries.get_or_init(seam, || {
            // The system zeroes the pages when they are first touched, so this takes the same time
            // however many segments there are.
            let entries = Box::<[Entry]>::new_zeroed_slice(count);
            // SAFETY: zero is a valid SharedWord.
            unsafe { entries.assume_init() }
        });
    }

    /// Returns the entry of a segment. `None` if there are no entries for its depth yet.
    #[inline(always)]
    fn entry(&self, seam: &impl Seam, made: Made) -> Option<&Entry> {
        let entries = self.made.get(made.depth as usize)?.get(seam)?;
        entries.get(made.index as usize)
    }

    /// Returns the segment of a hash and the way to it. `None` if the segment is not ready for use.
    #[inline(always)]
    pub(super) fn find(&self, seam: &impl Seam, hash: u64) -> Option<(Segment, Way<'_>)> {
        // Acquire: pairs with the Release in `reach`, so that the entries are visible.
        let turn = Turn::of_bits(self.turn.load(seam, Ordering::Acquire));
        let depth = turn.depth_of(hash);
        let entry = self.entry(seam, Made::of(hash >> (64 - depth), depth, self.initial))?;
        // Acquire: pairs with the Release in `set`, so that the segment's content is visible.
        let found = entry.load(seam, Ordering::Acquire);
        match found >> 48 == READY >> 48 | u64::from(depth) {
            true => Some(segment(hash, Way { entry, found })),
            false => self.follow(seam, hash).ok(),
        }
    }

    /// Finds the segment of a hash by following the splits from the segment with which the table
    /// began. This also finds segments whose depth is not what `turn` implies, because their split
    /// has ended early or is late. Fails if the segment is not ready, or if a segment on the way is
    /// unknown.
    #[cold]
    pub(super) fn follow(
        &self,
        seam: &impl Seam,
        hash: u64,
    ) -> Result<(Segment, Way<'_>), Unready> {
        let mut depth = self.initial;
        loop {
            let made = Made::of(hash >> (64 - depth), depth, self.initial);
            let Some(entry) = self.entry(seam, made) else { return Err(Unready::Unknown(made)) };
            // Acquire: as above.
            let found = entry.load(seam, Ordering::Acquire);
            if found == 0 {
                return Err(Unready::Unknown(made));
            }
            // The hash left this segment at the split by the first bit that is set after the
            // hash's first `depth` bits.
            let left_at = depth + 1 + (hash << depth).leading_zeros();
            if left_at > depth_of(found) {
                let (segment, way) = segment(hash, Way { entry, found });
                let ready = found & READY != 0;
                return if ready { Ok((segment, way)) } else { Err(Unready::Unread(segment)) };
            }
            depth = left_at;
        }
    }

    /// Returns whether a way still leads to the same segment, of the same depth.
    #[inline(always)]
    pub(super) fn is_current(&self, seam: &impl Seam, way: Way<'_>) -> bool {
        way.entry.load(seam, Ordering::Relaxed) == way.found
    }

    /// Makes a segment ready for use, or gives it its new depth.
    pub(super) fn set(&self, seam: &impl Seam, segment: Segment) {
        self.store(seam, segment, READY);
    }

    /// Stores the offset and depth of a segment whose header was read, but which is not ready yet.
    pub(super) fn note(&self, seam: &impl Seam, segment: Segment) {
        self.store(seam, segment, 0);
    }

    fn store(&self, seam: &impl Seam, segment: Segment, ready: u64) {
        let prefix = segment.low >> (64 - segment.depth);
        let made = Made::of(prefix, segment.depth, self.initial);
        let entry = self.entry(seam, made).expect("entries were made before the segment");
        // Release: pairs with the Acquire in `find`.
        let depth = u64::from(segment.depth) << 48;
        entry.store(seam, segment.offset | depth | ready, Ordering::Release);
    }

    /// Makes lookups begin at this turn, unless they begin at a later one, so that they go directly
    /// to the segments that earlier turns made.
    pub(super) fn reach(&self, seam: &impl Seam, turn: Turn) {
        let bits = turn.bits();
        let mut now = self.turn.load(seam, Ordering::Relaxed);
        while now < bits {
            // Release: pairs with the Acquire in `find`.
            let orders = (Ordering::Release, Ordering::Relaxed);
            match self.turn.compare_exchange(seam, now, bits, orders) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Returns the number of segments. Counts those whose split is late as if they had been split.
    pub(super) fn count(&self, seam: &impl Seam) -> u64 {
        let turn = Turn::of_bits(self.turn.load(seam, Ordering::Relaxed));
        (1 << turn.depth) + turn.next
    }
}

/// Returns the segment that the entry of `way` names, and the way. `hash` is a hash of the segment.
#[inline(always)]
fn segment(hash: u64, way: Way<'_>) -> (Segment, Way<'_>) {
    let depth = depth_of(way.found);
    let low = hash >> (64 - depth) << (64 - depth);
    (Segment { offset: way.found & LOW48, depth, low }, way)
}

#[inline(always)]
fn depth_of(entry: u64) -> u32 {
    (entry >> 48) as u32 & 0x7f
}

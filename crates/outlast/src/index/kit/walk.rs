//! Walks over ranges of hashes, and counters.

use super::collect::Collector;
use crate::error::{Damage, Error, Result};
use crate::index::record::Record;
use crate::index::{Cursor, CursorState, Growth, IndexStats};
use std::sync::atomic::{AtomicU64, Ordering};

impl Cursor {
    /// Moves on to the hashes after `high`.
    pub(crate) fn pass(&mut self, high: u64) {
        match high.checked_add(1) {
            None => self.finish(),
            Some(low) => (self.low, self.part, self.state) = (low, 0, CursorState::Inside),
        }
    }
}

/// Consecutive hashes: those of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashRange {
    /// The first.
    pub(crate) low: u64,
    /// The last.
    pub(crate) high: u64,
}

impl HashRange {
    pub(crate) fn holds(self, hash: u64) -> bool {
        (self.low..=self.high).contains(&hash)
    }

    /// Returns the range's share of all hashes.
    fn share(self) -> f64 {
        ((self.high - self.low) as f64 + 1.0) / 2f64.powi(64)
    }
}

/// The most segments that a sample reads.
const SAMPLE: u64 = 64;

/// Does one step of an iteration: collects one part of the records of a segment. The records of a
/// segment are divided into `parts` by their homes.
///
/// The cursor keeps the range of hashes that the segment had when the iteration reached it, until
/// all parts of that range are done. If the segment is split meanwhile, a step reads its part from
/// each segment that is now in the range. So no record is returned twice, and no record that stays
/// is missed.
///
/// `read` returns the range of the segment of a hash. If it gets the cursor, it also collects the
/// segment's records that are in the cursor's part and range, and have this hash or a higher one.
/// (Where the ranges of segments nest, those are all that are in the cursor's range.)
pub(crate) fn scan_part(
    cursor: &mut Cursor,
    parts: u32,
    mut read: impl FnMut(u64, Option<&Cursor>) -> Result<HashRange>,
) -> Result<()> {
    if cursor.is_done() {
        return Ok(());
    }
    if cursor.part == 0 {
        cursor.high = read(cursor.low, None)?.high;
    }
    let mut at = Some(cursor.low);
    while let Some(low) = at.filter(|&low| low <= cursor.high) {
        at = read(low, Some(cursor))?.high.checked_add(1);
    }
    cursor.part += 1;
    if cursor.part == parts {
        cursor.pass(cursor.high);
    }
    Ok(())
}

/// How far a salvage has come, and with what result.
pub(crate) enum Salvaged {
    /// It has collected everything up to this hash that can be read.
    Read(u64),
    /// It can read nothing up to this hash.
    Lost(u64),
}

/// Does one step of an iteration, as [`scan_part`] does.
///
/// If the iteration steps over damage and the segment of a hash cannot be read, `salvage` collects
/// what it can of that segment in another way. Its first argument is that hash. The second is the
/// first hash for which nothing has been collected yet. It is lower if the ranges just before could
/// not be read either: the segment may hold their records too.
pub(crate) fn scan<R: Record>(
    cursor: &mut Cursor,
    out: &mut Vec<(R::OwnedKey, R::Owned)>,
    parts: u32,
    mut read: impl FnMut(u64, Option<&Cursor>, &mut Collector<'_, R>) -> Result<HashRange>,
    salvage: impl FnOnce(u64, u64, Damage, &mut Collector<'_, R>) -> Result<Salvaged>,
) -> Result<()> {
    let mut found = Collector::new(cursor.care, out);
    let start = found.mark();
    let step = match scan_part(cursor, parts, |at, cursor| read(at, cursor, &mut found)) {
        Err(Error::Damaged(damage)) if found.salvages() => {
            found.reset(start);
            let from = cursor.gap.unwrap_or(cursor.low);
            let salvaged = match cursor.part {
                0 => salvage(cursor.low, from, damage, &mut found),
                // The segment was damaged while the map was open. Its other parts may be lost too.
                _ => match found.step_over(damage) {
                    Ok(()) => Ok(Salvaged::Read(cursor.high)),
                    Err(damage) => Err(damage.into()),
                },
            };
            salvaged.map(|salvaged| match salvaged {
                Salvaged::Read(high) => {
                    cursor.gap = None;
                    cursor.pass(high);
                }
                Salvaged::Lost(high) => {
                    cursor.gap = Some(from);
                    cursor.pass(high);
                }
            })
        }
        step => {
            cursor.gap = None;
            step
        }
    };
    found.finish(&mut cursor.lost);
    step
}

/// Reads some segments, spread evenly over the hash space. `read` returns the range of the segment of
/// a hash and what it counts there. Returns the number of all segments and the sums for all of them,
/// extrapolated. They are exact if `entries`, the number of the directory's entries, is at most
/// [`SAMPLE`].
pub(crate) fn sample<const N: usize>(
    entries: u64,
    mut read: impl FnMut(u64) -> Result<(HashRange, [u64; N])>,
) -> Result<(u64, [u64; N])> {
    let (mut sums, mut sampled, mut share) = ([0; N], 0, 0.0);
    let mut at = Some(0u64);
    while let Some(hash) = at {
        let (range, counts) = read(hash)?;
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sampled += 1;
        share += range.share();
        // In a table of many segments, the sample skips the segments in between.
        let step = if entries <= SAMPLE { 0 } else { u64::MAX / SAMPLE };
        at = range.high.max(hash.saturating_add(step)).checked_add(1);
    }
    let whole = |count: u64| (count as f64 / share).round() as u64;
    Ok((whole(sampled), sums.map(whole)))
}

/// How often an index has grown or was repaired since opening. These are statistics only; no
/// decision depends on them.
#[derive(Default)]
pub(crate) struct Counters {
    /// See [`Growth`].
    pub(crate) splits: Counter,
    /// See [`Growth`].
    pub(crate) doublings: Counter,
    /// See [`IndexStats::repaired_segments`].
    pub(crate) repaired: Counter,
}

/// One of the [`Counters`].
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn growth(&self) -> Growth {
        Growth { splits: self.splits.get(), doublings: self.doublings.get() }
    }

    /// Returns statistics in which only the counters are filled in.
    pub(crate) fn stats(&self) -> IndexStats {
        IndexStats {
            splits: self.splits.get(),
            doublings: self.doublings.get(),
            repaired_segments: self.repaired.get(),
            ..IndexStats::default()
        }
    }
}

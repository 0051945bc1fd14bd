//! A disk with a write cache, which it loses when the power is cut.
//!
//! A read returns the content that was written last. A flush makes all earlier writes durable, and a
//! write with *force unit access* is durable by itself. At a cut, each sector that was written
//! since keeps one of its contents: the durable one or any that was written later. Sectors are
//! independent, so writes are reordered, dropped and torn between sectors, as they can be in a real
//! disk's cache.

use crate::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;

/// The size of a sector, in bytes. A sector is written completely or not at all.
pub const SECTOR: usize = 512;
/// The chances, out of [`CHANCES`], that a sector's write survives a cut. Each cut draws one for
/// all sectors.
const KEPT: [u64; 5] = [0, 4, 8, 12, 16];
const CHANCES: u64 = 16;

/// Counts of a disk's requests and of its losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Writes with force unit access.
    pub forced: u64,
    /// Flushes.
    pub flushes: u64,
    /// Sectors that went back to an earlier content at a cut.
    pub dropped: u64,
    /// Sectors that survived a cut without having been flushed.
    pub kept: u64,
}

/// What was written to a sector and is not durable.
type Written = Vec<(u64, [u8; SECTOR])>;

/// The disk; see the module's documentation.
#[derive(Debug)]
pub struct Volume {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// By sector: its contents since the durable one, each with the round in which it was written.
    cache: BTreeMap<usize, Written>,
    round: u64,
    /// How many writes are left until the power goes off, if that was decided.
    left: Option<u64>,
    counts: Counts,
}

impl Volume {
    /// Makes a disk of zeros. It takes memory only as it is written.
    pub fn new(bytes: usize) -> Volume {
        assert!(bytes.is_multiple_of(SECTOR), "a disk has whole sectors");
        let (durable, current) = (vec![0; bytes], vec![0; bytes]);
        let (cache, counts) = (BTreeMap::new(), Counts::default());
        Volume { durable, current, cache, round: 0, left: None, counts }
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.current.len() as u64
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Lets the power go off after this many more writes. A disk without power does nothing, and
    /// sends no reply, until the [cut](Self::cut).
    pub fn off_after(&mut self, writes: u64) {
        self.left = Some(writes);
    }

    /// Returns whether the power is off.
    pub fn is_off(&self) -> bool {
        self.left == Some(0)
    }

    /// Returns the range that a request is for, or `None` if it does not consist of whole sectors
    /// of the disk.
    fn range(&self, at: u64, bytes: usize) -> Option<Range<usize>> {
        let start = usize::try_from(at).ok()?;
        let end = start.checked_add(bytes)?;
        let whole = start.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR);
        (whole && end <= self.current.len()).then_some(start..end)
    }

    /// Reads sectors, or returns `None` if there are no such sectors.
    pub fn read(&self, at: u64, bytes: usize) -> Option<&[u8]> {
        Some(&self.current[self.range(at, bytes)?])
    }

    /// Writes sectors. With `force`, they are durable once this returns. Returns whether there are
    /// such sectors.
    #[must_use]
    pub fn write(&mut self, at: u64, bytes: &[u8], force: bool) -> bool {
        let Some(range) = self.range(at, bytes.len()) else { return false };
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.current[range.clone()].copy_from_slice(bytes);
        self.counts.writes += 1;
        self.counts.forced += u64::from(force);
        for (sector, content) in (range.start / SECTOR..).zip(bytes.as_chunks::<SECTOR>().0) {
            if force {
                self.cache.remove(&sector);
            } else {
                self.cache.entry(sector).or_default().push((self.round, *content));
            }
        }
        if force {
            self.durable[range].copy_from_slice(bytes);
        }
        true
    }

    /// Begins a round of requests. The requests of a round are under way at the same time.
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Makes durable what was written in earlier rounds. A write of this round had not completed
    /// when the flush was issued, so the flush may miss it, and does.
    pub fn flush(&mut self) {
        self.counts.flushes += 1;
        let (round, durable) = (self.round, &mut self.durable);
        self.cache.retain(|&sector, written| {
            let earlier = written.partition_point(|&(of, _)| of < round);
            if let Some((_, content)) = written[..earlier].last() {
                durable[sector * SECTOR..][..SECTOR].copy_from_slice(content);
            }
            written.drain(..earlier);
            !written.is_empty()
        });
    }

    /// Cuts the power, and turns it on again.
    pub fn cut(&mut self, random: &mut Random) {
        self.left = None;
        let chance = KEPT[random.below(KEPT.len() as u64) as usize];
        for (sector, written) in std::mem::take(&mut self.cache) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if random.below(CHANCES) < chance {
                let (_, content) = written[random.below(written.len() as u64) as usize];
                self.durable[range.clone()].copy_from_slice(&content);
                self.counts.kept += 1;
            } else {
                self.counts.dropped += 1;
            }
            self.current[range.clone()].copy_from_slice(&self.durable[range]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; SECTOR] = [1; SECTOR];
    const B: [u8; SECTOR] = [2; SECTOR];
    const ZERO: [u8; SECTOR] = [0; SECTOR];

    /// Lists the contents that sector 1 has after cuts with many seeds, each once.
    fn left(work: impl Fn(&mut Volume)) -> Vec<[u8; SECTOR]> {
        let mut found = Vec::new();
        for seed in 0..100 {
            let mut volume = Volume::new(4 * SECTOR);
            volume.begin_round();
            work(&mut volume);
            volume.cut(&mut Random::new(seed));
            let content = volume.read(SECTOR as u64, SECTOR).unwrap().try_into().unwrap();
            if !found.contains(&content) {
                found.push(content);
            }
        }
        found.sort_unstable();
        found
    }

    fn write(volume: &mut Volume, content: [u8; SECTOR]) {
        assert!(volume.write(SECTOR as u64, &content, false));
        volume.begin_round();
    }

    #[test]
    fn only_what_was_flushed_or_forced_survives_for_certain() {
        assert_eq!(left(|volume| write(volume, A)), [ZERO, A]);
        let flushed = |volume: &mut Volume| {
            write(volume, A);
            volume.flush();
        };
        assert_eq!(left(flushed), [A]);
        assert_eq!(left(|volume| assert!(volume.write(512, &A, true))), [A]);
    }

    #[test]
    fn any_content_since_the_durable_one_may_survive() {
        let twice = |volume: &mut Volume| {
            write(volume, A);
            write(volume, B);
        };
        assert_eq!(left(twice), [ZERO, A, B]);
        let between = |volume: &mut Volume| {
            write(volume, A);
            volume.flush();
            write(volume, B);
        };
        assert_eq!(left(between), [A, B]);
        // A write with force unit access replaces what was written before it.
        let forced = |volume: &mut Volume| {
            write(volume, A);
            assert!(volume.write(512, &B, true));
        };
        assert_eq!(left(forced), [B]);
    }

    #[test]
    fn a_flush_misses_the_writes_of_its_own_round() {
        let together = |volume: &mut Volume| {
            write(volume, A);
            assert!(volume.write(512, &B, false));
            volume.flush();
            assert_eq!(volume.read(512, SECTOR).unwrap(), B);
        };
        assert_eq!(left(together), [A, B]);
    }

    #[test]
    fn a_long_write_is_torn_between_sectors() {
        let torn = (0..100).any(|seed| {
            let mut volume = Volume::new(16 * SECTOR);
            assert!(volume.write(0, &[1; 16 * SECTOR], false));
            volume.cut(&mut Random::new(seed));
            let sectors = volume.read(0, 16 * SECTOR).unwrap().as_chunks::<SECTOR>().0;
            assert!(sectors.iter().all(|sector| *sector == A || *sector == ZERO));
            sectors[0] != sectors[1]
        });
        assert!(torn);
    }

    #[test]
    fn a_request_is_for_whole_sectors_of_the_disk() {
        let mut volume = Volume::new(2 * SECTOR);
        for (at, bytes) in [(1, 512), (0, 511), (512, 1024), (u64::MAX - 511, 512)] {
            assert!(volume.read(at, bytes).is_none());
            assert!(!volume.write(at, &vec![1; bytes], false));
        }
        assert_eq!(volume.counts(), Counts::default());
        assert!(volume.read(512, 512).is_some());
    }

    #[test]
    fn a_cut_counts_what_it_dropped() {
        let mut volume = Volume::new(64 * SECTOR);
        assert!(volume.write(0, &[1; 64 * SECTOR], false));
        volume.cut(&mut Random::new(3));
        let counts = volume.counts();
        assert_eq!(counts.dropped + counts.kept, 64);
        // Nothing is left that another cut could drop.
        volume.cut(&mut Random::new(3));
        assert_eq!(volume.counts(), counts);
    }
}

//! What the operations of a system cost in persistent memory: flushes, fences, and the misses of a
//! cache, over a recorded run of one thread.
//!
//! The cache is as large, in proportion to the records, as the papers' last caches are in
//! proportion to theirs, so that a table of a few thousand records misses as theirs do. Accesses
//! to DRAM are not recorded: bucket metadata in DRAM cost nothing here.

use super::subject::{Memory, System};
use super::turns::value;
use crate::Fallible;
use outlast::internals::pmem::Traced;
use outlast_peers::counters::{CacheSize, Flush, Machine, MachineCounts, Sizes};
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::Spread;
use serde::Serialize;

/// Means over the operations of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Lines flushed.
    pub lines_flushed: f64,
    /// Fences.
    pub fences: f64,
    /// Words loaded and stored.
    pub accesses: f64,
    /// Misses of the cache.
    pub misses: f64,
    /// Lines that the caches read from the medium.
    pub lines_read: f64,
    /// Lines that the medium is sent: flushed dirty lines, and dirty lines that leave the cache.
    pub lines_written: f64,
    /// 256-byte blocks that the medium reads.
    pub blocks_read: f64,
    /// 256-byte blocks that the medium writes.
    pub blocks_written: f64,
}

impl Cost {
    fn of(counts: &MachineCounts, operations: u64) -> Cost {
        let mean = |count: u64| count as f64 / operations.max(1) as f64;
        Cost {
            lines_flushed: mean(counts.flushed),
            fences: mean(counts.fences),
            accesses: mean(counts.accesses),
            misses: mean(counts.misses.last().copied().unwrap_or(0)),
            lines_read: mean(counts.medium.lines_read),
            lines_written: mean(counts.medium.lines_written),
            blocks_read: mean(counts.medium.blocks_read),
            blocks_written: mean(counts.medium.blocks_written),
        }
    }

    /// The mean of two costs, with a share of the first.
    #[must_use]
    pub fn mixed(self, share: f64, other: Cost) -> Cost {
        let mean = |a: f64, b: f64| share * a + (1.0 - share) * b;
        Cost {
            lines_flushed: mean(self.lines_flushed, other.lines_flushed),
            fences: mean(self.fences, other.fences),
            accesses: mean(self.accesses, other.accesses),
            misses: mean(self.misses, other.misses),
            lines_read: mean(self.lines_read, other.lines_read),
            lines_written: mean(self.lines_written, other.lines_written),
            blocks_read: mean(self.blocks_read, other.blocks_read),
            blocks_written: mean(self.blocks_written, other.blocks_written),
        }
    }
}

/// The costs of the operations of one system.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Costs {
    /// Inserts while the table grows threefold, with all that growth costs.
    pub insert: Cost,
    /// Lookups of present keys.
    pub hit: Cost,
    /// Lookups of absent keys.
    pub miss: Cost,
    /// Replaced values.
    pub update: Cost,
    /// Removals of present keys.
    pub remove: Cost,
}

/// What a counted run is like.
#[derive(Debug, Clone)]
pub struct Counting {
    /// Records at the end of the inserts.
    pub records: u64,
    /// Operations of each other kind.
    pub operations: u64,
    /// Slots of the table at its beginning.
    pub slots: u64,
    /// The part of the records that is inserted before anything is counted.
    pub before: f64,
    /// The caches.
    pub sizes: Sizes,
    /// The keys, by number.
    pub keys: Keys,
    /// Seed of the draws.
    pub seed: u64,
}

/// The keys of a run.
#[derive(Debug, Clone)]
pub enum Keys {
    /// Those of numbers.
    Spread(Spread),
    /// A list; absent keys are its last ones.
    List(Vec<u64>),
}

impl Keys {
    /// Returns the key of a number.
    pub fn key(&self, number: u64) -> u64 {
        match self {
            Keys::Spread(spread) => spread.key(number),
            Keys::List(keys) => keys[number as usize],
        }
    }
}

/// Caches for a table of so many records: one cache, of a hundredth of 24 bytes a record. That is
/// about the share of the last caches of Dash, the EA-PHT thesis and PhaST. A flush drops its line,
/// as `clwb` of their processors does.
pub fn scaled_sizes(records: u64) -> Sizes {
    const WAYS: usize = 8;
    let sets = (records * 24 / 100 / 64 / WAYS as u64).max(4);
    let cache = CacheSize { bytes: sets * 64 * WAYS as u64, ways: WAYS };
    Sizes { caches: vec![cache], flush: Flush::Drops, buffer_blocks: 64 }
}

/// Number of operations between two collections of what was recorded.
const PIECE: u64 = 64;

/// Counts the costs of a system's operations.
///
/// # Errors
/// If an operation fails, or returns a wrong result.
pub fn count(system: &System, counting: &Counting) -> Fallible<Costs> {
    let seam = Traced::new();
    let memory = Memory::Recorded(seam.clone());
    let Counting { records, operations, .. } = *counting;
    let subject = system.create(&memory, records, counting.slots)?;
    let mut machine = Machine::new(&counting.sizes);
    let key = |number: u64| counting.keys.key(number);
    let before = (records as f64 * counting.before) as u64;
    for number in 0..before {
        subject.insert(key(number), value(key(number)))?;
        if number % 16 == 0 {
            subject.step()?;
        }
    }
    let mut run = |from: u64, to: u64, one: &mut dyn FnMut(u64) -> Fallible<bool>| {
        machine.reset();
        let mut at = from;
        while at < to {
            let end = (at + PIECE).min(to);
            seam.start(true);
            let right = (at..end).try_fold(true, |right, i| one(i).map(|ok| right && ok));
            let events = seam.take();
            if !right? {
                return Err(format!("{}: a wrong result", system.name).into());
            }
            machine.run(&events);
            at = end;
        }
        Fallible::Ok(Cost::of(&machine.counts(), to - from))
    };
    let insert = run(before, records, &mut |i| {
        if i % 16 == 0 {
            subject.step()?;
        }
        subject.insert(key(i), value(key(i)))
    })?;
    let mut draw = Draw::new(counting.seed);
    let hit = |draw: &mut Draw| draw.below(records);
    // The first operations fill the cache with what they use.
    run(0, operations / 4, &mut |_| Ok(subject.get(key(hit(&mut draw)))?.is_some()))?;
    let hits = run(0, operations, &mut |_| Ok(subject.get(key(hit(&mut draw)))?.is_some()))?;
    let absent = |i: u64| match &counting.keys {
        Keys::Spread(spread) => spread.key((1 << 50) + i),
        Keys::List(keys) => keys[keys.len() - 1 - i as usize % (keys.len() / 16)],
    };
    let miss = run(0, operations, &mut |i| Ok(subject.get(absent(i))?.is_none()))?;
    let update = run(0, operations, &mut |_| {
        let key = key(hit(&mut draw));
        subject.update(key, value(key) ^ 1)
    })?;
    let step = (records / operations.max(1)).max(1);
    let remove = run(0, operations.min(records), &mut |i| subject.remove(key(i * step)))?;
    Ok(Costs { insert, hit: hits, miss, update, remove })
}

//! What the operations of a system cost in persistent memory: flushes, fences, the misses of a cache,
//! and what keeps threads from running side by side, over a recorded run of one thread.
//!
//! The cache is as large, in proportion to the records, as the papers' last caches are in
//! proportion to theirs, so that a table of a few thousand records misses as theirs do. Accesses
//! to DRAM are not recorded: bucket metadata in DRAM cost nothing here.

use super::scaling::{LINE, READ_GB_S, READ_NS, WRITE_NS};
use super::subject::{Memory, System};
use super::turns::value;
use crate::Fallible;
use outlast::internals::pmem::{Access, Event, Traced};
use outlast_peers::counters::{CacheSize, Flush, Machine, MachineCounts, Sizes};
use outlast_peers::workloads::draw::Draw;
use outlast_peers::workloads::keys::Spread;
use serde::Serialize;
use std::collections::HashMap;

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
    /// Exchanges of words in the line that most operations exchange something in: a lock that all of them
    /// take, a counter. 0 if fewer than one in eight does.
    pub exchanges: f64,
    /// Those of the misses that are of rebuilds of the whole structure, which read lines one after another.
    pub in_order: f64,
    /// The part of an operation's time in which all of the structure is rebuilt and other changes wait,
    /// divided by the threads that do it.
    pub rebuilding: f64,
}

/// A line in which fewer than one in so many operations exchange a word does not hold threads up.
const HOT: u64 = 8;

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
            exchanges: 0.0,
            in_order: 0.0,
            rebuilding: 0.0,
        }
    }

    /// About the nanoseconds of one thread: a nanosecond an access, and what the medium takes.
    fn ns(&self) -> f64 {
        self.accesses + self.of_medium_ns()
    }

    /// Nanoseconds for which an operation of one thread waits for the medium: for each missed line as long as
    /// for a random read, or, if lines are read in order, as the bandwidth allows.
    pub fn of_medium_ns(&self) -> f64 {
        (self.misses - self.in_order) * READ_NS
            + self.in_order * LINE / READ_GB_S
            + self.lines_flushed * WRITE_NS
    }

    /// The mean of two costs, with a share of the first.
    #[must_use]
    pub fn mixed(self, share: f64, other: Cost) -> Cost {
        let mean = |a: f64, b: f64| share * a + (1.0 - share) * b;
        let rebuilding_ns = mean(self.rebuilding * self.ns(), other.rebuilding * other.ns());
        let ns = mean(self.ns(), other.ns());
        Cost {
            lines_flushed: mean(self.lines_flushed, other.lines_flushed),
            fences: mean(self.fences, other.fences),
            accesses: mean(self.accesses, other.accesses),
            misses: mean(self.misses, other.misses),
            lines_read: mean(self.lines_read, other.lines_read),
            lines_written: mean(self.lines_written, other.lines_written),
            blocks_read: mean(self.blocks_read, other.blocks_read),
            blocks_written: mean(self.blocks_written, other.blocks_written),
            exchanges: mean(self.exchanges, other.exchanges),
            in_order: mean(self.in_order, other.in_order),
            rebuilding: if ns > 0.0 { rebuilding_ns / ns } else { 0.0 },
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

/// Exchanges by line.
#[derive(Default)]
struct Exchanges(HashMap<u64, u64>);

impl Exchanges {
    fn count(&mut self, events: &[Event]) {
        for event in events {
            if let Access::CompareExchange { offset, .. } = event.access {
                *self.0.entry(offset / 64).or_default() += 1;
            }
        }
    }

    /// Exchanges of an operation in the line that has most.
    fn of_hottest(&self, operations: u64) -> f64 {
        let most = self.0.values().copied().max().unwrap_or(0);
        if most * HOT < operations { 0.0 } else { most as f64 / operations as f64 }
    }
}

/// Accesses, misses and flushed lines of the operations with a rebuild of the whole structure among them,
/// and those of the others, each with the number of operations.
#[derive(Default)]
struct Pieces {
    usual: ([f64; 3], u64),
    rebuilds: ([f64; 3], u64),
}

impl Pieces {
    fn add(
        &mut self,
        before: &MachineCounts,
        after: &MachineCounts,
        (operations, rebuilds): (u64, bool),
    ) {
        let part = if rebuilds { &mut self.rebuilds } else { &mut self.usual };
        let counts = |counts: &MachineCounts| {
            let misses = counts.misses.last().copied().unwrap_or(0);
            [counts.accesses, misses, counts.flushed].map(|count| count as f64)
        };
        let (before, after) = (counts(before), counts(after));
        part.0.iter_mut().zip(before).zip(after).for_each(|((sum, a), b)| *sum += b - a);
        part.1 += operations;
    }

    /// What the rebuilds take of each operation: what operations with a rebuild take more than the others.
    fn of_rebuilds(&self) -> [f64; 3] {
        let all = (self.usual.1 + self.rebuilds.1).max(1) as f64;
        let expected = self.rebuilds.1 as f64 / self.usual.1.max(1) as f64;
        let mut more = self.rebuilds.0;
        more.iter_mut().zip(self.usual.0).for_each(|(sum, usual)| *sum -= usual * expected);
        more.map(|sum| sum.max(0.0) / all)
    }
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
        let (mut exchanges, mut pieces) = (Exchanges::default(), Pieces::default());
        while at < to {
            let end = (at + PIECE).min(to);
            let (before, rebuilds) = (machine.counts(), subject.rebuilds());
            seam.start(true);
            let right = (at..end).try_fold(true, |right, i| one(i).map(|ok| right && ok));
            let events = seam.take();
            if !right? {
                return Err(format!("{}: a wrong result", system.name).into());
            }
            machine.run(&events);
            exchanges.count(&events);
            let is_rebuilt = subject.rebuilds() != rebuilds;
            pieces.add(&before, &machine.counts(), (end - at, is_rebuilt));
            at = end;
        }
        let mut cost = Cost::of(&machine.counts(), to - from);
        cost.exchanges = exchanges.of_hottest(to - from);
        let [accesses, misses, flushed] = pieces.of_rebuilds();
        cost.in_order = misses;
        let ns = accesses + misses * LINE / READ_GB_S + flushed * WRITE_NS;
        if ns > 0.0 {
            cost.rebuilding = ns / cost.ns() / subject.rebuilders() as f64;
        }
        Fallible::Ok(cost)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(name: &str) -> Costs {
        let counting = Counting {
            records: 6_000,
            operations: 1_000,
            slots: 1024,
            before: 1.0 / 3.0,
            sizes: scaled_sizes(6_000),
            keys: Keys::Spread(Spread::Uniform),
            seed: 1,
        };
        count(&System::named(name), &counting).unwrap()
    }

    #[test]
    fn a_lock_that_all_take_is_found_and_locks_of_buckets_are_not() {
        let ported = costs("CCEH, ported");
        assert!((2.0..2.5).contains(&ported.hit.exchanges), "{}", ported.hit.exchanges);
        for name in ["Dash-EH", "EA-PHT", "P-CLHT", "clevel"] {
            let Costs { insert, hit, update, remove, .. } = costs(name);
            for cost in [insert, hit, update, remove] {
                assert_eq!(cost.exchanges, 0.0, "{name}: {cost:?}");
            }
        }
    }

    #[test]
    fn the_time_of_rebuilds_is_told_apart() {
        for (name, rebuilds) in [("Level", true), ("EA-PHT-H", true), ("Dash-EH", false)] {
            let Costs { insert, hit, .. } = costs(name);
            assert_eq!(insert.rebuilding > 0.05, rebuilds, "{name}: {}", insert.rebuilding);
            assert_eq!(hit.rebuilding, 0.0, "{name}");
        }
        let (slow, none) =
            (Cost { misses: 1.0, rebuilding: 0.5, ..Cost::default() }, Cost::default());
        assert!((slow.mixed(0.1, none).rebuilding - 0.5).abs() < 1e-9, "the other takes no time");
        assert_eq!(none.mixed(0.5, none).rebuilding, 0.0);
    }

    #[test]
    fn rebuilds_are_what_is_more_than_usual() {
        let at = |accesses, misses, flushed| MachineCounts {
            accesses,
            misses: vec![misses],
            flushed,
            ..MachineCounts::default()
        };
        let mut pieces = Pieces::default();
        pieces.add(&at(0, 0, 0), &at(300, 30, 60), (30, false));
        assert_eq!(pieces.of_rebuilds(), [0.0; 3]);
        pieces.add(&at(300, 30, 60), &at(800, 50, 80), (10, true));
        assert_eq!(pieces.of_rebuilds(), [10.0, 0.25, 0.0]);
        let cost = Cost { misses: 2.0, in_order: 1.0, lines_flushed: 1.0, ..Cost::default() };
        assert!((cost.of_medium_ns() - (305.0 + 64.0 / 2.9 + 62.0)).abs() < 1e-9);
    }
}

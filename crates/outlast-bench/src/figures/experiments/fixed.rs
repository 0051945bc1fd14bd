//! Group hashing's evaluation: tables of a fixed size at a fixed load factor, and three traces.

use crate::Fallible;
use crate::figures::counted::{Costs, Counting, Keys, count};
use crate::figures::lab::time_of;
use crate::figures::subject::{Memory, Subject, System};
use crate::figures::turns::value;
use outlast::Config;
use outlast_peers::Full;
use outlast_peers::counters::{CacheSize, Flush, Sizes};
use outlast_peers::workloads::bags::Bags;
use outlast_peers::workloads::draw::{Draw, random_num};
use std::collections::HashSet;

/// The traces.
pub const TRACES: [&str; 3] = ["RandomNum", "Bag-of-Words", "Fingerprint"];

/// Returns so many distinct keys of a trace. Bags of words are generated with the statistics of the
/// collection. Fingerprints are random, as a hash function's are, because the snapshots are no longer public;
/// the first half of each is returned, and the second follows from it.
pub fn keys(trace: &str, count: u64, seed: u64) -> Vec<u64> {
    let count = count as usize;
    match trace {
        "RandomNum" => random_num(seed).take(count).collect(),
        "Bag-of-Words" => {
            // Words of a document ascend; the table gets the documents' words in this order.
            Bags::pubmed(seed).map(|entry| entry.key()).take(count).collect()
        }
        _ => {
            let (mut draw, mut seen) = (Draw::new(seed), HashSet::new());
            std::iter::repeat_with(|| draw.bits() >> 1 | 1)
                .filter(|key| seen.insert(*key))
                .take(count)
                .collect()
        }
    }
}

/// Returns a table of so many cells for a trace: group hashing with groups of this size, or a peer. The keys
/// of fingerprints have 16 bytes, and their cells 32.
pub fn system(name: &str, trace: &str, cells: u64, group_size: u32) -> System {
    if trace == "Fingerprint" {
        return System::with_long_cells(name);
    }
    if name != "group" {
        return System::named(name);
    }
    let segments = (cells / (2 * u64::from(group_size))).max(2);
    let initial_depth = segments.ilog2().clamp(1, 20);
    let config = Config::Group(outlast::config::Group { group_size, initial_depth });
    System::ours(name, config)
}

/// Returns the keys without those that a table of a fixed size refuses, because their group is full, among
/// the first ones: as many as `needed` are then accepted.
///
/// # Errors
/// If an insert fails for another reason, or if there are too few keys.
pub fn accepted(system: &System, cells: u64, needed: u64, keys: &[u64]) -> Fallible<Vec<u64>> {
    let subject = system.create(&Memory::NoFlush, cells, cells)?;
    let (mut accepted, mut keys) = (Vec::with_capacity(keys.len()), keys.iter().copied());
    while (accepted.len() as u64) < needed {
        let key = keys.next().ok_or("too few keys")?;
        match subject.insert(key, value(key)) {
            Ok(_) => accepted.push(key),
            Err(failure) if failure.is::<Full>() => {}
            Err(failure) => return Err(failure),
        }
    }
    accepted.extend(keys);
    Ok(accepted)
}

/// Times of the operations of one table, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// An insert.
    pub insert: f64,
    /// A lookup of a present key.
    pub query: f64,
    /// A removal.
    pub delete: f64,
}

/// Fills a table to a load factor, and measures the next operations: inserts, lookups, removals. As in
/// the paper, a flushed line takes 300 ns longer.
///
/// # Errors
/// If an operation fails.
pub fn times(
    system: &System,
    memory: &Memory,
    (cells, load): (u64, f64),
    keys: &[u64],
    calls: u64,
) -> Fallible<Times> {
    let subject = system.create(&memory.clone().slowed(300), cells, cells)?;
    let filled = fill(&*subject, cells, load, keys)?;
    let next = &keys[filled as usize..];
    let insert = time_of(1, calls, |i| {
        let key = next[i as usize];
        subject.insert(key, value(key)).map(drop)
    })?;
    let step = (filled / calls).max(1);
    let query = time_of(1, calls, |i| {
        let key = keys[(i * step) as usize];
        let found = subject.get(key)?;
        if found == Some(value(key)) { Ok(()) } else { Err("a key is missing".into()) }
    })?;
    let delete = time_of(1, calls, |i| subject.remove(keys[(i * step) as usize]).map(drop))?;
    Ok(Times { insert, query, delete })
}

fn fill(subject: &dyn Subject, cells: u64, load: f64, keys: &[u64]) -> Fallible<u64> {
    let filled = (cells as f64 * load) as u64;
    for &key in &keys[..filled as usize] {
        subject.insert(key, value(key))?;
    }
    Ok(filled)
}

/// The last cache of the paper's machine (Table 2: 15 MB, 20 ways), as large in proportion to so many
/// cells as it is to the paper's 2^23 cells of 16 bytes. `clflush` drops lines.
pub fn sizes(cells: u64) -> Sizes {
    const WAYS: usize = 20;
    let sets = (cells * 15 * (1 << 20) / (1 << 23) / 64 / WAYS as u64).max(2);
    let cache = CacheSize { bytes: sets * 64 * WAYS as u64, ways: WAYS };
    Sizes { caches: vec![cache], flush: Flush::Drops, buffer_blocks: 1 }
}

/// Counts the costs of the operations at a load factor.
///
/// # Errors
/// If an operation fails.
pub fn costs(
    system: &System,
    cells: u64,
    load: f64,
    keys: Vec<u64>,
    calls: u64,
) -> Fallible<Costs> {
    let records = (cells as f64 * load) as u64 + calls;
    let counting = Counting {
        records,
        operations: calls,
        slots: cells,
        before: (records - calls) as f64 / records as f64,
        sizes: sizes(cells),
        keys: Keys::List(keys),
        seed: 1,
    };
    count(system, &counting)
}

/// Returns the load factor at which the first insert fails, or the first group is split.
///
/// # Errors
/// If a lookup of the number of slots fails.
pub fn utilization(system: &System, cells: u64, keys: &[u64]) -> Fallible<f64> {
    let subject = system.create(&Memory::NoFlush, cells, cells)?;
    let slots = subject.slots()?.unwrap_or(cells);
    let mut filled = 0u64;
    for &key in keys {
        // A fixed table refuses the record, a growing one splits.
        match subject.insert(key, value(key)) {
            Ok(_) if subject.growths() > 0 => break,
            Ok(_) => filled += 1,
            Err(_) => break,
        }
    }
    Ok(filled as f64 / slots as f64)
}

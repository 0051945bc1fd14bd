//! A simulation of where clevel hashing puts records, with 4, 8 or 16 slots a bucket. What ships has 8.
//!
//! Levels have two candidate buckets for each key. A record goes to a free slot of the emptier candidate
//! of the newest level, else of the level before it. If both are full, a level of twice the size is
//! added, and the oldest level's records are moved to the newer ones (3.1). The simulation counts the
//! lines that operations read and flush; records lie outside the table, in a line each.

use crate::figures::counted::Cost;
use outlast_peers::shared::{hash, second_hash};
use outlast_peers::workloads::keys::Spread;
use std::collections::VecDeque;

/// What a simulation found.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    /// The load factor just before each level that was added.
    pub at_resizes: Vec<f64>,
    /// Inserts, with all rehashing.
    pub insert: Cost,
    /// Lookups of present keys, once no rehashing is left.
    pub hit: Cost,
    /// Lookups of absent keys.
    pub miss: Cost,
    /// Updates: a lookup, and the record and the slot are written.
    pub update: Cost,
    /// Removals: all candidates are looked at, and the slot is written.
    pub remove: Cost,
}

struct Level {
    buckets: Vec<Vec<u64>>,
}

struct Table {
    slots: usize,
    /// The oldest first.
    levels: VecDeque<Level>,
    lines_read: u64,
    lines_flushed: u64,
}

impl Level {
    fn new(buckets: usize) -> Level {
        Level { buckets: vec![Vec::new(); buckets] }
    }

    fn candidates(&self, key: u64) -> [usize; 2] {
        let half = self.buckets.len() as u64 / 2;
        // One in each half, so they are two.
        [(hash(key) % half) as usize, (half + second_hash(key) % half) as usize]
    }
}

impl Table {
    fn lines(&self) -> u64 {
        (self.slots as u64 * 8).div_ceil(64)
    }

    fn place(&mut self, key: u64) -> bool {
        for level in (0..self.levels.len()).rev().take(2) {
            let level = &mut self.levels[level];
            let [a, b] = level.candidates(key);
            let emptier = if level.buckets[b].len() < level.buckets[a].len() { b } else { a };
            if level.buckets[emptier].len() < self.slots {
                level.buckets[emptier].push(key);
                return true;
            }
        }
        false
    }

    fn load_factor(&self) -> f64 {
        let buckets = self.levels.iter().flat_map(|level| &level.buckets);
        let (count, records) = buckets.fold((0, 0), |(n, r), b| (n + 1, r + b.len()));
        records as f64 / (count * self.slots) as f64
    }

    fn insert(&mut self, key: u64, at_resizes: &mut Vec<f64>) {
        // The search for the key reads all candidates.
        self.lines_read += self.levels.len() as u64 * 2 * self.lines();
        // The record, and the slot.
        self.lines_flushed += 2;
        while !self.place(key) {
            at_resizes.push(self.load_factor());
            let largest = self.levels.back().map_or(2, |level| level.buckets.len());
            self.levels.push_back(Level::new(largest * 2));
            while self.levels.len() > 2 {
                let oldest = self.levels.pop_front().unwrap_or_else(|| Level::new(2));
                self.lines_read += oldest.buckets.len() as u64 * self.lines();
                for key in oldest.buckets.into_iter().flatten() {
                    self.lines_flushed += 1;
                    // Candidates of the moved record.
                    self.lines_read += 2;
                    if !self.place(key) {
                        let largest = self.levels.back().map_or(2, |level| level.buckets.len());
                        self.levels.push_back(Level::new(largest * 2));
                        self.place(key);
                    }
                }
            }
        }
    }

    /// Lines that a search reads, from the oldest level on.
    fn search(&self, key: u64, stops: bool) -> u64 {
        let mut lines = 0;
        for level in &self.levels {
            for bucket in level.candidates(key) {
                lines += self.lines();
                if level.buckets[bucket].contains(&key) && stops {
                    return lines;
                }
            }
        }
        lines
    }
}

/// Simulates inserts into a table whose first level has so many slots, and searches after them.
pub fn simulate(slots: usize, first_slots: usize, records: u64) -> Simulated {
    let first = (first_slots / slots).next_power_of_two().max(4);
    let levels = VecDeque::from([Level::new(first / 2), Level::new(first)]);
    let mut table = Table { slots, levels, lines_read: 0, lines_flushed: 0 };
    let mut found = Simulated::default();
    let key = |number| Spread::Uniform.key(number);
    for number in 0..records {
        table.insert(key(number), &mut found.at_resizes);
    }
    let per = |count: u64, of: u64| count as f64 / of as f64;
    let read = |lines: f64| Cost { misses: lines, lines_read: lines, ..Cost::default() };
    let written =
        |cost: Cost, lines: f64| Cost { lines_flushed: lines, lines_written: lines, ..cost };
    found.insert = written(read(per(table.lines_read, records)), per(table.lines_flushed, records));
    let sample = records.min(20_000);
    let mean = |stops, absent: u64| {
        let lines: u64 = (0..sample).map(|i| table.search(key(i + absent), stops)).sum();
        per(lines, sample)
    };
    let (present, all, absent) = (mean(true, 0), mean(false, 0), mean(false, 1 << 50));
    // A tag of 16 bits spares nearly all records but the right one.
    found.hit = read(present + 1.0);
    found.miss = read(absent);
    found.update = written(read(all + 1.0), 2.0);
    found.remove = written(read(all + 1.0), 1.0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_slots_fill_further_and_read_more_lines() {
        let [four, eight, sixteen] = [4, 8, 16].map(|slots| simulate(slots, 256, 20_000));
        let peak = |s: &Simulated| s.at_resizes.iter().copied().fold(0.0, f64::max);
        assert!(peak(&four) < peak(&eight) && peak(&eight) < peak(&sixteen));
        assert!(peak(&eight) > 0.7 && peak(&sixteen) < 1.0, "{}", peak(&eight));
        // 16 slots take two lines; a miss looks at four buckets of two levels.
        assert_eq!((eight.miss.misses, sixteen.miss.misses), (4.0, 8.0));
        assert!(eight.hit.misses > 2.0 && eight.hit.misses < 5.0);
    }
}

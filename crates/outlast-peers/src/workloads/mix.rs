//! Sequences of operations: YCSB's workloads, and the mixes of the papers.

use super::draw::{Draw, SKEW, ScrambledZipfian, Zipfian};

/// An operation on key numbers. The records below the number that was loaded are there at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reads the record of a number.
    Read(u64),
    /// Replaces its value.
    Update(u64),
    /// Inserts the next number, which no operation has inserted.
    Insert(u64),
    /// Reads this many records in key order, from the key of a number on.
    Scan(u64, u64),
    /// Reads a value and replaces it.
    ReadModifyWrite(u64),
    /// Removes the record of a number.
    Remove(u64),
}

/// How the numbers are drawn that an operation takes from those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Each is as likely as any other.
    Uniform,
    /// Scrambled zipfian with a skew of 0.99.
    Zipfian,
    /// Zipfian with a skew of 0.99, the last inserted most frequent.
    Latest,
}

/// The shares of the kinds of operations, in percent, and the distribution of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Updates.
    pub update: u64,
    /// Inserts.
    pub insert: u64,
    /// Scans of 1 to 100 records.
    pub scan: u64,
    /// Reads followed by an update.
    pub read_modify_write: u64,
    /// Removals.
    pub remove: u64,
    /// How numbers are drawn.
    pub distribution: Distribution,
}

impl Mix {
    const NONE: Mix = Mix {
        read: 0,
        update: 0,
        insert: 0,
        scan: 0,
        read_modify_write: 0,
        remove: 0,
        distribution: Distribution::Zipfian,
    };
    /// YCSB's load: inserts alone. clevel hashing's "Load A".
    pub const LOAD: Mix = Mix { insert: 100, ..Mix::NONE };
    /// YCSB A: half reads, half updates.
    pub const A: Mix = Mix { read: 50, update: 50, ..Mix::NONE };
    /// YCSB B: mostly reads.
    pub const B: Mix = Mix { read: 95, update: 5, ..Mix::NONE };
    /// YCSB C: reads alone.
    pub const C: Mix = Mix { read: 100, ..Mix::NONE };
    /// YCSB D: reads, mostly of the latest records.
    pub const D: Mix = Mix { read: 95, insert: 5, distribution: Distribution::Latest, ..Mix::NONE };
    /// YCSB E: scans.
    pub const E: Mix = Mix { scan: 95, insert: 5, ..Mix::NONE };
    /// YCSB F: reads, and changes that depend on a read.
    pub const F: Mix = Mix { read: 50, read_modify_write: 50, ..Mix::NONE };
    /// The reads and inserts of the EA-PHT thesis (3.7): 50, 80, 95 or 100 percent reads. The
    /// thesis says that its workloads insert and search.
    pub const fn reads_and_inserts(read: u64) -> Mix {
        Mix { read, insert: 100 - read, ..Mix::NONE }
    }
    /// Dash's Figure 8e: 20% inserts, 80% searches, uniform.
    pub const DASH: Mix =
        Mix { read: 80, insert: 20, distribution: Distribution::Uniform, ..Mix::NONE };
    /// clevel hashing's A, B and C (Table 2), with 50, 95 and 100 percent reads. Its writes are
    /// inserts, because the paper says that the tables are resized in A.
    pub const fn clevel(read: u64) -> Mix {
        Mix::reads_and_inserts(read)
    }
}

/// The operations of one thread: an endless sequence.
#[derive(Debug, Clone)]
pub struct Operations {
    mix: Mix,
    draw: Draw,
    scrambled: ScrambledZipfian,
    /// Over the ages of the records, for the latest.
    ages: Zipfian,
    /// The numbers below it are there.
    records: u64,
    threads: u64,
    next_insert: u64,
}

impl Operations {
    /// Creates the sequence of one of several threads, on so many loaded records. Each thread
    /// inserts numbers of its own. It draws from the loaded records and from its own inserts.
    ///
    /// # Panics
    /// If there is no record, unless all operations are inserts.
    pub fn new(mix: Mix, records: u64, thread: u64, threads: u64, seed: u64) -> Operations {
        let sum = mix.read + mix.update + mix.insert + mix.scan + mix.read_modify_write;
        assert_eq!(sum + mix.remove, 100, "shares in percent");
        assert!(records > 0 || mix.insert == 100, "records to draw from");
        let draw = Draw::new(seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // The sum over many records takes long, and only one distribution needs it.
        let latest = mix.distribution == Distribution::Latest;
        let ages = Zipfian::new(if latest { records.max(1) } else { 1 }, SKEW);
        let scrambled = ScrambledZipfian::default();
        let next_insert = records + thread;
        Operations { mix, draw, scrambled, ages, records, threads, next_insert }
    }

    fn number(&mut self) -> u64 {
        let own = (self.next_insert - self.records) / self.threads;
        let all = self.records + own;
        let index = match self.mix.distribution {
            Distribution::Uniform => self.draw.below(all),
            Distribution::Zipfian => self.scrambled.number(&mut self.draw, all),
            Distribution::Latest => {
                self.ages.grow(all);
                all - 1 - self.ages.number(&mut self.draw)
            }
        };
        if index < self.records {
            return index;
        }
        let thread = (self.next_insert - self.records) % self.threads;
        self.records + thread + (index - self.records) * self.threads
    }
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let mut kind = self.draw.below(100);
        let mut is = |share: u64| {
            let is = kind < share;
            kind = kind.wrapping_sub(share);
            is
        };
        let Mix { read, update, insert, scan, read_modify_write, .. } = self.mix;
        Some(if is(read) {
            Operation::Read(self.number())
        } else if is(update) {
            Operation::Update(self.number())
        } else if is(insert) {
            let number = self.next_insert;
            self.next_insert += self.threads;
            Operation::Insert(number)
        } else if is(scan) {
            let records = 1 + self.draw.below(100);
            Operation::Scan(self.number(), records)
        } else if is(read_modify_write) {
            Operation::ReadModifyWrite(self.number())
        } else {
            Operation::Remove(self.number())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn shares(mix: Mix) -> HashMap<std::mem::Discriminant<Operation>, u64> {
        let mut counts = HashMap::new();
        for operation in Operations::new(mix, 1000, 0, 1, 7).take(20_000) {
            *counts.entry(std::mem::discriminant(&operation)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn operations_come_in_their_shares() {
        let of = |operation: Operation| std::mem::discriminant(&operation);
        let expected = [
            (Mix::LOAD, vec![(Operation::Insert(0), 100)]),
            (Mix::A, vec![(Operation::Read(0), 50), (Operation::Update(0), 50)]),
            (Mix::B, vec![(Operation::Read(0), 95), (Operation::Update(0), 5)]),
            (Mix::C, vec![(Operation::Read(0), 100)]),
            (Mix::D, vec![(Operation::Read(0), 95), (Operation::Insert(0), 5)]),
            (Mix::E, vec![(Operation::Scan(0, 0), 95), (Operation::Insert(0), 5)]),
            (Mix::F, vec![(Operation::Read(0), 50), (Operation::ReadModifyWrite(0), 50)]),
            (Mix::DASH, vec![(Operation::Read(0), 80), (Operation::Insert(0), 20)]),
            (
                Mix { read: 25, insert: 50, remove: 25, ..Mix::NONE },
                vec![
                    (Operation::Read(0), 25),
                    (Operation::Insert(0), 50),
                    (Operation::Remove(0), 25),
                ],
            ),
        ];
        for (mix, parts) in expected {
            let counts = shares(mix);
            assert_eq!(counts.len(), parts.len(), "{mix:?}");
            for (operation, percent) in parts {
                let count = counts[&of(operation)];
                assert!(count.abs_diff(percent * 200) <= 250, "{mix:?} {operation:?} {count}");
            }
        }
    }

    #[test]
    fn threads_insert_numbers_of_their_own_and_draw_what_they_know() {
        let mut all = HashSet::new();
        for thread in 0..3 {
            let mut there: HashSet<u64> = (0..100).collect();
            for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest]
            {
                let mix = Mix { read: 50, insert: 50, distribution, ..Mix::NONE };
                let own = there.clone();
                there.retain(|number| *number < 100);
                for operation in Operations::new(mix, 100, thread, 3, 1).take(3000) {
                    match operation {
                        Operation::Insert(number) => assert!(there.insert(number)),
                        Operation::Read(number) => assert!(there.contains(&number), "{number}"),
                        other => panic!("{other:?}"),
                    }
                }
                assert!(
                    own.len() == 100 || own.iter().filter(|n| there.contains(n)).count() > 1000
                );
            }
            let own: Vec<u64> = there.into_iter().filter(|number| *number >= 100).collect();
            assert!(own.iter().all(|number| all.insert(*number)), "no other thread's");
        }
    }

    #[test]
    fn the_latest_are_read_most_and_scans_have_up_to_100_records() {
        let mut ages = HashMap::new();
        let mut last = 9_999;
        for operation in Operations::new(Mix::D, 10_000, 0, 1, 5).take(50_000) {
            match operation {
                Operation::Insert(number) => last = number,
                Operation::Read(number) => *ages.entry(last - number).or_insert(0u64) += 1,
                other => panic!("{other:?}"),
            }
        }
        // The zeta of ten thousand is 10.2, so a tenth of the reads are of the last.
        assert!((4200..5200).contains(&ages[&0]), "{}", ages[&0]);
        assert!(ages[&0] > ages[&1] && ages[&1] > ages[&5]);
        let lengths: HashSet<u64> = Operations::new(Mix::E, 10, 0, 1, 5)
            .filter_map(|operation| match operation {
                Operation::Scan(_, records) => Some(records),
                _ => None,
            })
            .take(5000)
            .collect();
        assert_eq!(lengths, (1..=100).collect());
    }
}

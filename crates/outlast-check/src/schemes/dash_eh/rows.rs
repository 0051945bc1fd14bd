//! Dash-EH tables in which one insert moves several records in a row.

use outlast::internals::index::dash_eh::layout::{LINE_SLOTS, SLOTS};
use std::ops::Range;

/// log2 of the buckets per segment. Three moves need at least five buckets.
pub const BUCKET_BITS: u32 = 3;

/// The moves that an insert must make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// True if each record moves from its home to the bucket after it, false if it moves back to
    /// its home.
    pub forward: bool,
    /// Number of records that move, at most 3.
    pub moves: usize,
}

const BUCKETS: usize = 1 << BUCKET_BITS;
const LINES: usize = SLOTS / LINE_SLOTS;
/// How many slots are free in the bucket that the last record of a row moves back to.
const ROOM: usize = 6;

/// Returns keys of one segment by their home and the line that their hash names.
fn by_home(hash: impl Fn(u64) -> u64, half: u64) -> Vec<Vec<Vec<u64>>> {
    let mut homes = vec![vec![Vec::new(); LINES]; BUCKETS];
    for key in 10..4_000 {
        let hash = hash(key);
        if hash >> 63 == half {
            homes[(hash >> 8) as usize % BUCKETS][(hash >> 14) as usize % LINES].push(key);
        }
    }
    homes
}

/// A bucket that is full, before one that has only a guest from it: the next record of the first
/// one goes to the second, too.
#[derive(Debug, Clone, Copy)]
pub struct FullHome;

impl FullHome {
    /// How many keys fill the bucket, with the guest.
    pub const FILLED: usize = SLOTS + 1;

    /// Returns the keys that fill the bucket, and the guest. After them come three keys of the
    /// bucket after it, and then three of the full bucket. All six would take the same slot of the
    /// bucket after.
    pub fn keys(hash: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut homes = by_home(hash, 0);
        let filling = (0..Self::FILLED).map(|n| (0, n % LINES));
        let others = [(1, 0); 3].into_iter().chain([(0, 0); 3]);
        filling.chain(others).filter_map(|(home, line)| homes[home][line].pop()).collect()
    }
}

impl Row {
    /// Two or three records, in both directions.
    pub const ALL: [Row; 4] = [
        Row { forward: true, moves: 2 },
        Row { forward: true, moves: 3 },
        Row { forward: false, moves: 2 },
        Row { forward: false, moves: 3 },
    ];

    /// Returns how many keys fill the table.
    pub fn filled(self) -> usize {
        (self.moves + 1) * self.of_a_home()
    }

    /// Returns keys of one segment, chosen by their hashes: the keys that fill the table, and then
    /// at least six keys whose inserts move records.
    ///
    /// The keys that move records have one home. Forward: the buckets from this home on are full of
    /// records that are at home there. Backward: from this home downwards, the keys of each home
    /// fill it and the bucket after it; then those in the home itself are removed, and guests from
    /// the bucket before it take their slots.
    pub fn keys(self, hash: impl Fn(u64) -> u64, half: u64) -> Vec<u64> {
        let mut homes = by_home(hash, half);
        let first = if self.forward { 0 } else { BUCKETS - 3 };
        let home = |block: usize| if self.forward { first + block } else { first - block };
        let blocks = (0..=self.moves).map(|block| (home(block), self.of_a_home()));
        let mut keys = Vec::new();
        for (home, count) in blocks.chain([(first, SLOTS)]) {
            // Take keys of each line in turn, until the bucket is full.
            keys.extend((0..count).filter_map(|n| homes[home][n % LINES].pop()));
        }
        keys
    }

    /// Returns which keys, by number, are removed after the insert of key `number`.
    pub fn removed_after(self, number: usize) -> Range<usize> {
        let of_a_home = self.of_a_home();
        if self.forward || number >= self.filled() || number % of_a_home + 1 != of_a_home {
            return 0..0;
        }
        let (block, first) = (number / of_a_home, number / of_a_home * of_a_home);
        first..first + if block == self.moves { ROOM } else { SLOTS }
    }

    fn of_a_home(self) -> usize {
        if self.forward { SLOTS } else { 2 * SLOTS }
    }
}

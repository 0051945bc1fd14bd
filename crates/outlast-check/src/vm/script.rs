//! The work of a thread in the guest, which the host can repeat. Every operation follows from a
//! seed and from the initial values of the thread's own keys. So the number of operations that a
//! thread has done determines the value of each of its keys.

use crate::random::Random;
use crate::session::Do;
use crate::torture::life::{self, Subject};
use std::time::Duration;

/// The interval at which journals make durable what no thread waits for.
pub const INTERVAL: Duration = Duration::from_millis(10);
/// Batch sizes: thread n uses entry n modulo 4. A thread reports after the last operation of each
/// batch, so a thread with batches of one reports every operation.
const BATCHES: [u64; 4] = [1, 4, 16, 64];

/// Returns how many operations `thread` does between its reports. It starts the next batch only
/// once the report has been sent.
pub fn batch(thread: u64) -> u64 {
    BATCHES[(thread % BATCHES.len() as u64) as usize]
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The number of the map.
    pub map: usize,
    /// The number of the key.
    pub key: u64,
    /// The key's value before.
    pub before: Option<u64>,
    /// The change; `None` is a lookup.
    pub change: Option<Do>,
    /// The key's value afterwards.
    pub after: Option<u64>,
}

/// The operations of one thread in one life.
#[derive(Debug, Clone)]
pub struct Script {
    random: Random,
    keys: Vec<(usize, u64)>,
    values: Vec<Option<u64>>,
}

impl Script {
    /// Makes the script of a thread that finds the values `held` in its keys.
    pub fn new(
        subject: &Subject,
        seed: u64,
        life: u64,
        thread: u64,
        held: impl Fn(usize, u64) -> Option<u64>,
    ) -> Script {
        let keys: Vec<_> = subject.keys_of(thread).collect();
        let values = keys.iter().map(|&(map, key)| held(map, key)).collect();
        let random = Random::new(Random::new(seed).next() ^ life << 16 ^ thread << 48);
        Script { random, keys, values }
    }

    /// Returns the next operation, and counts it as done.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> Step {
        let index = self.random.below(self.keys.len() as u64) as usize;
        let (map, key) = self.keys[index];
        let before = self.values[index];
        let change = life::choose(&mut self.random, before);
        let after = change.map_or(before, |change| change.on(before).1);
        self.values[index] = after;
        Step { map, key, before, change, after }
    }

    /// Lists the keys, each with its map and its value after the operations so far.
    pub fn held(&self) -> impl Iterator<Item = ((usize, u64), Option<u64>)> {
        self.keys.iter().copied().zip(self.values.iter().copied())
    }
}

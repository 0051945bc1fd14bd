//! Throughput of caches, and the space of ours while everything in it is replaced again and again.

use super::open;
use crate::Fallible;
use crate::keys::Draw;
use crate::report::{median, rounded};
use outlast::{Cache, CacheOptions, PoolOptions};
use serde::Serialize;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a value.
pub const VALUE: usize = 100;

/// A key.
pub type Key = [u8; 16];

/// A cache that threads share.
pub trait Shared: Sync {
    /// Looks a key up, copies its value, and returns whether it was there.
    ///
    /// # Errors
    /// If the cache fails.
    fn get(&self, key: &Key) -> Fallible<bool>;

    /// Inserts a record.
    ///
    /// # Errors
    /// If the cache fails.
    fn insert(&self, key: &Key, value: &[u8]) -> Fallible;
}

impl Shared for Cache<Key, [u8]> {
    fn get(&self, key: &Key) -> Fallible<bool> {
        Ok(Cache::get(self, key)?.is_some_and(|value| value.len() == VALUE))
    }
    fn insert(&self, key: &Key, value: &[u8]) -> Fallible {
        Ok(Cache::insert(self, key, value)?)
    }
}

#[cfg(feature = "caches")]
impl Shared for moka::sync::Cache<Key, Vec<u8>> {
    fn get(&self, key: &Key) -> Fallible<bool> {
        Ok(moka::sync::Cache::get(self, key).is_some_and(|value| value.len() == VALUE))
    }
    fn insert(&self, key: &Key, value: &[u8]) -> Fallible {
        moka::sync::Cache::insert(self, *key, value.to_vec());
        Ok(())
    }
}

#[cfg(feature = "caches")]
impl Shared for quick_cache::sync::Cache<Key, Vec<u8>> {
    fn get(&self, key: &Key) -> Fallible<bool> {
        Ok(quick_cache::sync::Cache::get(self, key).is_some_and(|value| value.len() == VALUE))
    }
    fn insert(&self, key: &Key, value: &[u8]) -> Fallible {
        quick_cache::sync::Cache::insert(self, *key, value.to_vec());
        Ok(())
    }
}

/// The throughput of one kind of operation.
#[derive(Debug, Clone, Serialize)]
pub struct Speed {
    /// The system.
    pub system: &'static str,
    /// Lookups, of which 95% find their key, or inserts of new keys into a full cache.
    pub operation: &'static str,
    /// Threads.
    pub threads: usize,
    /// Operations in a microsecond, of all threads: the median of the rounds.
    pub mops: f64,
    /// That of the slowest round.
    pub least: f64,
    /// That of the fastest round.
    pub most: f64,
    /// The share of lookups that found their key, in the last round.
    pub hit_ratio: Option<f64>,
}

fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

/// Makes a cache for this many records.
pub type Make = fn(u64) -> Fallible<Box<dyn Shared>>;

/// The caches, by their names.
pub fn systems() -> Vec<(&'static str, Make)> {
    fn ours(records: u64) -> Fallible<Box<dyn Shared>> {
        let pool = PoolOptions::new().anonymous()?;
        // Its handle keeps the pool.
        Ok(Box::new(pool.cache::<Key, [u8]>("bench", &CacheOptions::records(records))?))
    }
    #[cfg_attr(not(feature = "caches"), expect(unused_mut, reason = "there are no rivals"))]
    let mut systems: Vec<(&'static str, Make)> = vec![(super::systems::OURS, ours)];
    #[cfg(feature = "caches")]
    {
        systems.push(("moka", |records| {
            Ok(Box::new(moka::sync::Cache::<Key, Vec<u8>>::new(records)))
        }));
        systems.push(("quick_cache", |records| {
            Ok(Box::new(quick_cache::sync::Cache::<Key, Vec<u8>>::new(records as usize)))
        }));
    }
    systems
}

/// Measures the systems with this many records, in turn, several times.
///
/// # Errors
/// If a system fails.
pub fn run(
    systems: &[(&'static str, Make)],
    records: u64,
    rounds: usize,
    seed: u64,
    mut row: impl FnMut(Speed) -> Fallible,
) -> Fallible {
    let mut measured = vec![Vec::new(); systems.len()];
    for round in 0..rounds {
        for number in 0..systems.len() {
            // Each goes first in turn.
            let number = (number + round) % systems.len();
            let cache = (systems[number].1)(records)?;
            measured[number].push(measure(&*cache, records, seed + round as u64)?);
        }
    }
    for ((system, _), rounds) in systems.iter().zip(measured) {
        for (number, (operation, threads)) in OPERATIONS.into_iter().enumerate() {
            let all: Vec<f64> = rounds.iter().map(|round| round[number].0).collect();
            let hit_ratio = rounds.last().and_then(|round| round[number].1);
            row(Speed {
                system,
                operation,
                threads,
                mops: rounded(median(&all).unwrap_or_default(), 3),
                least: rounded(all.iter().copied().fold(f64::INFINITY, f64::min), 3),
                most: rounded(all.iter().copied().fold(0.0, f64::max), 3),
                hit_ratio: hit_ratio.map(|ratio| rounded(ratio, 3)),
            })?;
        }
    }
    Ok(())
}

/// The measured operations, each with its number of threads.
const OPERATIONS: [(&str, usize); 4] = [("get", 1), ("get", 2), ("insert", 1), ("insert", 2)];

/// Operations in a microsecond, and the hit ratio of lookups.
type Measured = (f64, Option<f64>);

/// Fills a new cache, and measures the [`OPERATIONS`] in this order.
fn measure(cache: &dyn Shared, records: u64, seed: u64) -> Fallible<[Measured; 4]> {
    let value = [7; VALUE];
    for number in 0..records {
        cache.insert(&key(number), &value)?;
    }
    let (mut next, mut measured) = (records * 2, [(0.0, None); 4]);
    for ((operation, threads), measured) in OPERATIONS.into_iter().zip(&mut measured) {
        let each = records.max(100_000) / threads as u64;
        let all = each * threads as u64;
        let (seconds, hits) = if operation == "get" {
            together(threads, |thread| {
                let (mut draw, mut hits) = (Draw::new(seed + 1_000 * thread as u64), 0);
                for _ in 0..each {
                    hits += u64::from(cache.get(&key(draw.below(records * 100 / 95)))?);
                }
                Ok(hits)
            })?
        } else {
            let first = next;
            next += all;
            together(threads, |thread| {
                for number in 0..each {
                    cache.insert(&key(first + thread as u64 * each + number), &value)?;
                }
                Ok(0)
            })?
        };
        let hit_ratio = (operation == "get").then_some(hits as f64 / all as f64);
        *measured = (all as f64 / seconds / 1e6, hit_ratio);
    }
    Ok(measured)
}

/// Runs threads, and returns the seconds that they took and the sum of their results.
fn together(threads: usize, run: impl Fn(usize) -> Fallible<u64> + Sync) -> Fallible<(f64, u64)> {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let (run, barrier) = (&run, &barrier);
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    run(thread).map_err(|failure| failure.to_string())
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let mut sum = 0;
        for thread in started {
            sum += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok((start.elapsed().as_secs_f64(), sum))
    })
}

/// What a cache takes while everything in it is replaced.
#[derive(Debug, Clone, Serialize)]
pub struct Churn {
    /// Seconds since the beginning.
    pub seconds: f64,
    /// Records inserted so far.
    pub inserted: u64,
    /// The bound, in bytes.
    pub capacity: u64,
    /// The most that the cache has held so far.
    pub bytes_max: u64,
    /// The size of the pool.
    pub pool: u64,
}

/// Inserts values of 8 to 20,000 bytes for some seconds.
///
/// # Errors
/// If the cache fails.
pub fn churn(
    path: &Path,
    capacity: u64,
    seconds: u64,
    seed: u64,
    mut row: impl FnMut(Churn) -> Fallible,
) -> Fallible {
    let pool = open(path)?;
    let cache = pool.cache::<u64, [u8]>("bench", &CacheOptions::bytes(capacity))?;
    let (mut draw, value) = (Draw::new(seed), vec![7; 20_000]);
    let (mut inserted, mut bytes_max, start) = (0, 0, Instant::now());
    for part in 1..=10 {
        while start.elapsed() < Duration::from_millis(part * seconds * 100) {
            for _ in 0..100 {
                let len = 8 + draw.below(19_993) as usize;
                cache.insert(&draw.below(capacity / 2_000), &value[..len])?;
                inserted += 1;
                bytes_max = bytes_max.max(cache.stats()?.bytes);
            }
        }
        let (seconds, pool) = (rounded(start.elapsed().as_secs_f64(), 1), pool.stats().size);
        row(Churn { seconds, inserted, capacity, bytes_max, pool })?;
    }
    drop(cache);
    pool.close()?;
    Ok(())
}

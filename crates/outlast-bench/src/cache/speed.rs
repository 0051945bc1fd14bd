//! Throughput of caches, and the space of ours while everything in it is replaced again and again.

use super::open;
use crate::Fallible;
use crate::keys::Draw;
use crate::report::rounded;
use outlast::{Cache, CacheOptions, PoolOptions};
use serde::Serialize;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a value.
const VALUE: usize = 100;

type Key = [u8; 16];

/// A cache that threads share.
trait Shared: Sync {
    /// Looks a key up, copies its value, and returns whether it was there.
    fn get(&self, key: &Key) -> Fallible<bool>;
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
    /// Lookups, of which 95% find their key, or inserts, each of which evicts a record.
    pub operation: &'static str,
    /// Threads.
    pub threads: usize,
    /// Operations in a microsecond, of all threads.
    pub mops: f64,
    /// The share of lookups that found their key.
    pub hit_ratio: Option<f64>,
}

fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

/// Measures all systems with this many records.
///
/// # Errors
/// If a system fails.
pub fn run(records: u64, seed: u64, mut row: impl FnMut(Speed) -> Fallible) -> Fallible {
    let pool = PoolOptions::new().anonymous()?;
    let ours = pool.cache::<Key, [u8]>("bench", &CacheOptions::records(records))?;
    measure(super::systems::OURS, &ours, records, seed, &mut row)?;
    drop((ours, pool));
    #[cfg(feature = "caches")]
    {
        let moka = moka::sync::Cache::new(records);
        measure("moka", &moka, records, seed, &mut row)?;
        drop(moka);
        let quick = quick_cache::sync::Cache::new(records as usize);
        measure("quick_cache", &quick, records, seed, &mut row)?;
    }
    Ok(())
}

fn measure(
    system: &'static str,
    cache: &dyn Shared,
    records: u64,
    seed: u64,
    row: &mut impl FnMut(Speed) -> Fallible,
) -> Fallible {
    let value = [7; VALUE];
    for number in 0..records {
        cache.insert(&key(number), &value)?;
    }
    let mut next = records;
    for threads in [1, 2] {
        let each = records.max(100_000);
        let (seconds, hits) = together(threads, |thread| {
            let (mut draw, mut hits) = (Draw::new(seed + thread as u64), 0);
            for _ in 0..each {
                hits += u64::from(cache.get(&key(draw.below(records * 100 / 95)))?);
            }
            Ok(hits)
        })?;
        let all = each * threads as u64;
        let (mops, hit_ratio) = (rounded(all as f64 / seconds / 1e6, 2), hits as f64 / all as f64);
        let hit_ratio = Some(rounded(hit_ratio, 3));
        row(Speed { system, operation: "get", threads, mops, hit_ratio })?;
        let each = each / 2;
        let first = next;
        next += each * threads as u64;
        let (seconds, _) = together(threads, |thread| {
            for number in 0..each {
                cache.insert(&key(first + thread as u64 * each + number), &value)?;
            }
            Ok(0)
        })?;
        let mops = rounded((each * threads as u64) as f64 / seconds / 1e6, 2);
        row(Speed { system, operation: "insert", threads, mops, hit_ratio: None })?;
        // The keys that the lookups draw are there again.
        for number in 0..records {
            cache.insert(&key(number), &value)?;
        }
    }
    Ok(())
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

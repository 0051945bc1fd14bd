//! Measures how fast the finished map is.

use super::facts::FileFacts;
use super::items::Item;
use super::plan::survives;
use super::random::Random;
use crate::failure::Failure;
use outlast::Map;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// How long each rate is measured.
const TIME: Duration = Duration::from_millis(500);

/// The measured rates.
#[derive(Debug)]
pub(super) struct Rates {
    /// Lookups per second of random keys that are present, by all threads together.
    pub(super) gets_per_s: f64,
    /// Records per second of a scan over all of them, by one thread.
    pub(super) scan_per_s: f64,
}

/// Measures the rates.
pub(super) fn measure(
    map: &Map<[u8], FileFacts>,
    items: &[Item],
    threads: u32,
    random: &mut Random,
) -> Result<Rates, Failure> {
    let there = (0..items.len()).filter(|&item| survives(item as u32));
    let keys: Vec<Vec<u8>> = there.map(|item| items[item].key()).collect();
    let mut rates = Rates { gets_per_s: 0.0, scan_per_s: 0.0 };
    if keys.is_empty() {
        return Ok(rates);
    }
    let seeds: Vec<u64> = (0..threads).map(|_| random.next()).collect();
    thread::scope(|scope| {
        let hands: Vec<_> =
            seeds.iter().map(|seed| scope.spawn(|| gets(map, &keys, *seed))).collect();
        for hand in hands {
            rates.gets_per_s += hand.join().expect("lookups do not panic")?;
        }
        Ok::<(), Failure>(())
    })?;
    let (start, mut records) = (Instant::now(), 0u64);
    while start.elapsed() < TIME {
        for record in map.iter() {
            black_box(record?);
            records += 1;
        }
    }
    rates.scan_per_s = records as f64 / start.elapsed().as_secs_f64();
    Ok(rates)
}

fn gets(map: &Map<[u8], FileFacts>, keys: &[Vec<u8>], seed: u64) -> Result<f64, Failure> {
    let mut random = Random::new(seed);
    let (start, mut gets) = (Instant::now(), 0u64);
    while start.elapsed() < TIME {
        for _ in 0..100 {
            let key = &keys[random.below(keys.len() as u64) as usize];
            black_box(map.get(key)?);
            gets += 1;
        }
    }
    Ok(gets as f64 / start.elapsed().as_secs_f64())
}

//! Traces of requests, made from a seed or read from a file.

use crate::Fallible;
use crate::keys::Draw;
use std::path::Path;

/// A trace.
pub struct Trace {
    /// Its name in reports.
    pub name: String,
    /// The keys, in the order of the requests.
    pub keys: Vec<u64>,
}

/// Draws numbers below `n`, the number k with a probability that falls with its power `exponent`.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weight = |k: usize| (k as f64).powf(-exponent);
        let mut sums: Vec<f64> = (1..=n)
            .map(|k| {
                sum += weight(k);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Zipf { sums }
    }

    fn draw(&self, draw: &mut Draw) -> u64 {
        let at = (draw.bits() >> 11) as f64 / (1u64 << 53) as f64;
        self.sums.partition_point(|&sum| sum < at) as u64
    }
}

/// Spreads numbers over all keys, so that popular ones are not neighbours.
fn spread(number: u64) -> u64 {
    let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key ^ key >> 31
}

/// Makes the traces for a cache of `capacity` records.
pub fn all(requests: usize, capacity: usize, seed: u64) -> Vec<Trace> {
    let mut draw = Draw::new(seed);
    let universe = 20 * capacity;
    let mut traces = Vec::new();
    let mut add = |name: String, keys: Vec<u64>| traces.push(Trace { name, keys });
    for exponent in [0.7, 0.8, 0.9, 1.0, 1.1] {
        let zipf = Zipf::new(universe, exponent);
        let keys = (0..requests).map(|_| spread(zipf.draw(&mut draw))).collect();
        add(format!("zipf {exponent:.1}"), keys);
    }
    for (name, length) in [("loop of 1.1", capacity * 11 / 10), ("loop of 1.5", capacity * 3 / 2)] {
        add(name.into(), (0..requests).map(|n| (n % length) as u64).collect());
    }
    // One request in three is of Zipf's distribution; the others are scans that never return.
    let zipf = Zipf::new(universe, 0.9);
    let mut scanned = 1 << 40;
    let keys = (0..requests).map(|n| {
        if (n / capacity).is_multiple_of(3) {
            return spread(zipf.draw(&mut draw));
        }
        scanned += 1;
        scanned
    });
    add("zipf 0.9, scans".into(), keys.collect());
    // Nine requests in ten are of a working set of 0.8 of the cache, of which a quarter of the cache is
    // replaced now and then.
    let moving = |n: usize| (n / (20 * capacity) * (capacity / 4)) as u64;
    let working = (capacity * 8 / 10) as u64;
    let keys = (0..requests).map(|n| match draw.below(10) {
        0 => (1 << 41) + draw.below(universe as u64),
        _ => spread(moving(n) + draw.below(working)),
    });
    add("moving set".into(), keys.collect());
    let mut at = 0;
    let length = (capacity * 6 / 5) as u64;
    let keys = (0..requests).map(|_| {
        if draw.below(2) == 0 {
            return spread(zipf.draw(&mut draw));
        }
        at += 1;
        (1 << 42) + at % length
    });
    add("zipf 0.9, loop".into(), keys.collect());
    traces
}

/// Reads a trace: a number, the key, in each line.
///
/// # Errors
/// If the file cannot be read, or if a line is no number.
pub fn read(path: &Path) -> Fallible<Trace> {
    let text = std::fs::read_to_string(path)?;
    let keys = text.lines().map(|line| line.trim().parse());
    let keys =
        keys.collect::<Result<_, _>>().map_err(|why| format!("{}: {why}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Trace { name, keys })
}

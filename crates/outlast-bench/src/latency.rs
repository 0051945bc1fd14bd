//! The distribution of operations' times.

use crate::Fallible;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The longest time that is told apart from longer ones.
const MAX_NS: u64 = 60_000_000_000;

/// Times of operations, to three digits.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// What a table shows of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the operations took no longer.
    pub p50_ns: u64,
    /// 99 of a hundred.
    pub p99_ns: u64,
    /// 999 of a thousand.
    pub p999_ns: u64,
    /// 9,999 of ten thousand.
    pub p9999_ns: u64,
    /// All of them.
    pub max_ns: u64,
}

impl Latency {
    /// No times yet.
    pub fn new() -> Fallible<Latency> {
        Ok(Latency(Histogram::new_with_bounds(1, MAX_NS, 3)?))
    }

    /// One more.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// All those of another.
    pub fn add(&mut self, other: &Latency) -> Fallible {
        Ok(self.0.add(&other.0)?)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// How many took from `least` to `most` nanoseconds.
    pub fn count_between(&self, least: u64, most: u64) -> u64 {
        self.0.count_between(least, most.min(MAX_NS))
    }

    /// The table's figures.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            p9999_ns: self.0.value_at_quantile(0.9999),
            max_ns: self.0.max(),
        }
    }

    /// The time at a quantile from 0 to 1.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }
}

/// What a loop of operations is watched by.
pub trait Watch {
    /// The loop begins.
    fn begin(&mut self);
    /// An operation has ended.
    fn tick(&mut self);
}

/// Nothing: the loop runs as fast as it can.
#[derive(Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    #[inline(always)]
    fn begin(&mut self) {}
    #[inline(always)]
    fn tick(&mut self) {}
}

/// A clock that is read before and after each operation. What lies between two readings is
/// the operation, the computing of its key and of the check, and one reading.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    /// What it has measured.
    pub latency: Latency,
}

impl Clock {
    /// A clock that has measured nothing.
    pub fn new() -> Fallible<Clock> {
        Ok(Clock { last: Instant::now(), latency: Latency::new()? })
    }
}

impl Watch for Clock {
    #[inline]
    fn begin(&mut self) {
        self.last = Instant::now();
    }
    #[inline]
    fn tick(&mut self) {
        let now = Instant::now();
        self.latency.record((now - self.last).as_nanos() as u64);
        // Recording a time costs a little; it is not part of the next one.
        self.last = Instant::now();
    }
}

/// The time between two readings of the clock with nothing between them: the median, which
/// every measured latency contains.
pub fn clock_ns() -> Fallible<u64> {
    let mut clock = Clock::new()?;
    clock.begin();
    for _ in 0..100_000 {
        clock.tick();
    }
    Ok(clock.latency.at(0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_recorded_times() {
        let mut latency = Latency::new().unwrap();
        for ns in 1..=10_000 {
            latency.record(ns * 10);
        }
        let p = latency.percentiles();
        let near = |got: u64, want: u64| got.abs_diff(want) <= want / 500;
        assert!(near(p.p50_ns, 50_000) && near(p.p99_ns, 99_000), "{p:?}");
        assert!(near(p.p999_ns, 99_900) && near(p.p9999_ns, 99_990), "{p:?}");
        assert!(near(p.max_ns, 100_000));
        let mut twice = latency.clone();
        twice.add(&latency).unwrap();
        assert_eq!((twice.count(), twice.percentiles()), (20_000, p));
    }
}

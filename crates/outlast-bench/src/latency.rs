//! The distribution of the times that operations take.

use crate::Fallible;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The longest time that can be recorded, in nanoseconds. Longer times are recorded as this one.
const MAX_NS: u64 = 60_000_000_000;

/// A histogram of times, accurate to three significant digits.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// The percentiles that tables show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the operations took at most this long.
    pub p50_ns: u64,
    /// 99 percent took at most this long.
    pub p99_ns: u64,
    /// 99.9 percent took at most this long.
    pub p999_ns: u64,
    /// 99.99 percent took at most this long.
    pub p9999_ns: u64,
    /// The longest time.
    pub max_ns: u64,
}

impl Latency {
    /// Creates an empty histogram.
    pub fn new() -> Fallible<Latency> {
        Ok(Latency(Histogram::new_with_bounds(1, MAX_NS, 3)?))
    }

    /// Adds a time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all times of another histogram.
    pub fn add(&mut self, other: &Latency) -> Fallible {
        Ok(self.0.add(&other.0)?)
    }

    /// Number of times recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Number of times from `least` to `most` nanoseconds.
    pub fn count_between(&self, least: u64, most: u64) -> u64 {
        self.0.count_between(least, most.min(MAX_NS))
    }

    /// Returns the percentiles that tables show.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            p9999_ns: self.0.value_at_quantile(0.9999),
            max_ns: self.0.max(),
        }
    }

    /// Returns the time at a quantile from 0 to 1.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }
}

/// Observes a loop of operations.
pub trait Watch {
    /// Called when the loop begins.
    fn begin(&mut self);
    /// Called after each operation.
    fn tick(&mut self);
}

/// Observes nothing, so the loop runs at full speed.
#[derive(Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    #[inline(always)]
    fn begin(&mut self) {}
    #[inline(always)]
    fn tick(&mut self) {}
}

/// Reads a clock before and after each operation. The time between two readings includes the
/// operation, the computation of its key, the check of its result, and one reading.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    /// The times measured.
    pub latency: Latency,
}

impl Clock {
    /// Creates a clock that has measured nothing yet.
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
        // Restart the clock here, so that recording a time is not part of the next one.
        self.last = Instant::now();
    }
}

/// Returns the median time between two readings of the clock with nothing between them. Every
/// measured latency contains this time.
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

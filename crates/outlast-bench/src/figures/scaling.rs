//! A model of throughput on persistent memory with more threads than there are cores here.
//!
//! An operation of one thread takes its time on this machine without flushes, plus a random read of
//! the medium for each miss of the cache model and a write for each flushed line. With *n* threads,
//!
//! - threads wait for each other: a part *s* of each operation excludes the others, so the speed-up
//!   is *n* / (1 + *s* (*n* - 1)). *s* follows from the speed-up that was measured with two
//!   threads (1.9 counts as two): time in locks, in resizes that stop all, and in moving cache lines between cores;
//! - the medium's bandwidth bounds all threads together: the lines that the cache model reads and
//!   writes, divided by the bandwidths of random accesses of PhaST's Table 1, which are those of two
//!   modules, in proportion to the paper's modules.
//!
//! The model knows no accesses to DRAM, no hyperthreads and no prefetching.

use super::counted::Cost;
use serde::Serialize;

/// Nanoseconds of a random read of Optane, and of a flushed line, with nothing else going on: Yang et al., "An
/// empirical guide to the behavior and use of scalable persistent memory", FAST 2020, Figure 2.
pub const READ_NS: f64 = 305.0;
/// See [`READ_NS`].
pub const WRITE_NS: f64 = 62.0;
/// Gigabytes a second of random reads and writes of 64 bytes with two modules: PhaST, Table 1.
pub const READ_GB_S: f64 = 2.9;
/// See [`READ_GB_S`].
pub const WRITE_GB_S: f64 = 0.8;
/// The modules of that table's machine.
const MODULES: f64 = 2.0;
const LINE: f64 = 64.0;
/// A speed-up of two threads that counts as two: the rest is noise.
const FULL: f64 = 1.9;

/// The parameters of the model for one operation of one system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scaling {
    /// Nanoseconds of an operation of one thread.
    pub one_ns: f64,
    /// The part of it that excludes other threads.
    pub serial: f64,
    /// Nanoseconds for which an operation uses all of the medium's bandwidth.
    pub medium_ns: f64,
}

impl Scaling {
    /// Derives the parameters. `base_ns` was measured without flushes, and `speed_up` with two
    /// threads; the machine has so many modules of Optane.
    pub fn new(base_ns: f64, cost: &Cost, speed_up: f64, modules: f64) -> Scaling {
        let share = MODULES / modules;
        Scaling {
            one_ns: base_ns + cost.misses * READ_NS + cost.lines_flushed * WRITE_NS,
            serial: (FULL / speed_up - 1.0).clamp(0.0, 1.0),
            medium_ns: (cost.lines_read * LINE / READ_GB_S
                + cost.lines_written * LINE / WRITE_GB_S)
                * share,
        }
    }

    /// Million operations a second of so many threads.
    pub fn mops(&self, threads: f64) -> f64 {
        let waiting = threads * 1e3 / (self.one_ns * (1.0 + self.serial * (threads - 1.0)));
        if self.medium_ns > 0.0 { waiting.min(1e3 / self.medium_ns) } else { waiting }
    }

    /// Nanoseconds of an operation of one of so many threads.
    pub fn latency_ns(&self, threads: f64) -> f64 {
        threads * 1e3 / self.mops(threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_until_locks_or_the_medium_stop_them() {
        let cost = Cost { misses: 1.0, lines_flushed: 1.0, ..Cost::default() };
        let free = Scaling::new(133.0, &cost, 2.1, 6.0);
        assert_eq!((free.one_ns, free.serial, free.medium_ns), (500.0, 0.0, 0.0));
        assert!((free.mops(10.0) - 20.0).abs() < 1e-9);
        let locked = Scaling { serial: 0.5, ..free };
        assert!((locked.mops(3.0) - 3.0).abs() < 1e-9 && locked.mops(1000.0) < 4.0);
        // A line read and one written: 22 ns and 80 ns of two modules, a third of that of six.
        let cost = Cost { lines_read: 1.0, lines_written: 1.0, ..cost };
        let bound = Scaling::new(133.0, &cost, 2.0, 6.0);
        assert!((bound.medium_ns - (64.0 / 2.9 + 80.0) / 3.0).abs() < 1e-9);
        assert!((bound.mops(1000.0) - 1e3 / bound.medium_ns).abs() < 1e-9);
        assert!((bound.latency_ns(1.0) - 500.0).abs() < 1e-9);
    }

    #[test]
    fn a_speed_up_of_one_leaves_no_gain() {
        let scaling = Scaling::new(100.0, &Cost::default(), 0.9, 2.0);
        assert!((scaling.mops(24.0) - scaling.mops(1.0)).abs() < 1e-9);
        let scaling = Scaling::new(100.0, &Cost::default(), 1.9, 2.0);
        assert!((scaling.mops(24.0) - 240.0).abs() < 1e-9, "the rest is noise");
    }
}

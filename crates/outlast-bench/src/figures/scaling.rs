//! A model of throughput on persistent memory with more threads than there are cores here.
//!
//! An operation of one thread takes its time on this machine without flushes, plus a random read of
//! the medium for each miss of the cache model and a write for each flushed line. With *n* threads,
//!
//! - a rebuild of the whole structure excludes all other changes, so its part of the time does not shrink.
//!   That part is counted ([`Cost::rebuilding`]);
//! - a line in which each operation exchanges a word, as a lock that all take, moves from core to core for
//!   each exchange, one after another. How long that takes is measured here;
//! - the medium's bandwidth bounds all threads together: the lines that the cache model reads and
//!   writes, divided by the bandwidths of random accesses of PhaST's Table 1, which are those of two
//!   modules, in proportion to the paper's modules.
//!
//! The speed-up of two threads is not used: an error of a tenth in it would be a factor of three at 24
//! threads. The model knows no locks of buckets and segments, which few threads want at a time; no accesses
//! to DRAM, no hyperthreads and no prefetching.

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
/// Bytes of a line.
pub const LINE: f64 = 64.0;

/// The parameters of the model for one operation of one system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scaling {
    /// Nanoseconds of an operation of one thread.
    pub one_ns: f64,
    /// The part of it that excludes other threads.
    pub serial: f64,
    /// Nanoseconds for which an operation of one of several threads keeps a line that all of them need.
    pub line_ns: f64,
    /// Nanoseconds for which an operation uses all of the medium's bandwidth.
    pub medium_ns: f64,
}

impl Scaling {
    /// Derives the parameters. `base_ns` was measured without flushes. An exchange of a word that another
    /// core has just exchanged takes `exchange_ns`; the machine has so many modules of Optane.
    pub fn new(base_ns: f64, cost: &Cost, exchange_ns: f64, modules: f64) -> Scaling {
        let share = MODULES / modules;
        Scaling {
            one_ns: base_ns + cost.of_medium_ns(),
            serial: cost.rebuilding,
            line_ns: cost.exchanges * exchange_ns,
            medium_ns: (cost.lines_read * LINE / READ_GB_S
                + cost.lines_written * LINE / WRITE_GB_S)
                * share,
        }
    }

    /// Million operations a second of so many threads.
    pub fn mops(&self, threads: f64) -> f64 {
        let line_ns = if threads > 1.0 { self.line_ns } else { 0.0 };
        let serial_ns = self.serial * self.one_ns;
        let side_by_side = (self.one_ns - serial_ns + line_ns) / threads;
        1e3 / (side_by_side.max(line_ns).max(self.medium_ns) + serial_ns)
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
    fn threads_add_up_until_rebuilds_a_line_or_the_medium_stop_them() {
        let cost = Cost { misses: 1.0, lines_flushed: 1.0, ..Cost::default() };
        let free = Scaling::new(133.0, &cost, 50.0, 6.0);
        assert_eq!(
            (free.one_ns, free.serial, free.line_ns, free.medium_ns),
            (500.0, 0.0, 0.0, 0.0)
        );
        assert!((free.mops(10.0) - 20.0).abs() < 1e-9);
        let rebuilt = Scaling::new(133.0, &Cost { rebuilding: 0.5, ..cost }, 50.0, 6.0);
        assert!((rebuilt.mops(3.0) - 3.0).abs() < 1e-9 && rebuilt.mops(1000.0) < 4.0);
        // Two exchanges: 100 ns of a line, and as much more for each operation.
        let locked = Scaling::new(133.0, &Cost { exchanges: 2.0, ..cost }, 50.0, 6.0);
        assert!((locked.mops(1.0) - 2.0).abs() < 1e-9, "alone, the line stays");
        assert!((locked.mops(3.0) - 5.0).abs() < 1e-9);
        assert!((locked.mops(1000.0) - 10.0).abs() < 1e-9);
        // A line read and one written: 22 ns and 80 ns of two modules, a third of that of six.
        let cost = Cost { lines_read: 1.0, lines_written: 1.0, ..cost };
        let bound = Scaling::new(133.0, &cost, 50.0, 6.0);
        assert!((bound.medium_ns - (64.0 / 2.9 + 80.0) / 3.0).abs() < 1e-9);
        assert!((bound.mops(1000.0) - 1e3 / bound.medium_ns).abs() < 1e-9);
        assert!((bound.latency_ns(1.0) - 500.0).abs() < 1e-9);
    }
}

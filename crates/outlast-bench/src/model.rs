//! `model`: what counted operations would take on persistent memory that is not available.
//!
//! This is a model, not a measurement. The time of an operation is a base time, measured or
//! assumed, plus a read latency for every block of the medium that was read and a write latency for
//! every line that was flushed. Throughput is bounded by the medium's bandwidth: an operation takes
//! at least as long as the medium needs to transfer all blocks that it reads and flushes. The model
//! ignores caches (every block counts as a miss), overlapping accesses, and contention.

use crate::Fallible;
use crate::counts::{self, BLOCK};
use crate::limits;
use crate::report::{Report, Show, rounded};
use serde::{Deserialize, Serialize};

/// Latency and bandwidth of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MediumFigures {
    /// The medium and the source of the figures.
    pub name: &'static str,
    /// Latency of a random block read, in nanoseconds.
    pub read_ns: f64,
    /// Latency of a random line flush, in nanoseconds.
    pub write_ns: f64,
    /// Bandwidth of random reads, in bytes per nanosecond (GB/s).
    pub read_gb_s: f64,
    /// Bandwidth of random writes, in GB/s.
    pub write_gb_s: f64,
}

/// Media with published figures, and a simple one with 300 ns per flushed line.
pub const MEDIA: &[MediumFigures] = &[
    MediumFigures {
        name: "300 ns a line",
        read_ns: 0.0,
        write_ns: 300.0,
        read_gb_s: f64::INFINITY,
        write_gb_s: f64::INFINITY,
    },
    // PhaST (TPDS 2022), Table 1, random accesses of 64 bytes by 32 threads. These latencies
    // include the effect of that load.
    MediumFigures {
        name: "Optane DCPMM, 32 threads (PhaST, Table 1)",
        read_ns: 635.0,
        write_ns: 2559.0,
        read_gb_s: 2.9,
        write_gb_s: 0.8,
    },
    MediumFigures {
        name: "DRAM, 32 threads (PhaST, Table 1)",
        read_ns: 172.0,
        write_ns: 142.0,
        read_gb_s: 11.1,
        write_gb_s: 13.4,
    },
];

/// One operation on one medium.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Always true, because nothing here was measured.
    pub model: bool,
    /// The medium.
    pub medium: &'static str,
    /// The operation.
    pub operation: String,
    /// The record form.
    pub record: String,
    /// Blocks read per operation.
    pub blocks_read: f64,
    /// Lines flushed per operation.
    pub lines_flushed: f64,
    /// Nanoseconds that the medium adds per operation.
    pub added_ns: f64,
    /// Million operations per second of one thread, including the base time.
    pub mops_one_thread: f64,
    /// Million operations per second that the medium's bandwidth allows all threads together;
    /// `null` if its bandwidth is unlimited.
    pub mops_bound: Option<f64>,
}

fn row(medium: &MediumFigures, counted: &counts::Row, base_ns: f64) -> Row {
    let added = counted.blocks_read * medium.read_ns + counted.lines_flushed * medium.write_ns;
    // A bandwidth of 1 GB/s is one byte per nanosecond.
    let bytes_ns = counted.blocks_read * BLOCK as f64 / medium.read_gb_s
        + counted.blocks_flushed * BLOCK as f64 / medium.write_gb_s;
    Row {
        model: true,
        medium: medium.name,
        operation: counted.operation.clone(),
        record: counted.record.clone(),
        blocks_read: counted.blocks_read,
        lines_flushed: counted.lines_flushed,
        added_ns: rounded(added, 1),
        mops_one_thread: rounded(1e3 / (base_ns + added), 4),
        mops_bound: (bytes_ns > 0.0).then(|| rounded(1e3 / bytes_ns, 4)),
    }
}

/// Counts operations, and prints the model's figures for the counts. `base_ns` is the time in
/// nanoseconds of an operation if nothing about the medium is slow.
///
/// # Errors
/// Those of counting.
pub fn run(options: &counts::Options, base_ns: f64, report: &mut Report) -> Fallible<Vec<Row>> {
    limits::range("base-ns", base_ns, 0.001..=1e12)?;
    options.run("model", report)?;
    let counted = counts::count(options)?;
    let mut rows = Vec::new();
    for medium in MEDIA {
        for counted in &counted {
            let row = row(medium, counted, base_ns);
            report.row("model", &row)?;
            rows.push(row);
        }
    }
    report.note("MODEL: counts times published latencies; nothing here was measured on PM.")?;
    report.table(
        "model",
        &[
            ("medium", "/medium", Show::Text),
            ("operation", "/operation", Show::Text),
            ("record", "/record", Show::Text),
            ("blocks read", "/blocks_read", Show::Decimal(2)),
            ("lines flushed", "/lines_flushed", Show::Decimal(2)),
            ("added", "/added_ns", Show::Nanoseconds),
            ("Mops, 1 thread", "/mops_one_thread", Show::Decimal(2)),
            ("Mops, bandwidth", "/mops_bound", Show::Decimal(2)),
        ],
    )?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_multiplies_and_divides() {
        let counted = counts::Row {
            operation: "insert".into(),
            record: "inline".into(),
            operations: 1,
            lines_flushed: 2.0,
            fences: 1.0,
            lines_read: 4.0,
            lines_stored: 2.0,
            blocks_read: 3.0,
            blocks_flushed: 1.0,
            lines_flushed_max: 2,
            splits: 0,
            doublings: 0,
        };
        let medium = MediumFigures {
            name: "m",
            read_ns: 100.0,
            write_ns: 350.0,
            read_gb_s: 2.56,
            write_gb_s: 0.256,
        };
        let row = row(&medium, &counted, 1000.0);
        assert_eq!((row.added_ns, row.mops_one_thread), (1000.0, 0.5));
        // 768 bytes at 2.56 bytes per nanosecond, 256 at 0.256.
        assert_eq!(row.mops_bound, Some(rounded(1e3 / 1300.0, 4)));
        let plain = super::row(&MEDIA[0], &counted, 400.0);
        assert_eq!((plain.added_ns, plain.mops_one_thread, plain.mops_bound), (600.0, 1.0, None));
    }
}

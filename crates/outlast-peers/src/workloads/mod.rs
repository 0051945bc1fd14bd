//! The workloads of the papers' evaluations.
//!
//! - [`draw`]: random numbers, uniform, zipfian, scrambled zipfian and latest, as YCSB has them.
//! - [`keys`]: the key of each key number: spread, in one hundredth of the key space, or clustered;
//!   the sizes of values.
//! - [`mix`]: YCSB's load and A to F, and the mixes of the papers.
//! - [`bags`], [`fingerprints`]: two traces of group hashing's evaluation. The third, `RandomNum`,
//!   is [`draw::random_num`].
//! - [`cache_trace`]: a reader for public cache traces.

pub mod bags;
pub mod cache_trace;
pub mod draw;
pub mod fingerprints;
pub mod keys;
mod md5;
pub mod mix;

use std::fmt;

/// A line of a trace that cannot be read.
#[derive(Debug)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// The expected content.
    pub expected: &'static str,
    /// Why it could not be read at all, if that is the reason.
    pub source: Option<std::io::Error>,
}

impl BadLine {
    fn new(line: u64, expected: &'static str) -> BadLine {
        BadLine { line, expected, source: None }
    }

    fn unreadable(line: u64, source: std::io::Error) -> BadLine {
        BadLine { line, expected: "a line of text", source: Some(source) }
    }
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for BadLine {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

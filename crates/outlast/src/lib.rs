//! Crash-proof concurrent indexes in a mapped file.

pub mod pmem;

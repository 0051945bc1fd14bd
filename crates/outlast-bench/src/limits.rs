//! The limits of options. An invalid option is refused by name before anything is run, and the
//! program exits with 2 instead of 1.

use crate::report::thousands;
use crate::{Failure, Fallible};
use outlast::internals::pmem::free_bytes;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::path::Path;

/// An invalid option.
#[derive(Debug)]
pub struct Refused(String);

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Creates a failure that says why an option is invalid.
pub fn refused(why: impl Into<String>) -> Failure {
    Box::new(Refused(why.into()))
}

/// The greatest number of records and of operations, so that no key number reaches those of absent
/// keys.
pub const RECORDS_MAX: u64 = crate::keys::ABSENT / 4;
/// The greatest number of threads in a run.
pub const THREADS_MAX: usize = 1024;
/// The greatest number of rounds, kills and the like.
pub const ROUNDS_MAX: usize = 1000;
/// The longest delay that can be added to a flush or a fence, in nanoseconds: a millisecond.
pub const DELAY_NS_MAX: u64 = 1_000_000;

/// Checks that a number is in a range.
///
/// # Errors
/// If it is not.
pub fn range<N: Display + PartialOrd>(option: &str, number: N, of: RangeInclusive<N>) -> Fallible {
    if of.contains(&number) {
        return Ok(());
    }
    // NaN counts as below the lower bound.
    let bound = if number > *of.end() {
        format!("at most {}", of.end())
    } else {
        format!("at least {}", of.start())
    };
    Err(refused(format!("--{option} {number}: {bound}")))
}

/// Checks that a list of thread counts is not empty, and that no count is repeated or too great.
///
/// # Errors
/// If a check fails.
pub fn threads(numbers: &[usize]) -> Fallible {
    if numbers.is_empty() {
        return Err(refused("--threads: at least one number"));
    }
    numbers.iter().try_for_each(|&number| range("threads", number, 1..=THREADS_MAX))?;
    each_once("threads", numbers)
}

/// Checks that a list has no item twice.
///
/// # Errors
/// If an item is repeated.
pub fn each_once<T: Display + PartialEq>(option: &str, list: &[T]) -> Fallible {
    for (at, item) in list.iter().enumerate() {
        if list[..at].contains(item) {
            return Err(refused(format!("--{option} {item}: named twice")));
        }
    }
    Ok(())
}

/// Checks that `records` records of `record_bytes` bytes each fit the file system of a directory.
///
/// # Errors
/// If the directory does not exist, or if not even the keys and values fit.
pub fn fits(dir: &Path, records: u64, record_bytes: usize) -> Fallible {
    let free =
        free_bytes(dir).map_err(|e| refused(format!("--pool-dir {}: {e}", dir.display())))?;
    let Some(free) = free else { return Ok(()) };
    room(records, record_bytes, free, &format!("{} has", dir.display()))
}

/// Checks that `records` records of `record_bytes` bytes each fit the machine's memory.
///
/// # Errors
/// If not even the keys and values fit.
pub fn fits_memory(records: u64, record_bytes: usize) -> Fallible {
    let memory = crate::machine::memory_bytes().unwrap_or(u64::MAX);
    room(records, record_bytes, memory, "this machine has")
}

fn room(records: u64, record_bytes: usize, free: u64, who: &str) -> Fallible {
    let bytes = records.saturating_mul(record_bytes as u64);
    if bytes <= free {
        return Ok(());
    }
    let [bytes, free] = [bytes, free].map(thousands);
    Err(refused(format!("--records {records}: {bytes} bytes of keys and values; {who} {free}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(result: Fallible) -> String {
        result.unwrap_err().downcast_ref::<Refused>().unwrap().to_string()
    }

    #[test]
    fn bounds_belong_to_their_range_and_others_are_named() {
        assert!(range("x", 1, 1..=3).is_ok() && range("x", 3, 1..=3).is_ok());
        assert_eq!(said(range("x", 0, 1..=3)), "--x 0: at least 1");
        assert_eq!(said(range("x", 4, 1..=3)), "--x 4: at most 3");
        assert_eq!(said(range("x", f64::NAN, 1.0..=3.0)), "--x NaN: at least 1");
        assert_eq!(said(range("x", f64::INFINITY, 1.0..=3.0)), "--x inf: at most 3");
    }

    #[test]
    fn what_is_named_twice_is_named() {
        assert!(each_once("x", &["a", "b"]).is_ok());
        assert_eq!(said(each_once("x", &["a", "b", "a"])), "--x a: named twice");
        assert!(threads(&[1, 2]).is_ok());
        assert_eq!(said(threads(&[1, 100_000])), "--threads 100000: at most 1024");
    }

    #[test]
    fn records_that_do_not_fit_are_refused() {
        assert!(room(10, 16, 160, "it has").is_ok());
        let why = "--records 10: 170 bytes of keys and values; it has 160";
        assert_eq!(said(room(10, 17, 160, "it has")), why);
        assert!(fits_memory(u64::MAX, 16).is_err() && fits_memory(1, 16).is_ok());
    }
}

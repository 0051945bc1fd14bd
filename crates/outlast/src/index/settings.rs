//! Checks of the settings that a map is created with.

use crate::error::{Error, Result};
use std::ops::RangeInclusive;

/// Checks a setting of a new map.
///
/// # Errors
/// [`Error::Invalid`] if the value is not in `range`, or not a multiple of `step`.
pub(super) fn check_setting(
    name: &str,
    value: u32,
    range: RangeInclusive<u32>,
    step: u32,
) -> Result<()> {
    if range.contains(&value) && value.is_multiple_of(step) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    let multiple = if step == 1 { String::new() } else { format!("a multiple of {step} ") };
    let why = format!("{name} is {value}; it must be {multiple}from {low} to {high}");
    Err(Error::Invalid { what: "map options", why })
}

//! The settings that a map is created with, before the scheme interprets them.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Settings by name. A scheme takes the settings that it knows. Any that are left over belong to
/// another scheme.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, u32>,
    /// Whether settings that were not given get their default for small maps instead of the usual
    /// one.
    small: bool,
}

impl Settings {
    /// Sets the setting `name`.
    pub fn set(&mut self, name: &'static str, value: u32) {
        self.values.insert(name, value);
    }

    /// Gives every setting that is not set its default for small maps, with which a few inserts
    /// split or expand the map.
    pub fn make_small(&mut self) {
        self.small = true;
    }

    /// Takes a setting. If it was not set, a small map gets the first of the two defaults, any
    /// other map the second.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the value is not in `range`, or not a multiple of `step`.
    pub fn take(
        &mut self,
        name: &'static str,
        [small, usual]: [u32; 2],
        range: RangeInclusive<u32>,
        step: u32,
    ) -> Result<u32> {
        let default = if self.small { small } else { usual };
        let value = self.values.remove(name).unwrap_or(default);
        if range.contains(&value) && value.is_multiple_of(step) {
            return Ok(value);
        }
        let (low, high) = range.into_inner();
        let multiple = if step == 1 { String::new() } else { format!("a multiple of {step} ") };
        let why = format!("{name} is {value}; it must be {multiple}from {low} to {high}");
        Err(Error::Invalid { what: "map options", why })
    }

    /// Fails if there are settings that no scheme has taken.
    pub(super) fn refuse_rest(self, scheme: &str) -> Result<()> {
        match self.values.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let why = format!("{name} is not an option of the scheme {scheme}");
                Err(Error::Invalid { what: "map options", why })
            }
        }
    }
}

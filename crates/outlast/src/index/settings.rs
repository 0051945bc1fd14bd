//! The settings that a map is created with, before the scheme has read them.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Settings by name. A scheme takes those that it has; what is left belongs to another scheme.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, u32>,
    /// What was not set is as small as it can be, and not as it usually is.
    small: bool,
}

impl Settings {
    /// Sets one of them.
    pub fn set(&mut self, name: &'static str, value: u32) {
        self.values.insert(name, value);
    }

    /// Makes what is not set as small as it can be: a few inserts split or expand such a map.
    pub fn make_small(&mut self) {
        self.small = true;
    }

    /// Takes a setting. If it was not set, it is the first of the `defaults` in a small map, and the
    /// second one in others.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not in `range`, or not a multiple of `step`.
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

    /// Refuses what no scheme has taken.
    pub(super) fn refuse_rest(self, scheme: &str) -> Result<()> {
        match self.values.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let why = format!("{name} is no option of the scheme {scheme}");
                Err(Error::Invalid { what: "map options", why })
            }
        }
    }
}

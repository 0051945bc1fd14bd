//! How a run was made: the first row of every report, and the lines above its tables.

use crate::Fallible;
use crate::machine::{Machine, file_system};
use crate::scratch::Scratch;
use crate::systems::{self, Setup};
use outlast::Scheme;
use serde::Serialize;

/// What a reader has to know about a result of any command.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The command.
    pub command: &'static str,
    /// Machine, build, time.
    #[serde(flatten)]
    pub machine: Machine,
    /// The scheme, or the schemes measured in turn, separated by commas.
    pub scheme: String,
    /// The record form.
    pub record: String,
    /// Key size in bytes.
    pub key_size: usize,
    /// Value size in bytes.
    pub value_size: usize,
    /// Stash buckets per Dash segment.
    pub stash_buckets: Vec<u32>,
    /// How many threads may help to move a table of EA-PHT, if it was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helpers: Option<u32>,
    /// The medium that the pool is on, or is treated as being on.
    pub medium: String,
    /// What makes a line durable on that medium.
    pub flush: String,
    /// The file system of the pool's directory; none if the pool is in memory.
    pub file_system: Option<String>,
    /// Seed of keys, draws and hash functions.
    pub seed: u64,
}

impl Run {
    /// Describes a run with pools on files. Creates one pool to find out how it flushes.
    ///
    /// # Errors
    /// If no pool can be created.
    pub fn on_files(command: &'static str, setup: &Setup, schemes: &[Scheme]) -> Fallible<Run> {
        let flush = {
            let dir = Scratch::create(&setup.dir)?;
            systems::create_pool(setup, &dir.path().join("pool"))?.durability().flush.to_string()
        };
        let file_system = Some(file_system(&setup.dir));
        Ok(Run { flush, file_system, ..Run::of(command, setup, schemes) })
    }

    /// Describes a run whose pool is in memory, so that nothing is flushed. `medium` says what that
    /// memory is or stands for.
    pub fn in_memory(command: &'static str, setup: &Setup, medium: &str) -> Run {
        let medium = medium.into();
        Run { medium, ..Run::of(command, setup, &[setup.scheme]) }
    }

    fn of(command: &'static str, setup: &Setup, schemes: &[Scheme]) -> Run {
        Run {
            command,
            machine: Machine::here(),
            scheme: schemes.iter().map(|scheme| scheme.name()).collect::<Vec<_>>().join(","),
            record: setup.form.to_string(),
            key_size: setup.key_bytes,
            value_size: setup.value_bytes,
            stash_buckets: vec![setup.stash_buckets],
            helpers: setup.helpers,
            medium: setup.medium.to_string(),
            flush: "no flush".into(),
            file_system: None,
            seed: setup.seed,
        }
    }

    /// Returns the description as lines of text.
    pub(crate) fn lines(&self) -> [String; 3] {
        let Machine { processor, cores, memory_bytes, kernel, load_average, .. } = &self.machine;
        let gib = memory_bytes.map_or(0.0, |bytes| bytes as f64 / (1u64 << 30) as f64);
        let stash: Vec<String> = self.stash_buckets.iter().map(u32::to_string).collect();
        let helpers = self.helpers.map_or(String::new(), |helpers| format!(", helpers {helpers}"));
        [
            format!(
                "outlast-bench {}, commit {}, {}: {}, {} records of {} and {} bytes, stash {}\
                 {helpers}, seed {}",
                self.command,
                self.machine.commit,
                date(self.machine.began),
                self.scheme,
                self.record,
                self.key_size,
                self.value_size,
                stash.join(","),
                self.seed,
            ),
            format!(
                "Pools: {} ({}){}.",
                self.medium,
                self.flush,
                self.file_system.as_ref().map_or(String::new(), |name| format!(", on {name}")),
            ),
            format!(
                "{processor}, {cores} cores, {gib:.0} GiB, Linux {kernel}, load {load_average}."
            ),
        ]
    }
}

/// Returns the calendar date of a time in seconds since 1970, in UTC.
fn date(seconds: u64) -> String {
    // Count eras of 400 years from a first of March, so that a leap day is the last day of its
    // year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let day = 86_400;
        for (days, expected) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_778, "2026-11-21"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!([date(days * day), date(days * day + day - 1)], [expected; 2]);
        }
    }
}

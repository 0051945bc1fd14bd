//! What the guest reports to the host: lines of words, over a serial port. Each line ends with
//! [`END`]. A line without it was cut short and is ignored.
//!
//! | line | meaning |
//! |---|---|
//! | `life L` | the guest's program runs, for the L-th time |
//! | `medium WHERE MEDIUM FLUSH POWER` | medium and flush there; POWER: survives power loss |
//! | `opened MICROSECONDS` | the pool is open |
//! | `refused WHERE REASON` | a pool was refused, for this reason |
//! | `restoring` | the pool is about to be replaced by its last snapshot |
//! | `has MAP KEY VALUE...` | values of keys from KEY up: number, `-` absent, `!` nobody's |
//! | `held RECORDS` | all keys were reported, there are no others, and work begins |
//! | `done THREAD COUNT` | this many operations of this life have returned in this thread |
//! | `waiting THREAD` | this thread waits until everything that has returned is durable |
//! | `waited THREAD` | it has waited |
//! | `pulse MICROS COMMIT GAP CHECKPOINTS` | a [`Pulse`] |
//! | `snapshotting`, `snapshotted` | before and after a snapshot; all threads rest |
//! | `cleaning`, `clean` | before and after a sync or close; all threads rest |
//! | `note TEXT` | for people |
//! | `json TEXT` | a line of a program's output |
//! | `fault TEXT` | the guest has found a fault |
//! | `end CODE` | the guest's program ends |

use crate::state::{Checked, Fault};
use std::fmt;

/// The end of a complete line.
pub const END: &str = " .";

/// Formats a line to send.
pub fn line(said: &Said) -> String {
    format!("{said}{END}\n")
}

/// Parses a line without its line feed. Returns `None` if the line was cut short.
///
/// # Errors
/// If the line is complete but is not one that the guest sends.
pub fn heard(line: &str) -> Checked<Option<Said>> {
    line.strip_suffix(END).map(str::parse).transpose()
}

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing, or the value with this number.
    Value(Option<u64>),
    /// Something that nobody wrote.
    Strange,
}

/// What a guest that works on a pool with a journal reports at short intervals, on all processors
/// in turn. So a processor that stands still makes a gap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulse {
    /// The time since work began. It is read when the port is free, so all operations that were
    /// reported before have returned by then.
    pub micros: u64,
    /// The longest group commit until then, including the one under way.
    pub commit_micros: u64,
    /// The longest time from one pulse to the next until then.
    pub gap_micros: u64,
    /// Checkpoints of the journal until then.
    pub checkpoints: u64,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above says what they mean")]
pub enum Said {
    Life(u64),
    Medium { place: String, medium: String, flush: String, survives_power_loss: bool },
    Opened { micros: u64 },
    Refused { place: String, reason: String },
    Restoring,
    Has { map: usize, first: u64, values: Vec<Held> },
    Held { records: u64 },
    Done { thread: u64, operations: u64 },
    Waiting { thread: u64 },
    Waited { thread: u64 },
    Pulse(Pulse),
    Snapshotting,
    Snapshotted,
    Cleaning,
    Clean,
    Note(String),
    Json(String),
    Fault(String),
    End(u8),
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Value(Some(value)) => write!(f, "{value}"),
            Held::Value(None) => f.write_str("-"),
            Held::Strange => f.write_str("!"),
        }
    }
}

/// Turns text into one word.
fn joined(text: &str) -> String {
    text.replace([' ', '\n'], "_")
}

/// Turns text into one line.
fn flat(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Life(life) => write!(f, "life {life}"),
            Said::Medium { place, medium, flush, survives_power_loss } => {
                let (place, medium, flush) = (joined(place), joined(medium), joined(flush));
                write!(f, "medium {place} {medium} {flush} {survives_power_loss}")
            }
            Said::Opened { micros } => write!(f, "opened {micros}"),
            Said::Refused { place, reason } => {
                write!(f, "refused {} {}", joined(place), joined(reason))
            }
            Said::Restoring => f.write_str("restoring"),
            Said::Has { map, first, values } => {
                write!(f, "has {map} {first}")?;
                values.iter().try_for_each(|value| write!(f, " {value}"))
            }
            Said::Held { records } => write!(f, "held {records}"),
            Said::Done { thread, operations } => write!(f, "done {thread} {operations}"),
            Said::Waiting { thread } => write!(f, "waiting {thread}"),
            Said::Waited { thread } => write!(f, "waited {thread}"),
            Said::Pulse(Pulse { micros, commit_micros, gap_micros, checkpoints }) => {
                write!(f, "pulse {micros} {commit_micros} {gap_micros} {checkpoints}")
            }
            Said::Snapshotting => f.write_str("snapshotting"),
            Said::Snapshotted => f.write_str("snapshotted"),
            Said::Cleaning => f.write_str("cleaning"),
            Said::Clean => f.write_str("clean"),
            Said::Note(text) => write!(f, "note {}", flat(text)),
            Said::Json(text) => write!(f, "json {}", flat(text)),
            Said::Fault(text) => write!(f, "fault {}", flat(text)),
            Said::End(code) => write!(f, "end {code}"),
        }
    }
}

impl std::str::FromStr for Said {
    type Err = Fault;

    fn from_str(line: &str) -> Result<Said, Fault> {
        parse(line).ok_or_else(|| Fault(format!("a line that the guest does not write: {line:?}")))
    }
}

fn parse(line: &str) -> Option<Said> {
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    match kind {
        "note" => return Some(Said::Note(rest.into())),
        "json" => return Some(Said::Json(rest.into())),
        "fault" => return Some(Said::Fault(rest.into())),
        _ => {}
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    let number = |n: usize| words.get(n)?.parse::<u64>().ok();
    let word = |n: usize| words.get(n).map(|&word| word.to_owned());
    let (said, count) = match kind {
        "life" => (Said::Life(number(0)?), 1),
        "medium" => {
            let survives_power_loss = words.get(3)?.parse().ok()?;
            let (place, medium, flush) = (word(0)?, word(1)?, word(2)?);
            (Said::Medium { place, medium, flush, survives_power_loss }, 4)
        }
        "opened" => (Said::Opened { micros: number(0)? }, 1),
        "refused" => (Said::Refused { place: word(0)?, reason: word(1)? }, 2),
        "restoring" => (Said::Restoring, 0),
        "has" => {
            let values = words.get(2..)?.iter().map(|word| match *word {
                "-" => Some(Held::Value(None)),
                "!" => Some(Held::Strange),
                number => number.parse().ok().map(|n| Held::Value(Some(n))),
            });
            let values = values.collect::<Option<Vec<_>>>()?;
            (Said::Has { map: words[0].parse().ok()?, first: number(1)?, values }, words.len())
        }
        "held" => (Said::Held { records: number(0)? }, 1),
        "done" => (Said::Done { thread: number(0)?, operations: number(1)? }, 2),
        "waiting" => (Said::Waiting { thread: number(0)? }, 1),
        "waited" => (Said::Waited { thread: number(0)? }, 1),
        "pulse" => {
            let (micros, commit_micros) = (number(0)?, number(1)?);
            let (gap_micros, checkpoints) = (number(2)?, number(3)?);
            (Said::Pulse(Pulse { micros, commit_micros, gap_micros, checkpoints }), 4)
        }
        "snapshotting" => (Said::Snapshotting, 0),
        "snapshotted" => (Said::Snapshotted, 0),
        "cleaning" => (Said::Cleaning, 0),
        "clean" => (Said::Clean, 0),
        "end" => (Said::End(words.first()?.parse().ok()?), 1),
        _ => return None,
    };
    (words.len() == count).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were_said() {
        let values = vec![Held::Value(Some(7)), Held::Value(None), Held::Strange];
        let medium = |medium: &str| Said::Medium {
            place: "nvdimm".into(),
            medium: medium.into(),
            flush: "no_flush".into(),
            survives_power_loss: false,
        };
        for said in [
            Said::Life(3),
            medium("page-cache"),
            Said::Opened { micros: 17 },
            Said::Refused { place: "disk".into(), reason: "PossiblyTorn".into() },
            Said::Restoring,
            Said::Has { map: 1, first: 64, values },
            Said::Held { records: 9 },
            Said::Done { thread: 2, operations: u64::MAX },
            Said::Waiting { thread: 3 },
            Said::Waited { thread: 3 },
            Said::Pulse(Pulse { micros: 1, commit_micros: 2, gap_micros: 3, checkpoints: 4 }),
            Said::Snapshotting,
            Said::Snapshotted,
            Said::Cleaning,
            Said::Clean,
            Said::Note("two words".into()),
            Said::Json("{\"a\": 1}".into()),
            Said::Fault("it is gone".into()),
            Said::End(255),
        ] {
            let line = line(&said);
            assert_eq!(heard(line.trim_end_matches('\n')), Ok(Some(said)));
            // A part of a line must not pass for a complete line.
            for cut in 0..line.len() - 1 {
                assert_eq!(heard(&line[..cut]), Ok(None), "{line:?}");
            }
        }
    }

    #[test]
    fn what_the_guest_does_not_say_is_refused() {
        for line in ["", "don", "done 1", "done 1 2 3", "has 1", "has 0 0 7-", "end", "end 256"] {
            assert!(line.parse::<Said>().is_err(), "{line:?}");
        }
    }
}

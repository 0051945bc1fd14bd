//! How near the comparison systems are to the authors' published code.
//!
//! The published code of some of the papers was measured once together with the library, on one machine: an Intel
//! Xeon with two cores, 10 million records of 8 + 8 bytes, flushes executed, 2 MiB pages, one thread,
//! million operations a second of processor time. Here, the ratio of a comparison system to one of the
//! library's is compared with that ratio.

use super::lab::{Lab, Runs};
use super::significant;
use super::turns::Phase;
use crate::Fallible;
use serde::{Deserialize, Serialize};

/// What the published code of a system made on that machine, and the library in the same run, in million
/// operations a second.
struct Measured {
    system: &'static str,
    divisor: &'static str,
    /// Phase, published code, the library.
    phases: &'static [(&'static str, Phase, f64, f64)],
}

const MEASURED: [Measured; 4] = [
    Measured {
        system: "CCEH",
        divisor: "Dash-EH",
        phases: &[
            ("insert", Phase::Insert, 2.3, 2.6),
            ("hit", Phase::Hit, 5.3, 7.7),
            ("miss", Phase::Miss, 4.5, 10.3),
            ("remove", Phase::Remove, 3.4, 4.6),
        ],
    },
    Measured {
        system: "P-CLHT",
        divisor: "Dash-EH",
        phases: &[
            ("insert", Phase::Insert, 1.4, 2.6),
            ("hit", Phase::Hit, 6.4, 7.7),
            ("miss", Phase::Miss, 4.6, 10.3),
            ("update", Phase::Update, 2.7, 5.2),
            ("remove", Phase::Remove, 2.8, 4.6),
        ],
    },
    Measured {
        system: "clevel",
        divisor: "Dash-EH",
        phases: &[
            ("insert", Phase::Insert, 0.35, 2.6),
            ("hit", Phase::Hit, 3.06, 7.7),
            ("miss", Phase::Miss, 5.49, 10.3),
            ("update", Phase::Update, 0.34, 5.2),
            ("remove", Phase::Remove, 0.67, 4.6),
        ],
    },
    Measured {
        system: "FAST-FAIR",
        divisor: "PhaST",
        phases: &[
            ("insert", Phase::Insert, 0.69, 1.15),
            ("hit", Phase::Hit, 1.22, 1.93),
            ("remove", Phase::Remove, 0.84, 1.18),
        ],
    },
];

/// A ratio of two systems, of the published code and here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nearness {
    /// The comparison system. (clevel is the library's own, and its published code the authors'.)
    pub system: String,
    /// The library's scheme that it is divided by.
    pub divisor: String,
    /// The operation.
    pub operation: String,
    /// The ratio of the published code.
    pub published: f64,
    /// The ratio here.
    pub here: f64,
    /// The second divided by the first.
    pub quotient: f64,
    /// Whether that is from 0.7 to 1.4.
    pub near: bool,
}

/// Compares all ratios.
///
/// # Errors
/// Those of the measurements.
pub fn compare(lab: &mut Lab) -> Fallible<Vec<Nearness>> {
    let mut rows = Vec::new();
    for Measured { system, divisor, phases } in MEASURED {
        lab.run(&[system, divisor], &[Runs::Flushed(1)])?;
        for &(operation, phase, theirs, ours) in phases {
            let ns =
                |lab: &mut Lab, name| Fallible::Ok(lab.took(name, Runs::Flushed(1), phase)?.cpu_ns);
            let here = ns(lab, divisor)? / ns(lab, system)?;
            let published = theirs / ours;
            let quotient = here / published;
            rows.push(Nearness {
                system: system.into(),
                divisor: divisor.into(),
                operation: operation.into(),
                published: significant(published),
                here: significant(here),
                quotient: significant(quotient),
                near: (0.7..=1.4).contains(&quotient),
            });
        }
    }
    Ok(rows)
}

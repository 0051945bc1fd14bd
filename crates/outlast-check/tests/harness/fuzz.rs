//! Tries a few mutants of each scheme, on every build.
//!
//! Goal: verification tells the truth, see `outlast_check::fuzz`. A long run is a command:
//! `outlast-check fuzz --scheme S --mutants 20000`.

use outlast::Scheme;
use outlast_check::fuzz::{self, Fuzzer};

#[test]
fn verification_tells_the_truth_about_damaged_pools() {
    for &scheme in Scheme::ALL {
        let summary = Fuzzer::new(scheme, 7).run(200, 2, |_, _| {});
        assert_eq!(summary.failures, Vec::<String>::new());
        // Both verdicts must occur often.
        assert!(summary.sound > 20 && summary.sound < 150, "{scheme}: {} sound", summary.sound);
    }
}

/// A long run is `outlast-check fuzz-journal --mutants 20000`.
#[test]
fn damaged_journals_lose_nothing_that_is_still_proven() {
    let summary = fuzz::journal::run(7, 300, 2, || ());
    assert_eq!(summary.failures, Vec::<String>::new());
    let count = |end| summary.ends.get(end).copied().unwrap_or(0);
    let (whole, refused) = (count(fuzz::journal::WHOLE), count(fuzz::journal::REFUSED));
    assert!(whole > 60 && refused > 60, "{:?}", summary.ends);
}

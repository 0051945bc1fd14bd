//! Endings of journaled pools while their background threads work.

use outlast::Scheme;
use outlast_check::endings::{campaign, schedules};
use std::path::Path;

const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast-check");

#[test]
fn a_pool_opens_after_any_ending_beside_any_background_step() {
    let place = tempfile::tempdir().unwrap();
    let scheme = Scheme::ALL[0];
    let found = schedules(scheme, place.path(), 1, Path::new(PROGRAM), &mut |_| ()).unwrap();
    assert_eq!((found.done, found.faults), (60, Vec::new()));
}

#[test]
fn pools_that_are_opened_and_closed_again_and_again_lose_nothing() {
    for &scheme in Scheme::ALL {
        let place = tempfile::tempdir().unwrap();
        let found = campaign(scheme, place.path(), 20, 1, &mut |_| ()).unwrap();
        assert_eq!((found.done, found.faults), (20, Vec::new()));
    }
}

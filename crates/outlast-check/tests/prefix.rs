//! Every scenario, for every scheme and both record forms: each image is as the contract
//! has it, and each scenario still reaches the phases that it is for.

use outlast_check::prefix::{Options, explore, report};

#[test]
fn every_crash_of_every_scenario_leaves_what_it_may() {
    let outcome = explore(&Options::default(), |_| ());
    println!("{}", report::table(&outcome));
    assert!(outcome.is_good(), "{}", report::failures(&outcome));
    assert!(outcome.rows.iter().all(|row| row.stores > 0 && row.nested > 0));
}

/// A cut can be replayed alone, and so can one of its second cuts.
#[test]
fn a_cut_is_replayed_alone() {
    let scenario = Some("displace".to_owned());
    let one = Options { scenario, cut: Some(40), nested: Some(7), ..Options::default() };
    let outcome = explore(&one, |_| ());
    assert!(outcome.is_good(), "{}", report::failures(&outcome));
    assert!(outcome.rows.iter().all(|row| (row.images, row.nested) == (1, 1)));
}

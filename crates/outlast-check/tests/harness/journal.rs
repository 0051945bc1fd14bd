//! What a power loss leaves of base and segments. `outlast-check run --medium journal` tries more,
//! and finds all mutants.

use outlast::{RecordForm, Scheme};
use outlast_check::journal::{Budget, run};
use outlast_check::suite::Half;

#[test]
fn a_power_loss_leaves_a_cut_that_is_no_older_than_what_was_confirmed() {
    for (scheme, form) in Half::First.pairs() {
        let budget = Budget { images: 400, lives_of_mutant: 0, ..Budget::quick() };
        let outcome = run(scheme, form, &budget, &|_| ());
        assert!(outcome.is_good(), "{scheme}, {form}\n{}", outcome.failures());
    }
}

/// The mutants that are noticed within a few lives.
#[test]
fn mutants_of_the_journal_are_noticed() {
    let budget = Budget { images: 1, lives_of_mutant: 12, ..Budget::quick() };
    let outcome = run(Scheme::DashEh, RecordForm::Inline, &budget, &|_| ());
    let noticed = outcome.noticed();
    for name in [
        "LifeIgnored",
        "BegunWithoutSegment",
        "ToldBeforeSync",
        "ChecksumIgnored",
        "WaitsForLastCut",
        "OneLineNoted",
        "PagesNotAwaited",
        "ReachedUntold",
        "MissingIgnored",
        "BaseUnsynced",
        "ForgottenEarly",
        "SizeIgnored",
        "GrownLate",
        "DurableUntold",
        "PagesForgotten",
    ] {
        assert!(noticed.iter().any(|noticed| noticed == name), "{name} is not in {noticed:?}");
    }
}

#[test]
fn the_page_lists_every_mutant() {
    let page = include_str!("../../../../docs/journal.md");
    for mutant in outlast_check::journal::mutants::ALL {
        let row = format!("| `{}` | {} |", mutant.name(), mutant.about);
        assert!(page.contains(&row), "{row}");
    }
}

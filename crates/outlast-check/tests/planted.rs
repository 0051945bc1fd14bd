//! Published bugs, patched into the shipped operations: each is found, and nothing is found
//! without one.

use outlast::{RecordForm, Scheme};
use outlast_check::planted::{Budget, markdown, run, table};

#[test]
fn every_planted_bug_is_found() {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let report = run(scheme, form, &Budget::default(), |_| ());
            println!("{}", report.table());
            let missed: Vec<_> = report.missed().iter().map(|l| l.published).collect();
            assert!(report.false_alarms.is_empty(), "{:?}", report.false_alarms);
            assert!(report.is_good(), "not found, {form}: {missed:#?}");
        }
    }
}

#[test]
fn every_line_stands_once_in_the_table() {
    let mut lines: Vec<_> = table::ALL.iter().map(|l| l.published).collect();
    lines.sort_unstable();
    let count = lines.len();
    lines.dedup();
    assert_eq!(lines.len(), count);
    assert_eq!(markdown().lines().count(), count + 2);
}

/// The page shows what `outlast-check planted --markdown` prints, between two marks.
#[test]
fn the_table_in_the_documentation_is_the_one_that_is_printed() {
    let page = include_str!("../../../docs/proof.md");
    let (_, rest) = page.split_once("<!-- planted -->\n").expect("the mark before the table");
    let (shown, _) = rest.split_once("\n<!-- /planted -->").expect("the mark after it");
    let printed = markdown();
    let changed = printed.lines().zip(shown.lines()).find(|(printed, shown)| printed != shown);
    assert!(shown == printed, "paste the output again; first difference: {changed:#?}");
}

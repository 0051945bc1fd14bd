//! Seeded bugs: published bugs are put into the shipped operations. The harness finds each, and
//! finds nothing without one. Those that take long to find are left to `outlast-check seeded`.

use outlast::Scheme;
use outlast_check::seeded::{Budget, markdown, run, table};
use outlast_check::suite::Half;

#[test]
fn every_seeded_bug_is_found() {
    for (index, (scheme, form)) in Half::First.pairs().enumerate() {
        // For code that all schemes share, one scheme in each form is enough.
        let shared = index < 2;
        // The checks without a bug take more than half of the time. The other tests make them too.
        let control = scheme == Scheme::EaPht;
        let budget = Budget { control, slow: false, shared, ..Budget::default() };
        let report = run(scheme, form, &budget, |_| ());
        println!("{}", report.table());
        let missed: Vec<_> = report.missed().iter().map(|l| l.published).collect();
        assert!(report.false_alarms.is_empty(), "{:?}", report.false_alarms);
        assert!(report.is_good(), "not found, {scheme}, {form}: {missed:#?}");
    }
}

/// Every published bug has one line for each scheme, and no line appears twice.
#[test]
fn every_line_stands_once_in_the_table() {
    for &scheme in Scheme::ALL {
        let mut lines: Vec<_> = table::lines(scheme).iter().map(|l| l.published).collect();
        let published = table::published();
        assert_eq!(lines[..published.len()], *published, "{scheme}");
        lines.sort_unstable();
        let count = lines.len();
        lines.dedup();
        assert_eq!(lines.len(), count);
        assert_eq!(markdown(scheme).lines().count(), count + 2);
    }
}

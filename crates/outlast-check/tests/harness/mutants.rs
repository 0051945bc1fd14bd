//! Checks that every commit point does what its row declares, and that the suite notices every
//! flush and fence that is done wrong, unless the table of harmless mutants lists it.

use outlast_check::mutants::{Budget, Fate, run};
use outlast_check::suite::Half;

#[test]
fn every_flush_and_fence_is_needed_or_said_not_to_be() {
    for (index, (scheme, form)) in Half::Second.pairs().enumerate() {
        // The pool's own points are tried once: the pool is the same under each scheme.
        let budget = Budget { pool: index == 0, ..Budget::default() };
        let report = run(scheme, form, &budget, |_, _| ());
        println!("{}", report.table());
        assert!(report.is_good(), "{}", report.failures());
        let own = if budget.pool { report.points } else { scheme.commit_points().len() };
        assert!(own >= 2 && report.killed() > own);
        // Harmless mutants must have been tried, with crash images.
        for (mutant, fate) in &report.fates {
            if let Fate::Equivalent { images, .. } = fate {
                assert!(*images > 100, "{mutant}: {images} images");
            }
        }
    }
}

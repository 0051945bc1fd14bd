//! Every commit point does what its row declares. The suite notices every flush and fence that is
//! done wrong, or the table of harmless mutants has it.

use outlast_check::canary::{Budget, Fate, run};
use outlast_check::suite::Half;

#[test]
fn every_flush_and_fence_is_needed_or_said_not_to_be() {
    for (scheme, form) in Half::Second.pairs() {
        let report = run(scheme, form, &Budget::default(), |_, _| ());
        println!("{}", report.table());
        assert!(report.is_good(), "{}", report.failures());
        assert!(report.points >= 2 && report.killed() > report.points);
        // Harmless mutants have been tried, with images.
        for (canary, fate) in &report.fates {
            if let Fate::Equivalent { images, .. } = fate {
                assert!(*images > 100, "{canary}: {images} images");
            }
        }
    }
}

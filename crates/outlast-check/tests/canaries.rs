//! Every commit point does what its row says, and every flush and fence that is done wrong
//! is noticed, or stands in the table of those that do no harm.

use outlast::{RecordForm, Scheme};
use outlast_check::canary::{Budget, Fate, run};

#[test]
fn every_flush_and_fence_is_needed_or_said_not_to_be() {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let report = run(scheme, form, &Budget::default(), |_, _| ());
            println!("{}", report.table());
            assert!(report.is_good(), "{}", report.failures());
            assert!(report.points >= 2 && report.killed() > report.points);
            // What does no harm has been tried, in images.
            for (canary, fate) in &report.fates {
                if let Fate::Equivalent { images, .. } = fate {
                    assert!(*images > 100, "{canary}: {images} images");
                }
            }
        }
    }
}

//! Records that expire: nothing is found in the library, and each seeded bug is.

use outlast::Scheme;
use outlast::internals::index::expiring;
use outlast::internals::pmem::{Seeded, SeededBug, Traced};
use outlast_check::expiry::{Budget, check};
use outlast_check::session::alive;

const BUDGET: Budget = Budget { scripts: 3, operations: 150, moments: 60 };

#[test]
fn records_expire_exactly_in_every_scheme() {
    let alive = alive();
    for &scheme in Scheme::ALL {
        let counters = check(scheme, &BUDGET, &alive).unwrap();
        assert!(counters.operations >= 400 && counters.images > 300, "{scheme}: {counters:?}");
    }
}

#[test]
fn each_bug_of_expiry_is_found() {
    let bugs: [&SeededBug; 6] = [
        &expiring::EXPIRED_FOUND,
        &expiring::EXPIRED_SCANNED,
        &expiring::EXPIRED_SWAPPED,
        &expiring::EXPIRED_LEFT,
        &expiring::SWEPT_UNCOMPARED,
        &expiring::TIME_LOST,
    ];
    let alive = alive();
    for scheme in [Scheme::DashEh, Scheme::Clevel, Scheme::Phast] {
        for bug in bugs {
            let budget = Budget { moments: 1, ..BUDGET };
            let found =
                Traced::seeding(Some(Seeded::InCode(bug)), || check(scheme, &budget, &alive));
            assert!(found.is_err(), "{scheme}: {} is not found", bug.name);
        }
    }
}

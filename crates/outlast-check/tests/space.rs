//! The space that a pool takes under kills and under guards.

use outlast::Scheme;
use outlast_check::{full, growth, guard};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast-check");

/// Makes the tests take turns. They kill processes in the middle of their work, and how far a
/// process has come by then depends on what else runs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn grow(scheme: Scheme, operations: u64, keys: u64, even: bool) -> growth::Summary {
    let dir = tempfile::tempdir().unwrap();
    let summary = growth::run(&growth::Options {
        scheme,
        lives: 100,
        operations,
        keys,
        threads: 2,
        even,
        program: PROGRAM.into(),
        dir: dir.path().into(),
    })
    .unwrap();
    println!("{scheme}: {summary:?}, ratio {:.3}", summary.ratio());
    summary
}

/// Each life is so short that its reclaim hardly ever ends. The space that the lives leave behind
/// adds up, but to no more than a quarter of the size without kills.
///
/// With 84,000 keys, every scheme's pool has room for that: none is about to grow or double. With
/// 80,000, a pool of Dash-LH can reach the limit of its growth, and then every life ends its
/// reclaim.
#[test]
fn a_pool_killed_100_times_before_its_reclaim_ends_stays_within_a_quarter() {
    let _turn = turn();
    for &scheme in Scheme::ALL {
        let summary = grow(scheme, 40, 84_000, true);
        assert!(summary.running >= 90, "{summary:?}");
        assert!(summary.ratio() <= 1.25, "{summary:?}");
    }
}

/// Lives that need more space than they may take before the reclaim ends. They advance it whenever
/// there is no other space.
#[test]
fn a_pool_killed_100_times_under_heavy_load_stays_within_a_quarter() {
    let _turn = turn();
    for &scheme in Scheme::ALL {
        let summary = grow(scheme, 600, 6_000, false);
        assert!(summary.ratio() <= 1.25, "{summary:?}");
    }
}

#[test]
fn a_full_pool_takes_inserts_at_once_after_a_kill() {
    let _turn = turn();
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let records = full::run(PROGRAM.as_ref(), dir.path(), scheme).unwrap();
        assert!(records > 1_000, "{records}");
    }
}

#[test]
fn what_a_guard_holds_is_reported_and_given_back() {
    let _turn = turn();
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let summary = guard::hold(dir.path(), scheme, Duration::from_secs(2)).unwrap();
        assert!(summary.held_bytes > 0 && summary.grown_bytes > 0, "{summary:?}");
    }
}

#[test]
fn a_full_pool_names_the_guards_that_hold_its_space() {
    let _turn = turn();
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        guard::hold_when_full(dir.path(), scheme).unwrap();
    }
}

//! Chosen interleavings of a few threads, crashes in them, and threads stopped for ever.

use outlast::internals::pmem::{Seeded, Traced};
use outlast::internals::pool::bugs;
use outlast::{RecordForm, Scheme};
use outlast_check::codec::SPECIAL;
use outlast_check::history::Call;
use outlast_check::parts::workload::Workload;
use outlast_check::schedule::act::Act;
use outlast_check::schedule::progress::{self, Victim};
use outlast_check::schedule::strategy::Strategy;
use outlast_check::schedule::workload;
use outlast_check::schedule::{self, Budget, Choice, Counters, Replay, replay, run};
use outlast_check::session::{Do, alive};
use outlast_check::suite::Half;
use std::time::Duration;

#[test]
fn histories_under_schedules_and_crashes_are_strictly_linearizable() {
    for (scheme, form) in Half::First.pairs() {
        let budget =
            Budget { schedules: 200, held_points: 40, held_others: 600, ..Budget::quick() };
        let outcome = run(scheme, form, &budget, &Counters::default(), |_| ());
        for violation in &outcome.violations {
            eprintln!("{violation}");
        }
        assert_eq!(outcome.violations.len(), 0);
        eprintln!("{outcome}");
        assert_eq!(outcome.short, None);
        assert!(outcome.schedules == 200 && outcome.held > 80, "{outcome}");
        assert!(outcome.crashed * 100 > outcome.schedules * 90, "{outcome}");
        assert!(outcome.images_distinct > outcome.schedules * 5, "{outcome}");
        assert!(outcome.responses > outcome.schedules * 5, "{outcome}");
        assert!(outcome.largest_share() <= 30, "{outcome}");
    }
}

#[test]
fn a_seed_names_a_schedule() {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            for (i, workload) in workload::all(scheme).enumerate() {
                let strategy = if i % 2 == 0 { Choice::Random } else { Choice::Pct };
                let named = |seed| Replay {
                    scheme,
                    form,
                    workload: workload.name.into(),
                    strategy,
                    seed,
                    order: Some(seed + 5),
                    without: Vec::new(),
                    crash: Some(0),
                };
                let (first, found) = replay(&named(77)).unwrap();
                assert!(found.is_none(), "{}", found.unwrap());
                // Replay in another thread, where nothing can match by chance.
                let (again, _) = std::thread::scope(|scope| {
                    scope.spawn(|| replay(&named(77)).unwrap()).join().unwrap()
                });
                assert!(first.events == again.events, "{} {form}", workload.name);
                let (other, _) = replay(&named(78)).unwrap();
                assert!(first.events != other.events, "{} {form}", workload.name);
            }
        }
    }
}

#[test]
fn a_thread_stopped_for_ever_stops_nobody_it_must_not() {
    stopped_for_ever(5);
}

/// The same, before every one of its steps.
#[test]
#[ignore = "takes a minute and more; every fifth step is tried above"]
fn a_thread_stopped_before_any_of_its_steps_stops_nobody_it_must_not() {
    stopped_for_ever(1);
}

fn stopped_for_ever(every: u64) {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            for &victim in Victim::of(scheme) {
                let tried = progress::check(scheme, form, victim, every).unwrap();
                println!("{scheme}, {form}: {victim:?} stopped before {tried} steps");
                assert!(tried > 3, "{victim:?}: {tried} steps");
            }
        }
    }
}

/// The check above must be able to fail: a stopped writer that holds a lock does stop others.
#[test]
fn a_lock_holder_stopped_for_ever_is_noticed() {
    let blocking = Scheme::ALL.iter().copied().filter(|scheme| !scheme.is_lock_free());
    for scheme in blocking {
        let found = progress::check(scheme, RecordForm::Inline, Victim::Change, 1);
        assert!(found.is_err(), "{scheme}: {found:?}");
    }
}

/// A pool that reports it is full while its maps own little of it has a spurious `PoolFull`. Here
/// the reason is that nothing is ever freed. A pool that its records fill fails too, but not
/// spuriously.
#[test]
fn a_spurious_pool_full_is_told_from_a_full_pool() {
    let (alive, form) = (alive(), RecordForm::Bytes);
    for &scheme in Scheme::ALL {
        let workload = Workload::named(scheme, "apart").unwrap();
        let made = workload.make(workload.shape(scheme, form), 1, &alive).unwrap();
        let fault = |bug: Option<Seeded>, key: fn(u64) -> u64| {
            let mut instance = made.clone();
            let put = |n| Act::Call(Call::Change(key(n), Do::Put(SPECIAL + n)));
            instance.scripts = vec![(0..150).map(put).collect()];
            let once = || schedule::run::run(&instance, Strategy::InTurn, &alive).unwrap();
            Traced::seeding(bug, once).fault.map(|fault| fault.0)
        };
        let spurious = |fault: &str| fault.starts_with("a spurious PoolFull");
        let lost =
            fault(Some(Seeded::InCode(&bugs::NEVER_FREED)), |_| 5_000).expect("its space is lost");
        assert!(spurious(&lost), "{scheme}: {lost}");
        let full = fault(None, |n| 5_000 + n).expect("more records than it has pages");
        assert!(full.contains("full") && !spurious(&full), "{scheme}: {full}");
        assert_eq!(fault(None, |_| 5_000), None, "{scheme}");
    }
}

#[test]
fn a_budget_of_time_ends_a_run() {
    let budget = Budget { time: Duration::ZERO, ..Budget::quick() };
    let outcome = run(Scheme::ALL[0], RecordForm::Inline, &budget, &Counters::default(), |_| ());
    assert!(outcome.schedules <= 2);
    assert!(outcome.short.is_some(), "it did less than its budget names, and says so");
}

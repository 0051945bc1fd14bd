//! Guests whose pool has a journal. Some take back what they must not.

use super::*;
use crate::vm::script::INTERVAL;
use crate::vm::wire::Pulse;

/// A guest whose pool has a journal, with its account.
struct Trial {
    guest: Guest,
    ledger: Ledger,
}

impl Trial {
    /// Begins to work.
    fn new() -> Trial {
        let mut guest = Guest::new();
        guest.open();
        guest.work(5);
        Trial { guest, ledger: ledger(Keeps::Waited) }
    }

    /// Works, and returns the contents as they were before.
    fn work(&mut self) -> Contents {
        let before = self.guest.contents.clone();
        self.guest.work(10);
        before
    }

    fn wait(&mut self, thread: u64) {
        self.guest.say(&Said::Waiting { thread });
        self.guest.say(&Said::Waited { thread });
    }

    fn pulse(&mut self, micros: u64, commit_micros: u64, gap_micros: u64) {
        self.guest.say(&Said::Pulse(Pulse { micros, commit_micros, gap_micros, checkpoints: 1 }));
    }

    /// Cuts the power, and opens the pool with `contents`. Returns the totals, and the first
    /// finding.
    fn cut(mut self, contents: Contents) -> (Totals, String) {
        self.guest.hear(&mut self.ledger).unwrap();
        self.ledger.cut();
        self.guest.contents = contents;
        self.guest.open();
        self.guest.hear(&mut self.ledger).unwrap();
        let first = self.ledger.findings().first().cloned().unwrap_or_default();
        (self.ledger.totals(), first)
    }
}

/// What all threads do in [`Trial::work`].
const WORK: u64 = 10 * (1 + 4 + 16 + 64);

#[test]
fn the_newest_operations_may_be_taken_back() {
    let mut trial = Trial::new();
    let earlier = trial.work();
    let (totals, first) = trial.cut(earlier);
    assert_eq!((totals.lost, totals.torn), (0, 0), "{first}");
    // An operation that changed nothing cannot be seen, so it is not counted.
    assert!(totals.taken_back >= WORK && totals.taken_back < 2 * WORK, "{totals:?}");
    assert_eq!((totals.in_flight, totals.waited), (0, 0));
}

#[test]
fn what_was_waited_for_is_not_taken_back() {
    // What a thread waits for includes what the others have done.
    for thread in 0..subject().threads {
        for lost in [false, true] {
            let mut trial = Trial::new();
            let earlier = trial.work();
            trial.wait(thread);
            let waited = trial.work();
            let (totals, first) = trial.cut(if lost { earlier } else { waited });
            assert_eq!(totals.lost > 0, lost, "{first}");
            assert_eq!(totals.torn, 0, "{first}");
            assert_eq!(totals.waited, WORK + 5 * (1 + 4 + 16 + 64));
        }
    }
}

#[test]
fn what_is_done_while_a_thread_waits_may_be_taken_back() {
    let mut trial = Trial::new();
    trial.guest.say(&Said::Waiting { thread: 0 });
    let earlier = trial.work();
    trial.guest.say(&Said::Waited { thread: 0 });
    let (totals, first) = trial.cut(earlier);
    assert_eq!((totals.lost, totals.torn), (0, 0), "{first}");
}

#[test]
fn what_is_old_enough_is_not_taken_back() {
    let (commit, gap) = (20_000, 15_000);
    let age = INTERVAL.as_micros() as u64 + 2 * (commit + gap) + 100_000;
    for (older, lost) in [(0, true), (1, false)] {
        let mut trial = Trial::new();
        let earlier = trial.work();
        trial.pulse(5, commit, gap);
        trial.work();
        trial.pulse(5 + age - older, commit, gap);
        let (totals, first) = trial.cut(earlier);
        assert_eq!(totals.lost > 0, lost, "{first}");
        assert_eq!(totals.torn, 0, "{first}");
        if !lost {
            assert_eq!((totals.oldest_micros, totals.older), (age - older, 1));
        }
        assert_eq!((totals.commit_micros, totals.gap_micros), (commit, gap));
        assert_eq!((totals.aged > 0, totals.checkpoints), (lost, 1));
    }
}

#[test]
fn what_is_found_has_been_there_at_one_moment() {
    // Thread 0 has gone on, and what another thread had done before is not there.
    for behind in 1..4 {
        let mut trial = Trial::new();
        let earlier = trial.work();
        let mut mixed = trial.guest.contents.clone();
        for (mixed, earlier) in mixed.iter_mut().zip(&earlier) {
            for key in (behind..mixed.len()).step_by(4) {
                mixed[key] = earlier[key];
            }
        }
        let (totals, first) = trial.cut(mixed);
        assert_eq!((totals.lost, totals.torn), (0, 1), "{first}");
        assert!(first.contains(&format!("of thread {behind} is not")), "{first}");
    }
}

#[test]
fn a_closed_pool_has_everything() {
    for lost in [false, true] {
        let mut trial = Trial::new();
        let earlier = trial.work();
        trial.guest.say(&Said::Cleaning);
        trial.guest.say(&Said::Clean);
        let closed = trial.guest.contents.clone();
        let (totals, first) = trial.cut(if lost { earlier } else { closed });
        assert_eq!(totals.lost > 0, lost, "{first}");
        assert_eq!(totals.taken_back, 0);
    }
}

#[test]
fn reports_of_waiting_come_in_their_order() {
    for log in [
        vec!["waited 0"],
        vec!["waiting 0", "waiting 0"],
        vec!["waiting 9"],
        vec!["pulse 9 0 0 0", "pulse 8 0 0 0"],
    ] {
        let mut trial = Trial::new();
        trial.guest.hear(&mut trial.ledger).unwrap();
        let heard: Checked = log.iter().try_for_each(|line| trial.ledger.hear(&line.parse()?));
        assert!(heard.is_err(), "{log:?}");
    }
}

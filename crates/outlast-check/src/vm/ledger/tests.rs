//! Tests the host's account on made-up logs of the guest's console. Some guests keep everything,
//! others lose or tear something.

mod journal;

use super::*;
use outlast::{RecordForm, Scheme};

const SEED: u64 = 11;

fn subject() -> Subject {
    Subject { scheme: Scheme::ALL[0], record: Some(RecordForm::Inline), keys: 40, threads: 4 }
}

/// A simulated guest. Its reports are made up, line by line.
struct Guest {
    contents: Contents,
    scripts: Vec<Script>,
    done: Vec<u64>,
    life: u64,
    log: Vec<String>,
}

impl Guest {
    fn new() -> Guest {
        let contents = vec![vec![None; subject().keys as usize]; subject().shapes().len()];
        Guest { contents, scripts: Vec::new(), done: Vec::new(), life: 0, log: Vec::new() }
    }

    fn say(&mut self, said: &Said) {
        self.log.push(said.to_string());
    }

    /// Opens the pool, and reports its contents.
    fn open(&mut self) {
        self.life += 1;
        self.say(&Said::Life(self.life));
        self.say(&Said::Opened { micros: 1 });
        self.show();
    }

    fn show(&mut self) {
        let mut lines = Vec::new();
        for (map, values) in self.contents.iter().enumerate() {
            for (n, chunk) in values.chunks(16).enumerate() {
                let values = chunk.iter().map(|&value| Held::Value(value)).collect();
                lines.push(Said::Has { map, first: n as u64 * 16, values });
            }
        }
        lines.iter().for_each(|line| self.say(line));
        let records = self.contents.iter().flatten().flatten().count() as u64;
        self.say(&Said::Held { records });
        let held = |map: usize, key: u64| self.contents[map][key as usize];
        self.scripts = (0..subject().threads)
            .map(|thread| Script::new(&subject(), SEED, self.life, thread, held))
            .collect();
        self.done = vec![0; self.scripts.len()];
    }

    /// Does one operation of a thread.
    fn step(&mut self, thread: usize) {
        let step = self.scripts[thread].next();
        self.contents[step.map][step.key as usize] = step.after;
    }

    /// Does `batches` batches of each thread, and acknowledges them.
    fn work(&mut self, batches: u64) {
        for _ in 0..batches {
            for thread in 0..self.scripts.len() {
                (0..batch(thread as u64)).for_each(|_| self.step(thread));
                self.done[thread] += batch(thread as u64);
                let operations = self.done[thread];
                self.say(&Said::Done { thread: thread as u64, operations });
            }
        }
    }

    /// Finds a key that is present. Returns its map and number.
    fn present(&self) -> (usize, usize) {
        let there = |map: &Vec<Option<u64>>| map.iter().position(|value| value.is_some());
        self.contents.iter().enumerate().find_map(|(m, map)| Some((m, there(map)?))).unwrap()
    }

    fn hear(&mut self, ledger: &mut Ledger) -> Checked {
        let log = std::mem::take(&mut self.log);
        log.iter().try_for_each(|line| ledger.hear(&line.parse()?))
    }
}

fn ledger(keeps: Keeps) -> Ledger {
    Ledger::new(subject(), SEED, keeps)
}

/// Makes a guest that has worked for a while and was cut, with some operations in flight.
fn worked(ledger: &mut Ledger, in_flight: u64) -> Guest {
    let mut guest = Guest::new();
    guest.open();
    guest.work(30);
    // The last thread has the longest batches.
    (0..in_flight).for_each(|_| guest.step(3));
    guest.hear(ledger).unwrap();
    ledger.cut();
    guest
}

#[test]
fn what_was_acknowledged_and_what_was_in_flight_is_accepted() {
    for in_flight in [0, 1, 17, batch(3)] {
        let mut ledger = ledger(Keeps::Returned);
        let mut guest = worked(&mut ledger, in_flight);
        for _ in 0..5 {
            guest.open();
            guest.work(3);
            guest.hear(&mut ledger).unwrap();
            ledger.cut();
        }
        let totals = ledger.totals();
        assert_eq!((totals.lost, totals.torn), (0, 0), "{:?}", ledger.findings());
        // An operation that changed nothing cannot be seen, so it is not counted.
        assert!(totals.in_flight <= in_flight);
        assert_eq!(totals.acknowledged, (30 + 5 * 3) * (1 + 4 + 16 + 64));
        assert_eq!(totals.checks, 6);
    }
}

#[test]
fn a_lost_record_is_found() {
    let mut ledger = ledger(Keeps::Returned);
    let mut guest = worked(&mut ledger, 0);
    let (map, key) = guest.present();
    guest.contents[map][key] = None;
    guest.open();
    guest.hear(&mut ledger).unwrap();
    let totals = ledger.totals();
    assert_eq!((totals.lost, totals.torn), (1, 0));
    assert!(ledger.findings()[0].contains(&format!("key {key},")), "{:?}", ledger.findings());
}

#[test]
fn a_value_that_was_replaced_is_lost() {
    let mut ledger = ledger(Keeps::Returned);
    let mut guest = Guest::new();
    guest.open();
    guest.work(30);
    // The state of thread 0 two acknowledged changes ago.
    let mut older = guest.contents.clone();
    let mut changes = 0;
    while changes < 2 {
        let before = guest.contents.clone();
        guest.work(1);
        let own =
            |contents: &Contents| -> Vec<_> { contents[0].iter().step_by(4).copied().collect() };
        if own(&before) != own(&guest.contents) {
            changes += 1;
            if changes == 1 {
                older = before;
            }
        }
    }
    guest.hear(&mut ledger).unwrap();
    ledger.cut();
    for key in (0..guest.contents[0].len()).step_by(4) {
        for (values, older) in guest.contents.iter_mut().zip(&older) {
            values[key] = older[key];
        }
    }
    guest.open();
    guest.hear(&mut ledger).unwrap();
    assert!(ledger.totals().lost > 0);
    assert_eq!(ledger.totals().torn, 0, "{:?}", ledger.findings());
}

#[test]
fn a_torn_record_is_found() {
    // A value that was never given to this key, and bytes that are no value at all.
    for strange in [false, true] {
        let mut ledger = ledger(Keeps::Returned);
        let mut guest = worked(&mut ledger, 0);
        let (map, key) = guest.present();
        guest.contents[map][key] = Some(u64::MAX - 3);
        guest.open();
        if strange {
            let torn = (u64::MAX - 3).to_string();
            guest.log.iter_mut().for_each(|line| *line = line.replace(&torn, "!"));
        }
        guest.hear(&mut ledger).unwrap();
        let totals = ledger.totals();
        assert_eq!((totals.lost, totals.torn), (0, 1), "{:?}", ledger.findings());
    }
}

#[test]
fn work_in_flight_that_is_there_in_part_is_found() {
    // Of two changes in flight, to two keys, only the second is there.
    let mut ledger = ledger(Keeps::Returned);
    let mut guest = worked(&mut ledger, 0);
    let before = guest.contents.clone();
    let mut changed = Vec::new();
    while changed.len() < 2 {
        let step = guest.scripts[3].next();
        guest.contents[step.map][step.key as usize] = step.after;
        if step.before != step.after && !changed.contains(&(step.map, step.key)) {
            changed.push((step.map, step.key));
        }
    }
    let (map, key) = changed[0];
    guest.contents[map][key as usize] = before[map][key as usize];
    guest.open();
    guest.hear(&mut ledger).unwrap();
    assert_eq!(ledger.totals().lost, 1, "{:?}", ledger.findings());
}

#[test]
fn more_than_a_batch_beyond_what_was_acknowledged_is_found() {
    let mut ledger = ledger(Keeps::Returned);
    let mut guest = worked(&mut ledger, 2 * batch(3));
    guest.open();
    guest.hear(&mut ledger).unwrap();
    assert!(ledger.totals().lost + ledger.totals().torn > 0);
}

#[test]
fn what_one_opening_shows_the_next_must_show() {
    let mut ledger = ledger(Keeps::Returned);
    // Thread 3 is a whole batch ahead. One opening shows that, and is cut.
    let mut guest = worked(&mut ledger, batch(3));
    let ahead = guest.contents.clone();
    guest.open();
    guest.log.pop();
    guest.hear(&mut ledger).unwrap();
    ledger.cut();
    assert_eq!(ledger.totals().lost, 0);
    // The next opening shows only what was acknowledged, which would be allowed by itself.
    let mut honest = worked(&mut super::Ledger::new(subject(), SEED, Keeps::Returned), 0);
    assert_ne!(honest.contents, ahead);
    honest.open();
    honest.hear(&mut ledger).unwrap();
    assert!(ledger.totals().lost > 0);
}

#[test]
fn a_key_that_only_iteration_knows_is_found() {
    let mut ledger = ledger(Keeps::Returned);
    let mut guest = worked(&mut ledger, 0);
    guest.open();
    let held = guest.log.pop().unwrap();
    let records: u64 = held.strip_prefix("held ").unwrap().parse().unwrap();
    guest.say(&Said::Held { records: records + 1 });
    guest.hear(&mut ledger).unwrap();
    assert_eq!(ledger.totals().torn, 1);
}

#[test]
fn acknowledgements_come_in_their_order() {
    for log in [
        vec!["done 0 1"],
        vec!["done 0 2"],
        vec!["done 0 1", "done 0 1"],
        vec!["done 1 1"],
        vec!["done 9 1"],
        vec!["fault it is gone"],
        vec!["has 0 0 -"],
    ] {
        let mut ledger = ledger(Keeps::Returned);
        let mut guest = Guest::new();
        guest.open();
        if log == ["done 0 1"] {
            // Keep only the lines before the contents are known.
            guest.log.truncate(2);
        }
        guest.hear(&mut ledger).unwrap();
        let heard: Checked = log.iter().try_for_each(|line| ledger.hear(&line.parse()?));
        assert!(heard.is_err(), "{log:?}");
    }
}

#[test]
fn on_a_medium_that_can_tear_a_modified_pool_is_refused_and_a_clean_one_is_not() {
    let opened = Said::Opened { micros: 1 };
    let refused = Said::Refused { place: "disk".into(), reason: "EarlierBoot".into() };
    // The guest's last reports, and whether the pool may then open, and may be refused.
    let cases: [(&[Said], bool, bool); 3] = [
        (&[], false, true),
        (&[Said::Cleaning], true, true),
        (&[Said::Cleaning, Said::Clean], true, false),
    ];
    for (last, may_open, may_refuse) in cases {
        for (next, may) in [(&opened, may_open), (&refused, may_refuse)] {
            let mut ledger = ledger(Keeps::Closed);
            let mut guest = Guest::new();
            guest.open();
            guest.work(2);
            last.iter().for_each(|said| guest.say(said));
            guest.hear(&mut ledger).unwrap();
            ledger.cut();
            ledger.hear(&Said::Life(2)).unwrap();
            assert_eq!(ledger.hear(next).is_ok(), may, "{last:?}, {next}");
        }
    }
    // On DAX, a pool is never refused.
    let mut ledger = ledger(Keeps::Returned);
    worked(&mut ledger, 0);
    ledger.hear(&Said::Life(2)).unwrap();
    assert!(ledger.hear(&refused).is_err());
}

#[test]
fn what_is_restored_is_the_snapshot_and_nothing_else() {
    for wrong in [false, true] {
        let mut ledger = ledger(Keeps::Closed);
        let mut guest = Guest::new();
        guest.open();
        guest.work(5);
        guest.say(&Said::Snapshotting);
        guest.say(&Said::Snapshotted);
        let mut snapshot = guest.contents.clone();
        guest.work(5);
        guest.hear(&mut ledger).unwrap();
        ledger.cut();
        if wrong {
            let (map, key) = guest.present();
            snapshot[map][key] = guest.contents[map][key].map(|value| value + 1);
        }
        guest.contents = snapshot;
        guest.life += 1;
        guest.say(&Said::Life(guest.life));
        guest.say(&Said::Refused { place: "disk".into(), reason: "EarlierBoot".into() });
        guest.say(&Said::Restoring);
        guest.say(&Said::Opened { micros: 1 });
        guest.show();
        guest.work(2);
        guest.hear(&mut ledger).unwrap();
        let totals = ledger.totals();
        assert_eq!(totals.lost + totals.torn > 0, wrong, "{:?}", ledger.findings());
        assert_eq!(totals.refused, 1);
    }
}

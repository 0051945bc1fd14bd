//! Checks that the referee can fail: most tests show it a pool with one error.
//!
//! Method: the worker's own code fills a real pool. Then the test changes the pool, through the
//! library or in the file's bytes, without recording that in the journals. Errors that no library
//! call can cause (such as a duplicated key) come from simulated contents.

use super::super::journal::Journal;
use super::super::plan::{Plan, survives};
use super::super::power;
use super::super::worker::Hand;
use super::super::workspace;
use super::*;
use outlast::{Pool, PoolOptions};
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// A finished run on generated items.
struct Run {
    dir: tempfile::TempDir,
    plan: Plan,
    items: Vec<Item>,
    journals: Vec<Journal>,
}

impl Run {
    fn new(items: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan { items, threads: 2, scheme: "dash-eh".into(), journal: false };
        let items: Vec<Item> = (0..u64::from(items)).map(Item::Generated).collect();
        let journals: Vec<Journal> =
            (0..2).map(|t| Journal::create(dir.path(), &plan, t, 10).unwrap()).collect();
        let run = Run { dir, plan, items, journals };
        // SAFETY: the file is this test's own.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(run.path()).unwrap()
        };
        let map = workspace::map(&pool, &run.plan).unwrap();
        for (thread, journal) in run.journals.iter().enumerate() {
            Hand::new(&map, &run.items, journal).work(&run.plan.script(thread as u32)).unwrap();
        }
        drop(map);
        pool.close().unwrap();
        run
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn open(&self) -> (Pool, Map<[u8], FileFacts>) {
        let pool = workspace::open_pool(&self.path(), self.dir.path(), &self.plan).unwrap();
        let map = workspace::map(&pool, &self.plan).unwrap();
        (pool, map)
    }

    fn account(&self) -> Account {
        Account::read(self.items.len(), &self.journals)
    }

    fn examine(&self, contents: &impl Contents) -> Findings {
        let random = &mut Random::new(1);
        let account = self.account();
        examine(contents, &self.items, &self.journals, &account, 100, random).unwrap()
    }

    /// Returns the findings after `change`.
    fn after(&self, change: impl FnOnce(&Map<[u8], FileFacts>)) -> Findings {
        let (_pool, map) = self.open();
        change(&map);
        self.examine(&map)
    }

    /// Returns an item that has a record at the end if `there` is set, otherwise one that has none.
    fn item(&self, there: bool) -> &Item {
        let number = (10..).find(|&item| survives(item) == there).unwrap();
        &self.items[number as usize]
    }

    fn facts(&self, item: &Item) -> FileFacts {
        let number = self.items.iter().position(|i| i == item).unwrap();
        self.account().known[number].now.unwrap()
    }
}

/// The counts of lost, torn, duplicated and unknown records, and of wrong results.
fn counts(findings: &Findings) -> [u64; 5] {
    let f = findings;
    assert_eq!(f.is_clean(), f.examples.is_empty());
    [f.lost, f.torn, f.duplicated, f.unknown, f.wrong_answers]
}

#[test]
fn a_sound_pool_is_clean() {
    let run = Run::new(3000);
    let findings = run.after(|_| {});
    assert_eq!(counts(&findings), [0; 5]);
    assert_eq!(findings.compared, 100);
    let account = run.account();
    assert_eq!(account.operations(), run.plan.len());
    assert_eq!(account.records(), (0..3000).filter(|&i| survives(i)).count() as u64);
}

#[test]
fn a_removed_record_is_lost() {
    let run = Run::new(300);
    let findings = run.after(|map| {
        map.remove(&run.item(true).key()).unwrap().unwrap();
    });
    assert_eq!(counts(&findings), [1, 0, 0, 0, 0]);
}

#[test]
fn an_older_value_is_lost() {
    let run = Run::new(300);
    let account = run.account();
    let updated =
        account.known.iter().position(|k| k.now.is_some_and(|f| f.revision == 2)).unwrap();
    let older = account.known[updated].stored[0];
    let findings = run.after(|map| {
        map.put(&run.items[updated].key(), &older).unwrap();
    });
    assert_eq!(counts(&findings), [1, 0, 0, 0, 0]);
}

#[test]
fn a_removed_record_that_is_back_is_lost() {
    let run = Run::new(300);
    let account = run.account();
    let removed = (0..300).find(|&item| !survives(item)).unwrap() as usize;
    let findings = run.after(|map| {
        map.put(&run.items[removed].key(), &account.known[removed].stored[0]).unwrap();
    });
    assert_eq!(counts(&findings), [1, 0, 0, 0, 0]);
}

#[test]
fn an_altered_value_is_torn() {
    let run = Run::new(300);
    let item = run.item(true);
    let mut facts = run.facts(item);
    facts.fingerprint[1] ^= 1 << 40;
    let findings = run.after(|map| {
        map.put(&item.key(), &facts).unwrap();
    });
    assert_eq!(counts(&findings), [0, 1, 0, 0, 0]);
}

#[test]
fn half_an_update_is_torn() {
    let run = Run::new(300);
    let account = run.account();
    let updated =
        account.known.iter().position(|k| k.now.is_some_and(|f| f.revision == 2)).unwrap();
    let mut facts = account.known[updated].now.unwrap();
    facts.fingerprint[0] = account.known[updated].stored[0].fingerprint[0];
    let findings = run.after(|map| {
        map.put(&run.items[updated].key(), &facts).unwrap();
    });
    assert_eq!(counts(&findings), [0, 1, 0, 0, 0]);
}

#[test]
fn a_bit_flipped_in_the_file_is_torn() {
    let run = Run::new(300);
    let facts = run.facts(run.item(true));
    let mut bytes = std::fs::read(run.path()).unwrap();
    let needle = facts.as_bytes();
    let places: Vec<usize> =
        (0..bytes.len() - needle.len()).filter(|&i| bytes[i..].starts_with(needle)).collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place + 20] ^= 4;
    }
    std::fs::write(run.path(), bytes).unwrap();
    let findings = run.after(|_| {});
    assert_eq!(counts(&findings)[1], 1, "{findings:?}");
}

#[test]
fn a_key_that_nobody_stored_is_unknown() {
    let run = Run::new(300);
    let findings = run.after(|map| {
        map.put(b"from nowhere", &run.facts(run.item(true))).unwrap();
    });
    assert_eq!(counts(&findings), [0, 0, 0, 1, 0]);
}

/// The contents of a pool, except that the scan repeats, skips or alters a record.
struct Distorted<'m> {
    map: &'m Map<[u8], FileFacts>,
    again: Option<Vec<u8>>,
    skipped: Option<Vec<u8>>,
    altered: Option<Vec<u8>>,
}

impl Contents for Distorted<'_> {
    fn get(&self, key: &[u8]) -> outlast::Result<Option<FileFacts>> {
        self.map.get(key)
    }

    fn records(&self) -> impl Iterator<Item = outlast::Result<(Vec<u8>, FileFacts)>> {
        self.map.iter().flat_map(|record| {
            let (key, mut facts) = record.unwrap();
            let is = |which: &Option<Vec<u8>>| which.as_ref() == Some(&key);
            let times = 1 + usize::from(is(&self.again)) - usize::from(is(&self.skipped));
            facts.size += u64::from(is(&self.altered));
            std::iter::repeat_n((key, facts), times).map(Ok)
        })
    }
}

#[test]
fn a_walk_that_repeats_skips_or_alters_is_found_out() {
    let run = Run::new(300);
    let (_pool, map) = run.open();
    let key = Some(run.item(true).key());
    let plain = || Distorted { map: &map, again: None, skipped: None, altered: None };
    assert_eq!(counts(&run.examine(&plain())), [0; 5]);
    let again = Distorted { again: key.clone(), ..plain() };
    assert_eq!(counts(&run.examine(&again)), [0, 0, 1, 0, 0]);
    let skipped = Distorted { skipped: key.clone(), ..plain() };
    assert_eq!(counts(&run.examine(&skipped)), [1, 0, 0, 0, 0]);
    let altered = Distorted { altered: key, ..plain() };
    assert_eq!(counts(&run.examine(&altered)), [0, 1, 0, 0, 0]);
}

#[test]
fn a_worker_notices_a_wrong_answer() {
    let run = Run::new(300);
    let (_pool, map) = run.open();
    let item = run.items.iter().position(|i| i == run.item(true)).unwrap() as u32;
    let journal = &run.journals[item as usize % 2];
    map.remove(&run.item(true).key()).unwrap();
    let revision = 100;
    let step = super::super::plan::Step { kind: Kind::Update, item, revision };
    Hand::new(&map, &run.items, journal)
        .work(&[run.plan.script(item % 2).concat(), vec![step]])
        .unwrap();
    // The record has the right value again, but the update returned a wrong result.
    assert_eq!(counts(&run.examine(&map)), [0, 0, 0, 0, 1]);
}

#[test]
fn an_operation_in_flight_may_go_either_way_once() {
    for happened in [false, true] {
        let run = Run::new(300);
        let (_pool, map) = run.open();
        let item = run.items.iter().position(|i| i == run.item(true)).unwrap();
        let before = run.facts(&run.items[item]);
        let after = Observer::new().observe(&run.items[item], 100);
        let journal = &run.journals[item % 2];
        journal.begin(journal.entries().count(), Kind::Update, item as u32, after);
        if happened {
            map.put(&run.items[item].key(), &after).unwrap();
        }
        let findings = run.examine(&map);
        assert_eq!(counts(&findings), [0; 5]);
        assert_eq!((findings.in_flight, findings.took_effect), (1, u64::from(happened)));
        // The decision is final, so now only that one value is right.
        assert_eq!(run.examine(&map).in_flight, 0);
        let other = if happened { before } else { after };
        map.put(&run.items[item].key(), &other).unwrap();
        assert_eq!(counts(&run.examine(&map))[0] + counts(&run.examine(&map))[1], 1);
        // A third value was never right either.
        let third = Observer::new().observe(&run.items[item], 101);
        journal.begin(journal.entries().count(), Kind::Update, item as u32, after);
        map.put(&run.items[item].key(), &third).unwrap();
        assert_eq!(counts(&run.examine(&map))[1], 1);
    }
}

#[test]
fn a_power_loss_takes_back_what_was_not_confirmed_and_nothing_else() {
    for (confirmed, lost_operations) in [(true, 3), (false, 3), (false, 0)] {
        let run = Run::new(300);
        let (_pool, map) = run.open();
        let journal = &run.journals[0];
        let entries: Vec<_> = journal.entries().collect();
        // Undo the thread's last operations in the pool.
        let (kept, last) = entries.split_at(entries.len() - lost_operations);
        for entry in last {
            let before = kept.iter().rfind(|earlier| earlier.item == entry.item);
            let key = run.items[entry.item as usize].key();
            match before.and_then(|before| before.after()) {
                Some(facts) => drop(map.put(&key, &facts).unwrap()),
                None => drop(map.remove(&key).unwrap()),
            }
        }
        journal.confirm(entries.len() - if confirmed { 1 } else { 5 });
        run.journals[1].confirm(run.journals[1].entries().count());
        let taken_back = power::take_back(&map, &run.items, &run.journals).unwrap();
        // If `confirmed` is set, two of the three lost operations had been confirmed to be durable,
        // so only the third may be taken back.
        let expected = if confirmed { 1 } else { lost_operations as u64 };
        assert_eq!(taken_back, expected);
        let findings = run.examine(&map);
        assert_eq!(findings.lost, if confirmed { 2 } else { 0 }, "{findings:?}");
        assert_eq!(counts(&findings)[1..], [0; 4]);
        assert_eq!(run.account().operations(), run.plan.len() - expected);
    }
}

#[test]
fn a_file_that_changed_is_told_from_a_wrong_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "before").unwrap();
    let items = [Item::file(&path)];
    let facts = Observer::new().observe(&items[0], 1);
    let compare = |facts| {
        let (mut verdicts, mut findings) = ([Verdict::Right], Findings::default());
        let random = &mut Random::new(1);
        compare_with_files(&items, &[Some(facts)], 1, random, &mut verdicts, &mut findings);
        (findings.compared, findings.changed_files, verdicts[0] == Verdict::Right)
    };
    assert_eq!(compare(facts), (1, 0, true));
    let wrong = FileFacts { fingerprint: [1, 2], ..facts };
    assert_eq!(compare(wrong), (0, 0, false));
    std::fs::write(&path, "after all").unwrap();
    assert_eq!(compare(facts), (0, 1, true));
}

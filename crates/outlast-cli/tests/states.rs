//! The states that the files of a pool can be found in, and what the commands say about them.

mod common;

use common::{Place, Run, command, finished};
use outlast::{JournalOptions, Map, MapOptions, Pool, PoolOptions, Scheme};
use serde_json::json;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory for a child process of one of the tests.
const CHILD: &str = "OUTLAST_TEST_CHILD";

/// How a child process leaves a pool behind.
#[derive(Debug, Clone, Copy)]
struct Life {
    scheme: Scheme,
    journal: bool,
    /// The number of checkpoints that the base sees at least.
    checkpoints: u64,
    /// The number of records that are inserted at least.
    records: u64,
}

impl Life {
    fn parse(text: &str) -> Life {
        let words: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [scheme, journal, checkpoints, records] = words[..] else { panic!("{text}") };
        Life { scheme: Scheme::ALL[scheme as usize], journal: journal == 1, checkpoints, records }
    }

    fn text(&self) -> String {
        let scheme = Scheme::ALL.iter().position(|&scheme| scheme == self.scheme).unwrap();
        format!("{scheme} {} {} {}", u8::from(self.journal), self.checkpoints, self.records)
    }

    /// Runs this life of the pool in a child process, which kills itself. Returns the number of
    /// records that it has inserted.
    fn run(&self, place: &Place) -> u64 {
        let killed = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
            .env(CHILD, place.dir.path())
            .env("OUTLAST_TEST_LIFE", self.text())
            .output()
            .unwrap();
        assert!(!killed.status.success(), "the child was not killed");
        let said = String::from_utf8(killed.stdout).unwrap();
        let records = said.lines().find_map(|line| line.strip_prefix("records "));
        records.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    }
}

fn options(place: &Path, journal: bool) -> PoolOptions {
    let options = PoolOptions::new();
    match journal {
        true => options.journal(JournalOptions::new().limit(1 << 20).working_directory(place)),
        false => options,
    }
}

fn maps(pool: &Pool, scheme: Scheme) -> (Map<u64, u64>, Map<str, str>) {
    let options = MapOptions::new().scheme(scheme);
    (pool.map_with("numbers", &options).unwrap(), pool.map_with("texts", &options).unwrap())
}

#[test]
fn child() {
    let Some(place) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let life = Life::parse(&std::env::var("OUTLAST_TEST_LIFE").unwrap());
    let options = options(&place, life.journal);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.open_or_create(place.join("test.pool")).unwrap() };
    let (numbers, texts) = maps(&pool, life.scheme);
    let checkpoints = || pool.stats().journal.map_or(u64::MAX, |journal| journal.checkpoints);
    let first = numbers.len().unwrap();
    let mut records = first;
    while records < first + life.records || checkpoints() < life.checkpoints {
        assert!(numbers.insert(&records, &(records * 3)).unwrap());
        assert!(texts.insert(&format!("key {records}"), &format!("value {records}")).unwrap());
        records += 1;
    }
    println!("\nrecords {records}");
    // SAFETY: the call ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Checks that opening the pool finds these records and no others.
fn assert_holds(place: &Place, scheme: Scheme, records: u64) {
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    pool.verify().unwrap().ensure_sound().unwrap();
    let (numbers, texts) = maps(&pool, scheme);
    assert_eq!((numbers.len().unwrap(), texts.len().unwrap()), (records, records));
    for n in 0..records {
        assert_eq!(numbers.get(&n).unwrap(), Some(n * 3));
        assert_eq!(texts.get(&format!("key {n}")).unwrap(), Some(format!("value {n}")));
    }
    pool.close().unwrap();
}

fn run<const N: usize>(place: &Place, args: [&str; N]) -> Run {
    place.run(args.map(OsStr::new))
}

/// The base of such a pool is older than the pool, and damaged where a checkpoint was under way.
#[test]
fn verify_calls_no_killed_journaled_pool_damaged() {
    for round in 0..20 {
        let place = Place::new();
        let scheme = Scheme::ALL[round % Scheme::ALL.len()];
        let checkpoints = 1 + round as u64 / 8;
        let life = Life { scheme, journal: true, checkpoints, records: 500 * round as u64 };
        let records = life.run(&place);
        let verified = run(&place, ["verify"]).expect(0);
        assert!(verified.text().ends_with("sound\n"), "{}", verified.text());
        let new = place.path("new.pool");
        let args = [OsStr::new("--json"), "salvage".as_ref(), place.pool().as_ref(), new.as_ref()]
            .map(OsStr::to_owned);
        let salvaged = finished(command().args(args).output().unwrap()).expect(0).objects();
        let told = salvaged.last().unwrap();
        assert_eq!((&told["records"], &told["complete"]), (&json!(2 * records), &json!(true)));
        assert!(matches!(outlast::offline::walk(&place.pool()), Err(outlast::Error::Unfinished)));
        assert_holds(&place, scheme, records);
    }
}

//! What a new pool survives without a word about it, and with one.

use crate::files::{child_path, in_child};
use outlast::{Failure, JournalOptions, Latency, MediumKind, Pool, PoolOptions};
use std::path::Path;
use tempfile::TempDir;

/// A directory on an ordinary file system, or `None` if the build is on a tmpfs.
fn ordinary() -> Option<TempDir> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on_tmpfs = rustix::fs::statfs(dir.path()).unwrap().f_type as u64 == 0x0102_1994;
    if on_tmpfs {
        println!("skipped: the build is on a tmpfs");
    }
    (!on_tmpfs).then_some(dir)
}

fn medium(options: &PoolOptions, path: &Path) -> MediumKind {
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(path).unwrap() };
    let medium = pool.durability().medium;
    pool.close().unwrap();
    medium
}

#[test]
fn a_new_pool_on_an_ordinary_file_system_has_a_journal() {
    let Some(dir) = ordinary() else { return };
    let at = |name: &str| dir.path().join(name);
    let new = PoolOptions::new();
    assert_eq!(medium(&new, &at("default")), MediumKind::Journal);
    let plain = PoolOptions::new().survive(Failure::ProcessDeath);
    assert_eq!(medium(&plain, &at("plain")), MediumKind::PageCache);
    // The last word counts.
    let words = plain.clone().journal(JournalOptions::new());
    assert_eq!(medium(&words, &at("journal")), MediumKind::Journal);
    let words = words.survive(Failure::ProcessDeath);
    assert_eq!(medium(&words, &at("plain again")), MediumKind::PageCache);
    let emulated = PoolOptions::new().emulate_pm(Latency::default());
    assert_eq!(medium(&emulated, &at("emulated")), MediumKind::EmulatedPm);
    // A pool that exists stays as it is.
    let kept = |options: &PoolOptions, name: &str| {
        // SAFETY: the file belongs to this test.
        let pool = unsafe { options.open_or_create(at(name)).unwrap() };
        let medium = pool.durability().medium;
        pool.close().unwrap();
        medium
    };
    assert_eq!(kept(&new, "plain"), MediumKind::PageCache);
    assert_eq!(kept(&plain, "default"), MediumKind::Journal);
}

#[test]
fn a_new_pool_on_a_tmpfs_has_none() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    assert_eq!(medium(&PoolOptions::new(), &dir.path().join("pool")), MediumKind::PageCache);
}

/// A program that has not read about media, SIGKILL in the middle of its changes, and a power loss: the
/// working file is gone, and the machine was restarted.
#[test]
fn who_reads_nothing_loses_no_pool() {
    let test = "survive::who_reads_nothing_loses_no_pool";
    let numbers = |pool: &Pool| pool.map::<u64, u64>("numbers").unwrap();
    if let Some(path) = child_path() {
        // SAFETY: the file belongs to this test.
        let pool = unsafe { PoolOptions::new().open_or_create(path).unwrap() };
        let map = numbers(&pool);
        for n in 0.. {
            map.put(&n, &(n * n)).unwrap();
            if n % 100 == 99 {
                pool.wait_durable().unwrap();
                println!("durable {n}");
            }
        }
    }
    let Some(dir) = ordinary() else { return };
    let path = dir.path().join("a.pool");
    for round in 0..5 {
        let mut child = in_child(test, &path);
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let durable = lines
            .map(Result::unwrap)
            .filter_map(|line| line.strip_prefix("durable ").map(|n| n.parse::<u64>().unwrap()));
        let durable = durable.take(10).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let facts = PoolOptions::new().facts(&path).unwrap().journal.unwrap();
        std::fs::remove_file(facts.working.unwrap()).unwrap();
        // SAFETY: the file belongs to this test.
        let pool = unsafe { PoolOptions::new().boot_id(round + 1).open(&path).unwrap() };
        let map = numbers(&pool);
        for n in 0..=durable {
            assert_eq!(map.get(&n).unwrap(), Some(n * n), "round {round}");
        }
        assert_eq!(map.len().unwrap(), map.iter().count() as u64);
        pool.verify().unwrap().ensure_sound().unwrap();
        pool.close().unwrap();
    }
}

/// A process that is killed while it creates its first pool leaves nothing, a pool with a journal, or one that the next
/// opening gives its journal.
#[test]
fn a_creation_that_was_killed_goes_on_to_a_journal() {
    let test = "survive::a_creation_that_was_killed_goes_on_to_a_journal";
    if let Some(path) = child_path() {
        println!("\nready");
        // SAFETY: the file belongs to this test.
        drop(unsafe { PoolOptions::new().open_or_create(path).unwrap() });
        // Until it is killed.
        loop {
            std::thread::park();
        }
    }
    let Some(dir) = ordinary() else { return };
    let mut unfinished = 0;
    for kill in 0..60 {
        let path = dir.path().join(format!("{kill}.pool"));
        let mut child = in_child(test, &path);
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.map(Result::unwrap).any(|line| line == "ready"));
        std::thread::sleep(std::time::Duration::from_micros(500 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        let facts = PoolOptions::new().facts(&path);
        unfinished += u32::from(facts.is_ok_and(|facts| facts.journal.is_none()));
        // SAFETY: the file belongs to this test.
        let pool = unsafe { PoolOptions::new().open_or_create(&path).unwrap() };
        assert_eq!(
            pool.durability().medium,
            MediumKind::Journal,
            "killed after {kill} times 0.5 ms"
        );
        pool.verify().unwrap().ensure_sound().unwrap();
        pool.close().unwrap();
    }
    println!("{unfinished} of 60 were unfinished");
}

/// The state in between, made by hand; and pools that look like it, but are as they were meant to be.
#[test]
fn only_an_unfinished_creation_goes_on_to_a_journal() {
    let Some(dir) = ordinary() else { return };
    let at = |name: &str| dir.path().join(name);
    let plain = PoolOptions::new().survive(Failure::ProcessDeath);
    assert_eq!(medium(&plain, &at("cut short")), MediumKind::PageCache);
    std::fs::create_dir(at("cut short.journal")).unwrap();
    // SAFETY: the file belongs to this test.
    let opened = |name: &str| unsafe { PoolOptions::new().open(at(name)).unwrap() };
    assert_eq!(opened("cut short").durability().medium, MediumKind::Journal);
    // An empty directory of a pool that was there before.
    std::fs::create_dir(at("plain.journal")).unwrap();
    assert_eq!(medium(&plain, &at("plain")), MediumKind::PageCache);
    assert!(!at("plain.journal").exists());
    // A pool with a map is finished.
    let pool = opened("plain");
    pool.map::<u64, u64>("m").unwrap();
    pool.close().unwrap();
    std::fs::create_dir(at("plain.journal")).unwrap();
    assert_eq!(opened("plain").durability().medium, MediumKind::PageCache);
}

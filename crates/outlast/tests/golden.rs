//! A pool of each released format opens with every build.
//!
//! Goal: `tests/golden/format1.pool`, written once and never again, is opened, read,
//! verified and changed by this build. If a change of the code makes this fail, the change
//! is one of the format: see the versioning rules in docs/format.md.
//!
//! The file was written by the test `generate`, which is ignored. It writes a new one, for
//! a new format only, if it is asked to by name:
//!
//! ```text
//! OUTLAST_GOLDEN=format2.pool cargo test --test golden generate -- --ignored
//! ```

use outlast::{MapOptions, Pool, PoolOptions, RecordForm, Scheme, offline};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn open(path: &Path) -> Pool {
    // SAFETY: the file is this test's own.
    unsafe { PoolOptions::new().background(false).open(path).unwrap() }
}

/// Number keys: the extremes, then some that are spread over all hashes.
fn word(n: u64) -> u64 {
    match n {
        0 => 0,
        1 => u64::MAX,
        n => n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

fn text(n: u64) -> String {
    format!("key {n} {}", "é".repeat(n as usize % 7))
}

fn value(n: u64) -> Vec<u8> {
    let len = if n == 17 { 5000 } else { n as usize * 3 % 200 };
    (0..len).map(|i| (i as u64 * 31 + n) as u8).collect()
}

/// Records that were put and removed again.
fn removed(n: u64) -> bool {
    n % 5 == 3
}

const WORDS: u64 = 150;
const TEXTS: u64 = 60;

fn check(pool: &Pool) {
    let words = pool.map::<u64, u64>("words").unwrap();
    let bytes = pool.map::<u64, [u8]>("bytes").unwrap();
    let texts = pool.map::<str, i32>("texts").unwrap();
    assert_eq!(words.info().form, RecordForm::Inline);
    assert_eq!(bytes.info().form, RecordForm::Bytes);
    for map in [words.info(), bytes.info(), texts.info()] {
        assert_eq!(map.scheme, Scheme::DashEh);
    }
    for n in 0..WORDS {
        let expected = (!removed(n)).then_some(n << 32 | n);
        assert_eq!(words.get(&word(n)).unwrap(), expected, "{n}");
    }
    for n in 0..TEXTS {
        let there = !removed(n);
        assert_eq!(bytes.get(&word(n)).unwrap(), there.then(|| value(n)), "{n}");
        assert_eq!(texts.get(&text(n)).unwrap(), there.then_some(n as i32 - 30), "{n}");
    }
    let kept = |count: u64| (0..count).filter(|&n| !removed(n)).count();
    assert_eq!(words.iter().filter(|r| r.is_ok()).count(), kept(WORDS));
    assert_eq!(bytes.iter().filter(|r| r.is_ok()).count(), kept(TEXTS));
    assert_eq!(texts.iter().filter(|r| r.is_ok()).count(), kept(TEXTS));
}

#[test]
fn a_pool_of_format_1_opens_and_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.pool");
    std::fs::copy(golden("format1.pool"), &path).unwrap();

    let report = offline::walk(&path).unwrap();
    assert_eq!((&report.problems[..], report.leaked_bytes), (&[][..], 0));
    assert!(report.clean && report.free_state);
    assert_eq!(report.sum(), report.file_bytes);

    // SAFETY: the file is this test's own.
    let pool = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    check(&pool);
    drop(pool);

    let pool = open(&path);
    check(&pool);
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.records(), report.records);
    assert_eq!(found.leaked_bytes, Some(0));

    // It is written to as any other.
    let words = pool.map::<u64, u64>("words").unwrap();
    let bytes = pool.map::<u64, [u8]>("bytes").unwrap();
    for n in 1000..3000 {
        assert!(words.insert(&word(n), &n).unwrap());
        assert!(bytes.insert(&word(n), &value(n)).unwrap());
    }
    for n in 0..WORDS {
        assert_eq!(words.remove(&word(n)).unwrap().is_some(), !removed(n));
    }
    drop((words, bytes));
    pool.drop_map("texts").unwrap();
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    pool.close().unwrap();

    let report = offline::walk(&path).unwrap();
    assert_eq!((&report.problems[..], report.leaked_bytes), (&[][..], 0));
    let pool = open(&path);
    let words = pool.map::<u64, u64>("words").unwrap();
    assert_eq!(words.get(&word(2999)).unwrap(), Some(2999));
    assert_eq!(words.get(&word(7)).unwrap(), None);
}

/// The same pool as a kill left it: it is copied while it is open.
#[test]
fn a_pool_of_format_1_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let [path, killed] = ["copy.pool", "killed.pool"].map(|name| dir.path().join(name));
    std::fs::copy(golden("format1.pool"), &path).unwrap();
    let pool = open(&path);
    let words = pool.map::<u64, u64>("words").unwrap();
    words.insert(&word(5000), &1).unwrap();
    std::fs::copy(&path, &killed).unwrap();
    assert!(!offline::walk(&killed).unwrap().clean);
    let options = PoolOptions::new().background(false).accept_possibly_torn(true);
    // SAFETY: the file is this test's own.
    let pool = unsafe { options.open(&killed).unwrap() };
    check_with_one_more(&pool);
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.leaked_bytes, Some(0));
}

fn check_with_one_more(pool: &Pool) {
    let words = pool.map::<u64, u64>("words").unwrap();
    assert_eq!(words.remove(&word(5000)).unwrap(), Some(1));
    drop(words);
    check(pool);
}

#[test]
#[ignore = "writes a golden file: once for each format"]
fn generate() {
    let name = std::env::var("OUTLAST_GOLDEN").expect("OUTLAST_GOLDEN names the file");
    let path = golden(&name);
    let options = PoolOptions::new().page_bits(12).initial_size(160 << 10).background(false);
    // Nothing of the machine that wrote it.
    let options = options.boot_id(1);
    // SAFETY: the file is this test's own.
    let pool = unsafe { options.create(&path).unwrap() };
    let small = MapOptions::new().bucket_bits(1);
    let words = pool.map_with::<u64, u64>("words", &small).unwrap();
    let bytes = pool.map_with::<u64, [u8]>("bytes", &small.clone().stash_buckets(4)).unwrap();
    let texts = pool.map_with::<str, i32>("texts", &small).unwrap();
    for n in 0..WORDS {
        words.put(&word(n), &(n << 32 | n)).unwrap();
    }
    for n in 0..TEXTS {
        bytes.put(&word(n), &value(n)).unwrap();
        texts.put(&text(n), &(n as i32 - 30)).unwrap();
    }
    for n in (0..WORDS).filter(|&n| removed(n)) {
        words.remove(&word(n)).unwrap();
        bytes.remove(&word(n)).unwrap();
        texts.remove(&text(n)).unwrap();
    }
    drop((words, bytes, texts));
    pool.close().unwrap();
}

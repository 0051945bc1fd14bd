//! Every build opens the pools of each format, or reports the format that it cannot open.
//!
//! Goal: this build opens, reads, verifies and changes the pools in `tests/golden`, which are written
//! once for each format and never again. If a change of the code makes this test fail, it changes the
//! format: see the versioning rules in docs/format.md.
//!
//! `examples/golden.rs` wrote the files.

use outlast::internals::pool::geometry::Geometry;
use outlast::internals::pool::layout::{Descriptor, PageKind};
use outlast::{Pool, PoolOptions, RecordForm, Scheme};
use outlast_offline as offline;
use std::path::{Path, PathBuf};

#[path = "../golden/content.rs"]
mod content;
use content::{LARGE, TEXTS, WORDS, large, removed, text, value, word};

fn golden(scheme: Scheme) -> PathBuf {
    let name = format!("format1-{scheme}.pool");
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().background(false).open(path).unwrap() }
}

fn check(pool: &Pool, scheme: Scheme) {
    let words = pool.map::<u64, u64>("words").unwrap();
    let bytes = pool.map::<u64, [u8]>("bytes").unwrap();
    let texts = pool.map::<str, i32>("texts").unwrap();
    assert_eq!(words.info().form, RecordForm::Inline);
    assert_eq!(bytes.info().form, RecordForm::Bytes);
    for map in [words.info(), bytes.info(), texts.info()] {
        assert_eq!(map.scheme(), scheme);
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
    if scheme == Scheme::DashEh {
        let map = pool.map::<u64, [u8]>("large").unwrap();
        assert!(LARGE.iter().all(|&n| map.get(&(n as u64)).unwrap() == Some(large(n))));
    }
}

#[test]
fn a_pool_of_format_1_opens_and_is_what_it_was() {
    for &scheme in Scheme::ALL {
        opens_and_is_what_it_was(scheme);
    }
}

/// Some of the blocks in eighths of a page lie in runs of several, and some take whole pages.
#[test]
fn a_pool_has_blocks_in_eighths_of_a_page() {
    let bytes = std::fs::read(golden(Scheme::DashEh)).unwrap();
    let geometry = Geometry::new(12).unwrap();
    let word = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap());
    let pages = geometry.first_page()..bytes.len() as u32 >> 12;
    let found = pages.filter(|&page| !geometry.is_system(page));
    let found =
        found.filter_map(|page| Descriptor::unpack(page, word(geometry.descriptor_offset(page))));
    let found: Vec<Descriptor> = found.collect();
    let in_eighths = found.iter().filter(|d| d.kind == PageKind::Blocks && d.class >= 46).count();
    let large = found.iter().filter(|d| d.kind == PageKind::Large).count();
    assert!(in_eighths > 0 && large > 1, "{in_eighths} runs, {large} large blocks");
    assert!(in_eighths + large >= LARGE.len(), "{in_eighths} runs, {large} large blocks");
}

fn opens_and_is_what_it_was(scheme: Scheme) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.pool");
    std::fs::copy(golden(scheme), &path).unwrap();

    let report = offline::walk(&path).unwrap();
    assert_eq!((&report.problems[..], report.leaked_bytes), (&[][..], 0));
    assert!(report.clean && report.free_state);
    assert_eq!(report.sum(), report.file_bytes);

    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    check(&pool, scheme);
    drop(pool);

    let pool = open(&path);
    check(&pool, scheme);
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.records(), report.records);
    assert_eq!(found.leaked_bytes, Some(0));

    // It can be written like any other pool.
    let words = pool.map::<u64, u64>("words").unwrap();
    let bytes = pool.map::<u64, [u8]>("bytes").unwrap();
    for n in 1000..3000 {
        assert!(words.insert(&word(n), &n).unwrap());
        assert!(bytes.insert(&word(n), &value(n)).unwrap());
    }
    for len in LARGE {
        assert!(bytes.insert(&word(10_000 + len as u64), &large(len)).unwrap());
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
    let bytes = pool.map::<u64, [u8]>("bytes").unwrap();
    for len in LARGE {
        assert_eq!(bytes.get(&word(10_000 + len as u64)).unwrap(), Some(large(len)));
    }
}

/// Opens such a pool as a kill leaves it: the file is copied while the pool is open.
#[test]
fn a_pool_of_format_1_recovers() {
    for &scheme in Scheme::ALL {
        recovers(scheme);
    }
}

fn recovers(scheme: Scheme) {
    let dir = tempfile::tempdir().unwrap();
    let [path, killed] = ["copy.pool", "killed.pool"].map(|name| dir.path().join(name));
    std::fs::copy(golden(scheme), &path).unwrap();
    let pool = open(&path);
    let words = pool.map::<u64, u64>("words").unwrap();
    words.insert(&word(5000), &1).unwrap();
    std::fs::copy(&path, &killed).unwrap();
    assert!(!offline::walk(&killed).unwrap().clean);
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .background(false)
        .accept_possibly_torn(true);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.open(&killed).unwrap() };
    check_with_one_more(&pool, scheme);
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.leaked_bytes, Some(0));
}

fn check_with_one_more(pool: &Pool, scheme: Scheme) {
    let words = pool.map::<u64, u64>("words").unwrap();
    assert_eq!(words.remove(&word(5000)).unwrap(), Some(1));
    drop(words);
    check(pool, scheme);
}

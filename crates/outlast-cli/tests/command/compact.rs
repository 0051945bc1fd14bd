//! `compact`: what it keeps, how small it makes a pool, and what it refuses.

use crate::common::{Place, Run};
use outlast::{Config, Error, MapOptions, Pool, PoolOptions, Scheme};
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// The least size, in bytes, of the pools before compaction: 24 MiB unless OUTLAST_TEST_MIB says
/// otherwise. The test was also run with 61 MiB.
fn large() -> u64 {
    std::env::var("OUTLAST_TEST_MIB").map_or(24, |mib| mib.parse().unwrap()) * MIB
}

fn compact<const N: usize>(paths: [&Path; N]) -> Run {
    let mut command = crate::common::command();
    command.arg("compact").args(paths).env_remove("OUTLAST_POOL");
    crate::common::finished(command.output().unwrap())
}

fn options() -> PoolOptions {
    PoolOptions::new().survive(outlast::Failure::ProcessDeath).background(false)
}

fn create(options: &PoolOptions, path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options.create(path).unwrap() }
}

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options().open(path).unwrap() }
}

/// Makes a pool with a map of each scheme and form, from which most records were removed.
fn worn(options: &PoolOptions, path: &Path) {
    let pool = create(options, path);
    for scheme in Scheme::ALL {
        let map_options = MapOptions::new().config(Config::small(*scheme));
        let words = pool.map_with::<u64, i64>(&format!("{scheme} words"), &map_options).unwrap();
        let bytes = pool.map_with::<str, [u8]>(&format!("{scheme} bytes"), &map_options).unwrap();
        for n in 0..2_000 {
            assert!(words.insert(&n, &(-7 - n as i64)).unwrap());
            assert!(bytes.insert(&format!("key {n}"), &vec![n as u8; 1_000]).unwrap());
        }
        for n in (0..2_000).filter(|n| n % 40 != 0) {
            assert!(words.delete(&n).unwrap() && bytes.delete(&format!("key {n}")).unwrap());
        }
    }
    pool.close().unwrap();
}

fn check_worn(pool: &Pool) {
    for scheme in Scheme::ALL {
        let words = pool.map::<u64, i64>(&format!("{scheme} words")).unwrap();
        let bytes = pool.map::<str, [u8]>(&format!("{scheme} bytes")).unwrap();
        assert_eq!((words.len().unwrap(), bytes.len().unwrap()), (50, 50), "{scheme}");
        for n in (0..2_000).step_by(40) {
            assert_eq!(words.get(&n).unwrap(), Some(-7 - n as i64), "{scheme}");
            assert_eq!(bytes.get(&format!("key {n}")).unwrap(), Some(vec![n as u8; 1_000]));
        }
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

fn names(place: &Place) -> HashSet<String> {
    let entries = std::fs::read_dir(place.dir.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_compacted_pool_has_all_that_the_old_one_had() {
    let place = Place::new();
    let path = place.pool();
    worn(&options().page_bits(14).max_size(300 * MIB), &path);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = path.metadata().unwrap().len();
    let maps = open(&path).maps();
    let run = compact([&path]).expect(0);
    let said = format!("records in {} maps", 2 * Scheme::ALL.len());
    assert!(run.text().contains(&said), "{}", run.text());
    let meta = path.metadata().unwrap();
    assert!(meta.len() < before / 2, "{} of {before} bytes", meta.len());
    assert_eq!(meta.permissions().mode() & 0o777, 0o640);
    assert_eq!(names(&place), HashSet::from(["test.pool".into()]));
    let pool = open(&path);
    assert_eq!(format!("{:?}", pool.maps()), format!("{maps:?}"));
    let stats = pool.stats();
    assert_eq!((stats.page_bits, stats.max_size), (14, 300 * MIB));
    check_worn(&pool);
}

#[test]
fn a_copy_leaves_the_old_pool_as_it_is() {
    let place = Place::new();
    let (path, new) = (place.pool(), place.path("new.pool"));
    worn(&options(), &path);
    let before = std::fs::read(&path).unwrap();
    compact([&path, &new]).expect(0);
    assert!(std::fs::read(&path).unwrap() == before);
    assert!(new.metadata().unwrap().len() < before.len() as u64 / 2);
    check_worn(&open(&new));
    // An existing file is not replaced.
    assert!(compact([&path, &new]).expect(1).err.contains("exists already"));
    assert!(compact([&path, &path]).expect(2).err.contains("is the pool itself"));
    check_worn(&open(&new));
    let mut command = crate::common::command();
    command.arg("--pool").arg(&path).arg("compact").arg(&path);
    crate::common::finished(command.output().unwrap()).expect(2);
    assert!(compact([&place.path("no.pool")]).expect(1).err.contains("no.pool"));
}

#[test]
fn a_pool_with_few_records_left_becomes_small() {
    for scheme in Scheme::ALL {
        let place = Place::new();
        let path = place.pool();
        let pool = create(&options(), &path);
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(*scheme)).unwrap();
        let mut n = 0;
        while pool.stats().size < large() {
            assert!((n..n + 1000).all(|k| map.insert(&k, &[k as u8; 92]).unwrap()), "{scheme}");
            n += 1000;
        }
        let mut seed = 5_u64;
        let mut left = Vec::new();
        for k in 0..n {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match (seed >> 33) % 100 {
                0..3 => left.push(k),
                _ => assert!(map.delete(&k).unwrap()),
            }
        }
        drop(map);
        pool.close().unwrap();
        let before = path.metadata().unwrap().len();
        let start = std::time::Instant::now();
        compact([&path]).expect(0);
        let after = path.metadata().unwrap().len();
        let (left_count, time) = (left.len(), start.elapsed());
        println!(
            "{scheme}: {left_count} of {n} records, {before} bytes became {after} in {time:?}"
        );
        assert!(after <= (before / 10).max(4 * MIB), "{scheme}: {after} of {before}");
        let pool = open(&path);
        let map = pool.map::<u64, [u8]>("m").unwrap();
        assert_eq!(map.len().unwrap(), left.len() as u64);
        assert!(left.iter().all(|k| map.get(k).unwrap().unwrap() == [*k as u8; 92]), "{scheme}");
    }
}

#[test]
fn a_damaged_pool_is_refused() {
    let place = Place::new();
    let path = place.pool();
    worn(&options(), &path);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"key 400").unwrap();
    bytes[at] = b'K';
    std::fs::write(&path, &bytes).unwrap();
    for new in [None, Some(place.path("new.pool"))] {
        let run = match &new {
            Some(new) => compact([&path, new]),
            None => compact([&path]),
        };
        assert!(run.expect(3).err.contains("`outlast salvage`"));
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert_eq!(names(&place), HashSet::from(["test.pool".into()]));
    }
}

#[test]
fn a_pool_in_use_is_refused() {
    let place = Place::new();
    let path = place.pool();
    worn(&options(), &path);
    let pool = open(&path);
    assert!(compact([&path]).expect(1).err.contains("in use"));
    pool.close().unwrap();
    // A file that another compaction is writing is left alone. One that a killed compaction has
    // left is removed.
    let other = place.path("test.pool.compacting");
    let unfinished = create(&options(), &other);
    assert!(compact([&path]).expect(1).err.contains("being written"));
    unfinished.close().unwrap();
    compact([&path]).expect(0);
    assert!(!other.exists());
    check_worn(&open(&path));
}

#[test]
fn a_link_leads_to_the_compacted_pool() {
    let place = Place::new();
    let (path, link) = (place.pool(), place.path("link"));
    worn(&options(), &path);
    std::os::unix::fs::symlink("test.pool", &link).unwrap();
    compact([&link]).expect(0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    check_worn(&open(&path));
}

#[test]
fn a_pool_keeps_its_journal_and_a_copy_has_none() {
    let place = Place::new();
    let (path, new) = (place.pool(), place.path("new.pool"));
    let lines: String = (0..3_000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    place.run_with(["load", "--journal"], lines.as_bytes()).expect(0);
    for n in 0..10 {
        place.run(["del", &format!("key {n}")]).expect(0);
    }
    let has_journal = |path: &Path| options().facts(path).unwrap().journal.is_some();
    compact([&path, &new]).expect(0);
    compact([&path]).expect(0);
    assert!(has_journal(&path) && !has_journal(&new));
    let journal = "test.pool.journal".into();
    assert_eq!(names(&place), HashSet::from(["test.pool".into(), "new.pool".into(), journal]));
    place.run(["put", "more", "1"]).expect(0);
    for (path, len) in [(&path, 2_991), (&new, 2_990)] {
        let pool = open(path);
        let map = pool.map::<str, str>("main").unwrap();
        assert_eq!(map.len().unwrap(), len);
        assert_eq!(map.get("key 10").unwrap().as_deref(), Some("value 10"));
        pool.close().unwrap();
    }
}

#[test]
fn a_copy_leaves_a_killed_pool_and_its_journal_as_they_are() {
    let place = Place::new();
    let (path, new) = (place.pool(), place.path("new.pool"));
    place.run(["put", "k0", "v", "--journal"]).expect(0);
    let (mut load, _input) = crate::common::loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    let state = || {
        let journal = options().facts(&path).unwrap().journal.unwrap();
        (std::fs::read(&path).unwrap(), journal.segments, journal.working.unwrap())
    };
    let before = state();
    compact([&path, &new]).expect(0);
    assert!(state() == before);
    let [of_copy, of_pool] = [&new, &path].map(|path| {
        let pool = open(path);
        let len = pool.map::<str, str>("main").unwrap().len().unwrap();
        pool.close().unwrap();
        len
    });
    assert_eq!(of_copy, of_pool);
}

/// Starts a compaction, stops it while it copies, and calls `meanwhile`. Then lets the compaction
/// finish, and returns its result.
fn interrupted(path: &Path, meanwhile: impl FnOnce(&Path)) -> Run {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".compacting");
    let unfinished = Path::new(&unfinished);
    let child =
        crate::common::stopped(crate::common::command().arg("compact").arg(path), unfinished);
    meanwhile(unfinished);
    crate::common::resumed(child)
}

#[test]
fn a_copy_gives_other_users_no_more_than_the_pool() {
    let place = Place::new();
    let (path, copy) = (place.pool(), place.path("copy.pool"));
    place.run(["put", "k", "v"]).expect(0);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let usual = mode(&path);
    for given in [0o600, 0o640, 0o644] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(given)).unwrap();
        for command in ["compact", "salvage", "snapshot", "backup"] {
            let mut process = crate::common::command();
            if ["compact", "salvage"].contains(&command) {
                process.arg(command).arg(&path).arg(&copy).env_remove("OUTLAST_POOL");
            } else {
                process.arg("--pool").arg(&path).arg(command).arg(&copy);
            }
            crate::common::finished(process.output().unwrap()).expect(0);
            assert_eq!(mode(&copy), given & usual, "{command}, {given:o}");
            std::fs::remove_file(&copy).unwrap();
        }
    }
}

#[test]
fn a_pool_that_was_replaced_meanwhile_is_not_replaced_again() {
    let place = Place::new();
    let (path, other) = (place.pool(), place.path("other.pool"));
    worn(&options(), &path);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // Meanwhile another compaction finishes, and the pool is changed.
    compact([&path, &other]).expect(0);
    let pool = open(&other);
    assert!(pool.map::<u64, u64>("later").unwrap().insert(&1, &2).unwrap());
    pool.close().unwrap();
    let run = interrupted(&path, |unfinished| {
        assert_eq!(unfinished.metadata().unwrap().permissions().mode() & 0o077, 0);
        std::fs::rename(&other, &path).unwrap();
    });
    assert!(run.expect(1).err.contains("replaced by another process"));
    let pool = open(&path);
    assert_eq!(pool.map::<u64, u64>("later").unwrap().get(&1).unwrap(), Some(2));
    check_worn(&pool);
    assert_eq!(names(&place), HashSet::from(["test.pool".into()]));
}

#[test]
fn what_another_compaction_has_made_replaces_nothing() {
    let place = Place::new();
    let path = place.pool();
    worn(&options(), &path);
    let run = interrupted(&path, |unfinished| {
        std::fs::remove_file(unfinished).unwrap();
        std::fs::write(unfinished, "another's").unwrap();
    });
    let err = run.expect(1).err.clone();
    // The library may notice it first, when it closes the pool that has lost its name.
    let told = ["replaced by another process", "has no name any more"];
    assert!(told.iter().any(|text| err.contains(text)), "{err}");
    check_worn(&open(&path));
}

/// Copies the segments of an open pool's journal to another directory.
fn copy_segments(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn segments_that_a_killed_process_has_left_lock_nobody_out() {
    let place = Place::new();
    let (path, kept) = (place.pool(), place.path("kept"));
    let journaled = options().journal(outlast::JournalOptions::new());
    let pool = create(&journaled, &path);
    assert!(pool.map::<u64, u64>("m").unwrap().insert(&1, &2).unwrap());
    pool.wait_durable().unwrap();
    let journal = place.path("test.pool.journal");
    copy_segments(&journal, &kept);
    pool.close().unwrap();
    // As if the process was killed after it had closed the pool, but before it had deleted the
    // segments.
    copy_segments(&kept, &journal);
    // As if a compaction was killed while it gave its pool a journal.
    let other = place.path("other.pool");
    let pool = create(&journaled, &other);
    pool.wait_durable().unwrap();
    copy_segments(&place.path("other.pool.journal"), &place.path("test.pool.compacting.journal"));
    pool.close().unwrap();
    compact([&path]).expect(0);
    assert!(!place.path("test.pool.compacting.journal").exists());
    // SAFETY: the file belongs to this test.
    let pool = unsafe { journaled.open(&path).unwrap() };
    assert_eq!(pool.map::<u64, u64>("m").unwrap().get(&1).unwrap(), Some(2));
    pool.close().unwrap();
}

#[test]
fn a_kill_leaves_the_old_pool_or_the_new_one() {
    let place = Place::new();
    let path = place.pool();
    worn(&options(), &path);
    for round in 0..25 {
        let mut child = crate::common::command().arg("compact").arg(&path).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(4 * round));
        let _ = child.kill();
        child.wait().unwrap();
        // SAFETY: the file belongs to this test.
        let opened = unsafe { options().open_read_only(&path) };
        match opened {
            Ok(pool) => check_worn(&pool),
            Err(error) => panic!("{error}, {}", matches!(error, Error::Locked { .. })),
        }
    }
    compact([&path]).expect(0);
    check_worn(&open(&path));
    assert_eq!(names(&place), HashSet::from(["test.pool".into()]));
}

#[test]
fn a_copy_that_is_not_complete_does_not_have_its_name() {
    let place = Place::new();
    let (path, new) = (place.pool(), place.path("new.pool"));
    worn(&options(), &path);
    let unfinished = place.path("new.pool.compacting");
    let start = || {
        let mut command = crate::common::command();
        crate::common::stopped(command.arg("compact").arg(&path).arg(&new), &unfinished)
    };
    // A file that gets the name meanwhile is not replaced.
    let child = start();
    std::fs::write(&new, "another").unwrap();
    assert!(crate::common::resumed(child).expect(1).err.contains("new.pool: File exists"));
    assert_eq!(std::fs::read(&new).unwrap(), b"another");
    std::fs::remove_file(&new).unwrap();
    // A kill leaves no file of that name either. The next run removes what it left under the
    // temporary name.
    let mut killed = start();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(unfinished.exists() && !new.exists());
    compact([&path, &new]).expect(0);
    check_worn(&open(&new));
    assert_eq!(names(&place), HashSet::from(["test.pool".into(), "new.pool".into()]));
}

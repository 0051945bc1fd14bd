//! Copies of a pool's file, reboots, other processes, forks, and panics.

use crate::files::{check_filled, child_path, create, dir, filled, in_child, open};
use outlast::MediumKind;
use outlast::{Error, JournalOptions, Pool, PoolOptions, TornReason};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_copy_of_a_live_pool_is_refused() {
    let (dir, path) = filled();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    map.update(&3, &10).unwrap();
    let copy = dir.path().join("copy.pool");
    fs::copy(&path, &copy).unwrap();
    let torn = open(&copy).unwrap_err();
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::Copy, .. }), "{torn}");
    // The user can open it all the same, verify it, and salvage its contents.
    // SAFETY: the file belongs to this test.
    let salvage = unsafe { PoolOptions::new().accept_possibly_torn(true).open(&copy).unwrap() };
    assert!(salvage.verify().unwrap().is_sound());
    assert_eq!(salvage.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    drop(salvage);
    open(&copy).expect("once it was closed it is a pool of its own");
    // Copies of a synced pool open like any other pool, and so do snapshots.
    pool.sync().unwrap();
    let synced = dir.path().join("synced.pool");
    fs::copy(&path, &synced).unwrap();
    assert_eq!(
        open(&synced).unwrap().map::<u64, u64>("numbers").unwrap().get(&3).unwrap(),
        Some(10)
    );
    map.update(&3, &11).unwrap();
    let snapshot = dir.path().join("snapshot.pool");
    fs::write(&snapshot, b"an older file").unwrap();
    pool.snapshot(&snapshot).unwrap();
    map.update(&3, &12).unwrap();
    let restored = open(&snapshot).unwrap();
    assert_eq!(restored.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(11));
    assert_eq!(restored.verify().unwrap().leaked_bytes, Some(0));
    assert_eq!(map.get(&3).unwrap(), Some(12));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "and nothing else is left");
}

#[test]
fn a_live_copy_in_the_place_of_the_original_is_refused() {
    use std::os::unix::fs::MetadataExt;
    let (dir, path) = filled();
    let pool = open(&path).unwrap();
    pool.map::<u64, u64>("numbers").unwrap().update(&3, &10).unwrap();
    let live = fs::read(&path).unwrap();
    drop(pool);
    let original = fs::metadata(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Most file systems reuse the inode number for one of the next files.
    let took_it = (0..64).map(|n| dir.path().join(n.to_string())).find(|file| {
        fs::write(file, b"").unwrap();
        fs::metadata(file).unwrap().ino() == original.ino()
    });
    let copy = took_it.unwrap_or_else(|| dir.path().join("0"));
    fs::write(&copy, live).unwrap();
    if original.created().is_err() && fs::metadata(&copy).unwrap().ino() == original.ino() {
        println!("skipped: this file system does not tell when a file was made");
        return;
    }
    let torn = open(&copy).unwrap_err();
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::Copy, .. }), "{torn}");
}

#[test]
fn a_snapshot_replaces_no_pool_that_is_open() {
    let (dir, path) = filled();
    let pool = open(&path).unwrap();
    let link = dir.path().join("link.pool");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for own in [&path, &link] {
        assert!(matches!(pool.snapshot(own), Err(Error::Invalid { .. })));
    }
    let other = dir.path().join("other.pool");
    let second = create(&other);
    assert!(matches!(pool.snapshot(&other), Err(Error::Locked { .. })));
    assert!(matches!(pool.snapshot(dir.path()), Err(Error::Invalid { .. } | Error::Io { .. })));
    second.close().unwrap();
    pool.snapshot(&other).unwrap();
    check_filled(&open(&other).unwrap());
    check_filled(&pool);
}

#[test]
fn a_pipe_is_no_pool_and_a_file_size_limit_no_end() {
    let (dir, path) = dir();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // SAFETY: there is no file.
    let refused = unsafe { PoolOptions::new().open_read_only(&pipe) };
    assert!(matches!(refused, Err(Error::NotAPool { .. })));
    assert!(matches!(open(&pipe), Err(Error::NotAPool { .. } | Error::Io { .. })));
    if let Some(path) = child_path() {
        let pool = create(&path);
        let map = pool.map::<u64, [u8]>("m").unwrap();
        let full = (0..).find_map(|n| map.insert(&n, &[1; 1000]).err()).unwrap();
        assert!(matches!(full, Error::DiskFull { .. }), "{full}");
        assert!(matches!(pool.snapshot(path.with_extension("copy")), Ok(())));
        assert!(map.remove(&0).unwrap().is_some());
        return;
    }
    let me = std::env::current_exe().unwrap();
    let script = "ulimit -f 16384; exec \"$0\" --exact \
                  processes::a_pipe_is_no_pool_and_a_file_size_limit_no_end --test-threads 1";
    let child = Command::new("bash")
        .args(["-c", script])
        .arg(&me)
        .env("OUTLAST_TEST_CHILD", &path)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
fn a_snapshot_removes_what_dead_processes_left_of_theirs() {
    let (dir, path) = filled();
    let name = |number: u64| dir.path().join(format!(".outlast-{number:016x}.snapshot"));
    let new = dir.path().join(".outlast-0000000000000003.new");
    let other = dir.path().join("other.snapshot");
    for file in [&name(1), &name(2), &new, &other] {
        fs::write(file, [0; 100]).unwrap();
    }
    // This one is being written.
    let living = fs::File::open(name(2)).unwrap();
    living.try_lock().unwrap();
    let pool = open(&path).unwrap();
    let copy = dir.path().join("copy.pool");
    for _ in 0..2 {
        pool.snapshot(&copy).unwrap();
        open(&copy).unwrap().close().unwrap();
    }
    let there = [name(1), name(2), new, other].map(|file| file.exists());
    assert_eq!(there, [false, true, false, true]);
    drop(living);
}

#[test]
fn a_copy_gives_other_users_no_more_than_the_pool() {
    let (dir, path) = filled();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let usual = mode(&path);
    let copy = dir.path().join("copy.pool");
    for given in [0o600, 0o640, 0o400, 0o666] {
        fs::set_permissions(&path, Permissions::from_mode(given)).unwrap();
        let allowed = usual & (given | 0o600);
        // SAFETY: no one else writes the file.
        let pool = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
        pool.snapshot(&copy).unwrap();
        assert_eq!(mode(&copy), allowed, "a snapshot, {given:o}");
        drop(pool);
        // SAFETY: as above.
        unsafe { PoolOptions::new().backup(&path, &copy).unwrap() };
        assert_eq!(mode(&copy), allowed, "a backup, {given:o}");
    }
    // What was meant for the pool's group is not for another group.
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(outlast::internals::pmem::mode_of_copy(&meta, meta.gid(), 0o644), 0o644);
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(outlast::internals::pmem::mode_of_copy(&meta, meta.gid(), 0o644), 0o640);
    assert_eq!(outlast::internals::pmem::mode_of_copy(&meta, meta.gid() + 1, 0o644), 0o600);
}

#[test]
fn an_unclean_pool_of_an_earlier_boot_is_refused() {
    let (dir, path) = filled();
    let with_boot = |boot| PoolOptions::new().survive(outlast::Failure::ProcessDeath).boot_id(boot);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(1).open(&path).unwrap() };
    pool.map::<u64, u64>("numbers").unwrap().update(&3, &10).unwrap();
    // Imitate what a kill leaves: the file as it is now, under the same inode.
    let killed = fs::read(&path).unwrap();
    drop(pool);
    fs::write(&path, &killed).unwrap();
    // SAFETY: the file belongs to this test.
    let torn = unsafe { with_boot(2).open(&path) }.unwrap_err();
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::EarlierBoot, .. }), "{torn}");
    // SAFETY: the file belongs to this test.
    let same = unsafe { with_boot(1).open(&path).unwrap() };
    assert_eq!(same.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    // After a sync or a close, the pool opens after an orderly reboot.
    same.sync().unwrap();
    let synced = fs::read(&path).unwrap();
    drop(same);
    fs::write(&path, &synced).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(3).open(&path).unwrap() };
    assert_eq!(pool.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    drop((pool, dir));
}

/// Waits until a pool is clean.
fn wait_until_clean(pool: &Pool) {
    let start = Instant::now();
    while !pool.store().core().is_clean() {
        assert!(start.elapsed() < Duration::from_secs(60), "an idle pool is synced");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_idle_pool_is_synced_so_that_a_reboot_finds_it_clean() {
    let (_dir, path) = filled();
    let with_boot = |boot| {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .medium(MediumKind::PageCache)
            .boot_id(boot)
    };
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(1).open(&path).unwrap() };
    let map = pool.map::<u64, u64>("numbers").unwrap();
    map.update(&3, &9).unwrap();
    assert!(!pool.store().core().is_clean());
    let killed = fs::read(&path).unwrap();
    wait_until_clean(&pool);
    // Lookups leave the pool clean. The next change makes it dirty.
    assert_eq!(map.get(&3).unwrap(), Some(9));
    assert!(pool.store().core().is_clean());
    map.update(&3, &10).unwrap();
    assert!(!pool.store().core().is_clean());
    wait_until_clean(&pool);
    let synced = fs::read(&path).unwrap();
    drop((map, pool));
    fs::write(&path, &synced).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(2).open(&path).unwrap() };
    assert_eq!(pool.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    drop(pool);
    // The same holds for a pool that a killed process left dirty, and that nobody has changed
    // since.
    fs::write(&path, &killed).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(1).open(&path).unwrap() };
    wait_until_clean(&pool);
    let synced = fs::read(&path).unwrap();
    drop(pool);
    fs::write(&path, &synced).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(2).open(&path).unwrap() };
    assert_eq!(pool.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(9));
}

#[test]
fn a_copy_of_an_idle_pool_is_refused_until_the_caller_syncs() {
    let (dir, path) = filled();
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .medium(MediumKind::PageCache)
        .boot_id(1);
    let copy = dir.path().join("copy");
    let open_copy = || {
        fs::copy(&path, &copy).unwrap();
        // SAFETY: the file belongs to this test.
        unsafe { options.clone().open(&copy) }
    };
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.clone().open(&path).unwrap() };
    pool.map::<u64, u64>("numbers").unwrap().update(&3, &9).unwrap();
    wait_until_clean(&pool);
    // The pool may be in use again before the copy is complete.
    match open_copy() {
        Err(Error::PossiblyTorn { reason: TornReason::Copy, .. }) => {}
        other => panic!("{other:?}"),
    }
    // A journal does not make the copy sound either.
    let journaled = options.clone().journal(JournalOptions::new());
    // SAFETY: the file belongs to this test.
    match unsafe { journaled.open(&copy) } {
        Err(Error::PossiblyTorn { reason: TornReason::Copy, .. }) => {}
        other => panic!("{other:?}"),
    }
    // Neither does verifying the original pool.
    assert!(pool.verify().unwrap().is_sound());
    assert!(matches!(open_copy(), Err(Error::PossiblyTorn { reason: TornReason::Copy, .. })));
    let accepted = options.clone().accept_possibly_torn(true);
    // SAFETY: the file belongs to this test.
    let accepted = unsafe { accepted.open(&copy).unwrap() };
    assert!(matches!(accepted.sync(), Err(Error::Suspect)));
    assert!(accepted.verify().unwrap().is_sound());
    accepted.close().unwrap();
    // After a `sync`, a copy is accepted: the caller guarantees that nothing changes while the file
    // is copied.
    pool.sync().unwrap();
    let copied = open_copy().unwrap();
    assert_eq!(copied.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(9));
    drop(copied);
    pool.map::<u64, u64>("numbers").unwrap().update(&3, &10).unwrap();
    wait_until_clean(&pool);
    pool.close().unwrap();
    let copied = open_copy().unwrap();
    assert_eq!(copied.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
}

#[test]
fn what_the_background_thread_does_does_not_keep_a_pool_from_being_synced() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).medium(MediumKind::PageCache);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(dir.path().join("pool")).unwrap() };
    let map = pool.map::<u64, str>("m").unwrap();
    let dropped = pool.map::<u64, str>("dropped").unwrap();
    map.put(&1, "old").unwrap();
    dropped.put(&1, "old").unwrap();
    // The background thread keeps trying to free what these two hold.
    let old = map.get_ref(&1).unwrap().unwrap();
    map.put(&1, "new").unwrap();
    pool.drop_map("dropped").unwrap();
    wait_until_clean(&pool);
    assert_eq!(&*old.to_owned().unwrap(), "old");
    drop(dropped);
}

#[test]
fn a_pool_is_not_synced_while_it_is_changed_nor_against_its_options() {
    let dir = tempfile::tempdir().unwrap();
    let create = |name: &str, options: PoolOptions| {
        // SAFETY: the file belongs to this test.
        unsafe { options.medium(MediumKind::PageCache).create(dir.path().join(name)).unwrap() }
    };
    let busy = create("busy", PoolOptions::new().survive(outlast::Failure::ProcessDeath));
    let without = create(
        "without",
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).idle_sync(false),
    );
    let map = busy.map::<u64, u64>("m").unwrap();
    without.map::<u64, u64>("m").unwrap().insert(&1, &1).unwrap();
    map.insert(&1, &0).unwrap();
    let start = Instant::now();
    // Make a change every tenth of a second. A loaded machine may delay one for half a second.
    for n in 1.. {
        if start.elapsed() > Duration::from_secs(4) {
            break;
        }
        map.update(&1, &n).unwrap();
        let changed = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let clean = busy.store().core().is_clean();
        assert!(!clean || changed.elapsed() > Duration::from_millis(900), "synced in use");
    }
    assert!(!without.store().core().is_clean());
}

#[test]
fn a_second_process_is_locked_out() {
    if let Some(path) = child_path() {
        assert!(matches!(open(&path), Err(Error::Locked { .. })));
        // SAFETY: the file belongs to this test.
        let reader = unsafe { PoolOptions::new().open_read_only(&path) };
        assert!(matches!(reader, Err(Error::Locked { .. })));
        return;
    }
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    assert!(matches!(open(&path), Err(Error::Locked { .. })), "nor a second time in this one");
    let child = in_child("processes::a_second_process_is_locked_out", &path).status().unwrap();
    assert!(child.success());
    check_filled(&pool);
}

#[test]
fn a_closed_pool_is_unlocked_though_children_are_being_started() {
    let (_dir, path) = filled();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // Do not use `output`, which may start the child without a fork.
                let mut child = Command::new("true");
                // SAFETY: the closure does nothing. Its presence makes the start use a fork.
                unsafe { std::os::unix::process::CommandExt::pre_exec(&mut child, || Ok(())) };
                child.status().unwrap();
            }
        });
        let opened: Vec<_> = (0..300).map(|_| open(&path).map(Pool::close)).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(opened.into_iter().all(|o| matches!(o, Ok(Ok(())))));
    });
}

#[test]
fn a_forked_child_gets_errors_and_harms_nothing() {
    if child_path().is_none() {
        let (_dir, path) = filled();
        // Run the test in its own process, because forking a process that has many threads is not a
        // fair test.
        let child = in_child("processes::a_forked_child_gets_errors_and_harms_nothing", &path);
        let status = { child }.status().unwrap();
        assert!(status.success());
        check_filled(&open(&path).unwrap());
        return;
    }
    let path = child_path().unwrap();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    map.update(&1, &1).unwrap();
    // SAFETY: the child calls nothing for which another thread could hold a lock, and ends with
    // _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = matches!(map.get(&1), Err(Error::NotOpen(_)))
            && matches!(map.put(&1, &9), Err(Error::NotOpen(_)))
            && matches!(pool.map::<u64, u64>("numbers"), Err(Error::NotOpen(_)))
            && matches!(pool.sync(), Err(Error::NotOpen(_)));
        drop((map, pool));
        // SAFETY: `_exit` ends the child without running anything else.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the child got what it should not");
    assert_eq!(map.get(&1).unwrap(), Some(1));
    map.update(&1, &8).unwrap();
    pool.close().unwrap();
}

#[test]
fn a_panic_in_a_closure_leaves_the_pool_usable() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let words = pool.map::<u64, u64>("w").unwrap();
    let texts = pool.map::<str, str>("t").unwrap();
    words.insert(&1, &2).unwrap();
    texts.insert("a", "b").unwrap();
    for _ in 0..3 {
        let words = words.clone();
        let texts = texts.clone();
        std::thread::spawn(move || words.fetch_update(&1, |_| panic!("on purpose")))
            .join()
            .unwrap_err();
        std::thread::spawn(move || texts.fetch_update("a", |_| panic!("on purpose")))
            .join()
            .unwrap_err();
    }
    assert_eq!(words.fetch_update(&1, |n| Some(n + 1)).unwrap(), Some(2));
    assert_eq!(texts.put("a", "c").unwrap().as_deref(), Some("b"));
    assert!(pool.verify().unwrap().is_sound());
}

/// The variable that makes a process a child of the next test.
const MANY: &str = "OUTLAST_TEST_MANY";

#[test]
fn many_pools() {
    if std::env::var_os(MANY).is_none() {
        return;
    }
    let mut pools = Vec::new();
    for number in 0..1_000_u64 {
        let pool = PoolOptions::new().anonymous().unwrap();
        // The kernel lists all mappings of the process for each call.
        if number % 250 == 249 {
            assert!(pool.stats().limit >= 64 << 30, "pool {number}: {:?}", pool.stats());
        }
        pool.map::<u64, u64>("numbers").unwrap().insert(&number, &(number + 1)).unwrap();
        pools.push(pool);
    }
    for (number, pool) in pools.iter().enumerate() {
        let numbers = pool.map::<u64, u64>("numbers").unwrap();
        assert_eq!(numbers.get(&(number as u64)).unwrap(), Some(number as u64 + 1));
    }
}

#[test]
fn a_thousand_pools_fit_into_a_process() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "processes::many_pools", "--test-threads", "1"]).env(MANY, "1");
    let done = child.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

//! What a pool returns when something is wrong: a typed error each time, and nothing is lost.

use outlast::{
    Error, MAX_KEY_BYTES, MAX_VALUE_BYTES, MapOptions, Pool, PoolOptions, Scheme, TornReason,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const HEADERS: [u64; 2] = [0, 4096];

fn dir() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    (dir, path)
}

fn create(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().create(path).unwrap() }
}

fn open(path: &Path) -> Result<Pool, Error> {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().open(path) }
}

/// Makes a closed pool with a thousand records.
fn filled() -> (TempDir, PathBuf) {
    let (dir, path) = dir();
    let pool = create(&path);
    let map = pool.map::<u64, u64>("numbers").unwrap();
    for n in 0..1000 {
        assert!(map.insert(&n, &(n + 7)).unwrap());
    }
    pool.close().unwrap();
    (dir, path)
}

fn check_filled(pool: &Pool) {
    let map = pool.map::<u64, u64>("numbers").unwrap();
    for n in 0..1000 {
        assert_eq!(map.get(&n).unwrap(), Some(n + 7));
    }
    assert_eq!(map.get(&1000).unwrap(), None);
}

/// Changes a word of both header copies and corrects their checksums.
fn set_header_word(path: &Path, index: usize, value: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    for offset in HEADERS {
        let mut bytes = [0; 512];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
        let sum = u64::from(crc32c::crc32c(&bytes[..504]));
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&bytes, offset).unwrap();
    }
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn files_that_are_no_pools() {
    let (dir, path) = dir();
    assert!(matches!(open(&path), Err(Error::NoSuchPool { .. })));
    for content in [&b""[..], b"hello", &[0; 1 << 20], &[0xff; 300_000]] {
        fs::write(&path, content).unwrap();
        assert!(matches!(open(&path), Err(Error::NotAPool { .. })), "{} bytes", content.len());
        assert_eq!(fs::read(&path).unwrap(), content, "and it is left alone");
    }
    assert!(matches!(open(dir.path()), Err(Error::NotAPool { .. } | Error::Io { .. })));
    // SAFETY: the file belongs to this test.
    let exists = unsafe { PoolOptions::new().create(&path) };
    assert!(matches!(exists, Err(Error::Io { .. })));
    let nowhere = dir.path().join("no/such/directory/a.pool");
    // SAFETY: there is no file.
    let nowhere = unsafe { PoolOptions::new().create(nowhere) };
    assert!(matches!(nowhere, Err(Error::Io { .. })));
    // Failed creations leave nothing behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn other_versions_and_unknown_features() {
    let (_dir, path) = filled();
    set_header_word(&path, 1, 3 | 512 << 32);
    assert!(matches!(open(&path), Err(Error::Version { found: 3, supported: 2 })));
    set_header_word(&path, 1, 2 | 512 << 32);
    set_header_word(&path, 4, 1 << 40);
    let unknown = open(&path);
    assert!(matches!(unknown, Err(Error::UnknownFeature { bits: 0x100_0000_0000, .. })));
    set_header_word(&path, 4, 0);
    // Read-only compatible: readers may open it, writers may not. Compatible: both may.
    set_header_word(&path, 3, 1 << 40);
    let unknown = open(&path);
    assert!(matches!(unknown, Err(Error::UnknownFeature { bits: 0x100_0000_0000, .. })));
    // SAFETY: the file belongs to this test.
    check_filled(&unsafe { PoolOptions::new().open_read_only(&path).unwrap() });
    set_header_word(&path, 3, 0);
    set_header_word(&path, 2, 4);
    check_filled(&open(&path).unwrap());
}

#[test]
fn truncated_and_damaged_headers() {
    let (_dir, path) = filled();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 4096]).unwrap();
    assert!(matches!(open(&path), Err(Error::Truncated { .. })));
    // If one copy is damaged, the other one serves, and the damage is reported.
    for copy in HEADERS {
        fs::write(&path, &whole).unwrap();
        flip(&path, copy + 100);
        // SAFETY: the file belongs to this test.
        let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
        check_filled(&reader);
        assert_eq!(reader.stats().damaged_header_copy.unwrap().offset(), copy);
        // A crash can leave the same, so it is reported but is not damage.
        let found = reader.verify().unwrap();
        assert_eq!(found.header_copy.as_ref().map(|damage| damage.offset()), Some(copy));
        assert!(found.is_sound(), "{found:?}");
        drop(reader);
        // The first write replaces the damaged copy.
        let pool = open(&path).unwrap();
        check_filled(&pool);
        assert_eq!(pool.stats().damaged_header_copy, None);
        assert!(pool.verify().unwrap().is_sound());
    }
    fs::write(&path, &whole).unwrap();
    flip(&path, 100);
    flip(&path, 4196);
    assert!(matches!(open(&path), Err(Error::DamagedHeader(_))));
    fs::write(&path, &whole).unwrap();
    flip(&path, 8192);
    assert!(matches!(open(&path), Err(Error::DamagedHeader(d)) if d.offset() == 8192));
}

#[test]
fn damaged_roots_and_structures() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    pool.map::<str, str>("texts").unwrap().insert("a", "b").unwrap();
    pool.close().unwrap();
    let whole = fs::read(&path).unwrap();
    let root = 16 << 10;
    flip(&path, root + 70);
    let pool = open(&path).unwrap();
    assert_eq!(pool.map::<str, str>("texts").unwrap().get("a").unwrap().as_deref(), Some("b"));
    let damaged = pool.map::<u64, u64>("numbers");
    assert!(matches!(damaged, Err(Error::DamagedRoot { slot: 0, .. })), "not made anew");
    assert!(pool.maps().iter().any(|m| matches!(m, Err(Error::DamagedRoot { .. }))));
    assert!(!pool.verify().unwrap().is_sound());
    drop(pool);
    // A damaged segment identity: only operations that need the segment report it.
    fs::write(&path, &whole).unwrap();
    let scheme =
        u64::from_le_bytes(whole[root as usize + 8..root as usize + 16].try_into().unwrap());
    let directory = (scheme & 0xffff_ffff_ffff) as usize;
    let first = &whole[directory + 64..directory + 72];
    let segment = u64::from_le_bytes(first.try_into().unwrap());
    flip(&path, segment + 3);
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    let answers: Vec<_> = (0..1000).map(|n| map.get(&n)).collect();
    let damage =
        answers.iter().filter(|a| matches!(a, Err(Error::Damaged(d)) if d.offset() == segment));
    assert!((100..900).contains(&damage.count()));
    assert!(answers.iter().filter_map(|a| a.as_ref().ok()).all(Option::is_some));
    let found = pool.verify().unwrap();
    assert!(found.all_damage().any(|d| d.offset() == segment), "{found:?}");
}

#[test]
fn keys_and_values_of_every_size_up_to_the_limit() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map = pool.map::<[u8], [u8]>("m").unwrap();
    let key = vec![7; MAX_KEY_BYTES + 1];
    let value = vec![9; MAX_VALUE_BYTES + 1];
    assert!(matches!(map.insert(&key, b""), Err(Error::KeyTooLarge { .. })));
    assert!(matches!(map.get(&key), Err(Error::KeyTooLarge { .. })));
    assert!(matches!(map.insert(b"", &value), Err(Error::ValueTooLarge { .. })));
    assert!(map.insert(&key[1..], b"").unwrap());
    assert!(map.insert(b"", &value[1..]).unwrap());
    assert_eq!(map.get(&key[1..]).unwrap().unwrap(), b"");
    assert!(map.get(b"").unwrap().unwrap() == value[1..]);
    assert!(map.remove(b"").unwrap().is_some());
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

#[test]
fn maps_are_what_they_were_created_as() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let mismatch = |e: Error, what: &str| {
        assert!(matches!(e, Error::MapMismatch { what: w, .. } if w == what), "{what}");
    };
    mismatch(pool.map::<u64, str>("numbers").unwrap_err(), "value schema");
    mismatch(pool.map::<i64, u64>("numbers").unwrap_err(), "key schema");
    let bytes = MapOptions::new().form(outlast::RecordForm::Bytes);
    mismatch(pool.map_with::<u64, u64>("numbers", &bytes).unwrap_err(), "record form");
    assert!(matches!(pool.raw_map("none"), Err(Error::NoSuchMap { .. })));
    assert!(matches!(pool.drop_map("none"), Err(Error::NoSuchMap { .. })));
    let of_another_scheme = MapOptions::new().scheme(Scheme::Clevel).stash_buckets(2);
    let refused = pool.map_with::<u64, u64>("new", &of_another_scheme).unwrap_err().to_string();
    assert!(refused.contains("stash_buckets is no option of the scheme clevel"), "{refused}");
    for options in [MapOptions::new().stash_buckets(3), MapOptions::new().bucket_bits(7)] {
        let invalid = pool.map_with::<u64, u64>("new", &options);
        assert!(matches!(invalid, Err(Error::Invalid { .. })));
    }
    assert!(matches!(pool.map::<u64, u64>(""), Err(Error::Invalid { .. })));
    let long = "n".repeat(500);
    assert!(matches!(pool.map::<u64, u64>(&long), Err(Error::Invalid { .. })));
    let small = MapOptions::new().bucket_bits(1);
    for n in 1..128 {
        pool.map_with::<u64, u64>(&format!("map {n}"), &small).unwrap();
    }
    let many = pool.map::<u64, u64>("one more");
    assert!(matches!(many, Err(Error::TooManyMaps { max: 128 })));
    pool.drop_map("map 5").unwrap();
    pool.map::<u64, u64>("one more").unwrap();
    check_filled(&pool);
}

#[test]
fn small_integers_keep_their_values() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map = pool.map::<i8, i32>("m").unwrap();
    for n in i8::MIN..=i8::MAX {
        assert!(map.insert(&n, &(i32::from(n) * -7)).unwrap());
    }
    for n in i8::MIN..=i8::MAX {
        assert_eq!(map.get(&n).unwrap(), Some(i32::from(n) * -7));
    }
    let wide = pool.map::<i64, u8>("w").unwrap();
    wide.put(&i64::MIN, &255).unwrap();
    assert_eq!(wide.iter().collect::<Result<Vec<_>, _>>().unwrap(), [(i64::MIN, 255)]);
}

#[test]
fn read_only_pools_refuse_changes_and_leave_the_file_alone() {
    let (_dir, path) = filled();
    let before = fs::read(&path).unwrap();
    // SAFETY: the file belongs to this test.
    let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    // SAFETY: the file belongs to this test.
    let second = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    check_filled(&reader);
    check_filled(&second);
    let map = reader.map::<u64, u64>("numbers").unwrap();
    assert!(matches!(map.insert(&5000, &1), Err(Error::ReadOnly)));
    assert!(matches!(map.remove(&5), Err(Error::ReadOnly)));
    assert!(matches!(reader.map::<u64, u64>("new"), Err(Error::ReadOnly)));
    assert!(matches!(reader.drop_map("numbers"), Err(Error::ReadOnly)));
    assert!(reader.verify().unwrap().is_sound());
    assert!(matches!(open(&path), Err(Error::Locked)), "no writer beside readers");
    drop(map);
    reader.close().unwrap();
    second.close().unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn closed_pools_and_dropped_maps() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let other = pool.clone();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    pool.close().unwrap();
    assert!(matches!(map.get(&1), Err(Error::NotOpen(_))));
    assert!(matches!(map.put(&1, &1), Err(Error::NotOpen(_))));
    assert!(matches!(other.sync(), Err(Error::NotOpen(_))));
    drop((map, other));
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    pool.drop_map("numbers").unwrap();
    assert!(matches!(map.get(&1), Err(Error::MapDropped)));
    // A new map of the same name is a different map.
    let new = pool.map::<str, str>("numbers").unwrap();
    assert_eq!(new.len_estimate().unwrap(), 0);
    drop(map);
    // Dropping the last handle closes the pool as `close` does.
    drop((new, pool));
    let pool = open(&path).unwrap();
    assert_eq!(pool.verify().unwrap().leaked_bytes, Some(0));
}

// ---- Copies, boots, processes, forks ------------------------------------------

#[test]
fn a_copy_of_a_live_pool_is_refused() {
    let (dir, path) = filled();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("numbers").unwrap();
    map.update(&3, &10).unwrap();
    let copy = dir.path().join("copy.pool");
    fs::copy(&path, &copy).unwrap();
    let torn = open(&copy).unwrap_err();
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::Copy }), "{torn}");
    // The user can open it all the same, verify it, and salvage its contents.
    // SAFETY: the file belongs to this test.
    let salvage = unsafe { PoolOptions::new().accept_possibly_torn(true).open(&copy).unwrap() };
    assert!(salvage.verify().unwrap().is_sound());
    assert_eq!(salvage.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    drop(salvage);
    open(&copy).expect("once it was closed it is a pool of its own");
    // Copies of a pool that is in sync are pools, and so are snapshots.
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
    // Most file systems give the inode number to one of the next files.
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
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::Copy }), "{torn}");
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
    assert!(matches!(pool.snapshot(&other), Err(Error::Locked)));
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
                  a_pipe_is_no_pool_and_a_file_size_limit_no_end --test-threads 1";
    let child = Command::new("bash")
        .args(["-c", script])
        .arg(&me)
        .env("OUTLAST_TEST_CHILD", &path)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
fn an_unclean_pool_of_an_earlier_boot_is_refused() {
    let (dir, path) = filled();
    let with_boot = |boot| PoolOptions::new().boot_id(boot);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(1).open(&path).unwrap() };
    pool.map::<u64, u64>("numbers").unwrap().update(&3, &10).unwrap();
    // Imitate what a kill leaves: the file as it is now, under the same inode.
    let killed = fs::read(&path).unwrap();
    drop(pool);
    fs::write(&path, &killed).unwrap();
    // SAFETY: the file belongs to this test.
    let torn = unsafe { with_boot(2).open(&path) }.unwrap_err();
    assert!(matches!(torn, Error::PossiblyTorn { reason: TornReason::EarlierBoot }), "{torn}");
    // SAFETY: the file belongs to this test.
    let same = unsafe { with_boot(1).open(&path).unwrap() };
    assert_eq!(same.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    // After a sync or a close, an orderly reboot is no problem.
    same.sync().unwrap();
    let synced = fs::read(&path).unwrap();
    drop(same);
    fs::write(&path, &synced).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { with_boot(3).open(&path).unwrap() };
    assert_eq!(pool.map::<u64, u64>("numbers").unwrap().get(&3).unwrap(), Some(10));
    drop((pool, dir));
}

/// Runs one of this file's tests again in a process of its own.
fn in_child(test: &str, path: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("OUTLAST_TEST_CHILD", path);
    child
}

fn child_path() -> Option<PathBuf> {
    std::env::var_os("OUTLAST_TEST_CHILD").map(PathBuf::from)
}

#[test]
fn a_second_process_is_locked_out() {
    if let Some(path) = child_path() {
        assert!(matches!(open(&path), Err(Error::Locked)));
        // SAFETY: the file belongs to this test.
        let reader = unsafe { PoolOptions::new().open_read_only(&path) };
        assert!(matches!(reader, Err(Error::Locked)));
        return;
    }
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    assert!(matches!(open(&path), Err(Error::Locked)), "nor a second time in this one");
    let child = in_child("a_second_process_is_locked_out", &path).status().unwrap();
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
        // Run in a process of its own, because forking one with many threads is no fair test.
        let child = in_child("a_forked_child_gets_errors_and_harms_nothing", &path);
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

// ---- Space ---------------------------------------------------------------------

#[test]
fn a_full_pool_says_so_and_serves_again_after_removals() {
    let (_dir, path) = dir();
    let options = PoolOptions::new().initial_size(1 << 20).page_bits(12).max_size(1 << 20);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().bucket_bits(2)).unwrap();
    let fill = |from: u64| {
        let mut n = from;
        loop {
            match map.insert(&n, &[n as u8; 120]) {
                Ok(done) => assert!(done),
                Err(Error::PoolFull { limit, .. }) => {
                    assert_eq!(limit, 1 << 20);
                    return n;
                }
                Err(error) => panic!("{error}"),
            }
            n += 1;
        }
    };
    let end = fill(0);
    assert!(end > 3000, "{end} records in a megabyte");
    assert!(matches!(pool.map::<u64, u64>("new"), Err(Error::PoolFull { .. })));
    for n in 0..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), [n as u8; 120]);
    }
    for n in 0..end / 2 {
        assert!(map.remove(&n).unwrap().is_some());
    }
    assert!(fill(end) > end + end / 3, "removed space is used again");
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    drop(map);
    pool.close().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    assert!(open(&path).unwrap().verify().unwrap().is_sound());
}

/// The slot of a dropped map looks like that of a lost one, and comes first here.
#[test]
fn a_lost_root_is_told_from_a_dropped_map() {
    let (_dir, path) = dir();
    let pool = create(&path);
    for name in ["a", "b", "c"] {
        pool.map::<u64, u64>(name).unwrap().insert(&1, &2).unwrap();
    }
    pool.drop_map("a").unwrap();
    pool.close().unwrap();
    let roots = outlast::pool::core::root_offset(0).raw();
    let lost = outlast::pool::core::root_offset(1).raw();
    assert!(lost > roots);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 8], lost).unwrap();
    let pool = open(&path).unwrap();
    let told: Vec<_> = pool.maps().into_iter().filter_map(Result::err).collect();
    assert!(
        matches!(&told[..], [Error::DamagedRoot { slot: 1, damage }] if damage.offset() == lost),
        "{told:?}"
    );
    assert!(pool.map::<u64, u64>("d").is_err() && !pool.verify().unwrap().is_sound());
}

#[test]
fn the_slots_of_dropped_maps_are_free_once_their_handles_are_gone() {
    let pool = PoolOptions::new().background(false).anonymous().unwrap();
    let mut handles = Vec::new();
    let full = loop {
        match pool.map::<u64, u64>("m") {
            Ok(map) => handles.push(map),
            Err(error) => break error,
        }
        pool.drop_map("m").unwrap();
    };
    assert!(matches!(full, Error::TooManyMaps { max: 128 }), "{full}");
    assert_eq!(handles.len(), 128);
    drop(handles);
    pool.map::<u64, u64>("m").unwrap();
}

/// An allocator that keeps a run for each size must give them back before it says that a pool is
/// full.
#[test]
fn a_pool_that_has_seen_records_of_every_size_is_not_full() {
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new().max_size(4 << 20).background(false);
        let pool = options.anonymous().unwrap();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme).small());
        let map = map.unwrap();
        for len in (500..60_000).step_by(500) {
            let inserted = map.insert(&1, &vec![7; len]);
            assert!(inserted.unwrap_or_else(|e| panic!("{scheme}, {len} bytes: {e}")));
            map.remove(&1).unwrap();
        }
        let found = pool.verify().unwrap();
        assert!(found.is_sound() && found.used_bytes < 1 << 19, "{scheme}: {found:?}");
    }
}

/// Growth takes several pages in a row. Where there are none, a map goes on in single pages.
#[test]
fn a_map_grows_in_pages_that_are_not_in_a_row() {
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new().page_bits(15).max_size(16 << 20).background(false);
        let pool = options.anonymous().unwrap();
        let map = MapOptions::new().scheme(scheme).small();
        let map = pool.map_with::<u64, u64>("m", &map).unwrap();
        let pages = pool.map::<u64, [u8]>("pages").unwrap();
        let mut last = 0;
        while pages.put(&last, &[1; 20_000]).is_ok() {
            last += 1;
        }
        for n in (0..last).step_by(2) {
            pages.remove(&n).unwrap();
        }
        assert!(pool.stats().limit == 16 << 20 && last > 400, "{last} pages");
        for n in 0..20_000 {
            assert!(map.insert(&n, &(n + 1)).unwrap_or_else(|e| panic!("{scheme}, key {n}: {e}")));
        }
        assert!((0..20_000).all(|n| map.get(&n).unwrap() == Some(n + 1)), "{scheme}");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// A small file system of the test's own, or `None` if mounting is not allowed.
struct Mounted(TempDir);

impl Mounted {
    fn new(megabytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(out) if out.status.success() => Some(Mounted(dir)),
            _ => {
                println!("skipped: no file system can be mounted here");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_a_typed_error_and_nothing_is_lost() {
    let Some(mounted) = Mounted::new(12) else { return };
    let path = mounted.0.path().join("a.pool");
    let pool = create(&path);
    let map = pool.map::<u64, [u8]>("m").unwrap();
    let value = |n: u64| vec![n as u8; 500];
    let mut end = 0;
    let error = loop {
        match map.insert(&end, &value(end)) {
            Ok(done) => assert!(done),
            Err(error) => break error,
        }
        end += 1;
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    for n in 0..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), value(n));
    }
    for n in 0..1000 {
        assert!(map.remove(&n).unwrap().is_some());
    }
    for n in 0..900 {
        assert!(map.insert(&(end + n), &value(n)).unwrap(), "removed space is used again");
    }
    drop(map);
    pool.close().unwrap();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, [u8]>("m").unwrap();
    for n in 1000..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), value(n));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    // Leave no space for a new file at all.
    let other = mounted.0.path().join("b.pool");
    let filler = File::create(mounted.0.path().join("filler")).unwrap();
    let _ = std::io::copy(&mut std::io::repeat(1), &mut &filler);
    // SAFETY: the file belongs to this test.
    let refused = unsafe { PoolOptions::new().create(&other) };
    assert!(matches!(refused, Err(Error::DiskFull { .. } | Error::Io { .. })));
    assert!(!other.exists());
    // Reopening needs no space.
    drop((map, pool));
    assert!(open(&path).unwrap().verify().unwrap().is_sound());
}

#[test]
fn little_address_space_opens_smaller_or_says_why() {
    if let Some(path) = child_path() {
        let outcome = open(&path);
        match (std::env::var("OUTLAST_TEST_EXPECT").unwrap().as_str(), outcome) {
            ("opens", Ok(pool)) => {
                check_filled(&pool);
                assert!(pool.stats().limit < 1 << 40);
            }
            ("refused", Err(Error::AddressSpace { .. })) => {}
            (expected, other) => panic!("{expected}: {other:?}"),
        }
        return;
    }
    let (_dir, path) = filled();
    let me = std::env::current_exe().unwrap();
    for (kilobytes, expected) in [(8 << 20, "opens"), (600 << 10, "refused")] {
        let script = format!(
            "ulimit -v {kilobytes}; exec \"$0\" --exact \
             little_address_space_opens_smaller_or_says_why --test-threads 1"
        );
        let child = Command::new("sh")
            .args(["-c", &script])
            .arg(&me)
            .env("OUTLAST_TEST_CHILD", &path)
            .env("OUTLAST_TEST_EXPECT", expected)
            .output()
            .unwrap();
        assert!(child.status.success(), "{expected}: {}", String::from_utf8_lossy(&child.stdout));
    }
}

#[test]
fn the_medium_is_named() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let durability = pool.durability();
    assert!(durability.survives_process_death);
    assert_eq!(durability.survives_power_loss, durability.medium.survives_power_loss());
    drop(pool);
    // SAFETY: the file belongs to this test.
    let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    assert_eq!(reader.durability().medium, durability.medium);
    drop(reader);
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new().emulate_pm(outlast::pmem::Latency::default()).open(&path).unwrap()
    };
    check_filled(&pool);
    assert_eq!(pool.durability().medium, outlast::pmem::MediumKind::EmulatedPm);
    assert!(matches!(pool.durability().flush, outlast::pmem::FlushMode::Lines(_)));
    assert!(!pool.durability().survives_power_loss);
    let anonymous = PoolOptions::new().anonymous().unwrap();
    assert!(!anonymous.durability().survives_process_death);
}

#[test]
fn what_is_kept_in_dram_is_what_was_touched() {
    const RECORDS: u64 = 200_000;
    let (_dir, path) = dir();
    // SAFETY: only this test uses the file.
    let pool = unsafe { PoolOptions::new().create(&path).unwrap() };
    let ahead = pool.stats().shadow_bytes.unwrap();
    assert!(ahead <= 2 << 20, "of an empty pool nothing is known; {ahead} bytes lie ready");
    let map = pool.map::<u64, u64>("m").unwrap();
    for key in 0..RECORDS {
        map.insert(&key, &!key).unwrap();
    }
    let index = map.stats().unwrap();
    // The index counts bucket metadata and its directory. The pool counts pages of metadata.
    let notes = index.dram_bytes - index.directory_entries * 16;
    let shadow = pool.stats().shadow_bytes.unwrap();
    let pages = (pool.stats().size / 8).next_multiple_of(2 << 20);
    assert!(notes > RECORDS && (notes..=pages).contains(&shadow), "{notes} {shadow} {pages}");
    assert!(pool.stats().shadow_huge_page_bytes.unwrap() <= shadow);
    drop(map);
    pool.close().unwrap();
    // A new process knows nothing until it looks.
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    assert!(pool.stats().shadow_bytes.unwrap() < shadow);
    assert_eq!(map.get(&7).unwrap(), Some(!7));
    assert!(pool.stats().shadow_bytes.unwrap() >= 4096);
}

/// Returns how much memory this process maps of a file, in bytes.
fn mapped(path: &std::path::Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.to_str().unwrap();
    let of_file = smaps.lines().skip_while(|line| !line.ends_with(name));
    let kb = of_file.filter_map(|line| line.strip_prefix("Rss:")).next().unwrap();
    kb.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Returns whether this process has mapped the page of a file at an offset.
fn is_mapped(path: &std::path::Path, offset: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = path.to_str().unwrap();
    let line = maps.lines().find(|line| line.ends_with(name)).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: it only queries a constant.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let page = (start + offset) / page_size;
    let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    pages.read_exact_at(&mut entry, page * 8).unwrap();
    // The highest bit means that the page is present.
    u64::from_le_bytes(entry) >> 63 == 1
}

#[test]
fn opening_a_pool_on_a_disk_does_not_read_all_of_it() {
    let (_dir, path) = dir();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .filter_map(|line| Some((line.split(' ').nth(1)?, line.split(' ').nth(2)?)))
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.len());
    if mount.is_some_and(|(_, kind)| kind == "tmpfs") {
        println!("skipped: the temporary directory is in memory");
        return;
    }
    // SAFETY: only this test uses the file.
    let pool = unsafe { PoolOptions::new().create(&path).unwrap() };
    let map = pool.map::<u64, u64>("m").unwrap();
    for key in 0..1_000_000 {
        map.insert(&key, &!key).unwrap();
    }
    let used = pool.stats().size - pool.stats().free_page_bytes;
    drop(map);
    pool.close().unwrap();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    // The background thread touches the pages ahead of use. If it touched pages in use, it would do
    // so before it gets to the first ones ahead. The page looked at is farther ahead than the
    // kernel maps around a touched page.
    const AROUND: u64 = 64 << 10;
    let core = pool.store().core();
    let frontier = core.geometry.offset_of(core.alloc().stats(core).frontier_pages);
    let ahead = frontier.next_multiple_of(AROUND) + AROUND;
    assert!(ahead < pool.stats().size, "room ahead of {frontier}");
    let start = std::time::Instant::now();
    while !is_mapped(&path, ahead) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "the thread does nothing");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let rss = mapped(&path);
    assert!(rss < used / 2, "{rss} of {used} bytes touched");
    assert_eq!(map.get(&7).unwrap(), Some(!7));
}

#[test]
fn max_size_bounds_small_pools_too() {
    for max_size in [512 << 10, 1 << 20, 3 << 20, (3 << 20) + 5] {
        let (_dir, path) = dir();
        let options = PoolOptions::new().initial_size(300 << 10).max_size(max_size);
        // SAFETY: the file belongs to this test.
        let pool = unsafe { options.create(&path).unwrap() };
        let map = pool.map::<u64, u64>("numbers").unwrap();
        let full = (0..1 << 20).find_map(|n: u64| map.insert(&n, &(n + 7)).err());
        assert!(matches!(full, Some(Error::PoolFull { .. })), "{full:?}");
        let bytes = fs::metadata(&path).unwrap().len();
        assert!(bytes <= max_size && bytes * 2 > max_size, "{bytes} of {max_size}");
        pool.close().unwrap();
    }
    let (_dir, path) = dir();
    // SAFETY: the file belongs to this test.
    let refused = unsafe { PoolOptions::new().initial_size(u64::MAX).create(&path) };
    assert!(refused.is_err() && !path.exists());
}

//! The working files of journaled pools: those that nobody needs, and those that need more room than
//! their directory has.

use super::places::{assert_holds_all, journal, left_by_a_kill};
use super::*;
use outlast::WorkingFileUse;
use std::os::unix::fs::MetadataExt;

/// Lists the working files in a directory, with who needs them.
fn listed(place: &Path) -> Vec<(PathBuf, WorkingFileUse)> {
    let files = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .working_files(&[place.into()])
        .unwrap();
    let here = files.into_iter().filter(|file| file.path.parent() == Some(place));
    here.map(|file| (file.path, file.use_of)).collect()
}

#[test]
fn working_files_are_listed_with_who_needs_them_and_needless_ones_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let working = working_files(place.path()).remove(0);
    assert_eq!(listed(place.path()), [(working.clone(), WorkingFileUse::Needed)]);
    // The pool moves elsewhere and back.
    let (path, moved) = (place.path().join("a.pool"), place.path().join("moved"));
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(listed(place.path()), [(working.clone(), WorkingFileUse::PoolGone)]);
    std::fs::rename(&moved, &path).unwrap();
    assert_holds_all(place.path(), returned);
    // It begins another life while its working file is elsewhere.
    let other = place.path().join("b");
    std::fs::create_dir(&other).unwrap();
    left_by_a_kill(&other);
    let old = working_files(&other).remove(0);
    let hidden = place.path().join("hidden");
    std::fs::rename(&old, &hidden).unwrap();
    open(&other).unwrap().close().unwrap();
    std::fs::rename(&hidden, place.path().join(old.file_name().unwrap())).unwrap();
    let old = place.path().join(old.file_name().unwrap());
    assert_eq!(listed(place.path()), [(old.clone(), WorkingFileUse::Needless)]);
    // Any opening that looks there removes it.
    let pool = open(place.path()).unwrap();
    assert!(!old.exists());
    let [(_, use_of)] = listed(place.path())[..] else { panic!("one working file") };
    assert_eq!(use_of, WorkingFileUse::InUse);
    pool.close().unwrap();
    assert_eq!(listed(place.path()), []);
}

/// What another user's working file names can be anything.
#[test]
fn a_pipe_in_the_place_of_a_pool_holds_nobody_up() {
    let place = tempfile::tempdir().unwrap();
    left_by_a_kill(place.path());
    let path = place.path().join("a.pool");
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let [(_, use_of)] = listed(place.path())[..] else { panic!("one working file") };
    assert!(matches!(use_of, WorkingFileUse::PoolGone | WorkingFileUse::Unknown), "{use_of:?}");
}

/// A process that dies while it moves the file leaves it in both places.
#[test]
fn of_two_equal_working_files_one_is_used_and_the_other_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let working = working_files(place.path()).remove(0);
    let twin = journal(place.path()).join(working.file_name().unwrap());
    super::evidence::copy_sparse(&working, &twin);
    assert_holds_all(place.path(), returned);
    assert!(!working.exists() && !twin.exists(), "the pool was closed");
}

/// A file system that has no room for working files of more than some size in one directory.
struct Small {
    place: PathBuf,
    bytes: u64,
}

impl DiskWatch for Small {
    fn before(&self, call: Call, file: &File) -> Fate {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let is_full = path.parent() == Some(&self.place)
            && path.extension().is_some_and(|end| end == "working")
            && file.metadata().unwrap().blocks() * 512 > self.bytes;
        match call {
            Call::Fallocate if is_full => Fate::Fails(libc::ENOSPC),
            _ => Fate::Done,
        }
    }
}

#[test]
fn a_working_file_that_finds_no_room_is_moved_to_the_disk_of_the_journal() {
    let place = tempfile::tempdir().unwrap();
    let small = Small { place: place.path().into(), bytes: 3 << 20 };
    let options = options(place.path()).disk(Disk::watched(Arc::new(small)));
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.create(&path).unwrap() };
    let (map, texts) = (map(&pool), pool.map::<u64, [u8]>("texts").unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Lookups go on meanwhile, and find every key that was there when they began.
            while !stop.load(Ordering::SeqCst) {
                let end = map.len().unwrap();
                (0..end).for_each(|key| assert_eq!(map.get(&key).unwrap(), Some(key * 3)));
            }
        });
        for thread in 0..2 {
            let texts = &texts;
            scope.spawn(move || {
                for key in (thread..4_000).step_by(2) {
                    assert!(texts.insert(&key, &vec![key as u8; 2_000][..]).unwrap());
                }
            });
        }
        for key in 0..20_000 {
            assert!(map.insert(&key, &(key * 3)).unwrap());
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(working_files(place.path()), [] as [PathBuf; 0]);
    assert_eq!(working_files(&journal(place.path())).len(), 1);
    assert!(pool.stats().size > 8 << 20, "{}", pool.stats().size);
    // The old file takes no space any more, although it is still open.
    let left = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| {
        let fd = fd.ok()?.path();
        let name = std::fs::read_link(&fd).ok()?;
        let is_old =
            name.parent() == Some(place.path()) && name.to_string_lossy().ends_with("(deleted)");
        is_old.then(|| std::fs::metadata(&fd).unwrap().blocks() * 512)
    });
    // A file system may keep a block to say so.
    assert!(left.into_iter().all(|bytes| bytes <= 8_192));
    pool.wait_durable().unwrap();
    let copy = place.path().join("copy");
    // SAFETY: the pool's file is written only through the pool.
    unsafe { options.backup(&path, &copy).unwrap() };
    let check = |pool: &Pool| {
        pool.verify().unwrap().ensure_sound().unwrap();
        assert_eq!(pool.map::<u64, u64>("numbers").unwrap().len().unwrap(), 20_000);
        let texts = pool.map::<u64, [u8]>("texts").unwrap();
        for key in 0..4_000 {
            assert_eq!(*texts.get(&key).unwrap().unwrap(), vec![key as u8; 2_000][..]);
        }
    };
    // SAFETY: no one else uses the file.
    check(&unsafe { PoolOptions::new().open(&copy).unwrap() });
    check(&pool);
    pool.close().unwrap();
    assert_eq!(working_files(&journal(place.path())), [] as [PathBuf; 0]);
    check(&open(place.path()).unwrap());
}

/// The variable that makes a process a child of the next test.
const RESIDENT: &str = "OUTLAST_TEST_RESIDENT";

/// Keeps all memory resident, and opens a pool with one record.
#[test]
fn resident() {
    let Some(place) = std::env::var_os(RESIDENT).map(PathBuf::from) else { return };
    // SAFETY: this changes only whether memory stays resident.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        eprintln!("skipped: memory cannot be kept resident: {}", std::io::Error::last_os_error());
        return;
    }
    let pool = create(&place);
    insert(&pool, 0..1);
    pool.wait_durable().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    assert!(of("VmRSS:") < 300 << 20, "{status}");
    pool.close().unwrap();
}

#[test]
fn a_process_that_keeps_its_memory_resident_needs_little_of_it() {
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "working::resident", "--test-threads", "1"]);
    let done = child.env(RESIDENT, place.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

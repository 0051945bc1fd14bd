//! The whole life of a pool on a machine that refuses things: threads, descriptors, mappings,
//! memory, disk space; and on one that interrupts every system call.
//!
//! Each step of a life (`STEPS`) is done under each kind of fault, with the first call of the kind
//! failing, then the second, and so on, until none is left to fail: once only that call, once all
//! calls from it on. Whatever happens, the step returns success or an error and nothing panics;
//! what was acknowledged is there when the pool is opened without the fault; and a step that fails
//! leaves the files that were there before it, and no others.
//!
//! Rust's containers end the process if they get no memory. So with memory, the process may also
//! die, which no step survives better or worse than any other death.

mod faults;
#[path = "../library/files.rs"]
mod files;
mod memory;
mod steps;

use faults::{DESCRIPTORS, DISK, How, INTERRUPTED, Kind, MAPPINGS, Machine, THREADS};
use outlast::{Error, JournalOptions, Map, Pool, PoolOptions, Result};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The number of records that a pool has before a step. Their keys are the numbers from 0.
const BEFORE: u64 = 40;
/// The key of the record that a pool got after its backup was made.
const AFTER_BACKUP: u64 = 1 << 40;

/// What a step finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Nothing,
    Closed,
    Killed,
    /// Killed, and the working file is gone, as after a power loss.
    Lost,
    Open,
    /// Closed, beside a backup of an earlier state.
    BackedUp,
    /// Killed, beside a backup of an earlier state.
    KilledBackedUp,
}

struct Step {
    name: &'static str,
    state: State,
    /// Does the step. The pool is the open one, if there is one.
    run: fn(&Life, Option<&Pool>) -> Result<Option<Pool>>,
    journaled: &'static [bool],
}

const BOTH: &[bool] = &[false, true];

const STEPS: &[Step] = &[
    Step { name: "create", state: State::Nothing, run: steps::create, journaled: BOTH },
    Step { name: "open closed", state: State::Closed, run: steps::open, journaled: BOTH },
    Step { name: "open killed", state: State::Killed, run: steps::open, journaled: BOTH },
    Step { name: "rebuild", state: State::Lost, run: steps::open, journaled: &[true] },
    Step {
        name: "give a journal",
        state: State::Closed,
        run: steps::give_journal,
        journaled: &[false],
    },
    Step { name: "read closed", state: State::Closed, run: steps::read, journaled: BOTH },
    Step { name: "read killed", state: State::Killed, run: steps::read, journaled: BOTH },
    Step { name: "grow", state: State::Open, run: steps::grow, journaled: BOTH },
    Step { name: "wait", state: State::Open, run: steps::wait, journaled: BOTH },
    Step { name: "sync", state: State::Open, run: steps::sync, journaled: BOTH },
    Step { name: "snapshot", state: State::Open, run: steps::snapshot, journaled: BOTH },
    Step { name: "verify", state: State::Open, run: steps::verify, journaled: BOTH },
    Step { name: "close", state: State::Open, run: steps::close, journaled: BOTH },
    Step { name: "backup closed", state: State::Closed, run: steps::backup, journaled: BOTH },
    Step { name: "backup killed", state: State::Killed, run: steps::backup, journaled: &[true] },
    Step { name: "restore", state: State::BackedUp, run: steps::restore, journaled: BOTH },
    Step {
        name: "restore over killed",
        state: State::KilledBackedUp,
        run: steps::restore,
        journaled: BOTH,
    },
];

/// The files of a pool, and what was acknowledged.
struct Life {
    dir: tempfile::TempDir,
    journaled: AtomicBool,
    /// Records with keys below this are there.
    acknowledged: &'static AtomicU64,
    /// The handle of a pool that was closed by the step.
    open: std::sync::Mutex<Option<Pool>>,
}

impl Life {
    fn path(&self) -> PathBuf {
        self.dir.path().join("a.pool")
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn options(&self) -> PoolOptions {
        if !self.journaled.load(SeqCst) {
            return PoolOptions::new().survive(outlast::Failure::ProcessDeath);
        }
        let journal = JournalOptions::new().interval(Duration::from_millis(1));
        PoolOptions::new().journal(journal.working_directory(self.dir.path()))
    }

    fn open(&self) -> Result<Pool> {
        // SAFETY: the file belongs to this test.
        unsafe { self.options().open(self.path()) }
    }

    fn create(&self) -> Result<Pool> {
        // SAFETY: the file belongs to this test.
        unsafe { self.options().create(self.path()) }
    }

    /// Puts the next record.
    fn put(&self, pool: &Pool) -> Result<()> {
        self.put_into(&pool.map("m")?)
    }

    fn put_into(&self, map: &Map<u64, [u8]>) -> Result<()> {
        let key = self.acknowledged.load(SeqCst);
        map.put(&key, &value(key))?;
        self.acknowledged.store(key + 1, SeqCst);
        Ok(())
    }

    /// Brings the files into a state, and returns the open pool if there is one.
    fn begin(state: State, journaled: bool) -> (Life, Option<Pool>) {
        let life = Life {
            dir: tempfile::tempdir_in(memory_or_disk()).unwrap(),
            journaled: journaled.into(),
            acknowledged: memory::shared(),
            open: None.into(),
        };
        life.acknowledged.store(0, SeqCst);
        let fill = |pool: &Pool| (0..BEFORE).for_each(|_| life.put(pool).unwrap());
        let back_up = |pool: &Pool| {
            pool.snapshot(life.copy()).unwrap();
            let map = pool.map::<u64, [u8]>("m").unwrap();
            map.put(&AFTER_BACKUP, &value(AFTER_BACKUP)).unwrap();
        };
        match state {
            State::Nothing => {}
            State::Open => {
                let pool = life.create().unwrap();
                fill(&pool);
                return (life, Some(pool));
            }
            State::Closed | State::BackedUp => {
                let pool = life.create().unwrap();
                fill(&pool);
                if state == State::BackedUp {
                    back_up(&pool);
                }
                pool.close().unwrap();
            }
            State::Killed | State::Lost | State::KilledBackedUp => {
                let status = memory::in_fork(|| {
                    let pool = life.create().unwrap();
                    fill(&pool);
                    pool.wait_durable().unwrap();
                    match state {
                        State::KilledBackedUp => back_up(&pool),
                        State::Lost => {}
                        // In the working file only.
                        _ => life.put(&pool).unwrap(),
                    }
                    std::mem::forget(pool);
                });
                assert_eq!(status, 0);
                if state == State::Lost {
                    let names = names(life.dir.path());
                    let working = names.iter().find(|name| name.ends_with(".working")).unwrap();
                    std::fs::remove_file(life.dir.path().join(working)).unwrap();
                }
            }
        }
        (life, None)
    }

    /// Checks that the pool holds what was acknowledged, and at most one record more.
    fn check(&self, pool: &Pool) {
        self.check_count(pool, self.acknowledged.load(SeqCst));
    }

    fn check_count(&self, pool: &Pool, count: u64) {
        pool.verify().unwrap().ensure_sound().unwrap();
        if count == 0 {
            return;
        }
        let map = pool.map::<u64, [u8]>("m").unwrap();
        for key in 0..count {
            let found = map.get(&key).unwrap();
            assert_eq!(found.as_deref(), Some(&value(key)[..]), "key {key} of {count}");
        }
        let more = map.iter().map(|record| record.unwrap().0).filter(|&key| key >= count);
        let more: Vec<u64> = more.collect();
        assert!(more.iter().all(|key| [count, AFTER_BACKUP].contains(key)), "{more:?}");
    }

    fn check_copy(&self, path: &Path, count: u64) {
        // SAFETY: the file belongs to this test.
        let copy = unsafe { PoolOptions::new().open_read_only(path).unwrap() };
        self.check_count(&copy, count);
    }
}

/// Where the files are. What happens does not depend on the file system, but how long it takes does.
fn memory_or_disk() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8 ^ 0x5a; 5_000]
}

/// Lists what is in a directory, and in directories in it.
fn names(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            let inside = self::names(&entry.path());
            names.extend(inside.into_iter().map(|inside| format!("{name}/{inside}")));
        }
        names.push(name);
    }
    names.sort();
    names
}

/// The number of panics, in any thread.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How a run is to be judged.
#[derive(Clone, Copy, PartialEq)]
enum Demand {
    /// The step succeeds or fails with an error. A pool that is open goes on once the fault is over.
    Typed,
    /// As before, but a pool may also go on only once it was verified or opened again.
    Reopened,
    /// The step succeeds.
    Success,
}

/// Does a step while `begin` and `end` set the fault and take it away, and checks what it leaves. Returns
/// what `end` returned.
fn run<T>(
    step: &Step,
    journaled: bool,
    demand: Demand,
    begin: impl FnOnce(),
    end: impl FnOnce() -> T,
) -> T {
    let (life, pool) = Life::begin(step.state, journaled);
    let before = names(life.dir.path());
    *life.open.lock().unwrap() = pool.clone();
    let panics = PANICS.load(SeqCst);
    begin();
    let done = catch_unwind(AssertUnwindSafe(|| (step.run)(&life, pool.as_ref())));
    let ended = end();
    let done = done.unwrap_or_else(|_| panic!("a panic"));
    life.open.lock().unwrap().take();
    if life.copy().exists() {
        life.check_copy(&life.copy(), life.acknowledged.load(SeqCst));
    }
    if let Some(pool) = pool.as_ref().filter(|_| step.name != "close") {
        goes_on(&life, pool, demand);
    }
    let failed = done.as_ref().err().map(ToString::to_string);
    if std::env::var_os("OUTLAST_TEST_TELL").is_some() {
        println!("    {failed:?}");
    }
    assert!(demand != Demand::Success || failed.is_none(), "{failed:?}");
    check_after(&life, step, done, pool, before);
    assert_eq!(PANICS.load(SeqCst), panics, "a panic in another thread");
    ended
}

/// Checks that a change succeeds again. The refusal of space is remembered for a moment.
fn goes_on(life: &Life, pool: &Pool, demand: Demand) {
    let begin = std::time::Instant::now();
    loop {
        match life.put(pool) {
            Ok(()) => return,
            Err(Error::DiskFull { .. }) if begin.elapsed() < Duration::from_secs(10) => {}
            Err(error) => return assert!(demand == Demand::Reopened, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn check_after(
    life: &Life,
    step: &Step,
    done: Result<Option<Pool>>,
    pool: Option<Pool>,
    before: Vec<String>,
) {
    let failed = done.is_err();
    let left = || names(life.dir.path());
    let mut begun = step.state != State::Nothing && life.journaled.load(SeqCst);
    if failed && step.name == "give a journal" {
        // The disk may not let it be taken back.
        begun = PoolOptions::new().facts(life.path()).unwrap().journal.is_some();
        life.journaled.store(begun, SeqCst);
    }
    // Where the pool is.
    if failed && pool.is_none() && step.state != State::Open {
        let left = left();
        let new: Vec<_> = left.iter().filter(|name| !before.contains(name)).collect();
        // A copy whose name could not be made durable has its name.
        // So has a restored pool, and the old one has its other name.
        let restored = |name: &&&String| name.starts_with("a.pool.old");
        let is_restored = step.name.starts_with("restore") && new.iter().all(|it| restored(&it));
        let copied = is_restored || new == ["copy"] && step.name.starts_with("backup");
        // What a killed process left may have been completed, and then needs no segment.
        assert!(new.is_empty() || copied || begun && is_part(&new, step), "{new:?}");
    }
    drop(pool);
    match (step.state, done) {
        (State::Nothing, Err(_)) => {
            assert_eq!(left(), [""; 0], "a creation that failed left something");
            return;
        }
        (_, Ok(Some(pool))) => {
            life.check(&pool);
            life.put(&pool).unwrap();
            pool.close().unwrap();
        }
        _ => {}
    }
    let restored = step.name.starts_with("restore");
    let mut is_old = true;
    let copy = life.copy();
    let pool = life.open().unwrap();
    life.check(&pool);
    if restored {
        let map = pool.map::<u64, [u8]>("m").unwrap();
        is_old = map.get(&AFTER_BACKUP).unwrap().is_some();
        let old = life.dir.path().join("a.pool.old");
        assert!(!is_old || failed, "the old pool is at its path");
        // If only the sync of the directory failed, the restored pool is in its place.
        if !is_old {
            // SAFETY: the file belongs to this test.
            let old = unsafe { life.options().open(old).unwrap() };
            assert!(old.map::<u64, [u8]>("m").unwrap().get(&AFTER_BACKUP).unwrap().is_some());
            old.close().unwrap();
        }
    }
    life.put(&pool).unwrap();
    life.check(&pool);
    pool.close().unwrap();
    let expected = |name: &str| {
        let journal = life.journaled.load(SeqCst);
        name == "a.pool"
            || name == "a.pool.journal" && journal
            || name == "copy" && copy.exists()
            || name == "a.pool.old" && restored && !is_old
            || name == "a.pool.old.journal" && restored && !is_old && journal
    };
    let left = left();
    assert!(left.iter().all(|name| expected(name)), "left behind: {left:?}");
}

/// Returns whether these can be parts of a pool that was opened and could not be closed.
fn is_part(names: &[&String], step: &Step) -> bool {
    let restores = step.name.starts_with("restore");
    names
        .iter()
        .all(|name| name.starts_with("a.pool.journal") || restores && name.ends_with(".working"))
}

/// Runs all steps under faults of a kind, in a child process.
fn under(test: &str, kind: Kind, demand: Demand, hows: &[fn(i64) -> How]) {
    if !is_child(test) {
        return;
    }
    let machine = Machine::new(kind);
    each_step(|step, journaled| {
        for how in hows {
            let mut number = 0;
            loop {
                let how = how(number);
                CELL.lock().unwrap().clear();
                CELL.lock().unwrap().push_str(&format!("{how:?}"));
                RUNS.fetch_add(1, SeqCst);
                let failed = run(step, journaled, demand, || machine.arm(how), || machine.disarm());
                // The threads of an open pool make calls without end.
                let most = if step.state == State::Open { 24 } else { 200 };
                if failed == 0 || how == How::Alternate || number > most {
                    break;
                }
                number += 1 + number / 32;
            }
        }
    });
}

static RUNS: AtomicUsize = AtomicUsize::new(0);
static CELL: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

/// Calls `run` for each step, and fails at the end if any has failed.
fn each_step(run: impl Fn(&Step, bool)) {
    let only = std::env::var("OUTLAST_TEST_STEP").ok();
    let mut wrong = Vec::new();
    for step in STEPS.iter().filter(|step| only.as_ref().is_none_or(|only| step.name == only)) {
        for &journaled in step.journaled {
            let begin = std::time::Instant::now();
            let cell = format!("{}{}", step.name, if journaled { ", journaled" } else { "" });
            if catch_unwind(AssertUnwindSafe(|| run(step, journaled))).is_err() {
                wrong.push(format!("{cell}, {}", CELL.lock().unwrap()));
            }
            println!("{cell}: {} runs, {:?}", RUNS.swap(0, SeqCst), begin.elapsed());
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// In the child process, returns true. Otherwise runs this test again in a child process, and checks that
/// it passes.
fn is_child(test: &str) -> bool {
    if files::child_path().is_some() {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, SeqCst);
            told(info);
        }));
        return true;
    }
    let status = files::in_child(test, Path::new("-")).status().unwrap();
    assert!(status.success(), "{status}");
    false
}

#[test]
fn threads() {
    under("threads", THREADS, Demand::Typed, &[How::Once, How::From]);
}

#[test]
fn descriptors() {
    under("descriptors", DESCRIPTORS, Demand::Typed, &[How::Once]);
}

/// In contrast to a call that fails, a limit leaves descriptors again once some were closed.
#[test]
fn a_limit_of_descriptors() {
    if !is_child("a_limit_of_descriptors") {
        return;
    }
    let all = faults::descriptors();
    each_step(|step, journaled| {
        for more in 0..20 {
            *CELL.lock().unwrap() = format!("{more} descriptors");
            RUNS.fetch_add(1, SeqCst);
            let begin = || {
                let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
                faults::limit_descriptors(used + more);
            };
            run(step, journaled, Demand::Typed, begin, || faults::limit_descriptors(all));
        }
    });
}

#[test]
fn mappings() {
    // If a growth is refused, and then the reservation cannot be restored, the pool does not grow any
    // more until it is opened again.
    under("mappings", MAPPINGS, Demand::Reopened, &[How::Once, How::From]);
}

#[test]
fn disk_full() {
    under("disk_full", DISK, Demand::Reopened, &[How::Once, How::From]);
}

#[test]
fn interrupted_calls() {
    under("interrupted_calls", INTERRUPTED, Demand::Success, &[|_| How::Alternate]);
}

#[test]
fn signals() {
    if is_child("signals") {
        let signals = faults::Signals::new();
        each_step(|step, journaled| {
            run(step, journaled, Demand::Success, || signals.begin(), || signals.end());
        });
    }
}

/// The process dies where Rust gets no memory. Nothing acknowledged is lost by that.
#[test]
fn no_memory() {
    if !is_child("no_memory") {
        return;
    }
    each_step(|step, journaled| {
        let mut number = 0;
        loop {
            *CELL.lock().unwrap() = format!("allocation {number}");
            // A step of an open pool opens it itself, so that it dies with the process.
            let state = if step.state == State::Open { State::Closed } else { step.state };
            let (life, _) = Life::begin(state, journaled);
            let status = memory::in_fork(|| {
                let pool = (step.state == State::Open).then(|| life.open().unwrap());
                *life.open.lock().unwrap() = pool.clone();
                memory::arm(number);
                let done = (step.run)(&life, pool.as_ref());
                let reached = memory::disarm();
                std::mem::forget((done, pool));
                if !reached {
                    memory::exit(2);
                }
            });
            assert!([0, 2, -libc::SIGABRT].contains(&status), "{status}");
            RUNS.fetch_add(1, SeqCst);
            if state == State::Closed && step.name == "give a journal" {
                life.journaled.store(true, SeqCst);
            }
            let pool = match life.open() {
                Err(Error::NoSuchPool { .. }) if state == State::Nothing => life.create(),
                opened => opened,
            };
            let pool = pool.unwrap();
            life.check(&pool);
            life.put(&pool).unwrap();
            pool.close().unwrap();
            // A restore that could not complete the old pool has kept it as it was, with its working file.
            let old = life.dir.path().join("a.pool.old");
            if life.dir.path().join("a.pool.old.journal").exists() {
                // SAFETY: the file belongs to this test.
                let pool = unsafe { life.options().open(old).unwrap() };
                pool.verify().unwrap().ensure_sound().unwrap();
                pool.close().unwrap();
            }
            let left = names(life.dir.path());
            let is_left = |name: &&String| name.ends_with(".working") || name.contains(".outlast-");
            let left: Vec<_> = left.iter().filter(is_left).collect();
            for name in left {
                // A process that dies before it has noted whose the file is leaves it almost empty.
                let bytes = life.dir.path().join(name).metadata().unwrap().blocks() * 512;
                assert!(bytes <= 64 << 10, "left behind: {name}, {bytes} bytes");
            }
            if status == 2 {
                break;
            }
            number += 1 + number / 4;
        }
    });
}

//! Work on a pool until the power is cut.

use super::WorkArgs;
use super::journal::Journaled;
use super::port::Port;
use crate::maps::AnyMap;
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::{self, Subject};
use crate::vm::script::{Script, batch};
use crate::vm::wire::{Held, Said};
use outlast::{Error, Pool};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The file names of the pool and its snapshot.
pub(super) const POOL: &str = "power.pool";
const SNAPSHOT: &str = "power.snapshot";
/// Keys per line.
const LINE: usize = 32;
/// How many batches each thread does before the part in which kinds of life differ.
pub(super) const FIRST_BATCHES: u64 = 12;

/// A kind of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Work,
    Snapshot,
    Sync,
    Close,
}

impl Plan {
    fn of(life: u64) -> Plan {
        [Plan::Work, Plan::Snapshot, Plan::Sync, Plan::Close][(life % 4) as usize]
    }
}

pub(super) fn run(args: &WorkArgs, port: &Port) -> Checked {
    let dir = if args.mounted { args.place.dir() } else { args.place.mount(args.format)? };
    let subject = subject(args);
    port.say(&Said::Life(args.life))?;
    let journaled = args.journal.then(|| Journaled::new(args)).transpose()?;
    let start = Instant::now();
    let pool = match &journaled {
        Some(journaled) => journaled.open(&dir)?,
        None => open(args, &dir, port)?,
    };
    let maps = subject.open_maps(&pool)?;
    port.say(&Said::Opened { micros: start.elapsed().as_micros() as u64 })?;
    let medium = pool.durability();
    port.say(&Said::Medium {
        place: args.place.name().into(),
        medium: medium.medium.to_string(),
        flush: medium.flush.to_string(),
        survives_power_loss: medium.survives_power_loss,
    })?;
    let contents = show(&subject, &maps, port)?;
    if args.verify || args.rest {
        life::check_against(&subject, &pool, |map, key| [contents[map][key as usize]; 2])?;
    }
    let records = maps.iter().try_fold(0, |sum, map| Ok(sum + map.records()?.len() as u64));
    let records = records.or_else(|fault: Fault| port.note(fault.0).map(|()| u64::MAX))?;
    port.say(&Said::Held { records })?;
    if args.rest {
        drop(maps);
        port.say(&Said::Cleaning)?;
        pool.close()?;
        return port.say(&Said::Clean);
    }
    let mut hands: Vec<Hand> = (0..subject.threads)
        .map(|thread| {
            let held = |map: usize, key: u64| contents[map][key as usize];
            let script = Script::new(&subject, args.seed, args.life, thread, held);
            Hand { thread, script, done: 0 }
        })
        .collect();
    if let Some(journaled) = journaled {
        return journaled.work(pool, maps, &mut hands, port);
    }
    let plan = Plan::of(args.life);
    if plan != Plan::Work {
        work(&maps, &mut hands, Some(FIRST_BATCHES), port, &nothing)?;
    }
    match plan {
        Plan::Snapshot => {
            port.say(&Said::Snapshotting)?;
            pool.snapshot(dir.join(SNAPSHOT))?;
            port.say(&Said::Snapshotted)?;
        }
        Plan::Sync => {
            port.say(&Said::Cleaning)?;
            pool.sync()?;
            port.say(&Said::Clean)?;
        }
        Plan::Close if !args.place.is_dax() => {
            drop(maps);
            port.say(&Said::Cleaning)?;
            pool.close()?;
            port.say(&Said::Clean)?;
            wait_for_the_end();
        }
        Plan::Close | Plan::Work => {}
    }
    if plan == Plan::Sync && !args.place.is_dax() {
        // A pool that was not modified since the sync must survive.
        wait_for_the_end();
    }
    work(&maps, &mut hands, None, port, &nothing)
}

/// What a thread does after it has reported a batch. Gets the number of the thread, from 0, and the
/// number of batches that it has done in this call of [`work`], from 1.
pub(super) type After<'a> = dyn Fn(u64, u64) -> Checked + Sync + 'a;

fn nothing(_: u64, _: u64) -> Checked {
    Ok(())
}

fn subject(args: &WorkArgs) -> Subject {
    let WorkArgs { scheme, record, keys, threads, .. } = *args;
    Subject { scheme, record, keys, threads }
}

pub(super) fn wait_for_the_end() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Runs [`run`] in a process and kills it.
pub(super) fn run_and_kill(args: &WorkArgs, after: Duration, port: &Port) -> Checked {
    args.place.mount(args.format)?;
    let program = std::env::current_exe().map_err(|e| Fault(format!("this program: {e}")))?;
    let mut command = Command::new(program);
    command.args(["vm-guest", "work", "--mounted", "--place", args.place.name()]);
    command.args(["--seed", &args.seed.to_string(), "--life", &args.life.to_string()]);
    command.args(["--keys", &args.keys.to_string(), "--threads", &args.threads.to_string()]);
    command.args(["--scheme", args.scheme.name()]);
    command.args(args.record.iter().flat_map(|form| ["--record".into(), form.to_string()]));
    let mut child =
        command.stdin(Stdio::null()).spawn().map_err(|e| Fault(format!("the process: {e}")))?;
    std::thread::sleep(after);
    child.kill().map_err(|e| Fault(format!("killing the process: {e}")))?;
    let status = child.wait().map_err(|e| Fault(format!("waiting for the process: {e}")))?;
    ensure(crate::torture::was_killed(status), || format!("the process ended: {status}"))?;
    // The process may have been killed in the middle of a line.
    port.end_line()
}

/// Opens the pool, creates it, or restores it from its snapshot.
fn open(args: &WorkArgs, dir: &Path, port: &Port) -> Checked<Pool> {
    let path = dir.join(POOL);
    let options = Subject::options();
    // SAFETY: here and below, only this process uses the pools of this file system.
    match unsafe { options.open(&path) } {
        Err(Error::NoSuchPool { .. }) => create(&path),
        Err(Error::PossiblyTorn { reason, .. }) => {
            let place = args.place.name().into();
            port.say(&Said::Refused { place, reason: format!("{reason:?}") })?;
            if args.accept {
                // SAFETY: as above.
                return Ok(unsafe { options.accept_possibly_torn(true).open(&path)? });
            }
            look_at_torn(&path, args, port)?;
            port.say(&Said::Restoring)?;
            let snapshot = dir.join(SNAPSHOT);
            if snapshot.exists() {
                replace(&snapshot, &path)?;
                // SAFETY: as above.
                Ok(unsafe { options.open(&path)? })
            } else {
                fs::remove_file(&path).map_err(|e| Fault(format!("removing the pool: {e}")))?;
                create(&path)
            }
        }
        other => Ok(other?),
    }
}

fn create(path: &Path) -> Checked<Pool> {
    // SAFETY: as in `open`.
    Ok(unsafe { Subject::options().create(path)? })
}

/// Reads a pool that a power loss may have torn. It may hold anything, but no call may misbehave.
fn look_at_torn(path: &Path, args: &WorkArgs, port: &Port) -> Checked {
    let options = Subject::options().accept_possibly_torn(true);
    // SAFETY: as in `open`.
    let opened = unsafe {
        if args.life.is_multiple_of(2) { options.open_read_only(path) } else { options.open(path) }
    };
    let text = match opened {
        Err(error) if error.is_damage() => format!("it does not open: {error}"),
        Err(error) => return Err(error.into()),
        Ok(pool) => {
            let verified = match pool.verify() {
                Ok(found) if found.is_sound() => format!("sound, {} records", found.records()),
                Ok(found) => format!("{} places are damaged", found.all_damage().count()),
                Err(error) => error.to_string(),
            };
            let mut readable = 0;
            for info in pool.maps().into_iter().flatten() {
                if let Ok(map) = pool.raw_map(&info.name) {
                    readable += map.iter().filter(Result::is_ok).count();
                }
            }
            format!("it verifies: {verified}; {readable} records can be read")
        }
    };
    port.note(format!("opened although it may be torn, {text}"))
}

/// Replaces a file with a copy of another, atomically and durably.
fn replace(source: &Path, target: &Path) -> Checked {
    let act = || -> std::io::Result<()> {
        let copy = target.with_extension("copy");
        fs::copy(source, &copy)?;
        File::open(&copy)?.sync_all()?;
        fs::rename(&copy, target)?;
        File::open(target.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    act().map_err(|e| Fault(format!("restoring {}: {e}", target.display())))
}

/// Reports the values of all keys.
fn show(subject: &Subject, maps: &[AnyMap], port: &Port) -> Checked<Vec<Vec<Option<u64>>>> {
    let mut contents = Vec::new();
    for (index, map) in maps.iter().enumerate() {
        let mut values = Vec::new();
        for first in (0..subject.keys).step_by(LINE) {
            let mut line = Vec::new();
            for key in first..subject.keys.min(first + LINE as u64) {
                line.push(match map.get(key) {
                    Ok(value) => Held::Value(value),
                    Err(fault) => {
                        port.note(format!("key {key}: {fault}"))?;
                        Held::Strange
                    }
                });
            }
            values.extend(line.iter().map(|held| match held {
                Held::Value(value) => *value,
                Held::Strange => None,
            }));
            port.say(&Said::Has { map: index, first, values: line })?;
        }
        contents.push(values);
    }
    Ok(contents)
}

/// A thread's part of the work.
pub(super) struct Hand {
    thread: u64,
    script: Script,
    done: u64,
}

/// Lets all threads work, for this many batches each or until the power is cut.
pub(super) fn work(
    maps: &[AnyMap],
    hands: &mut [Hand],
    batches: Option<u64>,
    port: &Port,
    after: &After<'_>,
) -> Checked {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = hands
            .iter_mut()
            .map(|hand| {
                scope.spawn(move || {
                    let worked = hand.work(maps, batches, port, after, stop);
                    if worked.is_err() {
                        stop.store(true, Ordering::SeqCst);
                    }
                    worked
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(worked) => worked,
            Err(_) => Err(Fault("a worker panicked".into())),
        })
    })
}

impl Hand {
    fn work(
        &mut self,
        maps: &[AnyMap],
        batches: Option<u64>,
        port: &Port,
        after: &After<'_>,
        stop: &AtomicBool,
    ) -> Checked {
        let mut batch_number = 0;
        while batches.is_none_or(|n| batch_number < n) && !stop.load(Ordering::SeqCst) {
            for _ in 0..batch(self.thread) {
                let step = self.script.next();
                life::act(maps, step.map, step.key, step.change, step.before)?;
            }
            self.done += batch(self.thread);
            port.say(&Said::Done { thread: self.thread, operations: self.done })?;
            batch_number += 1;
            after(self.thread, batch_number)?;
        }
        Ok(())
    }
}

/// Lets all threads work on a pool while `meanwhile` runs, for the steps other than `work`.
pub(super) fn concurrent<T>(
    subject: &Subject,
    pool: &Pool,
    meanwhile: impl FnOnce() -> Checked<T>,
) -> Checked<T> {
    let dir = tempfile::tempdir_in("/tmp").map_err(|e| Fault(format!("/tmp: {e}")))?;
    let cells = crate::torture::cells::Cells::create(&dir.path().join("cells"), subject.cells())
        .map_err(|e| Fault(format!("the expectations: {e}")))?;
    let stop = &AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let worker = scope.spawn(|| life::live(subject, pool, &cells, 1, stop));
        let result = meanwhile();
        stop.store(true, Ordering::SeqCst);
        worker.join().unwrap_or_else(|_| Err(Fault("a worker panicked".into())))?;
        result
    })?;
    life::check_at_rest(subject, pool, &cells)?;
    Ok(result)
}

//! The endings of journaled pools: `close`, the drop of the last handle, and the death of the process,
//! while the pool's background threads are in the middle of something; and `sync`, `snapshot` and
//! `backup` at the same time.
//!
//! *Schedules* hold a background thread at a [`Moment`] at which it has decided on a step and has not
//! begun it. Then the pool is ended. If the ending waits for the thread, the thread goes on; otherwise
//! it goes on once the ending is over. Afterwards the pool must open, and hold every acknowledged
//! change and no other.
//!
//! A *campaign* opens, changes and closes one pool again and again, with a journal so short that
//! checkpoints are always due.

use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate, Moment};
use outlast::{JournalOptions, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The end of a pool, or an operation on all of it and then its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `Pool::close`.
    Close,
    /// The last handle is dropped.
    Drop,
    /// `Pool::sync`, then `close`.
    Sync,
    /// `Pool::snapshot`, then `close`.
    Snapshot,
    /// `PoolOptions::backup`, as by another process, then `close`.
    Backup,
    /// SIGKILL.
    Death,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 6] = [
        Ending::Close,
        Ending::Drop,
        Ending::Sync,
        Ending::Snapshot,
        Ending::Backup,
        Ending::Death,
    ];
}

/// How long an ending may take before it counts as waiting for the thread that is held.
const PATIENCE: Duration = Duration::from_millis(25);
/// The environment variable that makes a process a child of [`schedule`].
const CHILD: &str = "OUTLAST_CHECK_ENDING";

/// Holds the background thread that comes to a moment for the `nth` time, until it may go on.
struct Holds {
    moment: Moment,
    left: AtomicU64,
    held: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl DiskWatch for Holds {
    fn before(&self, _: Call, _: &File) -> Fate {
        Fate::Done
    }

    fn at(&self, moment: Moment) {
        // Threads that end the pool, or wait for durability, come to the same moments.
        let thread = std::thread::current();
        let is_background = thread.name().is_some_and(|name| name.starts_with("outlast"));
        if moment == self.moment
            && is_background
            && self.left.fetch_sub(1, Ordering::SeqCst) == 1
            && self.held.send(()).is_ok()
        {
            // An error means that the other side has ended.
            let _ = self.go_on.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
    }
}

/// The maps of a pool, with 8-byte records and with byte strings.
type Maps = (Map<u64, u64>, Map<u64, [u8]>);

/// What a pool holds: the keys of a range, in two maps.
struct Content {
    scheme: Scheme,
    keys: Range<u64>,
}

impl Content {
    fn maps(&self, pool: &Pool) -> Checked<Maps> {
        let options = MapOptions::new().scheme(self.scheme);
        Ok((pool.map_with("numbers", &options)?, pool.map_with("texts", &options)?))
    }

    fn text(key: u64) -> Vec<u8> {
        vec![key as u8; 1 + (key * 37 % 700) as usize]
    }

    /// Inserts the next keys, in both maps. Calls `told` after each.
    fn insert(&mut self, pool: &Pool, count: u64, mut told: impl FnMut(u64)) -> Checked {
        let (numbers, texts) = self.maps(pool)?;
        for key in self.keys.end..self.keys.end + count {
            let new = numbers.insert(&key, &!key)? && texts.insert(&key, &Self::text(key)[..])?;
            ensure(new, || format!("key {key} is there already"))?;
            self.keys.end += 1;
            told(key);
        }
        Ok(())
    }

    /// Removes the first keys.
    fn remove(&mut self, pool: &Pool, count: u64) -> Checked {
        let (numbers, texts) = self.maps(pool)?;
        for key in self.keys.start..(self.keys.start + count).min(self.keys.end) {
            let was = (numbers.remove(&key)?, texts.remove(&key)?);
            let sound =
                was.0 == Some(!key) && was.1.is_some_and(|text| *text == Self::text(key)[..]);
            ensure(sound, || format!("key {key} was lost or changed"))?;
            self.keys.start += 1;
        }
        Ok(())
    }

    /// Checks that the pool holds these keys and no others.
    fn check(&self, pool: &Pool) -> Checked {
        let (numbers, texts) = self.maps(pool)?;
        let expected = self.keys.end - self.keys.start;
        let found = (numbers.iter().count() as u64, texts.iter().count() as u64);
        ensure(found == (expected, expected), || format!("{found:?} records of {expected}"))?;
        for key in self.keys.clone() {
            let (number, text) = (numbers.get(&key)?, texts.get(&key)?);
            let sound =
                number == Some(!key) && text.is_some_and(|text| *text == Self::text(key)[..]);
            ensure(sound, || format!("key {key} is lost or changed"))?;
        }
        Ok(())
    }

    /// Verifies the structures, too.
    fn check_all(&self, pool: &Pool) -> Checked {
        self.check(pool)?;
        Ok(pool.verify()?.ensure_sound()?)
    }
}

/// Options of a pool whose checkpoints are always due.
fn options(dir: &Path) -> PoolOptions {
    let journal = JournalOptions::new().interval(Duration::from_millis(1)).limit(1);
    PoolOptions::new().journal(journal.working_directory(dir)).require_working_file(true)
}

fn path(dir: &Path) -> PathBuf {
    dir.join("ending.pool")
}

fn open(dir: &Path) -> Checked<Pool> {
    // SAFETY: the pool is in a directory of this run, and nothing else writes to it.
    Ok(unsafe { options(dir).open(path(dir))? })
}

/// Creates a pool, and changes it until a background thread is held at the moment. Then calls `end`.
fn held(
    scheme: Scheme,
    dir: &Path,
    (moment, nth): (Moment, u64),
    mut told: impl FnMut(u64),
    end: impl FnOnce(Pool, &mut Content) -> Checked + Send,
) -> Checked<Content> {
    let ((held, is_held), (release, go_on)) = (channel(), channel());
    let watch = Holds { moment, left: AtomicU64::new(nth), held, go_on: Mutex::new(go_on) };
    let options = options(dir).disk(Disk::watched(Arc::new(watch)));
    // SAFETY: as in `open`.
    let pool = unsafe { options.create(path(dir))? };
    let mut content = Content { scheme, keys: 0..0 };
    let mut change = || {
        content.insert(&pool, 5, &mut told)?;
        ensure(content.keys.end < 200_000, || format!("{moment:?} does not come {nth} times"))?;
        if content.keys.end > 200 { content.remove(&pool, 5) } else { Ok(()) }
    };
    while is_held.try_recv().is_err() {
        if let Err(fault) = change() {
            // A thread that is held by now would keep the pool from ending.
            drop(release);
            return Err(fault);
        }
    }
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let content = &mut content;
        let ended = scope.spawn(move || {
            let ended = end(pool, content);
            let _ = done.send(());
            ended
        });
        let _ = is_done.recv_timeout(PATIENCE);
        let _ = release.send(());
        ended.join().unwrap_or_else(|_| Err(Fault("the ending panicked".into())))
    })?;
    Ok(content)
}

fn check_copy(copy: &Path, content: &Content) -> Checked {
    // SAFETY: nobody else knows of the copy.
    content.check_all(&unsafe { PoolOptions::new().open(copy)? })
}

/// Runs one schedule in an empty directory. `program` is this program, which becomes the process that
/// dies.
///
/// # Errors
/// If the pool does not open afterwards, or lacks anything.
pub fn schedule(
    scheme: Scheme,
    dir: &Path,
    ending: Ending,
    at: (Moment, u64),
    program: &Path,
) -> Checked {
    let copy = dir.join("copy");
    let content = match ending {
        Ending::Death => death(scheme, dir, at, program)?,
        Ending::Close => held(scheme, dir, at, |_| (), |pool, _| Ok(pool.close()?))?,
        Ending::Drop => held(
            scheme,
            dir,
            at,
            |_| (),
            |pool, _| {
                drop(pool);
                Ok(())
            },
        )?,
        Ending::Sync => held(
            scheme,
            dir,
            at,
            |_| (),
            |pool, content| {
                pool.sync()?;
                content.insert(&pool, 5, |_| ())?;
                Ok(pool.close()?)
            },
        )?,
        Ending::Snapshot => held(
            scheme,
            dir,
            at,
            |_| (),
            |pool, content| {
                pool.snapshot(&copy)?;
                check_copy(&copy, content)?;
                content.insert(&pool, 5, |_| ())?;
                Ok(pool.close()?)
            },
        )?,
        Ending::Backup => held(
            scheme,
            dir,
            at,
            |_| (),
            |pool, content| {
                // While a thread of the journal is held, nothing may become durable.
                // SAFETY: the pool's file is written only through the pool.
                let copied = unsafe { PoolOptions::new().backup(path(dir), &copy) };
                copied?;
                // SAFETY: nobody else knows of the copy.
                unsafe { PoolOptions::new().open(&copy)? }.verify()?.ensure_sound()?;
                content.insert(&pool, 5, |_| ())?;
                Ok(pool.close()?)
            },
        )?,
    };
    let pool = open(dir)?;
    if ending == Ending::Death {
        return check_after_death(&pool, &content);
    }
    content.check_all(&pool)?;
    pool.close()?;
    content.check(&open(dir)?)
}

/// Checks a pool whose process died. The last operation may have taken effect.
fn check_after_death(pool: &Pool, content: &Content) -> Checked {
    let (numbers, texts) = content.maps(pool)?;
    pool.verify()?.ensure_sound()?;
    // The child removes keys only from the front, and prints each that it has inserted.
    for key in content.keys.clone() {
        let sound = numbers.get(&key)? == Some(!key)
            && texts.get(&key)?.is_some_and(|text| *text == Content::text(key)[..]);
        ensure(sound, || format!("key {key} was acknowledged, and is lost"))?;
    }
    Ok(())
}

/// Runs a child until its thread is held, and kills it.
fn death(scheme: Scheme, dir: &Path, at: (Moment, u64), program: &Path) -> Checked<Content> {
    let starting = |e| Fault(format!("starting {}: {e}", program.display()));
    let mut child = Command::new(program)
        .arg("ending-child")
        .arg(dir)
        .arg(scheme.name())
        .arg(Moment::OF_JOURNAL.iter().position(|moment| *moment == at.0).unwrap_or(0).to_string())
        .arg(at.1.to_string())
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(starting)?;
    let mut last = None;
    let said = child.stdout.take().map(BufReader::new);
    let mut is_held = false;
    for line in said.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
        match line.parse::<u64>() {
            Ok(key) => last = Some(key),
            Err(_) if line == "held" => {
                is_held = true;
                // What it prints before it is dead still counts.
                let _ = child.kill();
            }
            Err(_) => return Err(Fault(format!("the child says {line:?}"))),
        }
    }
    let status = child.wait().map_err(|e| Fault(format!("waiting for the child: {e}")))?;
    ensure(is_held, || format!("the child ended by itself: {status}"))?;
    let next = last.map_or(0, |key| key + 1);
    // Up to 200 keys stay, and up to five more are removed one after another.
    Ok(Content { scheme, keys: next.saturating_sub(190)..next })
}

/// Is the process that dies: works until a thread is held, and goes on until it is killed.
///
/// # Errors
/// If anything fails before.
pub fn child(dir: &Path, scheme: Scheme, moment: usize, nth: u64) -> Checked {
    let moment = *Moment::OF_JOURNAL.get(moment).ok_or(Fault("no such moment".into()))?;
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let told = |key: u64| say(&key.to_string());
    held(scheme, dir, (moment, nth), told, |pool, content| {
        say("held");
        loop {
            content.insert(&pool, 1, |key| say(&key.to_string()))?;
        }
    })?;
    Ok(())
}

/// The result of schedules or of a campaign.
#[derive(Debug, Default)]
pub struct Summary {
    /// Schedules, or rounds of a campaign.
    pub done: u64,
    /// What went wrong.
    pub faults: Vec<String>,
}

/// Runs every ending against a background thread at every moment, each for the first `most` times that
/// the thread comes there.
///
/// # Errors
/// If a directory cannot be made.
pub fn schedules(
    scheme: Scheme,
    dir: &Path,
    most: u64,
    program: &Path,
    progress: &mut dyn FnMut(u64),
) -> Checked<Summary> {
    let mut summary = Summary::default();
    for nth in 1..=most {
        for moment in Moment::OF_JOURNAL {
            for ending in Ending::ALL {
                let place = tempfile::tempdir_in(dir);
                let place = place.map_err(|e| Fault(format!("{}: {e}", dir.display())))?;
                let ended = schedule(scheme, place.path(), ending, (moment, nth), program);
                if let Err(fault) = ended {
                    let text = format!("{ending:?} at {moment:?}, time {nth}, {scheme}: {fault}");
                    summary.faults.push(text);
                }
                summary.done += 1;
                progress(summary.done);
            }
        }
    }
    Ok(summary)
}

/// Opens, changes and closes a pool `rounds` times.
///
/// # Errors
/// If the pool cannot be created. What goes wrong later is in the summary, and ends the campaign.
pub fn campaign(
    scheme: Scheme,
    dir: &Path,
    rounds: u64,
    seed: u64,
    progress: &mut dyn FnMut(u64),
) -> Checked<Summary> {
    let (mut random, mut summary) = (Random::new(seed), Summary::default());
    let mut content = Content { scheme, keys: 0..0 };
    // SAFETY: as in `open`.
    unsafe { options(dir).create(path(dir))? }.close()?;
    for round in 0..rounds {
        let one = live(dir, &mut content, &mut random, round.is_multiple_of(100));
        if let Err(fault) = one {
            summary.faults.push(format!("round {round} of {scheme}, seed {seed}: {fault}"));
            break;
        }
        summary.done += 1;
        progress(summary.done);
    }
    Ok(summary)
}

/// One round of a campaign.
fn live(dir: &Path, content: &mut Content, random: &mut Random, verifies: bool) -> Checked {
    let pool = open(dir)?;
    if verifies {
        content.check_all(&pool)?
    } else {
        content.check(&pool)?
    }
    content.insert(&pool, random.below(120), |_| ())?;
    match random.below(4) {
        0 => pool.wait_durable()?,
        1 => pool.sync()?,
        _ => {}
    }
    let left = content.keys.end - content.keys.start;
    content.remove(&pool, left.saturating_sub(random.below(150)))?;
    match random.below(3) {
        0 => drop(pool),
        _ => pool.close()?,
    }
    Ok(())
}

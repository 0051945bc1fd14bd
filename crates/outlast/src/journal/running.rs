//! The journal of an open pool: cuts, commits, checkpoints, and waiting for durability.
//!
//! One thread at a time cuts and writes an epoch: it has the *turn*. A thread that waits for
//! durability takes the turn itself if the turn is free, which saves two switches between threads.
//! The journal's own thread takes a turn at each interval ([`Journal::run`]). A second thread makes
//! checkpoints, and prepares ahead of time what a turn would otherwise have to wait for
//! ([`Journal::run_checkpoints`]). None of them takes a lock of the pool, except to hold writers
//! back for a cut or a pause.
//!
//! `sync` and `close` hold the gate for long. Meanwhile, other threads can cut without holding it
//! themselves ([`Journal::while_held`]).

mod asked;
mod checkpoints;
mod threads;

pub use asked::Asked;

use super::base::{Base, Checkpoint, PAGE, Pages};
use super::bugs::{self, seeded};
use super::epoch::{Attempt, Change, LINE};
use super::log::{Preparer, SEGMENT_BYTES, Writer};
use crate::error::{Error, NotOpen, Result};
use crate::pmem::{MappingError, Moment, Notes};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// The shortest segment, in bytes.
const LEAST_SEGMENT: u64 = 256 << 10;
/// The least distance by which the base grows ahead of the pool, in bytes.
pub const LEAST_AHEAD: u64 = 16 << 20;
/// The shortest and the longest pause before a failed write is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How long to wait before a cut is tried again, if another thread had control of the gate.
const BUSY: Duration = Duration::from_micros(100);
/// The longest time for which one turn holds writers back because the journal is too long.
const SLOWED: Duration = Duration::from_millis(50);
/// The longest time that a thread of the journal that finds nothing to do waits before it checks
/// again.
const LOOK: Duration = Duration::from_millis(20);

/// What the journal needs from the pool.
pub trait Source {
    /// Makes a cut: holds all writers back for a moment, unless they are `held` back already, and
    /// puts the lines that were noted since the last cut into `change`, with their content. Calls
    /// `begin` before it holds writers back. If another thread has control of the gate, does
    /// nothing and returns `false`.
    fn cut(&self, held: bool, begin: &mut dyn FnMut(), change: &mut Change) -> Result<bool>;

    /// Holds all writers back for `time`, unless another thread has control of the gate.
    fn pause(&self, time: Duration);

    /// Checks that the working file has lost no stores. It can lose some if it is on a disk that
    /// fails to write a part of it back. Then this fails, nothing that was copied since the last call
    /// may be used, and the pool refuses all further operations.
    fn check_working(&self) -> io::Result<()> {
        Ok(())
    }

    /// Maps the pages of these lines into the process, while operations go on, so that a cut need
    /// not wait for that. A hint.
    fn touch(&self, _lines: Range<u64>) {}

    /// Copies page number `page`, while operations go on.
    fn read(&self, page: u64, out: &mut [u8]);

    /// Returns the size of the pool, in bytes.
    fn bytes(&self) -> u64;

    /// Fails if the base has no name any more, because another program removed or replaced its file.
    /// Then nothing of the journal may be deleted.
    fn check_base(&self) -> Result<()> {
        Ok(())
    }

    /// Lets a test hold the calling thread at this moment.
    fn at(&self, _moment: Moment) {}
}

/// Counts of a journal since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Epochs that were made durable.
    pub epochs: u64,
    /// Cache lines in those epochs.
    pub lines: u64,
    /// Bytes written to segments.
    pub segment_bytes: u64,
    /// Bytes written to the base.
    pub base_bytes: u64,
    /// Checkpoints that were completed.
    pub checkpoints: u64,
    /// Bytes that the segments take now.
    pub journal_bytes: u64,
    /// The longest time from a cut until its epoch was durable, or until now for an epoch that is
    /// not durable yet, in nanoseconds.
    pub longest_commit_ns: u64,
    /// The longest time that a cut took, in nanoseconds. No cut held writers back for longer.
    pub longest_cut_ns: u64,
    /// The time that all cuts took together, in nanoseconds.
    pub cuts_ns: u64,
    /// Failed attempts to write an epoch.
    pub failures: u64,
    /// The time for which writers were held back because the journal was too long, in nanoseconds.
    pub slowed_ns: u64,
}

#[derive(Default)]
struct Counts {
    epochs: AtomicU64,
    lines: AtomicU64,
    segment_bytes: AtomicU64,
    base_bytes: AtomicU64,
    checkpoints: AtomicU64,
    journal_bytes: AtomicU64,
    longest_commit_ns: AtomicU64,
    longest_cut_ns: AtomicU64,
    cuts_ns: AtomicU64,
    failures: AtomicU64,
    slowed_ns: AtomicU64,
}

/// The state that the waiting threads and the journal's threads share.
#[derive(Default)]
struct State {
    /// Cuts that have begun.
    begun: u64,
    /// The number of the last cut for which everything noted before it is durable.
    done: u64,
    /// A thread has the turn.
    busy: bool,
    /// A thread holds the gate, and lets other threads cut.
    held: bool,
    /// A thread is making a cut while another one holds the gate.
    cutting: bool,
    /// When the cut of the epoch under way began.
    began: Option<Instant>,
    /// Failed attempts to write an epoch.
    failures: u64,
    /// Why the last attempt failed, if it did.
    failure: Option<Failure>,
    /// No more cuts can be made: the pool was closed, or an operation panicked.
    ended: bool,
    stop: bool,
    /// Threads of the journal that run, or are about to.
    running: usize,
    /// A task waits for a cut that has not begun.
    asked: bool,
    /// Tasks to wake when a turn ends.
    tasks: Vec<Waker>,
}

/// What the thread that has the turn works on.
struct Turn {
    change: Change,
    /// Whether `change` was cut and is not durable yet.
    pending: bool,
    /// The number of the last cut.
    cut: u64,
    /// When that cut began.
    start: Instant,
}

/// The outcome of a turn.
enum Outcome {
    /// Everything up to the cut is durable.
    Done,
    /// Another thread has control of the gate.
    Busy,
    /// The disk has failed. The next turn tries again.
    Failed,
    /// No more cuts can be made.
    Ended,
}

/// An I/O error, in a form that can be reported to several threads.
#[derive(Debug, Clone)]
struct Failure {
    kind: io::ErrorKind,
    number: Option<i32>,
    text: String,
}

impl Failure {
    fn of(error: &io::Error) -> Failure {
        Failure { kind: error.kind(), number: error.raw_os_error(), text: error.to_string() }
    }

    fn error(&self) -> Error {
        let source = match self.number {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(self.kind, self.text.clone()),
        };
        Error::io("writing the journal", source)
    }
}

/// The settings of a journal.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The time between two turns, if no thread waits for durability.
    pub interval: Duration,
    /// The length that the journal should not exceed, in bytes. 0: twice the size of the pool, and at
    /// least 256 MiB.
    pub limit: u64,
    /// The path of the working file at first. It is [moved](Journal::set_working) if it needs more room.
    pub working: PathBuf,
    /// Whether the working file stays when the pool is closed.
    pub keep: bool,
    /// The least distance by which the base grows ahead of the pool, in bytes.
    pub ahead: u64,
}

/// The journal of an open pool; see the module's documentation.
pub struct Journal {
    settings: Settings,
    base: Base,
    notes: Arc<Notes>,
    state: Mutex<State>,
    /// Locked by the thread that has the turn.
    turn: Mutex<Turn>,
    /// The path of the working file.
    working: Mutex<PathBuf>,
    /// Wakes the journal's thread, to take a turn or to stop.
    wake: Condvar,
    /// Wakes all threads that wait for a change of `state`, for instance the end of a turn.
    told: Condvar,
    writer: Mutex<Writer>,
    preparer: Preparer,
    /// The index of the first [control word](Attempt::store) that holds the last durable epoch.
    durable: usize,
    pages: Mutex<Pages>,
    /// Held during a checkpoint.
    checkpointing: Mutex<()>,
    /// Whether the last checkpoint failed.
    failing: AtomicBool,
    /// Bytes of the base, which is never shorter than the pool.
    base_len: AtomicU64,
    /// Held while the base is made longer.
    extending: Mutex<()>,
    counts: Counts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Journal {
    /// Creates the journal of an open pool. `durable` is the index of the first word in the working
    /// file's [control page](Notes::control) that [holds](Attempt::store) the last durable epoch.
    pub fn new(
        settings: Settings,
        base: Base,
        writer: Writer,
        notes: Arc<Notes>,
        durable: usize,
        pages: Pages,
    ) -> io::Result<Journal> {
        Ok(Journal {
            notes,
            state: Mutex::default(),
            turn: Mutex::new(Turn {
                change: Change::default(),
                pending: false,
                cut: 0,
                start: Instant::now(),
            }),
            working: Mutex::new(settings.working.clone()),
            wake: Condvar::new(),
            told: Condvar::new(),
            preparer: writer.preparer(),
            writer: Mutex::new(match settings.limit {
                0 => writer,
                limit => writer.segment_bytes((limit / 8).clamp(LEAST_SEGMENT, SEGMENT_BYTES)),
            }),
            durable,
            pages: Mutex::new(pages),
            checkpointing: Mutex::default(),
            failing: AtomicBool::new(false),
            base_len: AtomicU64::new(base.file().len()?),
            extending: Mutex::default(),
            base,
            settings,
            counts: Counts::default(),
        })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the path of the working file.
    pub fn working(&self) -> PathBuf {
        lock(&self.working).clone()
    }

    /// Sets the path of the working file, which was moved.
    pub fn set_working(&self, path: PathBuf) {
        *lock(&self.working) = path;
    }

    /// Calls `then` while no thread cuts, writes an epoch, or ends a checkpoint that ends the life.
    pub fn between_turns<T>(&self, then: impl FnOnce() -> T) -> T {
        let _turn = lock(&self.turn);
        then()
    }

    /// Returns the notes of changed lines.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Returns the counts.
    pub fn stats(&self) -> JournalStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        let under_way = lock(&self.state).began.map_or(0, since);
        JournalStats {
            epochs: get(&counts.epochs),
            lines: get(&counts.lines),
            segment_bytes: get(&counts.segment_bytes),
            base_bytes: get(&counts.base_bytes),
            checkpoints: get(&counts.checkpoints),
            journal_bytes: get(&counts.journal_bytes),
            longest_commit_ns: get(&counts.longest_commit_ns).max(under_way),
            longest_cut_ns: get(&counts.longest_cut_ns),
            cuts_ns: get(&counts.cuts_ns),
            failures: get(&counts.failures),
            slowed_ns: get(&counts.slowed_ns),
        }
    }

    /// Returns the error that keeps changes from becoming durable at present, if there is one.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.state).failure.as_ref().map(Failure::error)
    }

    // ---- Waiting ------------------------------------------------------------------

    /// Waits until everything that was done before this call is durable. Threads that wait at the
    /// same time share one sync of the disk, which one of them makes.
    ///
    /// # Errors
    /// [`Error::Io`] if two attempts to write have failed since the call began; the journal goes on
    /// trying. [`Error::NotOpen`] if the pool was closed.
    pub fn wait(&self, source: &dyn Source) -> Result<()> {
        let state = lock(&self.state);
        if self.is_all_durable(&state) {
            return Ok(());
        }
        self.wait_for_cut(state, source)
    }

    /// Waits for a cut that begins after this call, and until everything that the cut takes is
    /// durable.
    fn wait_for_cut<'j>(
        &'j self,
        mut state: MutexGuard<'j, State>,
        source: &dyn Source,
    ) -> Result<()> {
        let asked = self.asked(&state);
        loop {
            if let Some(outcome) = asked.outcome(&state) {
                return outcome;
            }
            if state.busy {
                state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let outcome = self.take_turn(state, source);
            if matches!(outcome, Outcome::Busy) {
                thread::sleep(BUSY);
            }
            state = lock(&self.state);
        }
    }

    /// Runs `then`, in which the calling thread can [`wait`](Self::wait) although it holds the gate.
    pub fn while_held<T>(&self, then: impl FnOnce() -> T) -> T {
        lock(&self.state).held = true;
        let _end = EndOfHold(self);
        then()
    }

    // ---- Turns ----------------------------------------------------------------------

    /// Takes the turn, which must be free, and makes one attempt to cut and to write an epoch.
    fn take_turn(&self, mut state: MutexGuard<'_, State>, source: &dyn Source) -> Outcome {
        state.busy = true;
        drop(state);
        // Ends the turn, even if this unwinds.
        let _end = EndOfTurn(self);
        source.at(Moment::Turn);
        let mut turn = lock(&self.turn);
        if lock(&self.state).ended {
            return Outcome::Ended;
        }
        if !turn.pending {
            source.at(Moment::Cut);
            match self.cut(&mut turn, source) {
                Outcome::Done => {}
                other => return other,
            }
        }
        if let Err(error) = source.check_working() {
            self.give_up(&error);
            return Outcome::Ended;
        }
        if turn.pending {
            source.at(Moment::Commit);
            if !self.commit(&mut turn) {
                return Outcome::Failed;
            }
        }
        source.at(Moment::Committed);
        let mut state = lock(&self.state);
        (state.done, state.began) = (turn.cut, None);
        drop(state);
        self.slow_down(source, turn.start.elapsed());
        Outcome::Done
    }

    fn cut(&self, turn: &mut Turn, source: &dyn Source) -> Outcome {
        turn.start = Instant::now();
        let held = {
            let mut state = lock(&self.state);
            (state.cutting, state.began) = (state.held, Some(turn.start));
            state.held
        };
        let Turn { change, cut, .. } = turn;
        let taken = source.cut(held, &mut || *cut = self.begin_cut(), change);
        if !matches!(taken, Ok(true)) {
            lock(&self.state).began = None;
        }
        if held {
            lock(&self.state).cutting = false;
            self.told.notify_all();
        }
        match taken {
            Ok(true) => {
                let time = since(turn.start);
                self.counts.longest_cut_ns.fetch_max(time, Ordering::Relaxed);
                self.counts.cuts_ns.fetch_add(time, Ordering::Relaxed);
                turn.pending = !turn.change.is_empty();
                Outcome::Done
            }
            Ok(false) => Outcome::Busy,
            // The pool was closed, or a thread panicked inside an operation.
            Err(_) => {
                lock(&self.state).ended = true;
                Outcome::Ended
            }
        }
    }

    /// Ends the journal, because what was cut may be wrong. The working file is removed, so that the
    /// next process rebuilds the pool from the disk.
    fn give_up(&self, error: &io::Error) {
        tracing::error!(%error, "the working file could not be written back; the journal ends here");
        let _ = std::fs::remove_file(self.working());
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        let text = format!(
            "the working file is on a disk that could not write it back ({error}). What was confirmed \
             to be durable is safe. Open the pool again, with the working file in another place"
        );
        let mut state = lock(&self.state);
        state.failure = Some(Failure { kind: error.kind(), number: None, text });
        (state.ended, state.began) = (true, None);
    }

    fn begin_cut(&self) -> u64 {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.asked = false;
        state.begun
    }

    /// Tries to make the pending epoch durable. Returns whether it is.
    fn commit(&self, turn: &mut Turn) -> bool {
        let mut writer = lock(&self.writer);
        let before = writer.bytes();
        seed!(bugs::NOTES_REMOVED_EARLY => self.notes.durable(turn.change.runs().map(|(lines, _)| lines)));
        unless_seeded!(bugs::BEGUN_UNTOLD => Attempt::begin(writer.durable() + 1, &self.notes, self.durable));
        if let Err(error) = writer.append(&turn.change) {
            tracing::warn!(%error, "writing the journal failed");
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            let mut state = lock(&self.state);
            state.failures += 1;
            state.failure = Some(Failure::of(&error));
            return false;
        }
        let (now, epoch) = (writer.bytes(), writer.durable());
        // This store comes before any thread learns that the epoch is durable, including a
        // checkpoint, which asks the writer. Otherwise a later process that finds the working file
        // could use the epoch's number again.
        unless_seeded!(bugs::DURABLE_UNTOLD => writer.last_attempt().store(&self.notes, self.durable));
        drop(writer);
        self.notes.durable(turn.change.runs().map(|(lines, _)| lines));
        lock(&self.pages).add(epoch, &turn.change);
        turn.pending = false;
        let lines = turn.change.lines();
        turn.change.clear();
        let counts = &self.counts;
        counts.journal_bytes.store(now, Ordering::Relaxed);
        counts.segment_bytes.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        counts.epochs.fetch_add(1, Ordering::Relaxed);
        counts.lines.fetch_add(lines, Ordering::Relaxed);
        counts.longest_commit_ns.fetch_max(since(turn.start), Ordering::Relaxed);
        if lock(&self.state).failure.take().is_some() {
            tracing::info!("writing the journal succeeds again");
        }
        true
    }

    /// Holds writers back if the journal exceeds its limit, because the disk cannot keep up. The more it
    /// exceeds the limit, the longer they are held back.
    fn slow_down(&self, source: &dyn Source, commit: Duration) {
        let (bytes, limit) =
            (self.counts.journal_bytes.load(Ordering::Relaxed), self.limit(source));
        let over = bytes.saturating_sub(limit) as f64 / limit as f64;
        if over > 0.0 {
            let start = Instant::now();
            source.pause((commit * 4).min(SLOWED).mul_f64(over.min(1.0)));
            self.counts.slowed_ns.fetch_add(since(start), Ordering::Relaxed);
        }
    }
}

/// Ends [`Journal::while_held`] when it is dropped, even if the thread unwinds.
struct EndOfHold<'j>(&'j Journal);

impl Drop for EndOfHold<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        while state.cutting {
            state = self.0.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.held = false;
    }
}

/// Ends a turn when it is dropped, even if the thread unwinds.
struct EndOfTurn<'j>(&'j Journal);

impl Drop for EndOfTurn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        (state.busy, state.cutting) = (false, false);
        drop(state);
        self.0.tell();
    }
}

const _: () = assert!(PAGE.is_multiple_of(LINE));

//! The file system as the harness sees it: each call, its outcome, and what a power loss leaves.

use crate::random::Random;
use outlast::internals::pmem::{Call, DiskWatch, Fate};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, MutexGuard};

const PAGE: usize = 4096;
/// The bytes that [`Call::Msync`] writes back: the pages of the two header copies.
const HEADER: usize = 2 * PAGE;
/// The offsets of the sequence number and the dirty mark in a header copy.
const SEQUENCE: usize = 56;
const DIRTY: usize = 96;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The outcome that the harness gives a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The call fails, and the next one does not.
    FailsOnce,
    /// The call fails, and so does every later call except ftruncate.
    FailsForEver,
    /// The call returns success without effect. The next call takes effect.
    Pretends,
    /// The call returns success without effect, and the harness believes that it took effect. So
    /// the disk is as if the library had not made the call.
    LeftOut,
}

/// The file that a call concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    /// The pool.
    Pool,
    /// A copy of the pool.
    Snapshot,
    /// The directory of both.
    Directory,
}

/// A call that was made: the `nth` of its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// The step of the script.
    pub step: usize,
    /// The index of the call within the step.
    pub nth: usize,
    /// The call.
    pub call: Call,
    /// The file that it concerns.
    pub of: Of,
    /// For calls on the pool, the sequence number and the dirty mark of the header at that moment.
    /// They place the call among the stores to the header.
    pub header: (u64, u64),
}

/// A fault: the outcome of the nth call of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultAt {
    /// The step.
    pub step: usize,
    /// The index of the call within the step.
    pub nth: usize,
    /// The outcome.
    pub outcome: Outcome,
}

/// What the disk holds of the pool, and what else the kernel may have written back.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// The content that the last effective calls made durable.
    durable: Vec<u8>,
    /// The contents of memory at moments after `durable`. The last is the current one.
    since: Vec<Vec<u8>>,
}

impl Held {
    /// Returns the current content of memory.
    pub fn now(&self) -> &[u8] {
        self.since.last().map_or(&self.durable, |content| content)
    }

    fn note(&mut self, content: Vec<u8>) {
        if self.now() != content {
            self.since.push(content);
        }
    }

    fn synced(&mut self) {
        self.durable = self.now().to_vec();
        self.since.clear();
    }

    fn lengthened(&mut self) {
        self.durable.resize(self.durable.len().max(self.now().len()), 0);
    }

    fn header_synced(&mut self) {
        let now = self.now()[..HEADER].to_vec();
        if self.durable.len() >= HEADER {
            self.durable[..HEADER].copy_from_slice(&now);
        }
        // After that, an older header cannot come back.
        self.since.iter_mut().for_each(|content| content[..HEADER].copy_from_slice(&now));
    }

    fn page(content: &[u8], at: usize) -> &[u8] {
        static ZEROS: [u8; PAGE] = [0; PAGE];
        content.get(at..at + PAGE).unwrap_or(&ZEROS)
    }

    /// Returns a content that a power loss can leave: each page as it was at some moment since it
    /// was last made durable. The first contents are the extremes. In contents 6 and 7, one copy of
    /// the header was being written when the power failed, and the other copy is the durable one.
    pub fn after_power_loss(&self, nth: usize, random: &mut Random) -> Vec<u8> {
        let (durable, now) = (&self.durable[..], self.now());
        // Before an fsync, or the write of the file's end, the length is not durable, whichever
        // pages are.
        let short = nth == 0 || nth == 2;
        let len = if short { durable.len() } else { durable.len().max(now.len()) };
        let mut image = vec![0; len];
        for at in (0..len).step_by(PAGE) {
            let newest = match nth {
                0 => false,
                1 => true,
                2 => at < HEADER,
                3 => at >= HEADER,
                6 | 7 if at < HEADER => false,
                _ => random.below(2) == 0,
            };
            let pick = random.below(self.since.len().max(1) as u64) as usize;
            let content = match (newest, nth) {
                (false, _) => durable,
                (true, 0..4) => now,
                (true, _) => self.since.get(pick).map_or(now, |content| content),
            };
            image[at..at + PAGE].copy_from_slice(Self::page(content, at));
            if nth.checked_sub(6) == Some(at / PAGE) {
                let cut = 8 * (1 + random.below(62)) as usize;
                image[at..at + cut].copy_from_slice(&Self::page(now, at)[..cut]);
            }
        }
        image
    }
}

/// The state of the disk when a fault struck.
#[derive(Debug, Clone)]
pub struct AtFault {
    /// What the disk held.
    pub held: Held,
    /// Whether the name of the pool was durable.
    pub named: bool,
}

#[derive(Default)]
struct Inner {
    step: usize,
    nth: usize,
    faults: Vec<FaultAt>,
    /// Whether all calls except ftruncate fail.
    fails: bool,
    /// Whether the process is dead. Then nothing is recorded, and nothing takes effect.
    dead: bool,
    /// Device and inode of the pool.
    pool: Option<(u64, u64)>,
    held: Held,
    events: Vec<Event>,
    at_fault: Option<AtFault>,
    struck: usize,
    named: bool,
    /// Calls that named or renamed a file before its content was durable.
    hasty: Vec<Event>,
    failed_write_back: bool,
    /// Whether a call has returned success without effect, and no fsync has made up for it since.
    lied: bool,
    snapshot_synced: bool,
    snapshot_named: bool,
}

/// The file system below a pool that the harness works on.
#[derive(Default)]
pub struct Watch(Mutex<Inner>);

impl Watch {
    /// Makes a file system with these faults.
    pub fn new(faults: Vec<FaultAt>) -> Watch {
        Watch(Mutex::new(Inner { faults, ..Inner::default() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts a step of the script.
    pub fn begin(&self, step: usize) {
        let mut inner = self.inner();
        (inner.step, inner.nth) = (step, 0);
        inner.snapshot_synced = false;
        inner.snapshot_named = false;
    }

    /// Notes the current content of memory.
    pub fn note(&self, content: Vec<u8>) {
        self.inner().held.note(content);
    }

    /// Returns what the disk holds now, and whether the pool's name is durable.
    pub fn now(&self) -> AtFault {
        let inner = self.inner();
        AtFault { held: inner.held.clone(), named: inner.named }
    }

    /// Returns the state of the disk when the last fault struck, if one has.
    pub fn at_fault(&self) -> Option<AtFault> {
        self.inner().at_fault.clone()
    }

    /// Counts the faults that have struck.
    pub fn struck(&self) -> usize {
        self.inner().struck
    }

    /// Returns all calls so far.
    pub fn events(&self) -> Vec<Event> {
        self.inner().events.clone()
    }

    /// Returns whether a call has returned success without effect, and nothing has made up for it
    /// since.
    pub fn has_lied(&self) -> bool {
        self.inner().lied
    }

    /// Returns whether a write-back of the pool has failed since this was last called.
    pub fn take_failed_write_back(&self) -> bool {
        std::mem::take(&mut self.inner().failed_write_back)
    }

    /// Lists the calls that named a file before its content was durable.
    pub fn hasty(&self) -> Vec<Event> {
        self.inner().hasty.clone()
    }

    /// Returns whether the snapshot of this step has a durable name.
    pub fn snapshot_is_durable(&self) -> bool {
        self.inner().snapshot_named
    }

    /// Declares the calling process dead, or its successor alive.
    pub fn set_dead(&self, dead: bool) {
        self.inner().dead = dead;
    }

    /// Replaces the disk with one that does not fail.
    pub fn mend(&self) {
        self.inner().fails = false;
    }
}

impl Inner {
    fn decide(&mut self, event: Event) -> Option<Outcome> {
        let fault = self.faults.iter().find(|f| (f.step, f.nth) == (event.step, event.nth));
        let outcome = fault.map(|fault| fault.outcome);
        if outcome.is_some() {
            self.struck += 1;
            self.at_fault = Some(AtFault { held: self.held.clone(), named: self.named });
        }
        if outcome == Some(Outcome::FailsForEver) {
            self.fails = true;
        }
        let fails = self.fails && !matches!(event.call, Call::Ftruncate);
        outcome.or(fails.then_some(Outcome::FailsForEver))
    }

    /// Applies the effect of a call to what the disk holds.
    fn apply(&mut self, event: Event) {
        match (event.call, event.of) {
            (Call::Fsync, Of::Pool) => {
                self.held.synced();
                // An fsync does not make up for a name that is not durable.
                self.lied &= !self.named;
            }
            (Call::Msync, Of::Pool) => self.held.header_synced(),
            (Call::WriteEnd, Of::Pool) => self.held.lengthened(),
            (Call::Fsync, Of::Snapshot) => self.snapshot_synced = true,
            (Call::Link | Call::Rename, Of::Snapshot) if !self.snapshot_synced && !self.lied => {
                self.hasty.push(event);
            }
            (Call::Link, Of::Pool) if self.held.durable != self.held.now() && !self.lied => {
                self.hasty.push(event);
            }
            (Call::FsyncDirectory, _) => {
                let of_pool = !self.named;
                self.named = true;
                self.snapshot_named = !of_pool;
            }
            _ => {}
        }
    }
}

impl DiskWatch for Watch {
    fn before(&self, call: Call, file: &File) -> Fate {
        let mut inner = self.inner();
        if inner.dead {
            return Fate::Fails(EIO);
        }
        let Ok(meta) = file.metadata() else { return Fate::Done };
        let id = (meta.dev(), meta.ino());
        let of = match (meta.is_dir(), inner.pool) {
            (true, _) => Of::Directory,
            (false, Some(pool)) if pool != id => Of::Snapshot,
            (false, _) => Of::Pool,
        };
        let mut header = (0, 0);
        if of == Of::Pool {
            inner.pool = Some(id);
            let mut content = vec![0; meta.len() as usize];
            file.read_exact_at(&mut content, 0).expect("a file of the harness is read");
            header = header_of(&content);
            inner.held.note(content);
        }
        let event = Event { step: inner.step, nth: inner.nth, call, of, header };
        inner.nth += 1;
        inner.events.push(event);
        let outcome = inner.decide(event);
        match outcome {
            // Only the harness's own account of what is durable counts, so there is no need to wait
            // for a real disk.
            None => inner.apply(event),
            Some(outcome) => {
                let fails = matches!(outcome, Outcome::FailsOnce | Outcome::FailsForEver);
                inner.lied |= outcome == Outcome::Pretends;
                inner.failed_write_back |= fails && call.makes_durable() && of == Of::Pool;
            }
        }
        let is_sync = call.makes_durable() || call == Call::FsyncDirectory;
        match outcome {
            None if is_sync => Fate::Pretends,
            None => Fate::Done,
            Some(Outcome::Pretends | Outcome::LeftOut) => Fate::Pretends,
            Some(_) if call == Call::Fallocate => Fate::Fails(ENOSPC),
            Some(_) => Fate::Fails(EIO),
        }
    }
}

/// Returns sequence number and dirty mark of the newer header copy.
fn header_of(content: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        let bytes = content.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    [0, PAGE]
        .map(|copy| (word(copy + SEQUENCE), word(copy + DIRTY)))
        .into_iter()
        .max()
        .unwrap_or_default()
}

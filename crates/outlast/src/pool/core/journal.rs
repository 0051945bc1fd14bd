//! What the journal needs from the core: cuts, and copies of pages; and the pool's files.

use super::Core;
use crate::error::{Error, Result};
use crate::journal::base::PAGE;
use crate::journal::epoch::{Change, LINE};
use crate::journal::running::{Journal, Source};
use crate::pmem::{Moment, Offset, Seam, Word};
use crate::pool::backing::{Backing, Journaled};
use crate::pool::relocation::NotMoved;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Duration;

/// The words of a line.
type Line = [Word; LINE / 8];

impl<S: Seam> Core<S> {
    /// The pool's journal, if it has one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.backing.journal()
    }

    /// Locks `control`, unless another thread holds it.
    fn try_control(&self) -> Option<MutexGuard<'_, ()>> {
        match self.control.try_lock() {
            Ok(control) => Some(control),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// If the pool has a journal, waits until everything that was stored so far is durable. The caller
    /// holds all writers back.
    pub(super) fn commit_held(&self) -> Result<()> {
        self.journal().map_or(Ok(()), |journal| journal.while_held(|| journal.wait(self)))
    }

    /// Fails if the pool's file had a name and has none any more: another program has removed it, or has
    /// given its name to another file. What is written to it is lost once the pool is closed.
    pub fn check_named(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // Some file systems count no names, and the file of a pool that is being made has none yet.
        let is_named = self.backing.is_named()?;
        let was_named = self.was_named.fetch_or(is_named, Ordering::Relaxed);
        if was_named && !is_named {
            Err(Error::FileGone { path: self.options.path.clone() })
        } else {
            Ok(())
        }
    }

    /// If an operation has failed because the working file of a journaled pool has no room to grow, moves
    /// that file to the disk of the journal. Returns whether the operation may succeed now. Does nothing
    /// inside the gate, where it could not hold other threads back.
    pub fn make_room(&self, error: &Error) -> Result<bool> {
        let Backing::Journaled(journaled) = &self.backing else { return Ok(false) };
        if !matches!(error, Error::DiskFull { .. }) || self.gate.is_inside() {
            return Ok(false);
        }
        if !journaled.wants_to_move() {
            // Another thread may have moved it meanwhile.
            return Ok(journaled.was_moved());
        }
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        if !journaled.wants_to_move() {
            return Ok(true);
        }
        let _held = self.gate.hold(seam)?;
        let _header = seam.lock(&self.header);
        match journaled.move_working() {
            Ok(()) => {
                self.refusals.forget();
                tracing::info!(path = %journaled.journal.working().display(), "moved the working file");
                Ok(true)
            }
            // The operation's own error is the better one.
            Err(NotMoved::Refused(error)) => {
                tracing::warn!(%error, "the working file has no room to grow, and could not be moved");
                Ok(false)
            }
            Err(NotMoved::Broken(error)) => {
                self.poison();
                Err(error)
            }
        }
    }

    /// If the pool has a journal, ends the journal's life: brings the base up to date, so that the
    /// base equals the pool. The caller holds all writers back and closes the pool.
    pub(super) fn end_journal(&self) -> Result<()> {
        self.journal().map_or(Ok(()), |journal| {
            journal.while_held(|| {
                journal.wait(self)?;
                journal.checkpoint(self, true)
            })
        })
    }
}

impl<S: Seam> Source for Core<S> {
    fn cut(&self, held: bool, begin: &mut dyn FnMut(), change: &mut Change) -> Result<bool> {
        let seam = self.memory.seam();
        let control = if held { None } else { self.try_control() };
        if !held && control.is_none() {
            return Ok(false);
        }
        begin();
        let _held = if held { None } else { Some(self.gate.hold(seam)?) };
        // Threads also write the header outside of the gate, under this lock.
        let _header = seam.lock(&self.header);
        change.clear();
        let Some(journal) = self.journal() else { return Ok(true) };
        journal.notes().take(|lines| change.announce(lines));
        let at = |line: u64| Offset::<Line>::new(line * LINE as u64);
        let mut result = Ok(());
        change.fill(|line, image, soon| {
            if let Ok(next) = self.memory.at(at(soon)) {
                seam.prefetch(next);
            }
            match self.memory.at(at(line)) {
                Ok(words) => {
                    for (word, bytes) in words.iter().zip(image.as_chunks_mut::<8>().0) {
                        *bytes = self.memory.load(word).to_le_bytes();
                    }
                }
                Err(damage) => result = Err(Error::from(damage)),
            }
        });
        result.map(|()| true)
    }

    fn pause(&self, time: Duration) {
        if let Some(_control) = self.try_control()
            && let Ok(_held) = self.gate.hold(self.memory.seam())
        {
            std::thread::sleep(time);
        }
    }

    fn check_working(&self) -> io::Result<()> {
        let Backing::Journaled(Journaled { mapping, on_disk, .. }) = &self.backing else {
            return Ok(());
        };
        if !on_disk.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(file) = mapping.as_file() else { return Ok(()) };
        // Lookups can read older content, too, and what is stored from now on would be lost.
        mapping.disk().check_written_back(file).inspect_err(|_| self.poison())
    }

    fn touch(&self, lines: Range<u64>) {
        for line in lines.step_by(PAGE / LINE) {
            if let Ok(words) = self.memory.at(Offset::<Line>::new(line * LINE as u64)) {
                self.memory.load(&words[0]);
            }
        }
    }

    fn read(&self, page: u64, out: &mut [u8]) {
        let words = self.memory.words(page * out.len() as u64, out.len() as u64);
        // The journal reads only pages that lie in the pool.
        if let Ok(words) = words {
            self.memory.read_bytes(words, 0, out);
        }
    }

    fn bytes(&self) -> u64 {
        self.memory.len()
    }

    fn check_base(&self) -> Result<()> {
        self.check_named()
    }

    fn at(&self, moment: Moment) {
        self.backing.at(moment);
    }
}

//! The life of an open pool: the gate, the dirty mark, waits, sync and close.

use super::{Core, CoreOptions, WAIT_ALONE, WAIT_TURNS};
use crate::error::{Damage, Error, NotOpen, Result};
use crate::pmem::{MediumKind, Moment, Offset, Seam, Word};
use crate::pool::backing::Backing;
use crate::pool::bugs;
use crate::pool::gate::{Brief, Entered, Held, Writing};
use crate::pool::header::Header;
use crate::pool::layout::{DIRTY, LACKS_ROOT, SUSPECT, field, pack_roots};
use crate::pool::{points, roots};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How long a sync of an idle pool waits for the threads that are inside the gate.
const BRIEFLY: Duration = Duration::from_millis(2);
/// How long a pool that is made clean counts as clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until it is changed. A copy of its file is clean as well.
    Changed,
    /// Until it is changed; a copy of its file does not count as clean, because nobody has asked for
    /// this sync.
    ChangedOrCopied,
}

/// See [`Core::sync_if_quiet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// There is nothing to sync, or the pool is read-only, suspect, or not in the page cache.
    Clean,
    /// The pool may have been changed since the last check.
    Changed,
    /// It was not changed, and is synced now.
    Synced,
}

impl<S: Seam> Core<S> {
    /// The options that the pool was opened with.
    pub fn options(&self) -> &CoreOptions {
        &self.options
    }

    /// The memory that backs the pool.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns a copy of the header.
    pub fn header(&self) -> Header {
        self.memory.seam().lock(&self.header).clone()
    }

    /// Enters the gate to store to the pool. Marks the pool dirty first if it is clean.
    pub fn enter(&self) -> Result<Writing<'_>> {
        match self.gate.pass() {
            Some(inside) => Ok(inside.stay()),
            None => self.enter_slowly(),
        }
    }

    /// The hot path of [`enter_to_change`](Core::enter_to_change). Returns `None` if the thread
    /// would have to wait, or to do anything else before it may enter.
    #[inline(always)]
    pub fn pass_to_change(&self) -> Option<Brief<'_>> {
        if self.options.read_only { None } else { self.gate.pass() }
    }

    #[cold]
    pub(super) fn enter_slowly(&self) -> Result<Writing<'_>> {
        let mut turn = 0;
        loop {
            match self.gate.try_enter(false)? {
                Entered::Writing(writing) => return Ok(writing),
                Entered::MarkDirty => self.mark_dirty()?,
                Entered::Wait => self.memory.seam().wait(&mut turn),
            }
        }
    }

    /// Like [`enter`](Core::enter), for background work. Returns `None` if entering would make a
    /// pool at rest dirty, or if the gate is held.
    pub fn enter_in_background(&self) -> Result<Option<Writing<'_>>> {
        if self.gate.is_clean() {
            let seam = self.memory.seam();
            let _control = seam.lock(&self.control);
            if self.gate.is_clean() && !self.at_rest.load(Ordering::Relaxed) {
                self.mark_dirty_controlled()?;
            }
        }
        match self.gate.try_enter(true)? {
            Entered::Writing(writing) => Ok(Some(writing)),
            Entered::MarkDirty | Entered::Wait => Ok(None),
        }
    }

    /// Like [`enter`](Core::enter), for changes made by the user. Fails with [`Error::ReadOnly`] in
    /// a read-only pool.
    pub fn enter_to_change(&self) -> Result<Writing<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly { path: self.options.path.clone() });
        }
        self.enter()
    }

    /// Returns the slot and the damage of a root that the pool had when it was closed and now
    /// lacks.
    pub fn lost_root(&self) -> Option<&(usize, Damage)> {
        self.lost_root.as_ref()
    }

    /// The damage in the saved free state that a clean pool's header named. The pool's space is
    /// traced instead, but the trace does not notice blocks that its maps have lost.
    pub fn saved_damage(&self) -> Option<&Damage> {
        self.saved_damage.as_ref()
    }

    /// Whether the pool is neither closed nor poisoned.
    #[inline(always)]
    pub fn is_readable(&self) -> bool {
        self.gate.is_readable()
    }

    /// Fails if the pool is closed or poisoned.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.gate.check()
    }

    /// Reads outside of the gate, and returns what it read if the pool is still open afterwards.
    ///
    /// # Errors
    /// That of `read`; [`Error::NotOpen`] if the pool was closed: then another opener may be using
    /// the file's memory.
    #[inline(always)]
    pub fn while_open<T, E: From<Error>>(
        &self,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.memory.seam().seeded(&bugs::OPEN_CHECKED_EARLY) {
            self.gate.check()?;
            return read();
        }
        let found = read();
        // Another opener stores only after `close` has released the file's lock, and `close` does
        // that after it has closed the gate. So a reader that has seen such a store sees the gate
        // closed.
        fence(Ordering::Acquire);
        self.gate.check()?;
        found
    }

    /// Does what [`while_open`](Self::while_open) does for a `read` that may find nothing out, without
    /// an error: `None` also stands for a closed pool.
    #[inline(always)]
    pub fn while_open_fast<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        seed!(self.memory.seam(), bugs::OPEN_CHECKED_EARLY => return self.gate.is_readable().then(read)?);
        let found = read()?;
        // As in `while_open`.
        fence(Ordering::Acquire);
        self.gate.is_readable().then_some(found)
    }

    /// Whether this process is the one that has the memory. A forked child does not have it.
    pub fn is_here(&self) -> bool {
        self.backing.mapping().is_none_or(|mapping| mapping.alive().is_here())
    }

    /// Waits one turn for a lock of an index.
    ///
    /// # Errors
    /// Fails if the lock's holder may be gone, because a thread panicked or the pool was closed.
    #[inline]
    pub fn wait(&self, turn: &mut u32) -> Result<()> {
        self.memory.seam().wait(turn);
        self.gate.check()
    }

    /// Waits one turn for a lock of a structure in memory. `inside` is 1 if the calling thread has
    /// passed the gate, else 0. `lock` returns the structure's offset and the content of the lock
    /// word.
    ///
    /// # Errors
    /// Those of [`wait`](Core::wait); [`Damage`] if no thread can be holding the lock, or if none
    /// releases it. In a damaged file two structures can share memory, and then threads wait for
    /// each other.
    #[inline]
    pub fn wait_for_lock(
        &self,
        turn: &mut u32,
        inside: usize,
        lock: impl FnOnce() -> (u64, u64),
    ) -> Result<()> {
        self.wait(turn)?;
        if *turn < WAIT_ALONE { Ok(()) } else { self.wait_long(turn, inside, lock) }
    }

    #[cold]
    pub(super) fn wait_long(
        &self,
        turn: &mut u32,
        inside: usize,
        lock: impl FnOnce() -> (u64, u64),
    ) -> Result<()> {
        // A thread that holds a lock is inside the gate. A single look can fall between two
        // holders, so several are taken. If all of them fall between holders, the caller gets an
        // error, and nothing has changed.
        if turn.is_multiple_of(64) && self.gate.inside() <= inside {
            *turn = turn.saturating_add(WAIT_TURNS / 16);
        }
        if *turn < WAIT_TURNS {
            return Ok(());
        }
        let (offset, word) = lock();
        let found = format!("{word:#x} for too long");
        Err(Damage::new(offset, "a lock that is released", found).into())
    }

    pub(super) fn mark_dirty(&self) -> Result<()> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        if !self.gate.is_clean() {
            return Ok(());
        }
        self.mark_dirty_controlled()
    }

    /// Marks the pool dirty. The caller holds `control`, and the gate is clean.
    ///
    /// The mark must be on the disk before any later store can get there. Only the header's pages
    /// are written back for it, and not even those if a process that died has done so already.
    pub(super) fn mark_dirty_controlled(&self) -> Result<()> {
        let seam = self.memory.seam();
        let file = self.backing.identity()?;
        // Other media make the mark durable without the page cache.
        let confirms = self.options.medium == MediumKind::PageCache;
        let is_confirmed = {
            let mut header = seam.lock(&self.header);
            let is_confirmed = confirms
                && header.get(field::MEDIUM) == self.options.medium as u64
                && header.get(field::MAX_SIZE) == self.options.max_size
                && header.copy_damaged.is_none()
                && header.is_confirmed(file, self.options.boot)
                && self.is_suspect() == header.is_suspect();
            if !is_confirmed {
                if !seam.seeded(&bugs::NOT_MARKED_DIRTY) {
                    header.set(field::DIRTY, self.dirty_mark());
                    header.set(field::SAVED, 0);
                    header.set(field::SAVED_BYTES, 0);
                }
                header.set(field::MEDIUM, self.options.medium as u64);
                header.set_writer(file, self.options.boot);
                header.set(field::MAX_SIZE, self.options.max_size);
                header.set(field::CONFIRMED, 0);
                header.write(&self.memory, &points::HEADER_DIRTY)?;
            }
            is_confirmed
        };
        if !is_confirmed {
            self.fsync(Backing::sync_header)?;
            if confirms {
                let mut header = seam.lock(&self.header);
                header.confirm();
                header.write(&self.memory, &points::HEADER_DIRTY)?;
            }
        }
        self.alloc.forget_saved(self);
        self.gate.marked_dirty();
        Ok(())
    }

    /// The value of [`field::DIRTY`] while the pool is being changed.
    pub(super) fn dirty_mark(&self) -> u64 {
        let suspect = if self.is_suspect() { SUSPECT } else { 0 };
        let lacks_root = if self.lost_root.is_some() { LACKS_ROOT } else { 0 };
        DIRTY | suspect | lacks_root
    }

    /// Makes the kernel write the pool back, or the part of it that `sync` writes, if the medium
    /// leaves that to the kernel.
    ///
    /// A failed write-back makes the pool suspect. The kernel reports such an error once and then
    /// counts the pages as written, so no later success says anything about them.
    pub(super) fn fsync(&self, sync: impl Fn(&Backing) -> Result<()>) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let written = self.memory.seam().lock(&self.header).get(field::SEQUENCE);
        let answer = sync(&self.backing);
        match answer {
            Ok(()) => self.memory.seam().lock(&self.header).now_durable(written),
            Err(_) => self.note_suspect(),
        }
        answer
    }

    /// Marks the pool suspect: the disk may lack something that was written. The mark is kept in
    /// the header. The next process finds it through the page cache, and also on the disk if the
    /// disk still accepts writes.
    pub(super) fn note_suspect(&self) {
        let noted = {
            let mut header = self.memory.seam().lock(&self.header);
            self.suspect.store(true, Ordering::Relaxed);
            header.set(field::DIRTY, self.dirty_mark());
            header.set(field::SAVED, 0);
            header.set(field::SAVED_BYTES, 0);
            header.write(&self.memory, &points::HEADER_DIRTY)
        };
        if let Err(error) = noted.and_then(|()| self.backing.sync_header()) {
            tracing::warn!(%error, "a failed write-back could be recorded only in memory");
        }
    }

    /// Whether the pool was closed or synced and has not been modified since.
    pub fn is_clean(&self) -> bool {
        self.gate.is_clean() && !self.header().is_dirty()
    }

    /// Whether the pool was opened although it may be torn.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Whether the disk may lack something that was written: see [`Error::Suspect`].
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Makes the disk hold everything that memory holds, including pages that the kernel counts as
    /// written. The caller holds all writers back.
    pub fn rewrite(&self) -> Result<()> {
        for offset in (0..self.memory.len()).step_by(4096) {
            // A free page without disk blocks holds nothing, and a store to it could find the disk
            // full.
            if self.alloc.is_bare(self, self.geometry.page_of(offset)) {
                continue;
            }
            let word = self.memory.at(Offset::<Word>::new(offset))?;
            self.memory.store(word, self.memory.load(word), &points::FOUND);
        }
        self.fsync(Backing::sync)
    }

    /// Records in the header, durably, that the pool uses a feature that older builds must not write to. A
    /// crash before it is used leaves the bit, and nothing that needs it. The caller is inside the gate.
    pub fn use_feature(&self, bit: u64) -> Result<()> {
        let mut header = self.memory.seam().lock(&self.header);
        let used = header.get(field::READ_ONLY_COMPATIBLE);
        if used & bit == bit {
            return Ok(());
        }
        header.set(field::READ_ONLY_COMPATIBLE, used | bit);
        header.write(&self.memory, &points::HEADER)
    }

    /// Records that the disk holds what memory holds, and that it was found sound.
    pub fn note_sound(&self) -> Result<()> {
        {
            let mut header = self.memory.seam().lock(&self.header);
            self.suspect.store(false, Ordering::Relaxed);
            header.set(field::DIRTY, self.dirty_mark());
            header.write(&self.memory, &points::HEADER_DIRTY)?;
        }
        self.fsync(Backing::sync_header)
    }

    /// Holds all writers back, makes the pool clean and durable, and calls `then` before writers
    /// continue. `settled` says whether every block in use has an owner, so that the free state can
    /// be saved.
    pub fn sync_and<T>(
        &self,
        settled: impl FnOnce() -> bool,
        then: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        let _write_back = seam.lock(&self.write_back);
        self.mark_what_was_found()?;
        let mut held = self.gate.hold(seam)?;
        self.make_clean(&mut held, settled, Until::Changed)?;
        self.commit_held()?;
        then(self)
    }

    /// Syncs a pool that a power loss could tear, if no call has changed it since the last call of
    /// this function. `settled` is the same as for [`sync_and`](Core::sync_and).
    pub fn sync_if_quiet(&self, settled: impl FnOnce() -> bool) -> Result<Quiet> {
        if self.options.read_only
            || self.options.medium != MediumKind::PageCache
            || self.is_suspect()
        {
            return Ok(Quiet::Clean);
        }
        let seam = self.memory.seam();
        let look = || {
            // Behind a clean gate, only a process that died can have left the pool dirty.
            match self.gate.is_clean() {
                true if self.header().is_dirty() => Quiet::Synced,
                true => Quiet::Clean,
                false if self.gate.was_quiet() => Quiet::Synced,
                false => Quiet::Changed,
            }
        };
        let before = {
            let _control = seam.lock(&self.control);
            look()
        };
        if before != Quiet::Synced {
            return Ok(before);
        }
        self.check_named()?;
        self.backing.at(Moment::Idle);
        {
            // Nearly everything is written back here, while writers need not wait.
            let _write_back = seam.lock(&self.write_back);
            self.gate.check()?;
            self.fsync(Backing::sync)?;
        }
        let _control = seam.lock(&self.control);
        let _write_back = seam.lock(&self.write_back);
        let after = look();
        if after != Quiet::Synced {
            return Ok(after);
        }
        self.mark_what_was_found()?;
        let Some(mut held) = self.gate.hold_within(seam, BRIEFLY)? else {
            return Ok(Quiet::Changed);
        };
        self.make_clean(&mut held, settled, Until::ChangedOrCopied)?;
        Ok(Quiet::Synced)
    }

    /// Sets this process's dirty mark on a pool that a dead process left dirty and that no one has
    /// changed since. A sync or close then takes the same steps as after a change. The caller holds
    /// `control`.
    pub(super) fn mark_what_was_found(&self) -> Result<()> {
        let found = self.gate.is_clean() && self.header().is_dirty() && !self.is_suspect();
        if found { self.mark_dirty_controlled() } else { Ok(()) }
    }

    /// Like [`sync_and`](Core::sync_and), but closes the pool for good. `last` frees what was kept
    /// for handles. On failure the pool is closed all the same, and stays marked dirty.
    pub fn close(
        &self,
        last: impl FnOnce() -> Result<()>,
        settled: impl FnOnce() -> bool,
    ) -> Result<()> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        let _write_back = seam.lock(&self.write_back);
        let marked = self.mark_what_was_found();
        seed!(seam, bugs::FILE_UNLOCKED_EARLY => self.backing.unlock());
        let mut held = self.gate.hold(seam)?;
        let result = if self.options.read_only {
            Ok(())
        } else {
            let last = if held.dirty { last() } else { Ok(()) };
            marked
                .and(last)
                .and_then(|()| self.check_named())
                .and_then(|()| self.make_clean(&mut held, settled, Until::Changed))
                .and_then(|()| self.end_journal())
        };
        held.now_closed();
        drop(held);
        if let Some(journal) = self.journal() {
            // This comes before the lock is released, because the next opener may use the working
            // file.
            journal.shut(result.is_ok());
        }
        self.backing.unlock();
        result
    }

    /// Marks the pool dirty, and holds all writers back while `during` walks the structures. The
    /// pool has to be dirty because the walk repairs structures that nobody has touched since
    /// opening.
    pub fn stand_still<T>(&self, during: impl FnOnce() -> Result<T>) -> Result<T> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        let _write_back = seam.lock(&self.write_back);
        if self.gate.is_clean() {
            self.mark_dirty_controlled()?;
        }
        let _held = self.gate.hold(seam)?;
        // The journal cannot cut while `during` runs, so it commits first. If the disk fails, `during`
        // runs all the same.
        let _ = self.commit_held();
        during()
    }

    /// Marks the pool dirty, and holds back all writers except the calling thread while `change`
    /// makes changes.
    pub fn change_alone<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.options.read_only {
            return Err(Error::ReadOnly { path: self.options.path.clone() });
        }
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        if self.gate.is_clean() {
            self.mark_dirty_controlled()?;
        }
        let held = self.gate.hold(seam)?;
        let _lent = held.lend().ok_or(Error::NotOpen(NotOpen::ThreadExiting))?;
        change()
    }

    /// Refuses all operations until the pool is opened again, because it is in a state that only an
    /// open can repair.
    pub fn poison(&self) {
        self.gate.poison();
    }

    fn make_clean(
        &self,
        held: &mut Held<'_>,
        settled: impl FnOnce() -> bool,
        until: Until,
    ) -> Result<()> {
        if self.is_suspect() {
            return Err(Error::Suspect);
        }
        if !held.dirty {
            return self.keep_clean();
        }
        self.collect();
        // An opening does not trust the free state of a file that may be a copy of a pool in use.
        let saved = if until == Until::Changed
            && self.epochs().limbo_bytes() == 0
            && self.unfreeable() == 0
            && settled()
        {
            self.alloc.save(self)?
        } else {
            None
        };
        // Saving may have grown the pool and run into a write-back error. The kernel reports such
        // an error only once, so the sync below might not see it.
        if self.is_suspect() {
            return Err(Error::Suspect);
        }
        // The data goes first: the mark "clean" must not be durable before what it vouches for.
        self.fsync(Backing::sync)?;
        {
            let mut header = self.memory.seam().lock(&self.header);
            if self.is_suspect() {
                return Err(Error::Suspect);
            }
            let (offset, bytes) = saved.unwrap_or((0, 0));
            header.set(field::DIRTY, 0);
            header.set(field::CONFIRMED, 0);
            header.set(field::SAVED, offset);
            header.set(field::SAVED_BYTES, bytes);
            // A lost root stays lost, and the next open reports it too.
            let lost = self.lost_root.as_ref().map(|(slot, _)| *slot);
            self.write_clean(&mut header, lost, until)?;
        }
        // This comes before the write-back, whatever its result: the disk may call the pool clean
        // from now on, so no thread may store before the dirty mark is on the disk again.
        held.now_clean();
        self.fsync(Backing::sync_header)?;
        // A reclaim after a crash waits for the next change by the user: background work must not
        // end the state in which the pool survives a power loss.
        self.at_rest.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a clean pool durably so: the process that closed it may have died before its header was
    /// synced. If the pool is clean only until its file is copied, makes it clean until it is
    /// changed.
    fn keep_clean(&self) -> Result<()> {
        {
            let mut header = self.memory.seam().lock(&self.header);
            if header.is_synced_idle() {
                let lost = self.lost_root.as_ref().map(|(slot, _)| *slot);
                self.write_clean(&mut header, lost, Until::Changed)?;
            } else if !header.is_unsynced() {
                return Ok(());
            }
        }
        self.fsync(Backing::sync_header)
    }

    /// Writes a header that calls the pool clean. `lost` is the slot of a root that the pool lacks.
    fn write_clean(&self, header: &mut Header, lost: Option<usize>, until: Until) -> Result<()> {
        let commits = roots::commits(self, lost)?;
        header.set(field::ROOTS, pack_roots(commits, header.next_sequence()));
        if until == Until::ChangedOrCopied {
            header.set_synced_idle();
        }
        header.write(&self.memory, &points::HEADER_CLEAN)
    }
}

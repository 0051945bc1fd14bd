//! Checkpoints: they bring the base up to date in the background, and delete the segments that are
//! no longer needed.

use super::threads::Running;
use super::*;

/// The least default limit of the journal's length, in bytes.
const LEAST_LIMIT: u64 = 256 << 20;
/// The most pages that a checkpoint copies in one round.
const ROUND: usize = 2048;
/// The base grows ahead of the pool by a quarter of the pool's size, but by no more bytes than
/// this.
const MOST_AHEAD: u64 = 1 << 30;
/// How many times a checkpoint that ends a life is attempted at most. An attempt must be repeated
/// if an epoch became durable during it.
const TRIES: usize = 8;

impl Journal {
    /// Makes checkpoints, prepares segments and extends the base, until [`shut`](Self::shut).
    pub fn run_checkpoints(&self, source: &dyn Source) {
        let _running = Running(self);
        let deleted = lock(&self.writer).take_deleted();
        drop(deleted);
        let (mut pause, mut due) = (RETRY.0, Instant::now());
        while !self.is_stopped() {
            if Instant::now() >= due {
                let done = self.checkpoint_if_due(source);
                pause = match done {
                    Ok(()) => RETRY.0,
                    Err(Error::NotOpen(_)) => return,
                    Err(error) => {
                        tracing::warn!(%error, "a checkpoint of the journal failed");
                        due = Instant::now() + pause;
                        (pause * 2).min(RETRY.1)
                    }
                };
            }
            let state = lock(&self.state);
            if !state.stop && !state.ended {
                // The end of every turn wakes this thread as well.
                drop(self.told.wait_timeout(state, LOOK));
            }
        }
    }

    /// Prepares what will be needed. Makes a checkpoint if the journal has reached half of its
    /// limit, or if the next segment could not be prepared, as on a full disk.
    fn checkpoint_if_due(&self, source: &dyn Source) -> Result<()> {
        let prepared = self.prepare(source);
        let bytes = self.counts.journal_bytes.load(Ordering::Relaxed);
        let is_due = prepared.is_err() || bytes >= self.limit(source) / 2;
        if is_due && !lock(&self.pages).is_empty() {
            source.at(Moment::Checkpoint);
            self.checkpoint(source, false)?;
        }
        prepared
    }

    /// The length that the journal should not exceed, in bytes.
    pub(super) fn limit(&self, source: &dyn Source) -> u64 {
        match self.settings.limit {
            0 => (2 * source.bytes()).max(LEAST_LIMIT),
            limit => limit,
        }
    }

    /// Does ahead of time what an operation or a commit would otherwise have to wait for.
    fn prepare(&self, source: &dyn Source) -> Result<()> {
        source.at(Moment::Prepare);
        if self.counts.epochs.load(Ordering::Relaxed) > 1 {
            let (segment, durable) = {
                let writer = lock(&self.writer);
                (writer.next_segment_bytes(), writer.last_attempt())
            };
            let prepared = self.preparer.prepare(segment, durable);
            prepared.map_err(|e| Error::io("preparing a segment of the journal", e))?;
        }
        let bytes = source.bytes();
        let ahead = (bytes / 4).min(MOST_AHEAD).max(self.settings.ahead);
        let short = self.base_len.load(Ordering::Acquire) < bytes + ahead / 2;
        // An error is ignored here: a full disk is reported once the room is needed.
        if short { self.extend_base(bytes + ahead).or(Ok(())) } else { Ok(()) }
    }

    /// Makes sure that the base has room for `len` bytes.
    pub fn extend_base(&self, len: u64) -> Result<(), MappingError> {
        let is_short = || self.base_len.load(Ordering::Acquire) < len;
        if is_short() {
            let _one = lock(&self.extending);
            if is_short() {
                self.base.extend(len)?;
                // Release: pairs with the Acquire loads of `base_len`. A thread that sees the new
                // length takes no lock, and must see the longer file.
                self.base_len.store(len, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Brings the base up to date with everything that is durable, and deletes the segments that it
    /// then no longer needs. `closed` means that all writers are held back and that the life ends
    /// here.
    pub fn checkpoint(&self, source: &dyn Source, closed: bool) -> Result<()> {
        let _one = lock(&self.checkpointing);
        // While this thread waited for the lock, another one may have ended the life. The base then
        // says so, and a further checkpoint would say that it needs segments.
        if self.is_stopped() {
            return Err(Error::NotOpen(crate::error::NotOpen::ClosedMeanwhile));
        }
        if !closed {
            // If the disk has no room for another segment, preparing it fails, and this checkpoint
            // makes room.
            let _ = self.prepare(source);
        }
        // Closes the open segment, so that all segments that exist now can be deleted at the end.
        // Keeps it open if there is no spare one, because on a full disk the room left in the open
        // segment is needed, and after a failed checkpoint, because each new attempt would add a
        // segment.
        if self.preparer.has_spare() && !self.failing.load(Ordering::Relaxed) {
            lock(&self.writer).close_segment();
        }
        if closed {
            let synced = lock(&self.writer).sync_deletions();
            synced.map_err(|e| Error::io("syncing the journal's directory", e))?;
        }
        let attempt = |n| {
            // After the first attempt, a later epoch is to become durable.
            let waited = if n == 0 { Ok(()) } else { self.wait(source) };
            waited.and_then(|()| self.try_checkpoint(source, closed)).transpose()
        };
        let done = (0..TRIES).find_map(attempt);
        let changed = || io::Error::other("the pool changed while it was closed");
        let done =
            done.unwrap_or_else(|| Err(Error::io("writing the base of the journal", changed())));
        self.failing.store(done.is_err(), Ordering::Relaxed);
        let epoch = done?;
        seed!(bugs::MARKS_CLEARED => *lock(&self.pages) = Pages::none(lock(&self.writer).durable()));
        source.at(Moment::Recorded);
        // The checkpoint is counted before it deletes segments, so that a caller that copies the
        // files can tell from `stats` whether segments were deleted meanwhile.
        self.counts.checkpoints.fetch_add(1, Ordering::SeqCst);
        let deleted = {
            let mut writer = lock(&self.writer);
            // If a segment cannot be deleted now, a later checkpoint tries again.
            let _ = writer.forget(epoch);
            self.counts.journal_bytes.store(writer.bytes(), Ordering::Relaxed);
            writer.take_deleted()
        };
        // Closing the files can take long. Commits need the writer and must not wait for that, so
        // the writer's lock has been released.
        drop(deleted);
        Ok(())
    }

    /// Makes one attempt at a checkpoint. Returns `None` only if `closed` is set and a later epoch
    /// than the checkpoint's became durable during the attempt, because lookups flushed lines. The
    /// life cannot end with this checkpoint then, and the caller tries again.
    fn try_checkpoint(&self, source: &dyn Source, closed: bool) -> Result<Option<u64>> {
        let mut checkpoint = Checkpoint::begin(&mut lock(&self.pages), &self.base);
        if seeded(&bugs::FORGOTTEN_EARLY) {
            let _ = lock(&self.writer).forget(checkpoint.epoch());
        }
        let done = self.write_checkpoint(source, &mut checkpoint, closed);
        if !matches!(done, Ok(Some(_))) {
            checkpoint.abandon(&mut lock(&self.pages));
        }
        done
    }

    fn write_checkpoint(
        &self,
        source: &dyn Source,
        checkpoint: &mut Checkpoint,
        closed: bool,
    ) -> Result<Option<u64>> {
        let failed = |e| Error::io("writing the base of the journal", e);
        while checkpoint.copy(ROUND, |page, out| source.read(page, out)) {
            if !closed {
                // Commits go on meanwhile, and need segments. If the disk has no room for more,
                // preparing one fails, and this checkpoint makes room.
                let _ = self.prepare(source);
            }
            if !seeded(&bugs::PAGES_NOT_AWAITED) {
                // A cut is needed even if no line is noted now: a copied page can hold a store of
                // an operation that has not noted the line yet.
                source.at(Moment::Copied);
                self.wait_for_cut(lock(&self.state), source)?;
            }
            let durable = lock(&self.writer).last_attempt();
            let bytes = checkpoint.write(durable, &self.base).map_err(failed)?;
            self.counts.base_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        // From here on, no later epoch can become durable if the life is to end.
        let turn = closed.then(|| lock(&self.turn));
        if let Some(turn) = &turn
            && (turn.pending || lock(&self.writer).durable() != checkpoint.epoch())
        {
            return Ok(None);
        }
        // The base can become shorter only if another program writes to it. That program may have
        // changed any page, so the next checkpoint must write all of them.
        let (known, len) =
            (self.base_len.load(Ordering::Acquire), self.base.file().len().map_err(failed)?);
        if len < known {
            self.base_len.fetch_min(len, Ordering::AcqRel);
            *lock(&self.pages) =
                Pages::all(source.bytes().div_ceil(PAGE as u64), lock(&self.writer).durable());
            let why =
                format!("the base has {len} bytes, and had {known}: another program wrote to it");
            return Err(failed(io::Error::other(why)));
        }
        source.at(Moment::Written);
        source.check_base()?;
        let finished = checkpoint.finish(&self.base, closed).map_err(failed);
        if turn.is_some() {
            // Even after an error, the disk may say that the life has ended with this epoch.
            lock(&self.state).ended = true;
        }
        finished.map(Some)
    }
}

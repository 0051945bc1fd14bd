//! The base: a copy of the pool on the disk. Checkpoints bring it up to date, and a rebuild
//! completes it.

use super::files::{Directory, JournalFile};
use super::log::{Epochs, LINE, Owner, Writer};
use super::meta::{Meta, MetaFile};
use std::collections::BTreeSet;
use std::io;

/// The unit in which a checkpoint copies the pool, in bytes.
pub const PAGE: usize = 4096;

/// The pages that have changed since the last checkpoint began.
#[derive(Debug, Default)]
pub struct Pages(BTreeSet<u64>);

impl Pages {
    /// Adds the pages of some lines.
    pub fn add(&mut self, lines: std::ops::Range<u64>) {
        let lines_of_page = (PAGE / LINE) as u64;
        self.0.extend(lines.start / lines_of_page..lines.end.div_ceil(lines_of_page));
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A checkpoint under way. It goes in rounds of three steps:
///
/// 1. [`copy`](Self::copy) copies some pages of the pool, while operations go on;
/// 2. the caller makes an epoch durable that ends after that;
/// 3. [`write`](Self::write) writes the copies to the base.
///
/// A copied page can hold half of an operation. After step 2 the journal holds the other half.
pub struct Checkpoint {
    /// The base needs only what follows this epoch, once this checkpoint is complete.
    epoch: u64,
    left: BTreeSet<u64>,
    copies: Vec<(u64, Vec<u8>)>,
    written: Vec<u64>,
}

impl Checkpoint {
    /// Begins a checkpoint. `pages` are those that changed in the epochs up to `durable`, since the
    /// last checkpoint began.
    pub fn begin(pages: &mut Pages, durable: u64) -> Checkpoint {
        let left = std::mem::take(&mut pages.0);
        Checkpoint { epoch: durable, left, copies: Vec::new(), written: Vec::new() }
    }

    /// Copies up to `count` pages. `read` fills in a page of the pool, by its number. Returns whether
    /// there are any copies to write.
    pub fn copy(&mut self, count: usize, mut read: impl FnMut(u64, &mut [u8])) -> bool {
        while self.copies.len() < count
            && let Some(page) = self.left.pop_first()
        {
            let mut bytes = vec![0; PAGE];
            read(page, &mut bytes);
            self.copies.push((page, bytes));
        }
        !self.copies.is_empty()
    }

    /// Writes the copies to the base. `durable` is an epoch that ended after they were made.
    pub fn write(
        &mut self,
        durable: u64,
        base: &dyn JournalFile,
        meta: (&mut MetaFile, &mut Meta),
    ) -> io::Result<()> {
        let (file, meta) = meta;
        if meta.reached < durable {
            let reached = Meta { reached: durable, ..*meta };
            file.write(&reached)?;
            *meta = reached;
        }
        for (page, bytes) in &self.copies {
            base.write_at(bytes, page * PAGE as u64)?;
        }
        self.written.extend(self.copies.drain(..).map(|(page, _)| page));
        Ok(())
    }

    /// Ends the checkpoint: the base is durable, and segments that it does not need are deleted.
    pub fn finish(
        &self,
        base: &dyn JournalFile,
        meta: (&mut MetaFile, &mut Meta),
        log: &mut Writer,
    ) -> io::Result<()> {
        let (file, meta) = meta;
        base.sync()?;
        let done = Meta { checkpoint: self.epoch, ..*meta };
        file.write(&done)?;
        *meta = done;
        log.forget(self.epoch)
    }

    /// Gives the checkpoint up after an error. All its pages count as changed: if the base could
    /// not be synced, the kernel may have dropped any of them.
    pub fn abandon(self, pages: &mut Pages) {
        pages.0.extend(self.left);
        pages.0.extend(self.copies.into_iter().map(|(page, _)| page));
        pages.0.extend(self.written);
    }
}

/// What a rebuild did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// The epoch at whose end the pool is.
    pub epoch: u64,
    /// Epochs that were applied.
    pub applied: u64,
}

/// Completes the base with the epochs of the journal. Returns `None` if the base may hold lines of
/// a later epoch than the journal's last. `boot` is the current boot of the system.
///
/// If a crash cuts this short, the caller repeats it.
pub fn complete(
    directory: &dyn Directory,
    base: &dyn JournalFile,
    meta: (&mut MetaFile, &mut Meta),
    boot: u128,
) -> io::Result<Option<Rebuilt>> {
    let (file, meta) = meta;
    let owner = Owner { pool: meta.pool, life: meta.life };
    let epochs = Epochs::find(directory, owner, meta.checkpoint)?;
    let last = epochs.last();
    if last < meta.reached {
        return Ok(None);
    }
    if meta.boot == boot {
        // The process died, and its working file is lost. What is read here may be in the page cache
        // alone, even where a sync succeeds: the dead process may have met the error that the kernel
        // reports only once. Pages of the base that the disk refused are written again below, because
        // lines of theirs are in the epochs.
        epochs.make_durable()?;
    }
    if meta.reached < last {
        // From here on, the base may hold lines of all of these epochs.
        let reached = Meta { reached: last, ..*meta };
        file.write(&reached)?;
        *meta = reached;
    }
    epochs.apply(|change| {
        change.runs().try_for_each(|(run, images)| base.write_at(images, run.start * LINE as u64))
    })?;
    base.sync()?;
    Ok(Some(Rebuilt { epoch: last, applied: last - meta.checkpoint }))
}

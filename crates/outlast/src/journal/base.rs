//! The base: a copy of the pool on the disk. Checkpoints bring it up to date, and a rebuild
//! completes it.

use super::files::{Directory, JournalFile};
use super::log::{Change, Epochs, LINE, Owner};
use super::meta::MetaFile;
use std::collections::BTreeSet;
use std::io;

/// The unit in which a checkpoint copies the pool, in bytes.
pub const PAGE: usize = 4096;

/// The pages that have changed since the last checkpoint began.
#[derive(Debug, Default)]
pub struct Pages {
    changed: BTreeSet<u64>,
    /// The last epoch that was added.
    epoch: u64,
}

impl Pages {
    /// Returns the set of all `count` pages, after `epoch`: what is changed is not known any more.
    pub fn all(count: u64, epoch: u64) -> Pages {
        Pages { changed: (0..count).collect(), epoch }
    }

    /// Adds the pages of the lines that changed in a durable epoch.
    pub fn add(&mut self, epoch: u64, change: &Change) {
        let lines_of_page = (PAGE / LINE) as u64;
        for (run, _) in change.runs() {
            self.changed.extend(run.start / lines_of_page..run.end.div_ceil(lines_of_page));
        }
        self.epoch = epoch;
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.changed.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }
}

/// A checkpoint under way. It goes in rounds of three steps:
///
/// 1. [`copy`](Self::copy) copies some pages of the pool, while operations go on;
/// 2. the caller makes an epoch durable that ends after that;
/// 3. [`write`](Self::write) writes the copies to the base.
///
/// A copied page can hold half of an operation. After step 2 the journal holds the other half.
/// After an error, [`abandon`](Self::abandon) gives the pages back.
#[must_use = "its pages are lost if it is neither finished nor abandoned"]
pub struct Checkpoint {
    /// The base needs only what follows this epoch, once this checkpoint is complete.
    epoch: u64,
    left: BTreeSet<u64>,
    copies: Vec<(u64, Vec<u8>)>,
    /// The copies can be written once this epoch is durable.
    after: u64,
    written: Vec<u64>,
}

impl Checkpoint {
    /// Begins a checkpoint of the pages that have changed up to the last epoch in the set.
    pub fn begin(pages: &mut Pages) -> Checkpoint {
        let left = std::mem::take(&mut pages.changed);
        let (copies, written) = (Vec::new(), Vec::new());
        Checkpoint { epoch: pages.epoch, left, copies, after: 0, written }
    }

    /// Copies up to `count` pages. `next` is the first epoch that will end after this: not the one in
    /// flight. `read` fills in a page of the pool, by its number; it loads words atomically. Returns
    /// whether there are any copies to write.
    pub fn copy(&mut self, count: usize, next: u64, mut read: impl FnMut(u64, &mut [u8])) -> bool {
        while self.copies.len() < count
            && let Some(page) = self.left.pop_first()
        {
            let mut bytes = vec![0; PAGE];
            read(page, &mut bytes);
            self.copies.push((page, bytes));
        }
        self.after = next;
        !self.copies.is_empty()
    }

    /// Writes the copies to the base.
    ///
    /// # Panics
    /// If the epoch named to [`copy`](Self::copy) is not `durable`.
    pub fn write(
        &mut self,
        durable: u64,
        base: &dyn JournalFile,
        meta: &mut MetaFile,
    ) -> io::Result<()> {
        assert!(durable >= self.after, "the journal holds the other half of what was copied");
        if meta.get().reached < durable {
            meta.update(|meta| meta.reached = durable)?;
        }
        for (page, bytes) in &self.copies {
            base.write_at(bytes, page * PAGE as u64)?;
        }
        self.written.extend(self.copies.drain(..).map(|(page, _)| page));
        Ok(())
    }

    /// Ends the checkpoint: the base is durable. Returns the epoch up to which segments are not
    /// needed any more; see [`Writer::forget`](super::log::Writer::forget).
    ///
    /// # Panics
    /// If there are pages that were not written.
    pub fn finish(&self, base: &dyn JournalFile, meta: &mut MetaFile) -> io::Result<u64> {
        assert!(self.left.is_empty() && self.copies.is_empty(), "all pages are written");
        base.sync()?;
        meta.replace(|meta| meta.checkpoint = self.epoch)?;
        Ok(self.epoch)
    }

    /// Gives the checkpoint up after an error. All its pages count as changed: if the base could
    /// not be synced, the kernel may have dropped any of them.
    pub fn abandon(self, pages: &mut Pages) {
        pages.changed.extend(self.left);
        pages.changed.extend(self.copies.into_iter().map(|(page, _)| page));
        pages.changed.extend(self.written);
    }
}

/// The result of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// The base is the pool at the end of this epoch.
    Whole {
        /// The epoch.
        epoch: u64,
        /// Epochs that were applied.
        applied: u64,
    },
    /// Epochs are missing that were durable. The base was not changed.
    Missing {
        /// The last epoch found.
        found: u64,
        /// The last one that must be there.
        needed: u64,
    },
    /// The base is shorter than the pool, so it is not the base of this journal.
    Short {
        /// Its bytes.
        found: u64,
        /// Bytes of the pool.
        needed: u64,
    },
}

/// Completes the base with the epochs of the journal. If a crash cuts this short, the caller repeats
/// it.
///
/// Pages of the base that the disk had refused, which only the process that died knows, are written
/// again: they differ from the disk in lines that the epochs hold.
pub fn complete(
    directory: &dyn Directory,
    base: &dyn JournalFile,
    meta: &mut MetaFile,
) -> io::Result<Rebuilt> {
    let known = meta.get();
    let bytes = base.len()?;
    if bytes < known.size {
        return Ok(Rebuilt::Short { found: bytes, needed: known.size });
    }
    let owner = Owner { pool: known.pool, life: known.life };
    let epochs = Epochs::find(directory, owner, known.checkpoint)?;
    let (found, needed) = (epochs.last(), known.reached.max(epochs.known()));
    if found < needed {
        return Ok(Rebuilt::Missing { found, needed });
    }
    if known.reached < found {
        // From here on, the base may hold lines of all of these epochs.
        meta.update(|meta| meta.reached = found)?;
    }
    epochs.apply(|change| {
        change.runs().try_for_each(|(run, images)| {
            let offset = run.start.checked_mul(LINE as u64).filter(|offset| {
                offset.checked_add(images.len() as u64).is_some_and(|end| end <= bytes)
            });
            let outside = || io::Error::new(io::ErrorKind::InvalidData, "a line outside the base");
            base.write_at(images, offset.ok_or_else(outside)?)
        })
    })?;
    base.sync()?;
    Ok(Rebuilt::Whole { epoch: found, applied: found - known.checkpoint })
}

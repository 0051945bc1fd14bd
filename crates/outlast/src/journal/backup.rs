//! Copying a journaled pool while another process works on it.
//!
//! The copying process takes no lock and writes nothing to the pool's files. It reads what the other
//! process writes:
//!
//! 1. It reads `meta`. The base needs the epochs after `checkpoint`, call it *c*.
//! 2. It opens all segments. A segment stays readable while it is open, even if it is deleted.
//! 3. It copies the base, piece by piece. Meanwhile it opens the segments that are new.
//! 4. It reads `meta` again. Call the greater one of `reached` and `checkpoint` *r*.
//! 5. It opens the segments that are new, for the last time.
//! 6. It finds the epochs after *c* in these segments, as long as they are consecutive, up to *e*.
//! 7. If *e* is less than *r*, if the life is another one, or if a segment was missed (below), the copy is
//!    void, and everything is done again. Otherwise it completes the copy with the epochs up to *e*.
//!
//! # Why the copy is the pool at the end of epoch e
//!
//! 1. Take any line of the copy and the moment at which it was read from the base. By invariant 1,
//!    the line had its content as of the end of epoch `checkpoint`, or it belonged to an epoch
//!    after `checkpoint`, up to `reached`, with both numbers as of that moment. That also holds for
//!    a line of which a write had stored only a part.
//! 2. Within a life, `checkpoint` and `reached` never decrease, and that moment lies between step 1
//!    and step 4. So the `checkpoint` of that moment was at least *c*, and neither number was more
//!    than *r*.
//! 3. So the line differs from the pool at the end of epoch *c* only if an epoch after *c*, up to *r*,
//!    contains it. Step 7 applies all epochs after *c* up to *e*, and *e* is at least *r*.
//!
//! # Why the copy has everything that was durable at the beginning
//!
//! 1. An epoch that was durable before step 1 was in a segment then. Let *d* be the last one.
//! 2. Suppose *e* is less than *d*. Then the segment that held epoch *e* + 1 was gone at step 2: a
//!    checkpoint with a later epoch than *e* had deleted it.
//! 3. That checkpoint had written its epoch to `meta` before it deleted anything. So *r* is greater
//!    than *e*, and the copy is void.
//!
//! # Segments that were missed
//!
//! A segment that was created and deleted between two looks at the directory normally leaves a
//! trace: a gap in the epochs, or a checkpoint after *e*. There is one exception. A process that
//! dies may leave an unsynced epoch at the end of a segment. The next process makes that epoch
//! again, with other lines, in a new segment, which voids the old one. Without the new segment, the
//! old epoch would be taken for the new one. But segments are deleted in the order of their
//! numbers, so the old one was deleted before the new one. So for each opened segment that was
//! deleted by the end of step 5, the one with the next number must have been opened too; otherwise
//! the copy is void.
//!
//! A pool that is closed and opened again with its [kept](crate::JournalOptions::keep_working_file)
//! working file goes on with the same life, and numbers its segments from 0 again. So the copy is
//! also void if, by the end of step 5, the name of an opened segment belongs to a segment with
//! another header.
//!
//! # What else can happen during a copy
//!
//! - The base grows before the pool does. After step 6 the base is long enough for every line of the
//!   epochs that were found. The copy gets that length before step 7.
//! - The pool is closed. `checkpoint` is then the last epoch, and the base that was copied in the
//!   meantime is completed like any other, unless the copy is void because segments were missed.
//! - The process dies, and nobody opens the pool. The files stay as they are, and the copy is what a
//!   rebuild would make of them.
//! - Another life begins. Its id differs, and the copy is void.

use super::base::{Base, Rebuilt, complete_with};
use super::epoch::{Attempt, HEADER};
use super::epochs::Epochs;
use super::files::{Directory, JournalFile};
use super::meta::{self, Meta};
use super::segment::{name_of, number_of};
use crate::pmem::MappingError;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Number of bytes of the base that are copied at a time.
const PIECE: usize = 256 << 10;
/// The least time between two scans of the directory for new segments. A segment that the copy
/// needs normally exists far longer, because only a checkpoint deletes it. If one is missed all the
/// same, the copy is void.
const LOOKS: Duration = Duration::from_millis(2);

/// The outcome of an attempt to copy a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// The copy is the pool at the end of an epoch, without a journal.
    Whole {
        /// Epochs of the journal that were applied to the copied base.
        applied: u64,
    },
    /// The files have changed too much meanwhile. The copy is useless; a new attempt may succeed.
    Moved,
    /// The files lack something, and nobody has changed anything meanwhile. Holds what a rebuild
    /// would report.
    Incomplete(Rebuilt),
}

/// The segments of a journal that another process writes. They are open, so they can be read even if
/// they are deleted.
struct Capture<'d> {
    directory: &'d dyn Directory,
    files: BTreeMap<u64, Box<dyn JournalFile>>,
}

impl Capture<'_> {
    /// Opens the segments that are new.
    fn look(&mut self) -> io::Result<()> {
        for name in self.directory.names()? {
            if let Some(number) = number_of(&name)
                && let Entry::Vacant(free) = self.files.entry(number)
                && let Some(file) = present(self.directory.open(&name))?
            {
                free.insert(file);
            }
        }
        Ok(())
    }

    /// Returns whether no segment was missed. Must be called after the last look, because a segment
    /// can be deleted after its name was read from the directory.
    fn is_complete(&self) -> io::Result<bool> {
        for (&number, file) in &self.files {
            let there = match present(self.directory.open(&name_of(number)))? {
                Some(now) => head_of(&*now)? == head_of(&**file)?,
                None => self.files.contains_key(&(number + 1)),
            };
            if !there {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns `None` if there is no such file.
fn present<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn head_of(file: &dyn JournalFile) -> io::Result<[u8; HEADER]> {
    let mut head = [0; HEADER];
    file.read_at(&mut head, 0)?;
    Ok(head)
}

/// Returns `meta` of a base that another process may be writing.
pub fn peek(base: &dyn JournalFile) -> io::Result<Option<Meta>> {
    meta::read_while_written(base)
}

/// Copies a pool to an empty file. The caller makes the file durable. `progress` receives the
/// number of bytes copied so far, and the size of the base.
pub fn copy(
    base: &dyn JournalFile,
    directory: &dyn Directory,
    to: Box<dyn JournalFile>,
    progress: impl FnMut(u64, u64),
) -> Result<Copied, MappingError> {
    copy_looking(base, directory, to, progress, LOOKS)
}

/// Like [`copy`]. `looks` is the least time between two looks for new segments.
pub(super) fn copy_looking(
    base: &dyn JournalFile,
    directory: &dyn Directory,
    to: Box<dyn JournalFile>,
    mut progress: impl FnMut(u64, u64),
    looks: Duration,
) -> Result<Copied, MappingError> {
    let Some(before) = peek(base)? else { return Ok(Copied::Moved) };
    let mut capture = Capture { directory, files: BTreeMap::new() };
    capture.look()?;
    let mut looked = Instant::now();
    copy_bytes(base, &*to, |done, all| {
        progress(done, all);
        if looked.elapsed() >= looks {
            capture.look()?;
            looked = Instant::now();
        }
        Ok(())
    })?;
    let Some(after) = peek(base)?.filter(|after| after.owner() == before.owner()) else {
        return Ok(Copied::Moved);
    };
    if before.closed {
        // The base is the pool. The next process to write to it changes `meta` first.
        if after != before {
            return Ok(Copied::Moved);
        }
        Base::leave(&*to)?;
        return Ok(Copied::Whole { applied: 0 });
    }
    capture.look()?;
    let complete = capture.is_complete()?;
    let mut meta = Meta { closed: false, ..before };
    meta.reach(match after.reached_by() {
        reached if reached.epoch >= after.checkpoint => reached,
        _ => Attempt::unknown(after.checkpoint),
    });
    let epochs = Epochs::in_files(capture.files, meta)?;
    let same = peek(base)? == Some(before);
    let size = base.len()?;
    let rebuilt = if size < after.size {
        Rebuilt::Short { found: size, needed: after.size }
    } else if !complete {
        return Ok(Copied::Moved);
    } else {
        to.extend(size)?;
        let copy = Base::create(to, Meta { size, ..meta })?;
        let rebuilt = complete_with(&epochs, &copy, |_, _| ())?;
        Base::leave(copy.file())?;
        rebuilt
    };
    Ok(match rebuilt {
        Rebuilt::Whole { applied, .. } => Copied::Whole { applied },
        _ if !same => Copied::Moved,
        incomplete => Copied::Incomplete(incomplete),
    })
}

/// Copies a file. After each piece, calls `told` with the number of bytes copied so far and the
/// size of the file.
fn copy_bytes(
    from: &dyn JournalFile,
    to: &dyn JournalFile,
    mut told: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let bytes = from.read_at(&mut piece, at)?;
        if bytes == 0 {
            return Ok(());
        }
        to.write_at(&piece[..bytes], at)?;
        at += bytes as u64;
        told(at, from.len()?)?;
    }
}

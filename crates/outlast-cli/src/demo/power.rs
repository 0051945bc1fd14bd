//! A power loss after a kill, in a pool with a journal.
//!
//! A power loss destroys the working file, which is normally in memory, and can destroy anything
//! that was written to the pool's journal but not synced. After the kill, that is at most one
//! epoch, at the end of the last segment: the one after the last durable epoch, whose number is in
//! the working file. The simulation removes the working file, and overwrites the end of this epoch
//! with zeros, from a random place in it. It keeps everything before that place, and everything
//! that was written to the base.
//!
//! The rebuilt pool is then the pool as it was between two operations. So each thread's operations
//! must be in effect up to some point, and all operations that were confirmed to the thread as
//! durable must come before that point. [`take_back`] finds the point for each thread. Where there
//! is none, it marks none of the thread's operations as undone, and the referee reports what is
//! missing.

use super::facts::FileFacts;
use super::items::Item;
use super::journal::{Entry, Journal, State};
use super::plan::Plan;
use super::random::Random;
use super::referee::Contents;
use super::workspace::{self, Workspace};
use crate::failure::Failure;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The size, in bytes, of the unit in which a disk loses data.
const SECTOR: u64 = 512;

/// Chooses the kills that come with a power loss: at least one, and about half of the others.
pub(super) fn choose(kills: u32, random: &mut Random) -> Vec<bool> {
    let certain = random.below(u64::from(kills.max(1)));
    (0..u64::from(kills)).map(|kill| random.below(2) == 0 || kill == certain).collect()
}

/// Simulates a power loss in the pool's files. No process has the pool open.
pub(super) fn fail(space: &Workspace, plan: &Plan, random: &mut Random) -> Result<(), Failure> {
    let facts = workspace::options(&space.dir, plan).facts(&space.pool)?;
    let found =
        facts.journal.and_then(|facts| Some((facts.durable?, facts.working?, facts.directory)));
    let Some((durable, working, directory)) = found else {
        return Err(Failure::Failed("the killed worker has left no working file".into()));
    };
    cut(&directory, durable, random)
        .and_then(|()| std::fs::remove_file(&working))
        .map_err(|e| Failure::io("simulating a power loss", &e))
}

/// Overwrites the end of a pool's journal with zeros, from a random place after the epoch
/// `durable`.
fn cut(directory: &Path, durable: u64, random: &mut Random) -> io::Result<()> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let bytes = std::fs::read(entry?.path())?;
        if bytes.starts_with(b"OLJSEGM1") {
            segments.push((word(&bytes, 8) & u64::from(u32::MAX), bytes));
        }
    }
    segments.sort_by_key(|(number, _)| *number);
    let Some((number, bytes)) = segments.last() else { return Ok(()) };
    let from = first_unsynced(bytes, durable, segments.len() == 1);
    let written = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
    let sectors = written.saturating_sub(from).div_ceil(SECTOR);
    let from = from + random.below(sectors + 1) * SECTOR;
    let zeros = vec![0; written.saturating_sub(from) as usize];
    let path = directory.join(format!("segment-{number:016x}"));
    File::options().write(true).open(path)?.write_all_at(&zeros, from)
}

/// Returns the offset in a segment at which the epochs after `durable` begin. This is 0 if the
/// segment's header is not synced either: a header is synced together with the segment's first
/// epoch or, in the `only` segment, when the segment is made. (docs/format.md, part 17)
fn first_unsynced(segment: &[u8], durable: u64, only: bool) -> u64 {
    let mut at = 4096;
    while let Some(block) = segment.get(at..at + 64)
        && block.starts_with(b"OLJBLOK1")
        && word(block, 8) <= durable
    {
        let counts = word(block, 24);
        let (runs, lines) = (counts as u32 as usize, (counts >> 32) as usize);
        at += 64 + 8 * runs + 64 * lines;
        if word(block, 16) >> 32 != 0 {
            at = at.next_multiple_of(4096);
        }
    }
    if at == 4096 && !only { 0 } else { at as u64 }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Determines which operations a power loss has undone, and records that. Returns how many of them
/// had been known to be in effect.
pub(super) fn take_back(
    contents: &impl Contents,
    items: &[Item],
    journals: &[Journal],
) -> outlast::Result<u64> {
    let mut count = 0;
    for journal in journals {
        let entries: Vec<Entry> = journal.entries().collect();
        let Some(kept) = kept(contents, items, &entries, journal.confirmed())? else { continue };
        for (number, entry) in entries.iter().enumerate().skip(kept) {
            if entry.state.in_effect() {
                journal.take_back(number);
                count += 1;
            } else if entry.state == State::Begun {
                journal.resolve(number, false);
            }
        }
    }
    Ok(count)
}

/// Returns how many of a thread's first entries are still in effect. That is the greatest number for
/// which these entries alone leave exactly what is found. Returns `None` if no number from `confirmed`
/// on does.
fn kept(
    contents: &impl Contents,
    items: &[Item],
    entries: &[Entry],
    confirmed: usize,
) -> outlast::Result<Option<usize>> {
    let mut found: HashMap<u32, Option<FileFacts>> = HashMap::new();
    for entry in &entries[confirmed..] {
        found.insert(entry.item, contents.get(&items[entry.item as usize].key())?);
    }
    let mut now: HashMap<u32, Option<FileFacts>> = found.keys().map(|&item| (item, None)).collect();
    let mut kept = None;
    for number in 0..=entries.len() {
        if number >= confirmed && now == found {
            kept = Some(number);
        }
        // An operation in flight counts like one that returned, because it may have taken effect.
        if let Some(entry) = entries.get(number)
            && (entry.state.in_effect() || entry.state == State::Begun)
            && let Some(record) = now.get_mut(&entry.item)
        {
            *record = entry.after();
        }
    }
    Ok(kept)
}

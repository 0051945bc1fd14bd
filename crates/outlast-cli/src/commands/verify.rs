//! `verify`: checks everything and changes nothing, except that opening an unfinished pool first
//! completes it.

use crate::account;
use crate::args::VerifyArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::progress;
use crate::text::counted;
use indicatif::BinaryBytes;
use outlast::internals::pool::layout::{ROOT_SLOTS, ROOT_WORDS, ROOTS_OFFSET};
use outlast::{Damage, Pool, Verification};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

pub(crate) fn run(pool: Option<&Path>, args: &VerifyArgs, out: &mut Output) -> Result<(), Failure> {
    check(&open::path(pool)?, args.accept_possibly_torn, out)
}

/// How often the progress of a verification is shown.
const TICK: Duration = Duration::from_millis(100);

/// What the library's verification and the walk have found in a pool.
pub(super) struct Examined {
    /// What the library has found.
    found: Verification,
    /// Damage that only the walk over the bytes has found.
    walked: Vec<Damage>,
    /// Bytes that are neither used nor free, if that is known.
    leaked_bytes: Option<u64>,
    /// Keys that occur more than once.
    duplicated: u64,
    /// Records whose checksum does not match.
    torn: u64,
}

impl Examined {
    pub(super) fn is_sound(&self) -> bool {
        let counts = [self.duplicated, self.torn, self.leaked_bytes.unwrap_or(0)];
        self.found.is_sound() && self.walked.is_empty() && counts == [0; 3]
    }

    /// Says what was found in a pool that is not sound.
    pub(super) fn summary(&self) -> String {
        let places = (self.found.all_damage().count() + self.walked.len()) as u64;
        format!(
            "{}, {} duplicated, {} torn, {} leaked",
            counted(places, "damaged place"),
            self.duplicated,
            self.torn,
            counted(self.leaked_bytes.unwrap_or(0), "byte")
        )
    }
}

/// Checks a pool that is open for reading: its structures and records, and then every byte of its
/// file.
pub(super) fn examine(path: &Path, pool: &Pool) -> Result<Examined, Failure> {
    let found = with_progress(pool)?;
    let bar = progress::bytes(found.used_bytes, "accounting for the file");
    let mut untold = 0;
    let account = account::account(path, &mut |bytes| {
        untold += bytes;
        // Updating a bar takes a lock.
        if untold >= 1 << 20 {
            bar.inc(std::mem::take(&mut untold));
        }
    })?;
    bar.finish_and_clear();
    // Both checks find much of the same damage.
    let known: HashSet<u64> = found.all_damage().map(|d| d.offset()).collect();
    let walked = account.problems.into_iter().filter(|d| !known.contains(&d.offset())).collect();
    let duplicated = found.maps.iter().map(|(_, map)| map.duplicated).sum();
    let torn = found.maps.iter().map(|(_, map)| map.torn).sum();
    Ok(Examined { found, walked, leaked_bytes: account.leaked_bytes, duplicated, torn })
}

/// Verifies a pool, and shows how far that is.
fn with_progress(pool: &Pool) -> outlast::Result<Verification> {
    let core = pool.store().core();
    let (alloc, page) = (core.alloc(), core.geometry.page_bytes());
    let pages = alloc.stats(core);
    let used = u64::from(pages.frontier_pages - pages.free_pages) * page;
    let bar = progress::bytes(used, "checking structures and records");
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(alloc.noted_bytes());
            }
            bar.finish_and_clear();
        });
        let found = pool.verify();
        drop(end);
        found
    })
}

/// Fails if a pool that is open for reading is not sound. `so` is for the message: it says what was
/// not done, and what the user can do instead. Returns how many bytes the pool's maps use.
pub(super) fn require_sound(path: &Path, pool: &Pool, so: &str) -> Result<u64, Failure> {
    require_sound_copy(path, path, pool, so)
}

/// Like [`require_sound`], for a copy of the pool at `path`.
pub(super) fn require_sound_copy(
    path: &Path,
    copy: &Path,
    pool: &Pool,
    so: &str,
) -> Result<u64, Failure> {
    let examined = examine(copy, pool)?;
    if examined.is_sound() {
        return Ok(examined.found.used_bytes);
    }
    Err(Failure::Damaged(format!(
        "{}: {}; {so}. `outlast verify` lists all damage, `outlast salvage` copies what can be read into \
         a new pool",
        path.display(),
        examined.summary()
    )))
}

pub(super) fn check(
    path: &Path,
    accept_possibly_torn: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let pool = open::to_read(path, accept_possibly_torn)?;
    let examined = examine(path, &pool)?;
    let sound = examined.is_sound();
    let Examined { found, walked, leaked_bytes, duplicated, torn } = &examined;
    // With a journal, the pool's content may be in the working file.
    let has_journal = pool.durability().interval.is_some();
    let file = if has_journal { None } else { File::open(path).ok() };
    let told = Told { len: pool.stats().size, file };
    if found.maps.is_empty() {
        out.line("The pool has no maps.")?;
    }
    for (info, map) in &found.maps {
        out.object(&json!({
            "event": "map",
            "name": info.name,
            "scheme": info.scheme().name(),
            "records": map.records,
            "duplicated": map.duplicated,
            "torn": map.torn,
            "damage": map.damage.iter().map(damage_object).collect::<Vec<_>>(),
        }))?;
        out.line(format!(
            "map {}: {}, {} duplicated, {} torn",
            out.shown(&info.name),
            counted(map.records, "record"),
            map.duplicated,
            map.torn
        ))?;
        told.print(&map.damage, out)?;
    }
    told.print(&found.damage, out)?;
    told.print(walked, out)?;
    out.object(&json!({
        "event": "verify",
        "path": path.to_string_lossy(),
        "maps": found.maps.len(),
        "records": found.records(),
        "duplicated": duplicated,
        "torn": torn,
        "damaged_header_copy": found.header_copy.as_ref().map(damage_object),
        "damage": found.damage.iter().chain(walked).map(damage_object).collect::<Vec<_>>(),
        "used_bytes": found.used_bytes,
        "leaked_bytes": leaked_bytes,
        "verified": sound,
    }))?;
    if let Some(damage) = &found.header_copy {
        out.line(format!("one copy of the header is damaged, the other is in use: {damage}"))?;
    }
    let leaked = match leaked_bytes {
        Some(bytes) => format!("{} leaked", BinaryBytes(*bytes)),
        None => "leaks are not known until the next command or program that writes has finished the reclaim".into(),
    };
    out.line(format!("{} used by maps, {leaked}", BinaryBytes(found.used_bytes)))?;
    if sound {
        return out.line("sound");
    }
    out.flush()?;
    Err(Failure::Damaged(format!(
        "{}: {}; `outlast salvage` copies what can be read into a new pool",
        path.display(),
        examined.summary()
    )))
}

pub(super) fn damage_object(damage: &Damage) -> Value {
    json!({"offset": damage.offset(), "expected": damage.expected(), "found": damage.found()})
}

/// How much of a file is described in one line if there is much damage.
const PART: u64 = 4096;
/// The offsets of the roots.
const ROOTS: Range<u64> = ROOTS_OFFSET..ROOTS_OFFSET + (8 * ROOT_SLOTS * ROOT_WORDS) as u64;
/// How many damaged places of a part have lines of their own.
const MOST: usize = 3;

/// Describes damage in few lines.
struct Told {
    /// The pool's size in bytes.
    len: u64,
    /// The pool's file, if that has its content.
    file: Option<File>,
}

impl Told {
    /// Prints damage, part by part.
    fn print(&self, damage: &[Damage], out: &mut Output) -> Result<(), Failure> {
        let mut parts: Vec<(u64, Vec<&Damage>)> = Vec::new();
        let mut numbers = HashMap::new();
        for damage in damage {
            let part = match damage.offset() {
                at if at >= self.len => self.len,
                at if ROOTS.contains(&at) && !self.is_zeros(at / PART * PART) => ROOTS.start,
                at => at / PART * PART,
            };
            let number = *numbers.entry(part).or_insert(parts.len());
            if number == parts.len() {
                parts.push((part, Vec::new()));
            }
            parts[number].1.push(damage);
        }
        for (part, all) in parts {
            let count = all.len() as u64;
            if part == self.len {
                let (first, places) = (all[0], counted(count, "damaged place"));
                let why = format!("expected {}, found {}", first.expected(), first.found());
                out.line(format!("  {places}, by pointers that lead outside the pool: {why}"))?;
            } else if count > 1 && self.is_zeros(part) {
                let places = counted(count, "damaged place");
                let why = format!("expected {}, and so on", all[0].expected());
                out.line(format!("  at offset {part:#x}: {PART} bytes of zeros, {places}: {why}"))?;
            } else {
                let shown = if all.len() > MOST + 1 { MOST } else { all.len() };
                for damage in &all[..shown] {
                    out.line(format!("  {damage}"))?;
                }
                if let Some(last) = all[shown..].last() {
                    let more = count - shown as u64;
                    out.line(format!("    and {more} more, up to offset {:#x}", last.offset()))?;
                }
            }
        }
        Ok(())
    }

    /// Whether a part of the file is all zeros.
    fn is_zeros(&self, part: u64) -> bool {
        let mut bytes = [0; PART as usize];
        let read = self.file.as_ref().map(|file| file.read_exact_at(&mut bytes, part));
        read.is_some_and(|read| read.is_ok()) && bytes == [0; PART as usize]
    }
}

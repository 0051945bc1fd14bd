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
use outlast::{Damage, Pool, Verification};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;

pub(crate) fn run(pool: Option<&Path>, args: &VerifyArgs, out: &mut Output) -> Result<(), Failure> {
    check(&open::path(pool)?, args.accept_possibly_torn, out)
}

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
    let bar = progress::spinner("checking structures and records");
    let found = pool.verify()?;
    bar.finish_and_clear();
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

/// Fails if a pool that is open for reading is not sound. `so` is for the message: it says what was
/// not done, and what the user can do instead. Returns how many bytes the pool's maps use.
pub(super) fn require_sound(path: &Path, pool: &Pool, so: &str) -> Result<u64, Failure> {
    let examined = examine(path, pool)?;
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
        print_damage(&map.damage, out)?;
    }
    print_damage(&found.damage, out)?;
    print_damage(walked, out)?;
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

fn print_damage(damage: &[Damage], out: &mut Output) -> Result<(), Failure> {
    for damage in damage {
        out.line(format!("  {damage}"))?;
    }
    Ok(())
}

//! `salvage`: copies what can be read of a damaged pool into a new one.

use super::unfinished::Unfinished;
use super::verify::{damage_object, examine};
use crate::args::SalvageArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use crate::salvageable::{self, Salvageable};
use crate::text::{self, counted};
use indicatif::ProgressBar;
use outlast::{Damage, Error, MapInfo, Pool, PoolOptions, RawMap};
use outlast_offline as offline;
use outlast_offline::Unlinked;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// The suffix of the new pool's name until it is complete.
const UNFINISHED: &str = ".salvaging";
/// The suffix of the copy that is made of base and journal if the working file is gone.
const COPY: &str = ".copying";

/// What became of the records of one map, or of all maps.
#[derive(Debug, Default)]
struct Tally {
    /// Records in the new pool.
    copied: u64,
    /// Those of them that nothing led to.
    unlinked: u64,
    /// Records that the new pool refuses, because their bytes are invalid for their types or too
    /// many, or because their keys are present already.
    refused: u64,
    /// Damaged places.
    places: u64,
    /// Maps of which nothing could be read.
    lost_maps: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.copied += other.copied;
        self.unlinked += other.unlinked;
        self.refused += other.refused;
        self.places += other.places;
        self.lost_maps += other.lost_maps;
    }

    /// Says what the new pool is known to lack.
    fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if self.places > 0 {
            lacks.push(format!("lacks what was in {}", counted(self.places, "damaged place")));
        }
        if self.refused > 0 {
            lacks.push(format!(
                "lacks {} that could not be stored in it",
                counted(self.refused, "record")
            ));
        }
        if self.lost_maps > 0 {
            lacks.push(format!("lacks {}", counted(self.lost_maps, "whole map")));
        }
        lacks
    }
}

pub(crate) fn run(
    pool: Option<&Path>,
    args: &SalvageArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let (from, to) = open::pool_and_file(pool, &args.files)?;
    let to = &to
        .ok_or_else(|| Failure::Usage("no new pool is named: outlast salvage BROKEN NEW".into()))?;
    let from = &open::resolved(from)?;
    if to.symlink_metadata().is_ok() {
        let to = to.display();
        return Err(Failure::Failed(format!("{to} exists already; name a new file")));
    }
    let mut copy = to.as_os_str().to_owned();
    copy.push(COPY);
    let Salvageable { pool: broken, refused, copy, repaired } =
        salvageable::open(from, Path::new(&copy))?;
    place::check_space(place::parent(to), broken.stats().size, "")?;
    if let Some(list) = args.unlinked.as_ref().filter(|list| list.symlink_metadata().is_ok()) {
        let list = list.display();
        return Err(Failure::Failed(format!("{list} exists already; name a new file")));
    }
    // Check that these maps exist before anything is created.
    for name in &args.map {
        if !broken.maps().iter().flatten().any(|info| info.name == *name) {
            return Err(open::no_such_map(
                &open::names(&broken),
                Error::NoSuchMap { name: name.clone() },
            ));
        }
    }
    let start = Instant::now();
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(broken.stats().page_bits);
    let new = Unfinished::create(to, UNFINISHED, &options, Some(from))?;
    interrupt::listen();
    if !repaired.is_empty() {
        let places = counted(repaired.len() as u64, "damaged place");
        out.line(format!("{places} repaired in a copy, which is read instead"))?;
    }
    for damage in &repaired {
        out.object(&json!({"event": "repaired", "damage": damage_object(damage)}))?;
        out.line(format!("  {damage}"))?;
    }
    let bar = progress::spinner("copying records");
    let mut sum = Tally::default();
    let (mut maps, mut count) = (HashMap::new(), 0u64);
    let opened = broken.raw_maps();
    let name =
        |map: &outlast::Result<(MapInfo, _)>| map.as_ref().ok().map(|(info, _)| info.name.clone());
    let all: HashSet<String> = opened.iter().filter_map(name).collect();
    let mut given = HashSet::new();
    for map in opened {
        match map {
            Ok((info, from)) if args.map.is_empty() || args.map.contains(&info.name) => {
                let to = new.pool().raw_map_like(&renamed(&info, &all, &mut given))?;
                let tally = salvage(&info, from, &to, &bar, out)?;
                sum.add(&tally);
                count += 1;
                maps.entry(info.name).or_insert(to);
            }
            Ok(_) => {}
            Err(error) => {
                let damage = damage_of(error)?;
                sum.add(&Tally { places: 1, lost_maps: 1, ..Tally::default() });
                out.object(&json!({"event": "lost_map", "damage": damage_object(&damage)}))?;
                out.line(format!("a map is lost; its name cannot be read:\n  {damage}"))?;
            }
        }
    }
    bar.finish_and_clear();
    let read = copy.as_ref().map_or(from.as_path(), |copy| &copy.0);
    // If damage was found, the new pool is known to lack something. If not, a verification of the
    // old pool can still show that records are missing, for instance by blocks that nothing links
    // to.
    let mut doubts = doubts((from, read), &broken, refused.as_ref(), sum.lacks().is_empty());
    if !repaired.is_empty() {
        let places = counted(repaired.len() as u64, "damaged place");
        doubts
            .push(format!("may lack records ({} was read with {places} repaired)", from.display()));
    }
    let mut rest = Rest::default();
    if !(sum.lacks().is_empty() && doubts.is_empty()) {
        rest = take_unlinked(read, &maps, None, &mut sum)?;
    }
    // A key that was copied meanwhile is not listed.
    let list = args.unlinked.as_deref().map(List::create).transpose()?;
    if let Some(mut list) = list {
        if rest.uncertain + rest.unassigned > 0 {
            rest = take_unlinked(read, &maps, Some(&mut list), &mut sum)?;
        }
        list.finish()?;
    }
    let mut reasons = sum.lacks();
    reasons.extend(doubts);
    reasons.extend(rest.told(sum.places > 0 || sum.lost_maps > 0));
    drop((broken, maps));
    new.finish(to)?;
    out.object(&json!({
        "event": "salvage",
        "from": from.to_string_lossy(),
        "to": to.to_string_lossy(),
        "maps": count,
        "records": sum.copied,
        "refused": sum.refused,
        "damaged_places": sum.places,
        "unlinked": sum.unlinked,
        "unlinked_left": rest.unassigned + rest.uncertain + rest.refused,
        "unlinked_listed": rest.listed,
        "lost_maps": sum.lost_maps,
        "complete": reasons.is_empty(),
        "reasons": reasons,
        "seconds": start.elapsed().as_secs_f64(),
    }))?;
    let (copied, to) = (counted(sum.copied, "record"), to.display());
    if sum.unlinked > 0 {
        let unlinked = counted(sum.unlinked, "record");
        out.line(format!("{unlinked} of them by their blocks alone: what led to them is damaged"))?;
    }
    out.line(format!("{to} has {copied} in {}", counted(count, "map")))?;
    if reasons.is_empty() {
        return Ok(());
    }
    out.flush()?;
    Err(Failure::Damaged(format!("{to} {}", reasons.join("; "))))
}

/// Whole records that nothing leads to, and that were not copied.
#[derive(Debug, Default)]
struct Rest {
    /// Records that were neither removed nor replaced, and can be of several maps, or of a lost one.
    unassigned: u64,
    /// Records that may have been removed or replaced: the pool does not say which blocks are in
    /// use.
    uncertain: u64,
    /// Records that the new pool refuses.
    refused: u64,
    /// How many of the first two were listed.
    listed: u64,
}

impl Rest {
    /// Says what was left out. Any pool that was not closed has records that were removed or
    /// replaced, so the uncertain ones mean something only if there is damage.
    fn told(&self, is_damaged: bool) -> Vec<String> {
        let mut told = Vec::new();
        let mut tell = |n, why: &str| {
            let left = counted(n, "whole record");
            told.push(format!("leaves out {left} that nothing leads to, because {why}"));
        };
        let advice = if self.listed == 0 { " (--unlinked FILE lists them)" } else { "" };
        if self.unassigned > 0 {
            tell(self.unassigned, &format!("nothing says of which map they are{advice}"));
        }
        if self.uncertain > 0 && is_damaged {
            tell(self.uncertain, &format!("they may have been removed or replaced{advice}"));
        }
        if self.refused > 0 {
            tell(self.refused, "the new pool refuses them");
        }
        told
    }
}

/// A file that lists whole records that nothing leads to, and that were not copied.
struct List<'a> {
    path: &'a Path,
    to: BufWriter<File>,
    is_finished: bool,
}

impl<'a> List<'a> {
    fn create(path: &'a Path) -> Result<List<'a>, Failure> {
        let file = File::create_new(path);
        let file = file.map_err(|e| Failure::io(format!("creating {}", path.display()), &e))?;
        Ok(List { path, to: BufWriter::new(file), is_finished: false })
    }

    /// Adds a record. `of` are the maps that can have it, each with its key. If they differ in their
    /// types, or one of them is not known, the line has the bytes.
    fn add(&mut self, record: &Unlinked, of: &[(&RawMap, &Vec<u8>)]) -> Result<(), Failure> {
        let form = |map: &RawMap, key| {
            let (keys, values) = text::columns(map.info());
            (keys.json(key), values.json(&record.value))
        };
        let mut forms = of.iter().map(|(map, key)| form(map, key));
        let first = forms.next().filter(|first| forms.all(|other| other == *first));
        let hex = |bytes| json!({ "hex": text::hex(bytes) });
        let (key, value) = first.unwrap_or_else(|| (hex(&record.key), hex(&record.value)));
        let line = json!({"map": record.map, "key": key, "value": value});
        writeln!(self.to, "{line}").map_err(|e| self.failed(&e))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::io(format!("writing {}", self.path.display()), error)
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.to.flush().map_err(|e| self.failed(&e))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // The salvage has failed. Its new pool is removed as well.
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Copies the whole records that nothing leads to, if they are certain, and it is known of which map
/// they are. Lists the others, if there is a list. A key that is there already stays as it is.
fn take_unlinked(
    read: &Path,
    maps: &HashMap<String, RawMap>,
    mut list: Option<&mut List<'_>>,
    sum: &mut Tally,
) -> Result<Rest, Failure> {
    let mut rest = Rest::default();
    let found = offline::unlinked(read, |record| {
        interrupt::check().map_err(Stop::Failed)?;
        let failed = |error: Error| Stop::Failed(error.into());
        let mut leave = |of: &[(&RawMap, &Vec<u8>)]| {
            match record.is_certain {
                true => rest.unassigned += 1,
                false => rest.uncertain += 1,
            }
            let Some(list) = &mut list else { return Ok(()) };
            rest.listed += 1;
            list.add(&record, of).map_err(Stop::Failed)
        };
        let Some(name) = &record.map else {
            let of = record.candidates.iter();
            let of: Vec<_> = of.filter_map(|(name, key)| Some((maps.get(name)?, key))).collect();
            // Without any of the maps, it was not asked for.
            if of.is_empty() && !record.candidates.is_empty() {
                return Ok(());
            }
            for (map, key) in &of {
                if map.get_stored(key).map_err(failed)?.as_ref() == Some(&record.value) {
                    return Ok(());
                }
            }
            return leave(if record.is_of_lost_map { &[] } else { &of });
        };
        // Without the map, it was not asked for.
        let Some(map) = maps.get(name) else { return Ok(()) };
        if !record.is_certain {
            return match map.contains_key(&record.key).map_err(failed)? {
                true => Ok(()),
                false => leave(&[(map, &record.key)]),
            };
        }
        match map.insert_stored(&record.key, &record.value) {
            Ok(true) => {
                sum.copied += 1;
                sum.unlinked += 1;
            }
            Ok(false) => {}
            Err(Error::Invalid { .. }) => rest.refused += 1,
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    });
    match found {
        Ok(_) => Ok(rest),
        // It is the base of a journaled pool, or damaged so that nothing can be found in this way.
        Err(Stop::Unreadable) => Ok(rest),
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

/// Why the search for records that nothing leads to has ended early.
enum Stop {
    Unreadable,
    Failed(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error.is_damage() || matches!(error, Error::Unfinished { .. }) {
            true => Stop::Unreadable,
            false => Stop::Failed(error.into()),
        }
    }
}

/// Returns the reasons why the new pool may lack records although everything that could be read was
/// copied. Verifies the old pool only if `verify` is set. `read` is the file that was read: the pool's
/// own, or a copy.
fn doubts(
    (from, read): (&Path, &Path),
    broken: &Pool,
    refused: Option<&Error>,
    verify: bool,
) -> Vec<String> {
    let from = from.display();
    let mut doubts = Vec::new();
    match refused {
        Some(error) => {
            let why = Failure::Failed(open::why_refused(error)).within(&from);
            doubts.push(why.message().to_owned());
        }
        None if broken.durability().is_suspect => {
            doubts.push(format!("the disk may not hold what was written to {from}"));
        }
        None => {}
    }
    match verify.then(|| examine(read, broken)) {
        Some(Ok(examined)) if !examined.is_sound() => {
            doubts.push(format!("{from} has {}", examined.summary()));
        }
        Some(Err(failure)) => {
            doubts.push(format!("{from} was not verified: {}", failure.message()));
        }
        _ => {}
    }
    doubts.iter().map(|doubt| format!("may lack records ({doubt})")).collect()
}

/// Returns the description of a map for the new pool. In a torn pool, two maps can have the same
/// name: each one after the first gets another name. `all` are the names in the old pool, and `given`
/// those in the new one.
fn renamed(info: &MapInfo, all: &HashSet<String>, given: &mut HashSet<String>) -> MapInfo {
    let mut new = info.clone();
    let mut number = 1;
    while !given.insert(new.name.clone()) {
        number += 1;
        let mut name = info.name.clone();
        loop {
            new.name = format!("{name} ({number})");
            // A long name is shortened. Without any name at all, the new pool reports the error.
            if new.check().is_ok() || name.pop().is_none() {
                break;
            }
        }
        if all.contains(&new.name) {
            new.name.clone_from(&info.name);
        }
    }
    new
}

/// Copies one map, prints what became of it, and returns that.
fn salvage(
    info: &MapInfo,
    from: outlast::Result<RawMap>,
    to: &RawMap,
    bar: &ProgressBar,
    out: &mut Output,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut damage = Vec::new();
    match from {
        Ok(from) => copy(&from, to, &mut tally, &mut damage, bar)?,
        Err(error) => {
            damage.push(damage_of(error)?);
            tally.lost_maps = 1;
        }
    }
    tally.places = damage.len() as u64;
    out.object(&json!({
        "event": "map",
        "name": info.name,
        "new_name": to.info().name,
        "scheme": info.scheme().name(),
        "records": tally.copied,
        "refused": tally.refused,
        "lost": tally.lost_maps > 0,
        "damage": damage.iter().map(damage_object).collect::<Vec<_>>(),
    }))?;
    let lost = if tally.lost_maps > 0 { ", the map cannot be opened" } else { "" };
    let refused = match tally.refused {
        0 => String::new(),
        n => format!(", {n} refused"),
    };
    let (name, copied) = (out.shown(&info.name), counted(tally.copied, "record"));
    let places = counted(tally.places, "damaged place");
    let renamed = match &to.info().name {
        new if *new == info.name => String::new(),
        new => {
            format!(", called {} in the new pool, where another map has its name", out.shown(new))
        }
    };
    out.line(format!("map {name}: {copied}, {places}{refused}{lost}{renamed}"))?;
    for damage in &damage {
        out.line(format!("  {damage}"))?;
    }
    Ok(tally)
}

fn copy(
    from: &RawMap,
    to: &RawMap,
    tally: &mut Tally,
    damage: &mut Vec<Damage>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    for found in from.salvage().stored() {
        interrupt::check()?;
        match found {
            Ok((key, value)) => match to.insert_stored(&key, &value) {
                Ok(true) => tally.copied += 1,
                Ok(false)
                | Err(
                    Error::Invalid { .. } | Error::KeyTooLarge { .. } | Error::ValueTooLarge { .. },
                ) => tally.refused += 1,
                Err(error) => return Err(error.into()),
            },
            Err(Error::Damaged(place)) => damage.push(place),
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    Ok(())
}

/// Returns the damage that an error reports. Fails with the error if it reports none.
fn damage_of(error: Error) -> Result<Damage, Failure> {
    match error {
        Error::Damaged(damage) | Error::DamagedRoot { damage, .. } => Ok(damage),
        other => Err(other.into()),
    }
}

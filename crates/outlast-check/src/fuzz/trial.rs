//! The trial of a mutant. Three verifications must agree on it. If they call it sound, it must hold
//! its records and be usable like any other pool.

use super::damage::{Excused, excused};
use super::images::{Image, KnownMap, Records, value_of};
use super::mutate::Mutant;
use super::pool::{Opening, Pool, bytes_of, open_by, word_at};
use crate::random::Random;
use outlast::internals::db::store::{AnyIndex, OpenMap};
use outlast::internals::db::verify::verify;
use outlast::internals::index::{Bytes, Change, Cursor, Index, Inline, Previous};
use outlast::internals::pmem::Alive;
use outlast::{Error, RecordForm};
use outlast_offline as offline;
use std::sync::Arc;

/// How many bytes a pool can grow by.
const ROOM: u64 = 12 << 20;

/// The verdict of a verification: what is wrong, or `None` if it calls the pool sound.
pub type Verdict = Option<String>;

/// The verdicts of the three verifications of a file.
#[derive(Debug, Clone)]
pub struct Verdicts {
    /// The verdict on the pool opened for writing.
    pub writable: Verdict,
    /// The verdict on the pool opened read-only.
    pub read_only: Verdict,
    /// The verdict of the offline walk.
    pub walk: Verdict,
    /// Whether the pool was closed, so that its free state tells which blocks are in use.
    strict: bool,
}

impl Verdicts {
    /// Runs all three verifications.
    ///
    /// # Errors
    /// If the pool cannot be opened read-only because of a feature that forbids only writing.
    pub fn of(bytes: &[u8], alive: &Arc<Alive>) -> Result<Verdicts, Error> {
        let (walk, strict) = by_walk(bytes);
        let read_only = by_library(bytes, alive, true)?;
        // A pool with some features of later builds can be read but not written.
        let writable = by_library(bytes, alive, false).unwrap_or_else(|_| read_only.clone());
        Ok(Verdicts { writable, read_only, walk, strict })
    }

    fn each(&self) -> [&Verdict; 3] {
        [&self.writable, &self.read_only, &self.walk]
    }

    /// Returns whether all of them call it damaged.
    pub fn all_damaged(&self) -> bool {
        self.each().iter().all(|verdict| verdict.is_some())
    }

    /// Returns whether all of them call it sound.
    pub fn all_sound(&self) -> bool {
        self.each().iter().all(|verdict| verdict.is_none())
    }
}

impl std::fmt::Display for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, verdict) in ["writable", "read-only", "walk"].into_iter().zip(self.each()) {
            write!(f, "\n  {name}: {}", verdict.as_deref().unwrap_or("sound"))?;
        }
        Ok(())
    }
}

fn by_library(bytes: &[u8], alive: &Arc<Alive>, read_only: bool) -> Result<Verdict, Error> {
    let store = match open_by(bytes, alive, Opening { read_only, room: 0 }) {
        Ok(store) => store,
        Err(error @ Error::UnknownFeature { set: "read-only compatible", .. }) => {
            return Err(error);
        }
        Err(error) => return Ok(Some(error.to_string())),
    };
    let verdict = match verify(&store) {
        Ok(found) if found.is_sound() => None,
        Ok(found) => {
            let first = found.all_damage().next().map(ToString::to_string);
            Some(first.unwrap_or_else(|| format!("{:?} bytes leaked", found.leaked_bytes)))
        }
        Err(error) => Some(error.to_string()),
    };
    let _ = store.close();
    Ok(verdict)
}

fn by_walk(bytes: &[u8]) -> (Verdict, bool) {
    match offline::walk_bytes(bytes) {
        Ok(report) => {
            let strict = report.clean && report.free_state;
            let leaked =
                (report.leaked_bytes != 0).then(|| format!("{} leaked", report.leaked_bytes));
            (report.problems.first().map(ToString::to_string).or(leaked), strict)
        }
        Err(error) => (Some(error.to_string()), false),
    }
}

/// Tries a mutant. Returns whether it was called sound.
///
/// # Errors
/// What the library did wrong.
pub fn trial(
    image: &Image,
    mutant: &Mutant,
    alive: &Arc<Alive>,
    random: &mut Random,
) -> Result<bool, String> {
    let bytes = &mutant.bytes;
    let verdicts = Verdicts::of(bytes, alive).map_err(|e| format!("read-only: {e}"))?;
    if verdicts.all_damaged() {
        return Ok(false);
    }
    if !verdicts.all_sound() {
        return Err(format!("the verifications differ.{verdicts}"));
    }
    let strict = verdicts.strict && image.clean;
    let excuses = excused(image, bytes, strict);
    read_only(image, bytes, &excuses, alive)?;
    use_like_any_other(image, bytes, &excuses, alive, random)?;
    Ok(true)
}

/// Reads all records of a map by a scan.
fn scan(map: &OpenMap) -> Result<Records, Error> {
    let mut records = Records::new();
    let mut cursor = Cursor::start();
    match map.index() {
        AnyIndex::Inline(index) => {
            let mut out = Vec::new();
            while !cursor.is_done() {
                index.scan(&mut cursor, &mut out)?;
            }
            let bytes = |word: u64| word.to_le_bytes().to_vec();
            records.extend(out.into_iter().map(|(key, value)| (bytes(key), bytes(value))));
        }
        AnyIndex::Bytes(index) => {
            let mut out = Vec::new();
            while !cursor.is_done() {
                index.scan(&mut cursor, &mut out)?;
            }
            records.extend(out);
        }
    }
    Ok(records)
}

fn get(map: &OpenMap, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    Ok(match map.index() {
        AnyIndex::Inline(index) => {
            Index::<Inline>::get(&**index, word_at(key, 0))?.map(|v| v.to_le_bytes().to_vec())
        }
        AnyIndex::Bytes(index) => Index::<Bytes>::get(&**index, key)?,
    })
}

fn change(map: &OpenMap, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
    match map.index() {
        AnyIndex::Inline(index) => {
            let change = value.map_or(Change::Remove, |value| Change::Put(word_at(value, 0)));
            index.change(word_at(key, 0), change, Previous::UNWANTED)?;
        }
        AnyIndex::Bytes(index) => {
            index.change(key, value.map_or(Change::Remove, Change::Put), Previous::UNWANTED)?;
        }
    }
    Ok(())
}

/// Opens a map. Returns `None` if the map is gone or has another form, and the damage excuses that.
fn open(store: &Pool, known: &KnownMap, excused: &Excused) -> Result<Option<Arc<OpenMap>>, String> {
    match store.open_map(&known.name) {
        Ok(map) if map.info().form == known.form => Ok(Some(map)),
        Ok(_) if excused.all => Ok(None),
        Err(Error::NoSuchMap { .. }) if excused.all => Ok(None),
        Ok(map) => Err(format!("called sound, and map {:?} is {:?}", known.name, map.info())),
        Err(error) => Err(format!("called sound, and map {:?}: {error}", known.name)),
    }
}

/// Compares a map with what it should hold. Returns its contents.
fn compare(map: &OpenMap, known: &KnownMap, excused: &Excused) -> Result<Records, String> {
    let name = &known.name;
    let failed = |what: &str, e: Error| format!("called sound, and {what} {name:?} fails: {e}");
    let found = scan(map).map_err(|e| failed("a scan of", e))?;
    for (key, value) in &known.records {
        match found.get(key) {
            Some(other) if other == value || excused.may_change(key) => {}
            None if excused.may_vanish(key) => {}
            other => {
                return Err(format!(
                    "called sound, and {name:?} has {other:x?} for the key {key:x?}, not {value:x?}"
                ));
            }
        }
    }
    let more = |key: &&Vec<u8>| !known.records.contains_key(*key) && !excused.may_vanish(key);
    if let Some(key) = found.keys().find(more) {
        return Err(format!("called sound, and {name:?} has {key:x?}, which was never there"));
    }
    for key in &known.keys {
        let got = get(map, key).map_err(|e| failed("a lookup in", e))?;
        if got.as_ref() != found.get(key) {
            return Err(format!("{name:?}: a lookup of {key:x?} and a scan differ"));
        }
    }
    Ok(found)
}

fn read_only(
    image: &Image,
    bytes: &[u8],
    excuses: &[Excused],
    alive: &Arc<Alive>,
) -> Result<(), String> {
    let how = Opening { read_only: true, room: 0 };
    let store = open_by(bytes, alive, how).map_err(|e| format!("called sound, and {e}"))?;
    for (known, excused) in image.maps.iter().zip(excuses) {
        if let Some(map) = open(&store, known, excused)? {
            compare(&map, known, excused)?;
        }
    }
    let _ = store.close();
    Ok(())
}

fn is_sound(store: &Pool, when: &str) -> Result<(), String> {
    match verify(store) {
        Ok(found) if found.is_sound() => Ok(()),
        Ok(found) => Err(format!("called sound, and {when}: {found:?}")),
        Err(error) => Err(format!("called sound, and {when}: {error}")),
    }
}

/// Changes a map, and grows it tenfold.
fn work(
    map: &OpenMap,
    known: &KnownMap,
    held: &mut Records,
    random: &mut Random,
) -> Result<(), Error> {
    for (n, key) in known.keys.iter().enumerate() {
        let value = value_of(known.form, n as u64, 2);
        let value = (random.below(2) == 0).then_some(value);
        change(map, key, value.as_deref())?;
        match value {
            Some(value) => held.insert(key.clone(), value),
            None => held.remove(key),
        };
    }
    for n in 0..10 * known.records.len() as u64 {
        let key = random.next() >> 32 << 8 | n & 0xff;
        let key = key.to_le_bytes().to_vec();
        let value = match known.form {
            RecordForm::Inline => n.to_le_bytes().to_vec(),
            RecordForm::Bytes => vec![n as u8; (n % 40) as usize],
        };
        change(map, &key, Some(&value))?;
        held.insert(key, value);
    }
    Ok(())
}

fn use_like_any_other(
    image: &Image,
    bytes: &[u8],
    excuses: &[Excused],
    alive: &Arc<Alive>,
    random: &mut Random,
) -> Result<(), String> {
    let how = Opening { read_only: false, room: ROOM };
    let store = match open_by(bytes, alive, how) {
        Err(Error::UnknownFeature { .. }) => return Ok(()),
        opened => opened.map_err(|e| format!("called sound, and {e}"))?,
    };
    // Half of the time, verify first, so that operations are not always the first to touch the
    // pool.
    if random.below(2) == 0 {
        is_sound(&store, "verified again")?;
    }
    let mut held = Vec::new();
    for (known, excused) in image.maps.iter().zip(excuses) {
        let Some(map) = open(&store, known, excused)? else { continue };
        let mut records = compare(&map, known, excused)?;
        match work(&map, known, &mut records, random) {
            // The maximum size is part of the header, so a damaged header can set any limit.
            Err(Error::PoolFull { .. }) if header_was_hit(image, bytes) => return Ok(()),
            done => done.map_err(|e| format!("called sound, and a change fails: {e}"))?,
        }
        for _ in 0..4 {
            match store.step() {
                Err(Error::PoolFull { .. }) if header_was_hit(image, bytes) => return Ok(()),
                done => {
                    done.map_err(|e| format!("called sound, and background work fails: {e}"))?
                }
            };
        }
        held.push((known, records));
    }
    is_sound(&store, "after it has grown")?;
    store.close().map_err(|e| format!("called sound, and closing fails: {e}"))?;
    let closed = bytes_of(&store);
    drop(store);
    if let (Some(damage), _) = by_walk(&closed) {
        return Err(format!("called sound, and the walk finds after it was closed: {damage}"));
    }
    let store = open_by(&closed, alive, how).map_err(|e| format!("reopened: {e}"))?;
    for (known, records) in held {
        let map = store.open_map(&known.name).map_err(|e| format!("reopened: {e}"))?;
        let found = scan(&map).map_err(|e| format!("reopened, a scan fails: {e}"))?;
        if found != records {
            let differs = found.iter().find(|(key, value)| records.get(*key) != Some(value));
            let lost = records.keys().find(|key| !found.contains_key(*key));
            return Err(format!(
                "reopened, {:?} holds {} records, not {}: wrong {differs:x?}, missing {lost:x?}",
                known.name,
                found.len(),
                records.len()
            ));
        }
    }
    is_sound(&store, "after it was closed")?;
    Ok(())
}

fn header_was_hit(image: &Image, bytes: &[u8]) -> bool {
    [0, 4096].iter().any(|&at| image.bytes[at..at + 512] != bytes[at..at + 512])
}

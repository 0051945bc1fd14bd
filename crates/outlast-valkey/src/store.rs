//! What lies where in the pool.
//!
//! | map | key | value |
//! |---|---|---|
//! | `keys`, ordered, its records expire | slot, hash, key | a byte for the type, then its payload |
//! | `fields`, ordered | number of the hash, hash of the field (0 in an ordered map), field | the field's value |
//! | `timed`, ordered | time in ms, number of a hash | the hash's key |
//! | `garbage` | number of a hash that is no more | nothing |
//! | `counters` | `hashes` | a number that no hash has had |
//! | | `incomplete` | 1 while a copy of a primary's data is loaded, and until it was completed |
//!
//! The slot is the key's in a cluster, so the keys of a slot lie together. The hash after it makes a
//! position that a `SCAN` can go on from: a cursor is a slot and a hash, and keys that have both in common
//! are returned by one call.
//!
//! A string is one record. A hash (the type) is a record with a number that no other hash ever has and with
//! the number of its fields, which are records of `fields`. Both change in one batch. To remove a hash
//! is to remove its key and to note the number as garbage, in one batch; its fields are removed later. If
//! a hash expires, its key goes without a batch, so each time that a hash gets is noted in `timed` with it,
//! and looked at when it has passed.

mod cleaning;
mod moves;
pub mod uses;

pub use crate::content::{Content, HashInfo, Kind};
use crate::parse::Scan;
use crate::place::{FieldKey, PREFIX, SLOTS, field_key, place_of, position_of, prefix_of, to_ms};
use crate::reply::{Fault, Result};
use outlast::{Expiry, Map, MapOptions, OrderedMap, Pool};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uses::Uses;

/// The name of the counter of the hashes' numbers, and by how many it goes on.
const NUMBERS: &str = "hashes";
const RESERVED: u64 = 1_000;
/// The name of the mark of an incomplete copy.
const INCOMPLETE: &str = "incomplete";

/// The data of a server.
pub struct Store {
    pool: Pool,
    keys: OrderedMap<[u8], [u8]>,
    fields: OrderedMap<FieldKey, [u8]>,
    timed: OrderedMap<(u64, u64), [u8]>,
    garbage: Map<u64, ()>,
    counters: Map<str, u64>,
    /// The number of the next hash.
    next: AtomicU64,
    incomplete: AtomicBool,
    /// Whether any hash may have a time.
    has_timed: AtomicBool,
    /// With eviction.
    uses: Option<Uses>,
}

/// A field of a hash and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What [`Store::each`] calls with a key, what it stands for, and when it expires.
pub type Visitor<'v> = dyn FnMut(&[u8], Content, Expiry) -> Result<()> + 'v;

/// Returns whether nothing can lie between two bounds.
fn is_empty(low: &Bound<FieldKey>, high: &Bound<FieldKey>) -> bool {
    let (Bound::Included(from) | Bound::Excluded(from)) = low else { return false };
    let (Bound::Included(to) | Bound::Excluded(to)) = high else { return false };
    let both = matches!((low, high), (Bound::Included(_), Bound::Included(_)));
    from > to || from == to && !both
}

/// A key and what it stands for, as a scan finds them.
pub type Found = (Vec<u8>, Content);

impl Store {
    /// Opens the maps of a pool, or makes them.
    ///
    /// # Errors
    /// Those of opening a map.
    pub fn open(pool: Pool) -> outlast::Result<Store> {
        let expiring = MapOptions::new().expiry(true);
        let timed = pool.ordered_map("timed")?;
        let garbage = pool.map::<u64, ()>("garbage")?;
        let counters = pool.map::<str, u64>("counters")?;
        let next = AtomicU64::new(counters.get(NUMBERS)?.unwrap_or(0));
        let incomplete = AtomicBool::new(counters.contains_key(INCOMPLETE)?);
        let has_timed = AtomicBool::new(timed.first()?.is_some());
        garbage.iter().next().transpose()?;
        // The large ones last: after a crash, a journal takes the leaves that they have found, and whoever enters
        // the pool waits meanwhile. To open a map is to enter, and so is the first lookup in a part of a hash map.
        let fields = pool.ordered_map("fields")?;
        let keys = pool.ordered_map_with("keys", &expiring)?;
        Ok(Store {
            pool,
            keys,
            fields,
            timed,
            garbage,
            counters,
            next,
            incomplete,
            has_timed,
            uses: None,
        })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    // ---- Keys -----------------------------------------------------------------------

    /// Returns what a key stands for.
    pub fn get(&self, key: &[u8]) -> Result<Option<Content>> {
        self.get_at(&place_of(key))
    }

    fn get_at(&self, place: &[u8]) -> Result<Option<Content>> {
        self.note_use(place);
        self.keys.get(place)?.map(Content::from_stored).transpose()
    }

    /// Returns the string of a key. Fails if it has another type.
    pub fn text(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.get(key)? {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text)),
            Some(Content::Hash(_)) => Err(Fault::wrong_type()),
        }
    }

    /// Returns the strings of keys; `None` for those that do not exist or have another type.
    pub fn texts(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let places: Vec<_> = keys.iter().map(|key| place_of(key)).collect();
        places.iter().for_each(|place| self.note_use(place));
        let places: Vec<&[u8]> = places.iter().map(|place| &place[..]).collect();
        let found = self.keys.get_many(&places)?.into_iter();
        let text = |stored: Option<Vec<u8>>| {
            Ok(match stored.map(Content::from_stored).transpose()? {
                Some(Content::Text(text)) => Some(text),
                _ => None,
            })
        };
        found.map(text).collect()
    }

    /// Returns whether a key exists.
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        Ok(self.keys.contains_key(&place_of(key))?)
    }

    /// Returns when a key expires, if it exists.
    pub fn expiry(&self, key: &[u8]) -> Result<Option<Expiry>> {
        Ok(self.keys.expiry_of(&place_of(key))?)
    }

    /// Sets when a key expires. Returns whether it exists.
    pub fn set_expiry(&self, key: &[u8], expiry: Expiry) -> Result<bool> {
        let Some(content) = self.get(key)? else { return Ok(false) };
        match content {
            Content::Text(_) => Ok(match expiry {
                Expiry::At(time) => self.keys.expire_at(&place_of(key), time)?,
                Expiry::Never => self.keys.persist(&place_of(key))?,
            }),
            Content::Hash(hash) => {
                let mut batch = self.pool.batch();
                self.put_hash(&mut batch, key, hash, expiry)?;
                Ok(batch.commit()?)
            }
        }
    }

    /// Makes a key a string, whatever it was.
    pub fn set_text(&self, key: &[u8], text: &[u8], expiry: Expiry) -> Result<()> {
        let place = place_of(key);
        self.note_use(&place);
        if self.hash_at(&place)?.is_some() {
            return self.replace(self.pool.batch(), key, Content::Text(text.to_vec()), expiry);
        }
        let stored = Content::encode_text(text);
        match expiry {
            Expiry::At(time) => drop(self.keys.put_until(&place, &stored, time)?),
            // `put` would return a copy of the value before.
            Expiry::Never => self.keys.raw().set(&place, &stored)?,
        }
        Ok(())
    }

    /// Makes keys strings, all or none of them.
    pub fn set_texts(&self, pairs: &[[&[u8]; 2]]) -> Result<()> {
        let places: Vec<_> = pairs.iter().map(|[key, _]| place_of(key)).collect();
        let replaced = self.hashes_at(&places)?;
        let mut batch = self.pool.batch();
        for hash in &replaced {
            batch.put(&self.garbage, &hash.number, &())?;
        }
        for (place, [_, text]) in places.iter().zip(pairs) {
            self.note_use(place);
            batch.put(&self.keys, &place[..], &Content::encode_text(text)[..])?;
        }
        batch.commit()?;
        replaced.into_iter().try_for_each(|hash| self.forget(hash))
    }

    /// Changes the string of a key, and keeps its time. `change` gets the string before, and returns the
    /// one after. Returns that, and the time.
    pub fn alter_text(
        &self,
        key: &[u8],
        change: impl Fn(Option<&[u8]>) -> Result<Vec<u8>>,
    ) -> Result<(Vec<u8>, Expiry)> {
        let mut result = Ok(Vec::new());
        let place = place_of(key);
        self.note_use(&place);
        let after = self.keys.alter_until(&place, |before| {
            let decoded = before.map(|(stored, _)| Content::decode(stored)).transpose();
            result = decoded.and_then(|content| match content {
                Some(Content::Hash(_)) => Err(Fault::wrong_type()),
                Some(Content::Text(text)) => change(Some(&text)),
                None => change(None),
            });
            match &result {
                Ok(text) => {
                    let expiry = before.map_or(Expiry::Never, |(_, expiry)| expiry);
                    Some((Content::encode_text(text), expiry))
                }
                Err(_) => before.map(|(stored, expiry)| (stored.to_vec(), expiry)),
            }
        })?;
        result.map(|text| (text, after.map_or(Expiry::Never, |(_, expiry)| expiry)))
    }

    /// Removes a key. Returns whether it existed.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        let place = place_of(key);
        let Some(hash) = self.hash_at(&place)? else {
            return Ok(self.keys.delete(&place)?);
        };
        let mut batch = self.pool.batch();
        batch.remove(&self.keys, &place[..])?;
        batch.put(&self.garbage, &hash.number, &())?;
        batch.commit()?;
        self.forget(hash)?;
        Ok(true)
    }

    /// Returns the hash at a place, if there is one.
    fn hash_at(&self, place: &[u8]) -> Result<Option<HashInfo>> {
        // The first hash gets the number 0.
        if self.next.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let found = self.keys.get_ref(place)?;
        let is_hash = match &found {
            Some(value) if value.bytes().len() == 17 => {
                let mut kind = [0];
                value.bytes().read_at(0, &mut kind)?;
                kind == [1] || kind == [2]
            }
            _ => false,
        };
        drop(found);
        let content = if is_hash { self.get_at(place)? } else { None };
        Ok(content.and_then(|content| match content {
            Content::Hash(hash) => Some(hash),
            Content::Text(_) => None,
        }))
    }

    /// Returns the hashes at places.
    fn hashes_at(&self, places: &[Vec<u8>]) -> Result<Vec<HashInfo>> {
        if self.next.load(Ordering::Relaxed) == 0 {
            return Ok(Vec::new());
        }
        let places: Vec<&[u8]> = places.iter().map(|place| &place[..]).collect();
        let mut hashes = Vec::new();
        for stored in self.keys.get_many(&places)?.into_iter().flatten() {
            if let Content::Hash(hash) = Content::from_stored(stored)? {
                hashes.push(hash);
            }
        }
        Ok(hashes)
    }

    /// Returns the number of keys. Looks at all of them.
    pub fn count(&self) -> Result<u64> {
        Ok(self.keys.len()?)
    }

    /// Returns the next keys of a scan and the cursor after them, which is 0 at the end.
    pub fn scan(&self, scan: &Scan<'_>) -> Result<(u64, Vec<Found>)> {
        let low = prefix_of(scan.cursor);
        let (mut found, mut seen, mut last) = (Vec::new(), 0, None);
        for record in self.keys.range((Bound::Included(&low[..]), Bound::Unbounded)) {
            let (place, stored) = record?;
            let position = position_of(&place)?;
            if seen >= scan.count && last != Some(position) {
                return Ok((position, found));
            }
            seen += 1;
            last = Some(position);
            let key = &place[PREFIX..];
            if scan.wants(key) {
                found.push((key.to_vec(), Content::decode(&stored)?));
            }
        }
        Ok((0, found))
    }

    /// Returns some key, not each with the same probability.
    pub fn random_key(&self) -> Result<Option<Vec<u8>>> {
        // A hasher's keys are random.
        let random = RandomState::new().build_hasher().finish();
        let position = random % (SLOTS << 32);
        let found = match self.keys.ceiling(&prefix_of(position))? {
            None => self.keys.first()?,
            found => found,
        };
        Ok(found.map(|(place, _)| place[PREFIX..].to_vec()))
    }

    /// Removes everything.
    pub fn clear(&self) -> Result<()> {
        // Whatever a crash leaves here: fields without a key are found by `clean`, from the garbage.
        let mut cursor = Scan { cursor: 0, pattern: None, count: 1_000, of_type: None };
        loop {
            let (next, found) = self.scan(&cursor)?;
            for (key, _) in found {
                self.remove(&key)?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor.cursor = next;
        }
    }

    /// Calls `found` with each key, or each of a slot, what it stands for, and when it expires. Keys that change
    /// meanwhile are as they are when they are reached.
    pub fn each(&self, slot: Option<u16>, found: &mut Visitor<'_>) -> Result<()> {
        let start = slot.map_or(0, u64::from);
        let end = slot.map_or(SLOTS, |slot| u64::from(slot) + 1);
        let (low, high) = (prefix_of(start << 32), prefix_of(end << 32));
        for record in self.keys.range(&low[..]..&high[..]) {
            let (place, stored) = record?;
            let Some(expiry) = self.keys.expiry_of(&place)? else { continue };
            found(&place[PREFIX..], Content::decode(&stored)?, expiry)?;
        }
        Ok(())
    }

    /// Returns the slots that have keys.
    pub fn slots(&self) -> Result<Vec<u16>> {
        let (mut slots, mut next) = (Vec::new(), 0);
        while let Some((place, _)) = self.keys.ceiling(&prefix_of(next << 32))? {
            let slot = position_of(&place)? >> 32;
            slots.push(slot as u16);
            next = slot + 1;
        }
        Ok(slots)
    }

    /// Removes all keys of a slot.
    pub fn clear_slot(&self, slot: u16) -> Result<()> {
        let mut keys = Vec::new();
        self.each(Some(slot), &mut |key, _, _| {
            keys.push(key.to_vec());
            Ok(())
        })?;
        keys.iter().try_for_each(|key| self.remove(key).map(drop))
    }

    /// Returns whether the data are a copy of a primary's that was not completed.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// Notes, durably, whether the data are an incomplete copy.
    pub fn set_incomplete(&self, incomplete: bool) -> Result<()> {
        if incomplete {
            self.counters.put(INCOMPLETE, &1)?;
        } else {
            self.counters.delete(INCOMPLETE)?;
        }
        self.incomplete.store(incomplete, Ordering::Relaxed);
        Ok(())
    }

    // ---- Hashes ---------------------------------------------------------------------

    /// Returns the hash of this kind of a key. Fails if it has another type.
    pub fn hash(&self, key: &[u8], kind: Kind) -> Result<Option<HashInfo>> {
        match self.get(key)? {
            None => Ok(None),
            Some(Content::Hash(hash)) if hash.kind == kind => Ok(Some(hash)),
            Some(_) => Err(Fault::wrong_type()),
        }
    }

    /// Returns when the hash of a key expires.
    pub fn hash_expiry(&self, key: &[u8]) -> Result<Expiry> {
        match self.has_timed.load(Ordering::Relaxed) {
            true => Ok(self.expiry(key)?.unwrap_or(Expiry::Never)),
            false => Ok(Expiry::Never),
        }
    }

    /// Returns the value of a field.
    pub fn field(&self, hash: HashInfo, field: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.fields.get(&field_key(hash, field))?)
    }

    /// Sets fields of a hash, and makes it if there is none. `values` have no field twice. Returns how
    /// many fields are new.
    pub fn set_fields(&self, key: &[u8], kind: Kind, values: &[(&[u8], Vec<u8>)]) -> Result<u64> {
        let before = self.hash(key, kind)?;
        let mut hash = before.unwrap_or_else(|| HashInfo {
            kind,
            number: self.next.load(Ordering::Relaxed),
            fields: 0,
        });
        if before.is_none() {
            self.reserve()?;
        }
        let new = match (before, values) {
            (None, _) => values.len() as u64,
            (Some(_), [(field, value)]) => {
                if self.fields.update(&field_key(hash, field), value)? {
                    return Ok(0);
                }
                1
            }
            (Some(_), _) => {
                let mut new = 0;
                for (field, _) in values {
                    new += u64::from(!self.fields.contains_key(&field_key(hash, field))?);
                }
                new
            }
        };
        let expiry = match before {
            Some(_) => self.hash_expiry(key)?,
            None => Expiry::Never,
        };
        hash.fields += new;
        let mut batch = self.pool.batch();
        for (field, value) in values {
            batch.put(&self.fields, &field_key(hash, field), &value[..])?;
        }
        if new > 0 {
            self.put_hash(&mut batch, key, hash, expiry)?;
        }
        batch.commit()?;
        Ok(new)
    }

    /// Makes sure that the next number is not used a second time, and counts it as used.
    fn reserve(&self) -> Result<()> {
        let number = self.next.load(Ordering::Relaxed);
        if number.is_multiple_of(RESERVED) {
            self.counters.put(NUMBERS, &(number + RESERVED))?;
        }
        self.next.store(number + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes fields of a hash, and the hash if it is empty then. Returns how many fields there were.
    pub fn remove_fields(&self, key: &[u8], kind: Kind, fields: &[&[u8]]) -> Result<u64> {
        let Some(mut hash) = self.hash(key, kind)? else { return Ok(0) };
        let expiry = self.hash_expiry(key)?;
        let mut batch = self.pool.batch();
        let mut gone: HashSet<&[u8]> = HashSet::new();
        for field in fields {
            if !gone.contains(field) && self.fields.contains_key(&field_key(hash, field))? {
                batch.remove(&self.fields, &field_key(hash, field))?;
                gone.insert(field);
            }
        }
        let removed = gone.len() as u64;
        hash.fields = hash.fields.saturating_sub(removed);
        if hash.fields == 0 {
            batch.remove(&self.keys, &place_of(key)[..])?;
        } else if removed > 0 {
            self.put_hash(&mut batch, key, hash, expiry)?;
        }
        batch.commit()?;
        Ok(removed)
    }

    /// Returns the fields of a hash from a cursor on, about `count` of them, and the cursor after them,
    /// which is 0 at the end.
    pub fn fields_from(
        &self,
        hash: HashInfo,
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<Pair>)> {
        let Ok(low) = u32::try_from(cursor) else { return Ok((0, Vec::new())) };
        let low = (hash.number, low, Vec::new());
        let high = (hash.number + 1, 0, Vec::new());
        let (mut found, mut last) = (Vec::new(), None);
        for record in self.fields.range(low..high) {
            let ((_, position, field), value) = record?;
            if found.len() >= count && last != Some(position) {
                return Ok((position.into(), found));
            }
            last = Some(position);
            found.push((field, value));
        }
        Ok((0, found))
    }

    /// Returns at most `count` fields of an ordered map between two, from the end if `is_reverse`.
    pub fn fields_between(
        &self,
        hash: HashInfo,
        (low, high): (Bound<&[u8]>, Bound<&[u8]>),
        is_reverse: bool,
        count: usize,
    ) -> Result<Vec<Pair>> {
        let bound = |bound: Bound<&[u8]>, all: FieldKey| match bound {
            Bound::Included(field) => Bound::Included(field_key(hash, field)),
            Bound::Excluded(field) => Bound::Excluded(field_key(hash, field)),
            Bound::Unbounded => Bound::Included(all),
        };
        // What ordered maps have before their fields is 0.
        let low = bound(low, (hash.number, 0, Vec::new()));
        let high = bound(high, (hash.number, 1, Vec::new()));
        if is_empty(&low, &high) {
            return Ok(Vec::new());
        }
        let pair = |record: outlast::Result<(FieldKey, Vec<u8>)>| {
            let ((_, _, field), value) = record?;
            Ok((field, value))
        };
        let range = self.fields.range((low, high));
        if is_reverse {
            range.rev().take(count).map(pair).collect()
        } else {
            range.take(count).map(pair).collect()
        }
    }

    fn put_hash(
        &self,
        batch: &mut outlast::Batch,
        key: &[u8],
        hash: HashInfo,
        expiry: Expiry,
    ) -> Result<()> {
        let (place, stored) = (place_of(key), Content::Hash(hash).encode());
        match expiry {
            Expiry::Never => batch.put(&self.keys, &place[..], &stored[..])?,
            Expiry::At(time) => {
                self.has_timed.store(true, Ordering::Relaxed);
                batch.put(&self.timed, &(to_ms(time), hash.number), key)?;
                batch.put_until(&self.keys, &place[..], &stored[..], time)?
            }
        };
        Ok(())
    }
}

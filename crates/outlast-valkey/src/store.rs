//! What lies where in the pool.
//!
//! | map | key | value |
//! |---|---|---|
//! | `keys`, ordered, its records expire | slot, hash, key | a byte for the type, then its payload |
//! | `fields`, ordered | number of the hash, hash of the field, field | the field's value |
//! | `timed`, ordered | time in ms, number of a hash | the hash's key |
//! | `garbage` | number of a hash that is no more | nothing |
//! | `counters` | `hashes` | a number that no hash has had |
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

use crate::parse::Scan;
use crate::reply::{Fault, Result};
use outlast::{Expiry, Map, MapOptions, OrderedMap, Pool};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A cluster's slots.
const SLOTS: u64 = 16_384;
/// Bytes before the key in a key of `keys`.
const PREFIX: usize = 6;
/// The name of the counter of the hashes' numbers, and by how many it goes on.
const NUMBERS: &str = "hashes";
const RESERVED: u64 = 1_000;
/// Fields that are removed at once with their hash.
const FEW: u64 = 64;
/// Fields that one step of the cleaning removes.
const STEP: usize = 1_000;

/// The key of a field: the number of the hash, the hash of the field, the field.
pub type FieldKey = (u64, u32, Vec<u8>);

/// What a key stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A string.
    Text(Vec<u8>),
    /// A hash.
    Hash(HashInfo),
}

/// The record of a hash's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashInfo {
    /// The number under which its fields lie.
    pub number: u64,
    /// How many there are.
    pub fields: u64,
}

impl Content {
    /// The name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Content::Text(_) => "string",
            Content::Hash(_) => "hash",
        }
    }

    fn decode(stored: &[u8]) -> Result<Content> {
        match stored {
            [0, text @ ..] => Ok(Content::Text(text.to_vec())),
            [1, rest @ ..] if rest.len() == 16 => {
                let word = |at: usize| {
                    u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"))
                };
                Ok(Content::Hash(HashInfo { number: word(0), fields: word(8) }))
            }
            _ => Err(Fault::new("the pool has a value of a type that this version does not know")),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Content::Text(text) => [&[0], &text[..]].concat(),
            Content::Hash(HashInfo { number, fields }) => {
                [&[1], &number.to_le_bytes()[..], &fields.to_le_bytes()].concat()
            }
        }
    }
}

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
}

/// A field of a hash and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A key and what it stands for, as a scan finds them.
pub type Found = (Vec<u8>, Content);

impl Store {
    /// Opens the maps of a pool, or makes them.
    ///
    /// # Errors
    /// Those of opening a map.
    pub fn open(pool: Pool) -> outlast::Result<Store> {
        let expiring = MapOptions::new().expiry(true);
        let keys = pool.ordered_map_with("keys", &expiring)?;
        let fields = pool.ordered_map("fields")?;
        let timed = pool.ordered_map("timed")?;
        let garbage = pool.map::<u64, ()>("garbage")?;
        let counters = pool.map::<str, u64>("counters")?;
        let next = AtomicU64::new(counters.get(NUMBERS)?.unwrap_or(0));
        Ok(Store { pool, keys, fields, timed, garbage, counters, next })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    // ---- Keys -----------------------------------------------------------------------

    /// Returns what a key stands for.
    pub fn get(&self, key: &[u8]) -> Result<Option<Content>> {
        self.keys.get(&place_of(key))?.map(|stored| Content::decode(&stored)).transpose()
    }

    /// Returns the string of a key. Fails if it has another type.
    pub fn text(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.get(key)? {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text)),
            Some(Content::Hash(_)) => Err(Fault::wrong_type()),
        }
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
        let stored = Content::Text(text.to_vec()).encode();
        let Some(Content::Hash(hash)) = self.get_hash(key)? else {
            match expiry {
                Expiry::At(time) => drop(self.keys.put_until(&place, &stored, time)?),
                Expiry::Never => drop(self.keys.put(&place, &stored)?),
            }
            return Ok(());
        };
        let mut batch = self.pool.batch();
        match expiry {
            Expiry::At(time) => batch.put_until(&self.keys, &place[..], &stored[..], time)?,
            Expiry::Never => batch.put(&self.keys, &place[..], &stored[..])?,
        };
        batch.put(&self.garbage, &hash.number, &())?;
        batch.commit()?;
        self.forget(hash)
    }

    /// Makes keys strings, all or none of them.
    pub fn set_texts(&self, pairs: &[[&[u8]; 2]]) -> Result<()> {
        let mut batch = self.pool.batch();
        let mut replaced = Vec::new();
        for [key, text] in pairs {
            if let Some(Content::Hash(hash)) = self.get_hash(key)? {
                batch.put(&self.garbage, &hash.number, &())?;
                replaced.push(hash);
            }
            let stored = Content::Text(text.to_vec()).encode();
            batch.put(&self.keys, &place_of(key)[..], &stored[..])?;
        }
        batch.commit()?;
        replaced.into_iter().try_for_each(|hash| self.forget(hash))
    }

    /// Changes the string of a key, and keeps its time. `change` gets the string before, and returns the
    /// one after. Returns that.
    pub fn alter_text(
        &self,
        key: &[u8],
        change: impl Fn(Option<&[u8]>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let mut result = Ok(Vec::new());
        self.keys.alter_until(&place_of(key), |before| {
            let decoded = before.map(|(stored, _)| Content::decode(stored)).transpose();
            result = decoded.and_then(|content| match content {
                Some(Content::Hash(_)) => Err(Fault::wrong_type()),
                Some(Content::Text(text)) => change(Some(&text)),
                None => change(None),
            });
            let kept = before.map(|(stored, expiry)| (stored.to_vec(), expiry));
            match &result {
                Ok(text) => {
                    let expiry = before.map_or(Expiry::Never, |(_, expiry)| expiry);
                    Some((Content::Text(text.clone()).encode(), expiry))
                }
                Err(_) => kept,
            }
        })?;
        result
    }

    /// Removes a key. Returns whether it existed.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        let place = place_of(key);
        let Some(Content::Hash(hash)) = self.get_hash(key)? else {
            return Ok(self.keys.delete(&place)?);
        };
        let mut batch = self.pool.batch();
        batch.remove(&self.keys, &place[..])?;
        batch.put(&self.garbage, &hash.number, &())?;
        batch.commit()?;
        self.forget(hash)?;
        Ok(true)
    }

    fn get_hash(&self, key: &[u8]) -> Result<Option<Content>> {
        let found = self.keys.get_ref(&place_of(key))?;
        let is_hash = match &found {
            Some(value) if value.bytes().len() == 17 => {
                let mut kind = [0];
                value.bytes().read_at(0, &mut kind)?;
                kind == [1]
            }
            _ => false,
        };
        if is_hash { self.get(key) } else { Ok(None) }
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

    // ---- Hashes ---------------------------------------------------------------------

    /// Returns the hash of a key. Fails if it has another type.
    pub fn hash(&self, key: &[u8]) -> Result<Option<HashInfo>> {
        match self.get(key)? {
            None => Ok(None),
            Some(Content::Hash(hash)) => Ok(Some(hash)),
            Some(Content::Text(_)) => Err(Fault::wrong_type()),
        }
    }

    /// Returns the value of a field.
    pub fn field(&self, hash: HashInfo, field: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.fields.get(&field_key(hash, field))?)
    }

    /// Sets fields of a hash, and makes it if there is none. `values` have no field twice. Returns how
    /// many fields are new.
    pub fn set_fields(&self, key: &[u8], values: &[(&[u8], Vec<u8>)]) -> Result<u64> {
        let before = self.hash(key)?;
        let mut hash = before
            .unwrap_or_else(|| HashInfo { number: self.next.load(Ordering::Relaxed), fields: 0 });
        if before.is_none() {
            self.reserve()?;
        }
        let mut new = 0;
        for (field, _) in values {
            let known = before.is_some() && self.fields.contains_key(&field_key(hash, field))?;
            new += u64::from(!known);
        }
        if let ([(field, value)], 0) = (values, new) {
            self.fields.put(&field_key(hash, field), value)?;
            return Ok(0);
        }
        let expiry = self.expiry(key)?.unwrap_or(Expiry::Never);
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
    pub fn remove_fields(&self, key: &[u8], fields: &[&[u8]]) -> Result<u64> {
        let Some(mut hash) = self.hash(key)? else { return Ok(0) };
        let expiry = self.expiry(key)?.unwrap_or(Expiry::Never);
        let mut batch = self.pool.batch();
        let mut gone: Vec<&[u8]> = Vec::new();
        for field in fields {
            if !gone.contains(field) && self.fields.contains_key(&field_key(hash, field))? {
                batch.remove(&self.fields, &field_key(hash, field))?;
                gone.push(field);
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
                batch.put(&self.timed, &(to_ms(time), hash.number), key)?;
                batch.put_until(&self.keys, &place[..], &stored[..], time)?
            }
        };
        Ok(())
    }

    // ---- Cleaning -------------------------------------------------------------------

    /// Removes the fields of a hash that is garbage, if they are few.
    fn forget(&self, hash: HashInfo) -> Result<()> {
        if hash.fields <= FEW {
            self.clean_hash(hash.number)?;
        }
        Ok(())
    }

    /// Removes some fields of a hash that is garbage. Returns whether there are more.
    fn clean_hash(&self, number: u64) -> Result<bool> {
        let all = (number, 0, Vec::new())..(number + 1, 0, Vec::new());
        let keys: Vec<FieldKey> = self
            .fields
            .range(all)
            .take(STEP)
            .map(|record| Ok(record?.0))
            .collect::<outlast::Result<_>>()?;
        self.fields.remove_many(&keys.iter().collect::<Vec<_>>())?;
        if keys.len() < STEP {
            self.garbage.delete(&number)?;
        }
        Ok(keys.len() == STEP)
    }

    /// Does a step of the cleaning: removes fields of hashes that were removed or have expired by `now`.
    /// Returns whether there is more to do.
    pub fn clean(&self, now: SystemTime) -> Result<bool> {
        let first = self.timed.first()?;
        if let Some((at, key)) = first.filter(|((ms, _), _)| from_ms(*ms) <= now) {
            let number = at.1;
            let is_alive = matches!(
                self.get(&key)?,
                Some(Content::Hash(hash)) if hash.number == number
            );
            let mut batch = self.pool.batch();
            batch.remove(&self.timed, &at)?;
            if !is_alive {
                batch.put(&self.garbage, &number, &())?;
            }
            batch.commit()?;
            return Ok(true);
        }
        match self.garbage.iter().next() {
            Some(record) => {
                self.clean_hash(record?.0)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

// ---- Places -------------------------------------------------------------------------

/// Returns the key under which a key lies.
fn place_of(key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(PREFIX + key.len());
    place.extend_from_slice(&slot_of(key).to_be_bytes());
    place.extend_from_slice(&spread(key).to_be_bytes());
    place.extend_from_slice(key);
    place
}

/// Returns the position of a key: its slot and its hash.
fn position_of(place: &[u8]) -> Result<u64> {
    let Some(prefix) = place.first_chunk::<PREFIX>() else {
        return Err(Fault::new("the pool has a key without a slot"));
    };
    Ok(prefix.iter().fold(0, |position, &byte| position << 8 | u64::from(byte)))
}

/// Returns the least place at a position.
fn prefix_of(position: u64) -> Vec<u8> {
    let bytes = position.min(SLOTS << 32).to_be_bytes();
    bytes[bytes.len() - PREFIX..].to_vec()
}

fn field_key(hash: HashInfo, field: &[u8]) -> FieldKey {
    (hash.number, spread(field), field.to_vec())
}

/// A hash of 32 bits (FNV-1a, folded), never 0: a scan's cursor 0 is its beginning. It is on media.
fn spread(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    ((hash ^ hash >> 32) as u32).max(1)
}

/// Returns the slot of a key in a cluster: CRC-16 (XMODEM) of the key, or of the part in its first braces.
pub fn slot_of(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|&byte| byte == b'}').filter(|&len| len > 0)?;
        Some(&rest[..len])
    });
    let crc = tagged.unwrap_or(key).iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS as u16
}

/// Returns a time as milliseconds since 1970, rounded up.
pub fn to_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The inverse of [`to_ms`].
pub fn from_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_cluster() {
        // The check value of CRC-16/XMODEM, and examples of the cluster's specification.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }

    #[test]
    fn places_are_in_the_order_of_positions() {
        let mut places: Vec<_> = (0..1_000u32).map(|n| place_of(&n.to_le_bytes())).collect();
        places.sort();
        let positions: Vec<_> = places.iter().map(|place| position_of(place).unwrap()).collect();
        assert!(positions.is_sorted() && positions.iter().all(|position| *position > 0));
        assert!(places.iter().zip(positions).all(|(place, at)| prefix_of(at)[..] <= place[..]));
    }
}

//! Record blocks, for schemes whose slots have two words.

use super::image::{LOW48, crc};
use super::{MapReport, Owner, Walk, What};
use outlast::internals::pool::geometry::LARGE;
use outlast::internals::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordForm};
use outlast::{Damage, Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// How many bytes to read in one go at the beginning of a record that takes more than half a page.
const LARGE_AHEAD: u64 = 1 << 12;
/// How many records are read together, in the order in which they lie in the file.
const UNREAD: usize = 1 << 20;
/// Records are read in one go if no more than this many bytes lie between them ...
const GAP: u64 = 1 << 11;
/// ... and if they take no more than this many bytes.
const SPAN: u64 = 1 << 16;

/// A slot that links to a record: its offset and its two words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) place: u64,
    pub(super) words: [u64; 2],
}

/// A value for each key of a part of a map. Keys that are byte strings are read only if several of
/// them have the same hash.
pub(super) struct ByKey<T>(HashMap<u64, OfHash<T>>);

enum OfHash<T> {
    One(Slot, T),
    More(HashMap<Key, T>),
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Whole(Vec<u8>),
    /// The first word of a slot: an inline key, or the link to a record that cannot be read.
    First(u64),
}

impl<T> ByKey<T> {
    pub(super) fn new() -> Self {
        ByKey(HashMap::new())
    }

    /// Adds the value `of` for the key of a slot. If the key has a value already, adds nothing, and
    /// returns `of` and the earlier value.
    pub(super) fn add(
        &mut self,
        walk: &Walk<'_, '_>,
        form: RecordForm,
        slot: Slot,
        of: T,
    ) -> Option<(T, &mut T)> {
        let of_hash = match self.0.entry(walk.hash.of_slot(form, slot.words)) {
            Entry::Vacant(entry) => {
                entry.insert(OfHash::One(slot, of));
                return None;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if let OfHash::One(..) = of_hash
            && let OfHash::One(first, of) = std::mem::replace(of_hash, OfHash::More(HashMap::new()))
        {
            *of_hash = OfHash::More(HashMap::from([(walk.key(form, first), of)]));
        }
        let OfHash::More(by_key) = of_hash else { unreachable!("replaced above") };
        match by_key.entry(walk.key(form, slot)) {
            Entry::Vacant(entry) => {
                entry.insert(of);
                None
            }
            Entry::Occupied(entry) => Some((of, entry.into_mut())),
        }
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_values().flat_map(|of_hash| match of_hash {
            OfHash::One(_, of) => vec![of],
            OfHash::More(by_key) => by_key.into_values().collect(),
        })
    }
}

impl Walk<'_, '_> {
    fn key(&self, form: RecordForm, slot: Slot) -> Key {
        match form {
            RecordForm::Inline => Key::First(slot.words[0]),
            RecordForm::Bytes => {
                self.record(slot).map_or(Key::First(slot.words[0]), |(key, _)| Key::Whole(key))
            }
        }
    }

    /// Checks the record of a slot. In maps of byte strings, the slot is only noted here;
    /// [`read_records`](Self::read_records) reads its record together with others, and claims the
    /// block.
    pub(super) fn check_record(&mut self, map: &mut MapReport, slot: Slot) -> Result<()> {
        match map.form {
            RecordForm::Inline => {
                let [key, value] = slot.words.map(u64::to_le_bytes);
                self.check_types(map, slot.place, &key, &value);
            }
            RecordForm::Bytes => {
                self.unread.push(slot);
                if self.unread.len() == UNREAD {
                    self.read_records(map)?;
                }
            }
        }
        Ok(())
    }

    /// Checks a slot whose record a split has moved to another segment. Its link means nothing any
    /// more, but it was that of a record.
    pub(super) fn check_stale(&self, map: &MapReport, slot: Slot) -> Result<()> {
        let [first, second] = slot.words;
        let bytes = match u8::try_from(first >> 48) {
            Ok(LARGE) => Some(0),
            Ok(class) => self.class_bytes(class),
            Err(_) => None,
        };
        let is_inside = |bytes: u64| (first & LOW48) + bytes <= self.image.len;
        let is_link = bytes.is_some_and(is_inside) && first.is_multiple_of(8);
        match map.form == RecordForm::Inline || is_link {
            true => Ok(()),
            false => {
                let found = format!("{first:#x} {second:#x}");
                Err(Damage::new(slot.place, "an empty slot, or a record", found).into())
            }
        }
    }

    /// Reads the records that were noted, claims their blocks, and reports what is wrong with them.
    pub(super) fn read_records(&mut self, map: &mut MapReport) -> Result<()> {
        let mut unread = std::mem::take(&mut self.unread);
        unread.sort_unstable_by_key(|slot| slot.words[0] & LOW48);
        let mut end = 0;
        for (number, &slot) in unread.iter().enumerate() {
            if slot.words[0] & LOW48 >= end {
                end = self.read_together(&unread[number..]);
            }
            let checked = match self.record(slot) {
                Ok((key, value)) => {
                    self.check_types(map, slot.place, &key, &value);
                    self.claim_record(slot.words[0], Owner::Record)
                }
                Err(error) => {
                    map.torn += 1;
                    Err(error)
                }
            };
            match checked {
                Err(Error::Damaged(damage)) => self.problem(damage),
                checked => checked?,
            }
        }
        unread.clear();
        self.unread = unread;
        Ok(())
    }

    /// Reads ahead the first of these records and those that lie close behind it. Returns the end
    /// of what was read.
    fn read_together(&self, unread: &[Slot]) -> u64 {
        let links = unread.iter().map(|slot| slot.words[0]);
        let start = links.clone().next().map_or(0, |link| link & LOW48);
        let mut end = start;
        for link in links {
            let (next, bytes) = (link & LOW48, self.bytes_ahead(link));
            if next > start && (next > end + GAP || next + bytes > start + SPAN) {
                break;
            }
            end = end.max(next + bytes);
        }
        self.image.read_ahead(start, end - start);
        end
    }

    /// Returns how many bytes to read ahead for the record that a word links to.
    fn bytes_ahead(&self, link: u64) -> u64 {
        let class = u8::try_from(link >> 48).unwrap_or(LARGE);
        self.class_bytes(class).filter(|&bytes| bytes <= 1 << 15).unwrap_or(LARGE_AHEAD)
    }

    /// Checks a record block and returns its key and its value.
    pub(super) fn record(&self, slot: Slot) -> Result<(Vec<u8>, Vec<u8>)> {
        let Slot { place, words: [first, second] } = slot;
        let offset = first & LOW48;
        let class = (first >> 48) as u8;
        let bad = |expected: &str, found: String| -> Result<(Vec<u8>, Vec<u8>)> {
            Err(Damage::new(offset, format!("{expected} (slot at {place:#x})"), found).into())
        };
        if first >> 56 != 0 {
            return bad("a record's link", format!("{first:#x}"));
        }
        self.image.read_ahead(offset, self.bytes_ahead(first));
        let head: [u64; 2] = self.image.array(offset)?;
        let (key_len, value_len) = (head[0] as u32 as usize, (head[0] >> 32) as usize);
        if key_len > MAX_KEY_BYTES || value_len > MAX_VALUE_BYTES {
            return bad("a record's lengths", format!("{key_len} and {value_len}"));
        }
        let bytes = 16 + (key_len + value_len) as u64;
        // The class is the smallest one that holds the record, unless whole pages hold it as well.
        let whole = bytes.next_multiple_of(self.page_bytes());
        let smallest = (0..LARGE).find(|&c| self.class_bytes(c).is_some_and(|size| size >= bytes));
        let expected = smallest.filter(|&c| self.class_bytes(c) < Some(whole)).unwrap_or(LARGE);
        if class != expected {
            return bad(
                &format!("class {expected} for a record of {bytes} bytes"),
                format!("class {class}"),
            );
        }
        let mut body = self.image.bytes(offset + 16, bytes - 16)?;
        let sum = crc(&[&offset.to_le_bytes(), &head[0].to_le_bytes(), &body]);
        if !has_sum(head[1], sum) {
            return bad(&format!("a record with checksum {sum:#x}"), format!("{:#x}", head[1]));
        }
        let value = body.split_off(key_len);
        let hash = self.hash.of(&body);
        if hash != second {
            return bad(&format!("hash {hash:#x} of its key"), format!("{second:#x}"));
        }
        Ok((body, value))
    }

    /// Reports a key or a value that no program with the map's types could have written.
    pub(super) fn check_types(&mut self, map: &MapReport, place: u64, key: &[u8], value: &[u8]) {
        let Some(value) = without_time(map, value) else {
            let found = format!("{value:x?}");
            return self.problem(Damage::new(place, "a time before the value", found));
        };
        let parts = [("key", &map.key_schema, key), ("value", &map.value_schema, value)];
        for (what, schema, bytes) in parts {
            if !is_of_type(schema, map.form, bytes) {
                let expected = format!("a {what} of type {schema}");
                self.problem(Damage::new(place, expected, format!("{bytes:x?}")));
            }
        }
    }

    /// Claims the block of a record that was checked before.
    pub(super) fn claim_record(&mut self, link: u64, owner: Owner) -> Result<()> {
        let offset = link & LOW48;
        let lengths = self.image.word(offset)?;
        let bytes = 16 + (lengths & 0xffff_ffff) + (lengths >> 32);
        self.claim(offset, bytes, owner)?;
        self.region(offset, bytes, What::Record);
        Ok(())
    }
}

/// Returns whether the second word of a record's block has this checksum. The high half is 0, or a mark of a
/// cache, whose highest byte is 0xc5.
pub(super) fn has_sum(word: u64, sum: u32) -> bool {
    let mark = word >> 32;
    word as u32 == sum && (mark == 0 || mark >> 24 == 0xc5)
}

/// Returns a stored value without the time before it, if the map's records expire.
pub(super) fn without_time<'v>(map: &MapReport, value: &'v [u8]) -> Option<&'v [u8]> {
    value.get(if map.expires { 8 } else { 0 }..)
}

/// Returns whether bytes can be a value of a type. A type of fixed length takes that many bytes,
/// and the rest of a word is 0. A `bool` is 0 or 1. Strings are UTF-8. Other types may have any
/// bytes, as far as this walk knows.
pub(super) fn is_of_type(schema: &str, form: RecordForm, bytes: &[u8]) -> bool {
    if schema == "str" && form == RecordForm::Bytes {
        return std::str::from_utf8(bytes).is_ok();
    }
    let mut bools = Vec::new();
    let Some(width) = width_of(schema, 0, &mut bools) else { return true };
    match form {
        RecordForm::Inline => {
            // In a word, the first byte of a type is the highest of the bytes that it takes.
            let is_bool = |at: &usize| bytes.get(width - 1 - at).is_some_and(|&byte| byte <= 1);
            bytes.get(width..).is_some_and(|above| above.iter().all(|&byte| byte == 0))
                && bools.iter().all(is_bool)
        }
        RecordForm::Bytes => bytes.len() == width && bools.iter().all(|&at| bytes[at] <= 1),
    }
}

/// Returns the length of a type all of whose values have the same length, or `None`. Appends the
/// positions of its `bool`s, counted from a beginning at `at`.
fn width_of(schema: &str, at: usize, bools: &mut Vec<usize>) -> Option<usize> {
    match schema {
        "bool" => bools.push(at),
        "u8" | "i8" => {}
        "u16" | "i16" => return Some(2),
        "u32" | "i32" | "f32" => return Some(4),
        "u64" | "i64" | "f64" => return Some(8),
        "u128" | "i128" => return Some(16),
        _ => {
            if let Some(array) = schema.strip_prefix("[u8;") {
                return array.strip_suffix(']')?.parse().ok();
            }
            return tuple_width(schema.strip_prefix('(')?, at, bools);
        }
    }
    Some(1)
}

/// Does what [`width_of`] does, for a tuple whose opening parenthesis was removed. The name of an
/// ordered struct follows the closing one.
fn tuple_width(schema: &str, at: usize, bools: &mut Vec<usize>) -> Option<usize> {
    let (mut depth, mut start, mut width) = (0, 0, 0usize);
    for (end, byte) in schema.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth > 0 => depth -= 1,
            b',' | b')' if depth == 0 => {
                let part = width_of(&schema[start..end], at.checked_add(width)?, bools)?;
                (start, width) = (end + 1, width.checked_add(part)?);
                if byte == b')' {
                    let name = &schema[start..];
                    return (name.is_empty() || name.starts_with(' ')).then_some(width);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_and_places_of_bools_follow_from_schemas() {
        let of = |schema| {
            let mut bools = Vec::new();
            width_of(schema, 0, &mut bools).map(|width| (width, bools))
        };
        assert_eq!(of("bool"), Some((1, vec![0])));
        assert_eq!(of("(u8,(i16,bool),[u8;12],f64)"), Some((24, vec![3])));
        assert_eq!(of("((u32,bool) event/1,i128,bool)"), Some((22, vec![4, 21])));
        for unknown in ["bytes", "position/1", "(u8,position/1)", "(u8", "u8)", "[u8;x]", "()"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
        let word = |word: u64| is_of_type("(u8,bool)", RecordForm::Inline, &word.to_le_bytes());
        assert!(word(0xff01) && !word(0xff02) && !word(0x1_0000));
        assert!(!is_of_type("bool", RecordForm::Bytes, &[2]));
    }
}

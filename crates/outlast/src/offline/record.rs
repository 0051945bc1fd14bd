//! Record blocks, for schemes whose slots have two words.

use super::image::{LOW48, crc};
use super::{MapReport, Owner, Walk, What};
use crate::error::{Damage, Result};
use crate::pool::geometry::{CLASSES, LARGE};
use crate::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordForm};

/// Bytes that are read at once of a record that has whole pages.
const LARGE_AHEAD: u64 = 1 << 12;

impl Walk<'_, '_> {
    /// Checks a record block and returns its key and its value.
    pub(super) fn record(&self, place: u64, first: u64, second: u64) -> Result<(Vec<u8>, Vec<u8>)> {
        let offset = first & LOW48;
        let class = (first >> 48) as u8;
        let bad = |expected: &str, found: String| -> Result<(Vec<u8>, Vec<u8>)> {
            Err(Damage::new(offset, format!("{expected} (slot at {place:#x})"), found).into())
        };
        if first >> 56 != 0 {
            return bad("a record's link", format!("{first:#x}"));
        }
        let block = CLASSES.get(usize::from(class)).map_or(LARGE_AHEAD, |&size| u64::from(size));
        self.image.read_ahead(offset, block);
        let head = self.image.words(offset, 2)?;
        let (key_len, value_len) = (head[0] as u32 as usize, (head[0] >> 32) as usize);
        if key_len > MAX_KEY_BYTES || value_len > MAX_VALUE_BYTES {
            return bad("a record's lengths", format!("{key_len} and {value_len}"));
        }
        let bytes = 16 + (key_len + value_len) as u64;
        // The class is the smallest one that holds the record.
        let expected = if bytes * 2 > self.page_bytes() {
            LARGE
        } else {
            CLASSES.iter().position(|&size| u64::from(size) >= bytes).map_or(LARGE, |c| c as u8)
        };
        if class != expected {
            return bad(
                &format!("class {expected} for a record of {bytes} bytes"),
                format!("class {class}"),
            );
        }
        let mut body = self.image.bytes(offset + 16, bytes - 16)?;
        let sum = crc(&[&offset.to_le_bytes(), &head[0].to_le_bytes(), &body]);
        if head[1] != u64::from(sum) {
            return bad(&format!("a record with checksum {sum:#x}"), format!("{:#x}", head[1]));
        }
        let value = body.split_off(key_len);
        let hash = self.hash.of(&body);
        if hash != second {
            return bad(&format!("hash {hash:#x} of its key"), format!("{second:#x}"));
        }
        Ok((body, value))
    }

    /// Reports a key or a value that no program with the map's types has written.
    pub(super) fn check_types(&mut self, map: &MapReport, place: u64, key: &[u8], value: &[u8]) {
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

/// Returns whether bytes can be of a type: integers have their width, and words nothing above it;
/// strings are UTF-8. Other types may have any bytes, as far as this walk knows.
fn is_of_type(schema: &str, form: RecordForm, bytes: &[u8]) -> bool {
    let width = match schema {
        "str" if form == RecordForm::Bytes => return std::str::from_utf8(bytes).is_ok(),
        "u8" | "i8" => 1,
        "u16" | "i16" => 2,
        "u32" | "i32" => 4,
        "u64" | "i64" => 8,
        _ => return true,
    };
    match form {
        RecordForm::Inline => {
            bytes.get(width..).is_some_and(|above| above.iter().all(|&byte| byte == 0))
        }
        RecordForm::Bytes => bytes.len() == width,
    }
}

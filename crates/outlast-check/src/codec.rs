//! Maps numbers to keys and values, in both record forms.
//!
//! A number names a key or a value, and the record form decides how it is written. The numbers
//! below are special, because they produce keys and values that implementations tend to get wrong:
//!
//! | number | inline | bytes |
//! |---|---|---|
//! | key 0 | 0 | the empty string |
//! | key 1 | `u64::MAX` | 8 bytes and padding |
//! | key from 2^32 | itself; collides under the degenerate hash | 8 bytes and padding; collides too |
//! | value 0 | 0 | the empty string |
//! | even value from 2^32 | itself | a record that takes a whole page of a small pool |
//! | odd value from 2^32 | itself | a record of more than half a page, in a run of several |

use outlast::RecordForm;
use outlast::internals::db::store::AnyIndex;
use outlast::internals::index::{Bytes, Index, Inline, Record};

/// Values from here on make blocks of more than half a page. Keys from here on collide under the degenerate hash
/// function.
pub const SPECIAL: u64 = 1 << 32;

/// Lengths of even and odd large values beyond their number, in bytes. In pools with pages of 4096
/// bytes, the record of the one takes a whole page, and that of the other five eighths of one.
const LARGE_BYTES: [usize; 2] = [3_700, 2_300];

/// A record form whose keys and values have numbers.
pub trait Form: Record {
    /// Returns the key with this number.
    fn nth_key(number: u64) -> Self::OwnedKey;
    /// Returns the value with this number.
    fn nth_value(number: u64) -> Self::Owned;
    /// Returns the number of a key, or `None` if no number has this key.
    fn key_number(key: &Self::OwnedKey) -> Option<u64>;
    /// Returns the number of a value, or `None` if no number has this value.
    fn value_number(value: &Self::Owned) -> Option<u64>;
    /// Returns the number of a value from its bytes, or `None` if no number has these bytes.
    fn raw_number(value: &[u8]) -> Option<u64>;
    /// Returns the index, if it is of this form.
    fn index_of(any: &AnyIndex) -> Option<&dyn Index<Self>>;
}

impl Form for Inline {
    fn nth_key(number: u64) -> u64 {
        if number == 1 { u64::MAX } else { number }
    }
    fn nth_value(number: u64) -> u64 {
        number
    }
    fn key_number(key: &u64) -> Option<u64> {
        Some(if *key == u64::MAX { 1 } else { *key }).filter(|n| Self::nth_key(*n) == *key)
    }
    fn value_number(value: &u64) -> Option<u64> {
        Some(*value)
    }
    fn raw_number(value: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(value.try_into().ok()?))
    }
    fn index_of(any: &AnyIndex) -> Option<&dyn Index<Self>> {
        match any {
            AnyIndex::Inline(index) => Some(&**index),
            AnyIndex::Bytes(_) => None,
        }
    }
}

/// Returns the number's 8 bytes and `padding` more bytes that depend on it; for 0, nothing.
fn padded(number: u64, padding: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if number != 0 {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.resize(8 + padding, number as u8 ^ 0x5a);
    }
    bytes
}

fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() { Some(0) } else { bytes.first_chunk().copied().map(u64::from_le_bytes) }
}

/// Returns the bytes of a byte-string key.
pub fn key_bytes(number: u64) -> Vec<u8> {
    padded(number, (number % 5) as usize * 3)
}

/// Returns the bytes of a byte-string value.
pub fn value_bytes(number: u64) -> Vec<u8> {
    let large = LARGE_BYTES[(number % 2) as usize];
    padded(number, if number < SPECIAL { (number % 41) as usize } else { large })
}

impl Form for Bytes {
    fn nth_key(number: u64) -> Vec<u8> {
        key_bytes(number)
    }
    fn nth_value(number: u64) -> Vec<u8> {
        value_bytes(number)
    }
    fn key_number(key: &Vec<u8>) -> Option<u64> {
        number(key).filter(|n| Self::nth_key(*n) == *key)
    }
    fn value_number(value: &Vec<u8>) -> Option<u64> {
        Self::raw_number(value)
    }
    fn raw_number(value: &[u8]) -> Option<u64> {
        number(value).filter(|n| Self::nth_value(*n) == *value)
    }
    fn index_of(any: &AnyIndex) -> Option<&dyn Index<Self>> {
        match any {
            AnyIndex::Bytes(index) => Some(&**index),
            AnyIndex::Inline(_) => None,
        }
    }
}

/// Returns the bytes of the key with this number, as a map of the form takes them.
pub fn raw_key(form: RecordForm, number: u64) -> Vec<u8> {
    match form {
        RecordForm::Inline => Inline::nth_key(number).to_le_bytes().to_vec(),
        RecordForm::Bytes => key_bytes(number),
    }
}

/// Returns the bytes of the value with this number, as a map of the form takes them.
pub fn raw_value(form: RecordForm, number: u64) -> Vec<u8> {
    match form {
        RecordForm::Inline => Inline::nth_value(number).to_le_bytes().to_vec(),
        RecordForm::Bytes => value_bytes(number),
    }
}

/// Parses a record form, for command lines.
///
/// # Errors
/// If there is no such form; the message lists the forms.
pub fn record_form(text: &str) -> Result<RecordForm, String> {
    RecordForm::ALL
        .into_iter()
        .find(|form| form.to_string() == text)
        .ok_or_else(|| format!("unknown record form {text:?}; known: inline, bytes"))
}

/// Runs the same code on the index of a map, whatever its form. Inside the body, `$form` names the
/// form.
#[macro_export]
#[doc(hidden)]
macro_rules! with_form {
    ($any:expr, $form:ident, $index:ident => $body:expr) => {
        match $any {
            outlast::internals::db::store::AnyIndex::Inline($index) => {
                type $form = outlast::internals::index::Inline;
                $body
            }
            outlast::internals::db::store::AnyIndex::Bytes($index) => {
                type $form = outlast::internals::index::Bytes;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back<R: Form>() {
        for n in [0, 1, 2, 77, 1000, SPECIAL, SPECIAL + 9, SPECIAL + 10, u64::MAX - 1] {
            assert_eq!(R::key_number(&R::nth_key(n)), Some(n), "key {n}");
            assert_eq!(R::value_number(&R::nth_value(n)), Some(n), "value {n}");
        }
    }

    #[test]
    fn numbers_read_back() {
        read_back::<Inline>();
        read_back::<Bytes>();
    }

    #[test]
    fn a_torn_value_has_no_number() {
        let mut value = Bytes::nth_value(77);
        *value.last_mut().unwrap() ^= 1;
        assert_eq!(Bytes::value_number(&value), None);
        value.truncate(9);
        assert_eq!(Bytes::value_number(&value), None);
    }
}

//! What a map's schemas say about the contents of its keys and values.

use super::RecordForm;
use super::record::Record;
use std::marker::PhantomData;

/// What the library knows about the encodings of a type, from its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Any bytes may be an encoding: byte strings, and types that only the program that defines
    /// them knows.
    Nothing,
    /// Every encoding is valid UTF-8.
    Text,
    /// All encodings have the same length.
    Fixed {
        /// The length in bytes.
        bytes: usize,
        /// Bit i is set if byte i is a `bool`, and so is 0 or 1. Only the first 128 bytes have
        /// bits. In an encoding that is a word, byte 0 is the most significant of its `bytes`
        /// bytes.
        bools: u128,
    },
}

impl Known {
    fn of(schema: &str) -> Known {
        // Changes of untyped maps ask for this, so the most frequent answers come first.
        match schema {
            "str" => return Known::Text,
            "bytes" => return Known::Nothing,
            _ => {}
        }
        let (mut rest, mut bytes, mut bools) = (schema, 0, 0);
        match part(&mut rest, &mut bytes, &mut bools) {
            Some(()) if rest.is_empty() => Known::Fixed { bytes, bools },
            _ => Known::Nothing,
        }
    }

    /// Returns whether a word can be an encoding.
    pub(super) fn allows_word(self, word: u64) -> bool {
        let Known::Fixed { bytes, bools } = self else { return true };
        let fits = bytes == 8 || (bytes < 8 && word >> (8 * bytes) == 0);
        let byte = |number: usize| word >> (8 * (bytes - 1 - number)) & 0xff;
        fits && (0..bytes).all(|number| bools >> number & 1 == 0 || byte(number) <= 1)
    }

    /// Returns whether a byte string can be an encoding.
    pub(super) fn allows_bytes(self, bytes: &[u8]) -> bool {
        match self {
            Known::Nothing => true,
            Known::Text => std::str::from_utf8(bytes).is_ok(),
            Known::Fixed { bytes: len, bools } => {
                let mut first = bytes.iter().take(128).enumerate();
                bytes.len() == len && first.all(|(i, &byte)| bools >> i & 1 == 0 || byte <= 1)
            }
        }
    }
}

/// Reads one part from the front of a schema: the name of a type, or a tuple or ordered struct with
/// all its parts. Adds its length to `bytes`, and its `bool`s to `bools`. Returns `None` if the
/// library does not know the type, or if the schema is malformed.
fn part(rest: &mut &str, bytes: &mut usize, bools: &mut u128) -> Option<()> {
    if let Some(after) = rest.strip_prefix("()") {
        *rest = after;
        return Some(());
    }
    if let Some(parts) = rest.strip_prefix('(') {
        *rest = parts;
        loop {
            part(rest, bytes, bools)?;
            match rest.strip_prefix(',') {
                Some(more) => *rest = more,
                None => break,
            }
        }
        *rest = rest.strip_prefix(')')?;
        if rest.starts_with(' ') {
            // The name of an ordered struct.
            *rest = &rest[rest.find([',', ')']).unwrap_or(rest.len())..];
        }
        return Some(());
    }
    let len = if let Some(array) = rest.strip_prefix("[u8;") {
        let (len, after) = array.split_once(']')?;
        *rest = after;
        len.parse().ok()?
    } else {
        let (name, after) = rest.split_at(rest.find([',', ')']).unwrap_or(rest.len()));
        *rest = after;
        if name == "bool" && *bytes < 128 {
            *bools |= 1 << *bytes;
        }
        match name {
            "u8" | "i8" | "bool" => 1,
            "u16" | "i16" => 2,
            "u32" | "i32" | "f32" => 4,
            "u64" | "i64" | "f64" => 8,
            "u128" | "i128" => 16,
            _ => return None,
        }
    };
    *bytes = bytes.checked_add(len)?;
    Some(())
}

impl RecordForm {
    /// Returns the default form of an untyped map with these schemas: inline if both are integers, `bool`,
    /// floats, arrays of bytes or tuples of these, and at most 8 bytes long. Otherwise byte strings.
    pub fn of_schemas(key_schema: &str, value_schema: &str) -> Self {
        let is_word = |schema| matches!(Known::of(schema), Known::Fixed { bytes: ..=8, .. });
        if is_word(key_schema) && is_word(value_schema) {
            RecordForm::Inline
        } else {
            RecordForm::Bytes
        }
    }
}

/// Which keys and values a map can hold.
#[derive(Debug)]
pub struct Schemas<R: Record> {
    key: Known,
    value: Known,
    /// Bytes before each value.
    before: usize,
    form: PhantomData<fn() -> R>,
}

impl<R: Record> Clone for Schemas<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for Schemas<R> {}

impl<R: Record> Schemas<R> {
    /// Returns what is known about a map with these schemas.
    pub fn new(key: &str, value: &str) -> Self {
        let known = |schema| match Known::of(schema) {
            // Every word is an encoding.
            Known::Fixed { bytes: 8, bools: 0 } if R::FORM == RecordForm::Inline => Known::Nothing,
            known => known,
        };
        Schemas { key: known(key), value: known(value), before: 0, form: PhantomData }
    }

    /// Returns what is known if there are this many other bytes before each value.
    pub(crate) fn after(self, before: usize) -> Self {
        Schemas { before, ..self }
    }

    /// Returns whether the map can hold this key.
    pub(crate) fn allows_key(&self, key: R::Key<'_>) -> bool {
        R::allows_key(self.key, key)
    }

    /// Returns whether the map can hold this value.
    pub(crate) fn allows_value(&self, value: R::Value<'_>) -> bool {
        R::allows_value(self.value, value, self.before)
    }

    /// Returns whether there are values that the map cannot hold.
    pub(crate) fn checks_values(&self) -> bool {
        self.value != Known::Nothing || self.before > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bytes, Inline};
    use super::*;

    #[test]
    fn each_schema_allows_the_values_of_its_type() {
        let words = Schemas::<Inline>::new("i16", "u64");
        assert!(words.allows_key(0xffff) && !words.allows_key(0x1_0000));
        assert!(!words.checks_values(), "every word is one");
        let bytes = Schemas::<Bytes>::new("str", "u32");
        assert!(bytes.allows_key("ö".as_bytes()) && !bytes.allows_key(&[0xff]));
        assert!(bytes.allows_value(&[1; 4]) && !bytes.allows_value(&[1; 3]));
        let own = Schemas::<Bytes>::new("bytes", "position/1");
        assert!(own.allows_key(&[0xff]) && !own.checks_values());
    }

    #[test]
    fn composed_schemas_are_known_by_their_parts() {
        let fixed = |bytes, bools| Known::Fixed { bytes, bools };
        assert_eq!(Known::of("bool"), fixed(1, 1));
        assert_eq!(Known::of("(u8,(i16,bool),[u8;12],f64)"), fixed(24, 1 << 3));
        assert_eq!(Known::of("(u32,bool) event/1"), fixed(5, 1 << 4));
        assert_eq!(Known::of("((u32,bool) event/1,i128)"), fixed(21, 1 << 4));
        assert_eq!(Known::of("()"), fixed(0, 0));
        assert!(Known::of("()").allows_word(0) && !Known::of("()").allows_word(1));
        let unknown = [
            "",
            "bytes",
            "position/1",
            "(u8,position/1)",
            "(u8",
            "u8)",
            "[u8;x]",
            "(u8,str)",
            "(,)",
        ];
        for unknown in unknown {
            assert_eq!(Known::of(unknown), Known::Nothing, "{unknown}");
        }
        let pair = Known::of("(u8,bool)");
        assert!(pair.allows_word(0xff01) && !pair.allows_word(0xff02));
        assert!(!pair.allows_word(0x1_0000));
        assert!(pair.allows_bytes(&[9, 0]) && !pair.allows_bytes(&[0, 9]));
        assert!(!Known::of("(bool,[u8;8])").allows_word(0), "it does not fit");
    }
}

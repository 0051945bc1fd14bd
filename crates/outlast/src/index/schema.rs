//! What a map's schemas say about the contents of its keys and values.

use super::record::Record;

/// Bytes of the integers of a schema; `None` if it is not one of the library's integers.
fn integer_bytes(schema: &str) -> Option<u32> {
    match schema {
        "u8" | "i8" => Some(1),
        "u16" | "i16" => Some(2),
        "u32" | "i32" => Some(4),
        "u64" | "i64" => Some(8),
        _ => None,
    }
}

/// Returns the check of the words of a schema; `None` if every word is allowed.
pub(super) fn of_words(schema: &str) -> Option<fn(u64) -> bool> {
    match integer_bytes(schema)? {
        1 => Some(|word| word >> 8 == 0),
        2 => Some(|word| word >> 16 == 0),
        4 => Some(|word| word >> 32 == 0),
        _ => None,
    }
}

/// Returns the check of the byte strings of a schema; `None` if every byte string is allowed.
pub(super) fn of_bytes(schema: &str) -> Option<fn(&[u8]) -> bool> {
    if schema == "str" {
        return Some(|bytes| std::str::from_utf8(bytes).is_ok());
    }
    match integer_bytes(schema)? {
        1 => Some(|bytes| bytes.len() == 1),
        2 => Some(|bytes| bytes.len() == 2),
        4 => Some(|bytes| bytes.len() == 4),
        _ => Some(|bytes| bytes.len() == 8),
    }
}

/// Which keys and values a map can hold. `None` where all are allowed, and for schemas that only
/// the program that defines them understands.
#[derive(Debug)]
pub struct Schemas<R: Record> {
    pub(crate) key: Option<for<'a> fn(R::Key<'a>) -> bool>,
    pub(crate) value: Option<for<'a> fn(R::Value<'a>) -> bool>,
}

impl<R: Record> Clone for Schemas<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for Schemas<R> {}

impl<R: Record> Schemas<R> {
    /// Returns the checks of a map with these schemas.
    pub fn new(key: &str, value: &str) -> Self {
        Schemas { key: R::key_check(key), value: R::value_check(value) }
    }

    /// Returns whether the map can hold this key.
    pub(crate) fn allows_key(&self, key: R::Key<'_>) -> bool {
        self.key.is_none_or(|check| check(key))
    }

    /// Returns whether the map can hold this value.
    pub(crate) fn allows_value(&self, value: R::Value<'_>) -> bool {
        self.value.is_none_or(|check| check(value))
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
        assert!(words.value.is_none(), "every word is one");
        let bytes = Schemas::<Bytes>::new("str", "u32");
        assert!(bytes.allows_key("ö".as_bytes()) && !bytes.allows_key(&[0xff]));
        assert!(bytes.allows_value(&[1; 4]) && !bytes.allows_value(&[1; 3]));
        let own = Schemas::<Bytes>::new("bytes", "position/1");
        assert!(own.key.is_none() && own.value.is_none());
    }
}

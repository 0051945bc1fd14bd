//! Schemas that are put together at compile time.

use super::fixed::FixedSize;
use super::types::OrderedKey;

/// The greatest length of such a schema, in bytes.
const MAX: usize = 256;

/// A schema that is being put together.
#[derive(Clone, Copy)]
pub struct SchemaText {
    bytes: [u8; MAX],
    len: usize,
}

impl SchemaText {
    /// Begins a schema.
    #[expect(clippy::new_without_default, reason = "for constants, which cannot call it")]
    pub const fn new() -> Self {
        SchemaText { bytes: [0; MAX], len: 0 }
    }

    /// Appends text.
    pub const fn with(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        assert!(self.len + text.len() <= MAX, "the schema is longer than 256 bytes");
        let mut at = 0;
        while at < text.len() {
            self.bytes[self.len] = text[at];
            (self.len, at) = (self.len + 1, at + 1);
        }
        self
    }

    /// Appends the schema of a part, and a comma before it unless it is the first one.
    pub const fn with_part(self, schema: &str) -> Self {
        let first = self.len > 0 && self.bytes[self.len - 1] == b'(';
        let before = if first { self } else { self.with(",") };
        before.with(schema)
    }

    /// Appends a number.
    pub const fn with_number(self, number: usize) -> Self {
        let before = if number >= 10 { self.with_number(number / 10) } else { self };
        let digits = "0123456789".as_bytes();
        let (_, from_digit) = digits.split_at(number % 10);
        let (digit, _) = from_digit.split_at(1);
        match std::str::from_utf8(digit) {
            Ok(digit) => before.with(digit),
            Err(_) => panic!("a digit is text"),
        }
    }

    /// Returns the schema.
    pub const fn as_str(&self) -> &str {
        let (text, _) = self.bytes.split_at(self.len);
        match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(_) => panic!("what was appended is text"),
        }
    }
}

/// Returns the schema of a field.
pub const fn schema_of<T, F: FixedSize + OrderedKey>(_: fn(&T) -> &F) -> &'static str {
    F::SCHEMA
}

/// Returns the size of a field's encoding, in bytes.
pub const fn bytes_of<T, F: FixedSize>(_: fn(&T) -> &F) -> usize {
    F::BYTES
}

/// The schemas of the library's own types, except those that begin with a bracket.
const OWN: [&str; 15] = [
    "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "bool", "f32", "f64",
    "bytes", "str",
];

/// Checks at compile time that a schema cannot be taken for one of the library's own.
///
/// # Panics
/// If it can.
pub const fn check(schema: &str) {
    let mut number = 0;
    while number < OWN.len() {
        let same = are_same(schema.as_bytes(), OWN[number].as_bytes());
        assert!(!same, "this schema is that of a type of the library");
        number += 1;
    }
    let (schema, mut at) = (schema.as_bytes(), 0);
    while at < schema.len() {
        let reserved = matches!(schema[at], b'(' | b')' | b'[' | b']' | b',');
        assert!(!reserved, "a schema must not contain brackets or commas");
        at += 1;
    }
}

const fn are_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

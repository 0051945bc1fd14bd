//! What a key stands for, and its record.

use crate::reply::{Fault, Result};
use std::ffi::CStr;

/// What a key stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A string.
    Text(Vec<u8>),
    /// A hash, or an ordered map.
    Hash(HashInfo),
}

/// Where the fields of a hash lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By their hashes, so that a scan has a cursor.
    Hash,
    /// In the order of their bytes.
    Ordered,
}

/// The record of a hash's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashInfo {
    /// Where its fields lie.
    pub kind: Kind,
    /// The number under which its fields lie.
    pub number: u64,
    /// How many there are.
    pub fields: u64,
}

impl Content {
    /// The name of the type.
    pub fn type_name(&self) -> &'static CStr {
        match self {
            Content::Text(_) => c"string",
            Content::Hash(HashInfo { kind: Kind::Hash, .. }) => c"hash",
            Content::Hash(HashInfo { kind: Kind::Ordered, .. }) => c"ordered",
        }
    }

    /// Reads what a record has. Keeps its memory, if it is a string.
    pub fn from_stored(mut stored: Vec<u8>) -> Result<Content> {
        if stored.first() != Some(&0) {
            return Content::decode(&stored);
        }
        stored.remove(0);
        Ok(Content::Text(stored))
    }

    /// Reads what a record has.
    pub fn decode(stored: &[u8]) -> Result<Content> {
        match stored {
            [0, text @ ..] => Ok(Content::Text(text.to_vec())),
            [kind @ 1..=2, rest @ ..] if rest.len() == 16 => {
                let kind = if *kind == 1 { Kind::Hash } else { Kind::Ordered };
                let word = |at: usize| {
                    u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"))
                };
                Ok(Content::Hash(HashInfo { kind, number: word(0), fields: word(8) }))
            }
            _ => Err(Fault::new("the pool has a value of a type that this version does not know")),
        }
    }

    /// Returns what the record of a string has.
    pub fn encode_text(text: &[u8]) -> Vec<u8> {
        [&[0], text].concat()
    }

    /// Returns what a record has.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Content::Text(text) => Content::encode_text(text),
            Content::Hash(HashInfo { kind, number, fields }) => {
                let kind = if *kind == Kind::Hash { 1 } else { 2 };
                [&[kind], &number.to_le_bytes()[..], &fields.to_le_bytes()].concat()
            }
        }
    }
}

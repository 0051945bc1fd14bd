//! Results and errors of commands.

use std::ffi::CStr;
use std::fmt;

/// What a command returns to the client.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// `OK` or another fixed text.
    Simple(&'static CStr),
    /// An integer.
    Int(i64),
    /// A byte string.
    Bulk(Vec<u8>),
    /// Nothing.
    Null,
    /// A list.
    Array(Vec<Reply>),
    /// Fields and values: with RESP3 a map, before that one list.
    Map(Vec<(Vec<u8>, Vec<u8>)>),
    /// Fields and values: with RESP3 a list of pairs, before that one list.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Reply {
    /// `OK`.
    pub const OK: Reply = Reply::Simple(c"OK");

    /// Returns 1 or 0.
    pub fn flag(flag: bool) -> Reply {
        Reply::Int(flag.into())
    }

    /// Returns a byte string, or nothing.
    pub fn bulk(bytes: Option<Vec<u8>>) -> Reply {
        bytes.map_or(Reply::Null, Reply::Bulk)
    }
}

/// Why a command fails. Its text is the whole reply, beginning with a word in capital letters.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    text: String,
    /// The size of the block that a full pool has no room for, or 0.
    needed: u64,
}

/// The result of a command.
pub type Result<T = Reply> = std::result::Result<T, Fault>;

impl Fault {
    /// Makes an error of any text, without its first word.
    pub fn new(text: impl fmt::Display) -> Fault {
        Fault::with_word(format!("ERR {text}"))
    }

    fn with_word(text: String) -> Fault {
        Fault { text, needed: 0 }
    }

    /// Arguments that no form of the command has.
    pub fn syntax() -> Fault {
        Fault::new("syntax error")
    }

    /// The key has a value of another type.
    pub fn wrong_type() -> Fault {
        Fault::with_word("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }

    /// Returns whether this is [`wrong_type`](Self::wrong_type).
    pub fn is_wrong_type(&self) -> bool {
        self.text.starts_with("WRONGTYPE")
    }

    /// Replaces a part of the text.
    #[must_use]
    pub fn replace(&self, part: &str, by: &str) -> Fault {
        Fault { text: self.text.replace(part, by), ..*self }
    }

    /// Returns whether the pool is full.
    pub fn is_full(&self) -> bool {
        self.text.starts_with("OOM")
    }

    /// Returns the size of the block that a full pool has no room for, or 0.
    pub fn needed(&self) -> u64 {
        self.needed
    }

    /// A key that must be there is not.
    pub fn no_such_key() -> Fault {
        Fault::new("no such key")
    }

    /// The key's slot is moved, and its records have not come yet.
    pub fn try_again() -> Fault {
        Fault::with_word("TRYAGAIN the records of this slot are on their way".into())
    }

    /// The data are not all there yet.
    pub fn loading() -> Fault {
        Fault::with_word("LOADING the copy of the primary's data is not complete".into())
    }

    /// A text is not an integer.
    pub fn not_an_integer() -> Fault {
        Fault::new("value is not an integer or out of range")
    }

    /// A text is not a float.
    pub fn not_a_float() -> Fault {
        Fault::new("value is not a valid float")
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<outlast::Error> for Fault {
    fn from(error: outlast::Error) -> Fault {
        // The first words are those by which clients know these conditions.
        let word = match &error {
            error if error.is_full() => "OOM",
            outlast::Error::ReadOnly { .. } => "READONLY",
            _ => "ERR",
        };
        let needed = match &error {
            outlast::Error::PoolFull { needed, .. } => *needed,
            _ => 0,
        };
        Fault { text: format!("{word} {error:?}").replace(['\r', '\n'], " "), needed }
    }
}

//! The types of keys and values, as a map records them.

use std::fmt;

/// A type of the library that Python has, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// `str`.
    Text,
    /// `bytes`.
    Bytes,
    /// `bytes` of this length.
    Array(usize),
    /// `int` of this many bytes.
    Integer { bytes: usize, is_signed: bool },
    /// `float` of this many bytes.
    Float { bytes: usize },
    /// `bool`.
    Bool,
    /// `tuple`.
    Tuple(Vec<Type>),
}

impl Type {
    /// Reads a schema. Returns `None` for a type that Python does not have, such as a struct.
    pub fn parse(schema: &str) -> Option<Type> {
        let mut rest = schema;
        let found = part(&mut rest)?;
        (rest.is_empty() && found.is_possible()).then_some(found)
    }

    /// Returns the length of the encodings, if all have the same.
    pub fn fixed_len(&self) -> Option<usize> {
        match self {
            Type::Text | Type::Bytes => None,
            Type::Array(bytes) | Type::Integer { bytes, .. } | Type::Float { bytes } => {
                Some(*bytes)
            }
            Type::Bool => Some(1),
            Type::Tuple(parts) => parts.iter().map(Type::fixed_len).sum(),
        }
    }

    /// Returns whether a record can hold it in place.
    pub fn is_word(&self) -> bool {
        self.fixed_len().is_some_and(|bytes| bytes <= 8)
    }

    /// Returns whether it is an integer that is not stored as a part of something else.
    pub fn is_small_integer(&self) -> bool {
        matches!(self, Type::Integer { bytes: 1..=8, .. })
    }

    /// A tuple has two to four parts. Strings cannot be in a tuple that is a part of another one.
    fn is_possible(&self) -> bool {
        let Type::Tuple(parts) = self else { return true };
        let is_fine = |part: &Type| match part {
            Type::Tuple(_) => part.fixed_len().is_some() && part.is_possible(),
            _ => true,
        };
        (2..=4).contains(&parts.len()) && parts.iter().all(is_fine)
    }
}

fn part(rest: &mut &str) -> Option<Type> {
    if let Some(inside) = rest.strip_prefix('(') {
        *rest = inside;
        let mut parts = Vec::new();
        loop {
            parts.push(part(rest)?);
            match rest.strip_prefix(',') {
                Some(more) => *rest = more,
                None => break,
            }
        }
        *rest = rest.strip_prefix(')')?;
        return Some(Type::Tuple(parts));
    }
    if let Some(array) = rest.strip_prefix("[u8;") {
        let (len, after) = array.split_once(']')?;
        *rest = after;
        return Some(Type::Array(len.parse().ok()?));
    }
    let (name, after) = rest.split_at(rest.find([',', ')']).unwrap_or(rest.len()));
    *rest = after;
    let integer = |bits: &str, is_signed| {
        let bits = bits.parse().ok().filter(|bits| [8, 16, 32, 64, 128].contains(bits))?;
        Some(Type::Integer { bytes: bits / 8, is_signed })
    };
    match name {
        "str" => Some(Type::Text),
        "bytes" => Some(Type::Bytes),
        "bool" => Some(Type::Bool),
        "f32" => Some(Type::Float { bytes: 4 }),
        "f64" => Some(Type::Float { bytes: 8 }),
        _ => match name.split_at_checked(1)? {
            ("u", bits) => integer(bits, false),
            ("i", bits) => integer(bits, true),
            _ => None,
        },
    }
}

/// What a user of Python calls the type.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Text => f.write_str("str"),
            Type::Bytes => f.write_str("bytes"),
            Type::Array(len) => write!(f, "bytes of length {len}"),
            Type::Integer { bytes, is_signed } => {
                write!(f, "int ({}{})", if *is_signed { 'i' } else { 'u' }, 8 * bytes)
            }
            Type::Float { bytes } => write!(f, "float (f{})", 8 * bytes),
            Type::Bool => f.write_str("bool"),
            Type::Tuple(parts) => {
                let parts: Vec<_> = parts.iter().map(Type::to_string).collect();
                write!(f, "tuple of {}", parts.join(", "))
            }
        }
    }
}

//! How C passes a key or a value of each type, and how the library's untyped maps take it.

use crate::code::{Result, invalid};
use library::RecordForm;

/// The type of a key or a value, and where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// C and the map have the same bytes: strings, and integers of a map whose records have blocks.
    Same(Length),
    /// An integer or a `bool` of this many bytes, stored as a word.
    Word(usize),
    /// A float of this many bytes. Its bits are stored in an order in which the numbers are sorted: as a word, or
    /// else with the most significant byte first.
    Float { bytes: usize, is_word: bool },
}

/// How long a key or a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Any length that the library takes.
    Any,
    /// This many bytes.
    Bytes(usize),
}

/// A key or a value as the map takes it.
#[derive(Debug, Clone, Copy)]
pub enum Encoded<'a> {
    /// The caller's bytes.
    Same(&'a [u8]),
    /// Others, of which only the first ones count.
    Small([u8; 8], usize),
}

impl Encoded<'_> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Encoded::Same(bytes) => bytes,
            Encoded::Small(bytes, len) => &bytes[..*len],
        }
    }
}

impl Element {
    /// Returns the element of a type, in a map of this form.
    ///
    /// # Errors
    /// [`Invalid`](library::Error::Invalid) for a type that this interface does not have.
    pub fn of(schema: &str, form: RecordForm) -> Result<Element> {
        let is_word = form == RecordForm::Inline;
        let bytes = match schema {
            "bytes" | "str" => return Ok(Element::Same(Length::Any)),
            "f32" => return Ok(Element::Float { bytes: 4, is_word }),
            "f64" => return Ok(Element::Float { bytes: 8, is_word }),
            "u8" | "i8" | "bool" => 1,
            "u16" | "i16" => 2,
            "u32" | "i32" => 4,
            "u64" | "i64" => 8,
            other => {
                let why = format!(
                    "{other} is not a type of the C interface, which has bytes, str, u8 to u64, i8 to i64, bool, f32 \
                     and f64"
                );
                return Err(invalid("type", why));
            }
        };
        Ok(if is_word { Element::Word(bytes) } else { Element::Same(Length::Bytes(bytes)) })
    }

    /// Returns the length of every key or value of this type, if they all have the same.
    pub fn fixed_len(self) -> Option<usize> {
        match self {
            Element::Same(Length::Any) => None,
            Element::Same(Length::Bytes(bytes)) | Element::Word(bytes) => Some(bytes),
            Element::Float { bytes, .. } => Some(bytes),
        }
    }

    /// Encodes what C passes.
    pub fn encode<'a>(self, given: &'a [u8], what: &'static str) -> Result<Encoded<'a>> {
        if let Some(len) = self.fixed_len().filter(|&len| len != given.len()) {
            let why = format!("it has {} bytes, and this map's have {len}", given.len());
            return Err(invalid(what, why));
        }
        Ok(match self {
            Element::Same(_) => Encoded::Same(given),
            Element::Word(_) => Encoded::Small(word_of(given).to_le_bytes(), 8),
            Element::Float { bytes, is_word } => {
                let ordered = ordered(word_of(given), bytes);
                if is_word {
                    Encoded::Small(ordered.to_le_bytes(), 8)
                } else {
                    let mut small = (ordered << (64 - 8 * bytes)).to_be_bytes();
                    small[bytes..].fill(0);
                    Encoded::Small(small, bytes)
                }
            }
        })
    }

    /// Returns whether the map has the bytes that C gets.
    pub fn is_same(self) -> bool {
        matches!(self, Element::Same(_))
    }

    /// Decodes what the map has, in place.
    pub fn decode(self, stored: &mut Vec<u8>) {
        match self {
            Element::Same(_) => {}
            Element::Word(bytes) => stored.truncate(bytes),
            Element::Float { bytes, is_word } => {
                if !is_word {
                    stored.reverse();
                }
                let bits = bits_of(word_of(stored), bytes);
                stored.clear();
                stored.extend_from_slice(&bits.to_le_bytes()[..bytes]);
            }
        }
    }
}

/// Reads up to eight bytes as a little-endian number.
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

/// Turns the bits of a float into a number with the same order.
fn ordered(bits: u64, bytes: usize) -> u64 {
    let (sign, all) = masks(bytes);
    if bits & sign == 0 { bits | sign } else { !bits & all }
}

/// Undoes [`ordered`].
fn bits_of(ordered: u64, bytes: usize) -> u64 {
    let (sign, all) = masks(bytes);
    if ordered & sign == 0 { !ordered & all } else { ordered & !sign }
}

/// Returns the sign bit of a float, and all its bits.
fn masks(bytes: usize) -> (u64, u64) {
    (1 << (8 * bytes - 1), u64::MAX >> (64 - 8 * bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use library::{Map, Pool, PoolOptions, RawMap, Value};

    /// Checks that what Rust stores reads as the machine's own bytes, and that Rust reads what these are stored as.
    fn check<V: Value<Owned = V> + PartialEq + std::fmt::Debug>(
        pool: &Pool,
        value: V,
        native: &[u8],
    ) {
        fn agree<V: Value<Owned = V> + PartialEq + std::fmt::Debug>(
            (typed, raw): (&dyn Fn() -> Option<V>, &RawMap),
            (key, value, native): (&[u8], &V, &[u8]),
        ) {
            let element = Element::of(V::SCHEMA, raw.info().form).unwrap();
            let mut stored = raw.get(key).unwrap().unwrap();
            assert_eq!(element.encode(native, "value").unwrap().bytes(), stored, "{}", V::SCHEMA);
            element.decode(&mut stored);
            assert_eq!(stored, native, "{}", V::SCHEMA);
            assert!(raw.delete(key).unwrap());
            raw.put(key, element.encode(native, "value").unwrap().bytes()).unwrap();
            assert_eq!(typed().as_ref(), Some(value));
        }
        let words: Map<u64, V> = pool.map(&format!("{} in place", V::SCHEMA)).unwrap();
        words.put(&7, &value).unwrap();
        agree((&|| words.get(&7).unwrap(), words.raw()), (&7u64.to_le_bytes(), &value, native));
        let blocks: Map<str, V> = pool.map(&format!("{} in blocks", V::SCHEMA)).unwrap();
        blocks.put("key", &value).unwrap();
        agree((&|| blocks.get("key").unwrap(), blocks.raw()), (b"key", &value, native));
    }

    #[test]
    fn each_type_is_stored_as_by_rust() {
        let pool = PoolOptions::new().anonymous().unwrap();
        macro_rules! numbers {
            ($($value:expr),*) => { $(check(&pool, $value, &$value.to_le_bytes());)* };
        }
        numbers!(200u8, -100i8, 60_000u16, -30_000i16, 4_000_000_000u32, -2_000_000_000i32);
        numbers!(u64::MAX, i64::MIN, -1.5f32, 2.25f64);
        numbers!(1.5f32, f64::NEG_INFINITY, 0.0f64, -0.0f32);
        check(&pool, true, &[1]);
    }

    #[test]
    fn other_types_are_refused() {
        for schema in ["u128", "(u8,u8)", "[u8;4]", "position/1", ""] {
            assert!(Element::of(schema, RecordForm::Bytes).is_err(), "{schema}");
        }
    }
}

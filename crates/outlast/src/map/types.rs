//! The types that can be keys and values, and their encodings.

use crate::error::{Damage, Result};

/// A type that can be a key.
///
/// Implemented for integers, `bool`, floats, `[u8; N]`, `[u8]`, `str`, `()`, and tuples of two to four
/// parts. A part can be any of these, with `String` and `Vec<u8>` for strings. Use
/// [`fixed_record!`](crate::fixed_record) for your own structs.
///
/// Two keys are equal if their bytes are equal. So for floats, 0.0 and -0.0 are two keys, and a NaN
/// is a key like any other.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of a map",
    label = "not a type of keys",
    note = "for `String` or `&str`, the type is `str`; for `Vec<u8>` or `&[u8]`, it is `[u8]`: a map \
            takes references to its keys and values",
    note = "other types of keys: integers, `bool`, floats, `[u8; N]`, tuples of two to four of \
            these, `String` and `Vec<u8>`, and structs with `outlast::fixed_record!`"
)]
pub trait Key: Value {}

/// A type that can be a value.
///
/// Implemented for the same types as [`Key`], and with the feature `serde` and `serde_value!` for whatever
/// serde can encode.
///
/// The schema is recorded when a map is created and compared when it is opened, so a map opens only
/// with the types it was created with.
///
/// If you implement this trait and leave [`ONE_ENCODING`](Value::ONE_ENCODING) as it is, a decoded value
/// must encode to the bytes that it was decoded from, and decoding must reject bytes to which no value
/// encodes. Otherwise methods such as [`Map::alter`](crate::Map::alter) would retry forever, because
/// the bytes that they expect would never equal the stored ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the value of a map",
    label = "not a type of values",
    note = "for `String` or `&str`, the type is `str`; for `Vec<u8>` or `&[u8]`, it is `[u8]`: a map \
            takes references to its keys and values",
    note = "other types of values: integers, `bool`, floats, `[u8; N]`, `()`, tuples of two to four \
            of these, `String` and `Vec<u8>`, structs with `outlast::fixed_record!`, and with the \
            feature `serde` any type that serde can encode, with `outlast::serde_value!`"
)]
pub trait Value {
    /// The permanent name of the type and its layout. A map's name and its two schemas together are
    /// at most 408 bytes long. Names of primitive types, and names that begin with a bracket, are
    /// reserved for the library.
    const SCHEMA: &'static str;
    /// Whether the value fits an 8-byte word.
    const WORD: bool;
    /// Whether equal values always have the same bytes. If not, methods that read a value and then change
    /// it keep its bytes.
    const ONE_ENCODING: bool = true;
    /// The type that reads return.
    type Owned: Send + 'static;

    /// Encodes the value as a word. Called only where [`WORD`](Value::WORD) is `true`.
    fn to_word(&self) -> u64;
    /// Decodes a value from its word. Called only where [`WORD`](Value::WORD) is `true`.
    ///
    /// # Errors
    /// [`Damage`] if no value has this word. The caller replaces the offset by that of the map's
    /// root.
    fn from_word(word: u64) -> Result<Self::Owned, Damage>;
    /// Calls `with` with the value's bytes.
    fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T;
    /// Decodes a value from its bytes.
    ///
    /// # Errors
    /// [`Damage`] if no value has these bytes. The caller replaces the offset by that of the map's
    /// root.
    fn from_bytes(bytes: Vec<u8>) -> Result<Self::Owned, Damage>;
    /// Borrows an owned value, to pass it to the map again.
    fn borrow(owned: &Self::Owned) -> &Self;
}

#[cold]
pub(super) fn no_value(schema: &str, found: String) -> Damage {
    Damage::new(0, format!("a value of type {schema}"), found)
}

macro_rules! integer {
    ($($type:ty, $unsigned:ty, $schema:literal;)*) => {$(
        impl Value for $type {
            const SCHEMA: &'static str = $schema;
            const WORD: bool = true;
            type Owned = $type;

            #[inline]
            fn to_word(&self) -> u64 {
                u64::from(*self as $unsigned)
            }
            #[inline]
            fn from_word(word: u64) -> Result<$type, Damage> {
                match <$unsigned>::try_from(word) {
                    Ok(value) => Ok(value as $type),
                    Err(_) => Err(no_value($schema, format!("{word:#x}"))),
                }
            }
            #[inline]
            fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
                with(&self.to_le_bytes())
            }
            fn from_bytes(bytes: Vec<u8>) -> Result<$type, Damage> {
                match bytes.as_slice().try_into() {
                    Ok(bytes) => Ok(<$type>::from_le_bytes(bytes)),
                    Err(_) => Err(no_value($schema, format!("{} bytes", bytes.len()))),
                }
            }
            #[inline]
            fn borrow(owned: &$type) -> &$type {
                owned
            }
        }
        impl Key for $type {}
    )*};
}

integer! {
    u8, u8, "u8";
    u16, u16, "u16";
    u32, u32, "u32";
    u64, u64, "u64";
    i8, u8, "i8";
    i16, u16, "i16";
    i32, u32, "i32";
    i64, u64, "i64";
}

impl Value for [u8] {
    const SCHEMA: &'static str = "bytes";
    const WORD: bool = false;
    type Owned = Vec<u8>;

    fn to_word(&self) -> u64 {
        unreachable!("byte strings are not words")
    }
    fn from_word(_: u64) -> Result<Vec<u8>, Damage> {
        unreachable!("byte strings are not words")
    }
    #[inline]
    fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        with(self)
    }
    fn from_bytes(bytes: Vec<u8>) -> Result<Vec<u8>, Damage> {
        Ok(bytes)
    }
    fn borrow(owned: &Vec<u8>) -> &[u8] {
        owned
    }
}
impl Key for [u8] {}

impl Value for str {
    const SCHEMA: &'static str = "str";
    const WORD: bool = false;
    type Owned = String;

    fn to_word(&self) -> u64 {
        unreachable!("strings are not words")
    }
    fn from_word(_: u64) -> Result<String, Damage> {
        unreachable!("strings are not words")
    }
    #[inline]
    fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        with(self.as_bytes())
    }
    fn from_bytes(bytes: Vec<u8>) -> Result<String, Damage> {
        String::from_utf8(bytes).map_err(|e| no_value("str", e.utf8_error().to_string()))
    }
    fn borrow(owned: &String) -> &str {
        owned
    }
}
impl Key for str {}

/// A key type with an order.
///
/// | type | order |
/// |---|---|
/// | integers | by value |
/// | `bool` | `false` before `true` |
/// | `f32`, `f64` | [`total_cmp`](f64::total_cmp): by value, -0.0 before 0.0, NaNs at the ends, by their signs |
/// | `[u8; N]`, `[u8]`, `str` | byte by byte; a string precedes longer ones that begin with it |
/// | tuples | by the first part, then by the second, and so on |
/// | structs with [`fixed_record!`](crate::fixed_record) and `ordered by` | by their fields, as listed |
///
/// For those of the library's own types that implement `Ord`, this is the same order. Two keys are
/// equal if they are equal in this order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of an ordered map",
    label = "not a type of keys that has an order",
    note = "for `String` or `&str`, the type is `str`; for `Vec<u8>` or `&[u8]`, it is `[u8]`",
    note = "for a struct, use `outlast::fixed_record!` with `ordered by` and its fields"
)]
pub trait OrderedKey: Key {}

impl OrderedKey for [u8] {}
impl OrderedKey for str {}

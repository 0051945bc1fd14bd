//! Which types can be keys and values, and how they are written.

use crate::error::{Damage, Result};

/// A type that can be a key.
///
/// Implemented for integers, `[u8]` and `str`; for your own structs by
/// [`fixed_record!`](crate::fixed_record).
///
/// Two keys are the same if their bytes are.
pub trait Key: Value {}

/// A type that can be a value.
///
/// The schema is recorded when a map is created and compared when it is opened: a map
/// opens only as what it is.
pub trait Value {
    /// Names the type and its layout, for ever. At most 128 bytes.
    const SCHEMA: &'static str;
    /// Whether it fits an 8-byte word.
    const WORD: bool;
    /// What a read hands out.
    type Owned: Send + 'static;

    /// The value as a word. Only called where [`WORD`](Value::WORD) holds.
    fn to_word(&self) -> u64;
    /// The value back from its word. Only called where [`WORD`](Value::WORD) holds.
    ///
    /// # Errors
    /// [`Damage`] (its offset is filled in by the caller) if no value has this word.
    fn from_word(word: u64) -> Result<Self::Owned, Damage>;
    /// Shows the value's bytes to `with`.
    fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T;
    /// The value back from its bytes.
    ///
    /// # Errors
    /// [`Damage`] if no value has these bytes.
    fn from_bytes(bytes: Vec<u8>) -> Result<Self::Owned, Damage>;
    /// What was handed out, to be passed in again.
    fn borrow(owned: &Self::Owned) -> &Self;
}

#[cold]
fn no_value(schema: &str, found: String) -> Damage {
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

/// A struct of fixed size whose bytes are its value; made by
/// [`fixed_record!`](crate::fixed_record).
pub trait FixedRecord:
    zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy + Send + 'static
{
    /// See [`Value::SCHEMA`].
    const SCHEMA: &'static str;
}

/// Makes structs of fixed size usable as keys and values.
///
/// The struct derives `zerocopy`'s `FromBytes`, `IntoBytes` and `Immutable`, which rule
/// out padding and invalid bytes. The text is its schema: change it when the layout
/// changes.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Position {
///     latitude_e7: i32,
///     longitude_e7: i32,
///     height_mm: i64,
/// }
/// outlast::fixed_record!(Position, "position/1");
///
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let seen = pool.map::<u64, Position>("seen")?;
/// let here = Position { latitude_e7: 1, longitude_e7: 2, height_mm: 3 };
/// seen.put(&7, &here)?;
/// assert_eq!(seen.get(&7)?, Some(here));
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! fixed_record {
    ($type:ty, $schema:literal) => {
        impl $crate::FixedRecord for $type {
            const SCHEMA: &'static str = $schema;
        }
        impl $crate::Value for $type {
            const SCHEMA: &'static str = $schema;
            const WORD: bool = ::core::mem::size_of::<$type>() <= 8;
            type Owned = $type;

            fn to_word(&self) -> u64 {
                let mut word = [0; 8];
                let bytes = $crate::reexport::zerocopy::IntoBytes::as_bytes(self);
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
            fn from_word(word: u64) -> ::core::result::Result<$type, $crate::Damage> {
                let word_bytes = word.to_le_bytes();
                let (value, rest) = word_bytes.split_at(::core::mem::size_of::<$type>());
                if rest.iter().any(|&b| b != 0) {
                    return Err($crate::Damage::new(0, $schema, format!("{word:#x}")));
                }
                <$type as $crate::Value>::from_bytes(value.to_vec())
            }
            fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
                with($crate::reexport::zerocopy::IntoBytes::as_bytes(self))
            }
            fn from_bytes(bytes: Vec<u8>) -> ::core::result::Result<$type, $crate::Damage> {
                <$type as $crate::reexport::zerocopy::FromBytes>::read_from_bytes(&bytes)
                    .map_err(|_| $crate::Damage::new(0, $schema, format!("{} bytes", bytes.len())))
            }
            fn borrow(owned: &$type) -> &$type {
                owned
            }
        }
        impl $crate::Key for $type {}
    };
}

//! The types that can be keys and values, and their encodings.

use crate::error::{Damage, Result};

/// A type that can be a key.
///
/// Implemented for integers, `[u8]` and `str`. Use [`fixed_record!`](crate::fixed_record) for your
/// own structs.
///
/// Two keys are equal if their bytes are equal.
pub trait Key: Value {}

/// A type that can be a value.
///
/// The schema is recorded when a map is created and compared when it is opened, so a map opens only
/// with the types it was created with.
pub trait Value {
    /// The permanent name of the type and its layout. A map's name and its two schemas together
    /// have at most 408 bytes.
    const SCHEMA: &'static str;
    /// Whether the value fits an 8-byte word.
    const WORD: bool;
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

/// A struct of fixed size that is encoded as its bytes. Implemented by
/// [`fixed_record!`](crate::fixed_record).
pub trait FixedRecord:
    zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy + Send + 'static
{
    /// See [`Value::SCHEMA`].
    const SCHEMA: &'static str;
}

/// Makes a struct of fixed size usable as a key and a value.
///
/// The struct derives `zerocopy`'s `FromBytes`, `IntoBytes` and `Immutable`, which rule out padding
/// and invalid bytes. The string is its schema: change it when the layout changes.
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

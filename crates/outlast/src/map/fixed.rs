//! Types whose encodings all have the same length: what tuples and ordered structs consist of.
//!
//! Except for structs without `ordered by`, the encodings keep the order: of two values, the lesser
//! one has the lesser bytes. So an ordered index compares the bytes as they are. (Integers of up to
//! 8 bytes that are not parts of another type are stored as words, in an order that `KeyOrder` in
//! `index/ordered.rs` describes.)
//!
//! | type | bytes |
//! |---|---|
//! | unsigned integers | big-endian |
//! | signed integers | big-endian, with the sign bit inverted |
//! | `bool` | one byte, 0 or 1 |
//! | floats | the bits, big-endian: all of them inverted if the sign bit is 1, otherwise only the sign bit |
//! | `[u8; N]` | as they are |
//! | tuples, ordered structs | their parts, one after another |
//!
//! Where a value is stored as a word, the word is the encoding read as a big-endian number.

use super::record::FixedRecord;
use super::schema::SchemaText;
use super::types::OrderedKey;
use super::types::{Key, Value, no_value};
use crate::error::Damage;

/// A type that can be a part of a tuple, or a field of an ordered struct.
///
/// Implemented for integers, `bool`, floats, `[u8; N]`, tuples of up to four of these, and your own
/// structs with [`fixed_record!`](crate::fixed_record).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a tuple or an ordered struct",
    label = "its encodings do not all have the same length",
    note = "possible parts: integers, `bool`, floats, `[u8; N]`, tuples of up to four of these, and \
            structs with `outlast::fixed_record!`"
)]
pub trait FixedSize: Key + Value<Owned = Self> + Copy + Send + 'static {
    /// The size of an encoding, in bytes.
    const BYTES: usize;

    /// Encodes the value. `out` has [`BYTES`](FixedSize::BYTES) bytes. If the type is an
    /// [`OrderedKey`], the encodings are in the order of the values.
    fn encode(&self, out: &mut [u8]);

    /// Decodes a value from [`BYTES`](FixedSize::BYTES) bytes.
    ///
    /// # Errors
    /// [`Damage`] if no value has this encoding.
    fn decode(bytes: &[u8]) -> Result<Self, Damage>;
}

/// An integer, for [`Map::add`](crate::Map::add).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer, so nothing can be added to it",
    note = "`add` and `sub` are for maps whose values are integers; `alter` works with any values"
)]
pub trait Integer: FixedSize {
    /// 0.
    const ZERO: Self;
    /// Returns the sum, if it is a value of this type.
    fn checked_add(self, other: Self) -> Option<Self>;
    /// Returns the difference, if it is a value of this type.
    fn checked_sub(self, other: Self) -> Option<Self>;
}

// ---- How such types are keys and values -----------------------------------------

/// Encodings of up to this many bytes are made on the stack.
pub(super) const SMALL: usize = 64;

/// See [`Value::to_word`].
#[inline]
pub fn to_word<T: FixedSize>(value: &T) -> u64 {
    let mut word = [0; 8];
    let above = 8usize.checked_sub(T::BYTES).expect("called for words only");
    value.encode(&mut word[above..]);
    u64::from_be_bytes(word)
}

/// See [`Value::from_word`].
///
/// # Errors
/// Those of that method.
#[inline]
pub fn from_word<T: FixedSize>(word: u64) -> Result<T, Damage> {
    let bytes = word.to_be_bytes();
    let above = 8usize.checked_sub(T::BYTES).expect("called for words only");
    let (above, bytes) = bytes.split_at(above);
    if above.iter().any(|&byte| byte != 0) {
        return Err(no_value(T::SCHEMA, format!("{word:#x}")));
    }
    T::decode(bytes)
}

/// See [`Value::with_bytes`].
#[inline]
pub fn with_bytes<T: FixedSize, U>(value: &T, with: impl FnOnce(&[u8]) -> U) -> U {
    let mut small = [0; SMALL];
    if let Some(out) = small.get_mut(..T::BYTES) {
        value.encode(out);
        return with(out);
    }
    let mut out = vec![0; T::BYTES];
    value.encode(&mut out);
    with(&out)
}

/// See [`Value::from_bytes`].
///
/// # Errors
/// Those of that method.
#[inline]
pub fn from_bytes<T: FixedSize>(bytes: &[u8]) -> Result<T, Damage> {
    if bytes.len() != T::BYTES {
        return Err(no_value(T::SCHEMA, format!("{} bytes", bytes.len())));
    }
    T::decode(bytes)
}

/// Encodes a part, and returns the space after it.
pub fn encode_part<'o, T: FixedSize>(part: &T, out: &'o mut [u8]) -> &'o mut [u8] {
    let (own, rest) = out.split_at_mut(T::BYTES);
    part.encode(own);
    rest
}

/// Decodes a part, and moves on to the bytes after it.
///
/// # Errors
/// [`Damage`] if no value of the part's type has these bytes.
pub fn decode_part<T: FixedSize>(bytes: &mut &[u8]) -> Result<T, Damage> {
    let (own, rest) = bytes.split_at(T::BYTES);
    *bytes = rest;
    T::decode(own)
}

/// Encodes a struct of the second form of `fixed_record!` as a word: its bytes first, then zeros.
pub fn record_to_word<T: FixedRecord>(value: &T) -> u64 {
    let mut word = [0; 8];
    let bytes = value.as_bytes();
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Decodes such a struct from a word.
///
/// # Errors
/// [`Damage`] if no value is encoded as this word.
pub fn record_from_word<T: FixedRecord>(word: u64) -> Result<T, Damage> {
    let bytes = word.to_le_bytes();
    let (value, rest) = bytes.split_at(size_of::<T>());
    if rest.iter().any(|&byte| byte != 0) {
        return Err(no_value(T::SCHEMA, format!("{word:#x}")));
    }
    record_from_bytes(value)
}

/// Decodes such a struct from its bytes.
///
/// # Errors
/// [`Damage`] if their number is wrong.
pub fn record_from_bytes<T: FixedRecord>(bytes: &[u8]) -> Result<T, Damage> {
    T::read_from_bytes(bytes).map_err(|_| no_value(T::SCHEMA, lengths(bytes)))
}

/// Implements what a [`FixedSize`] type needs to be a key and a value. The schema is an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! __fixed_size_value {
    ([$($generics:tt)*] $type:ty, $schema:expr) => {
        impl<$($generics)*> $crate::Value for $type {
            const SCHEMA: &'static ::core::primitive::str = $schema;
            const WORD: ::core::primitive::bool = <Self as $crate::FixedSize>::BYTES <= 8;
            type Owned = Self;

            fn to_word(&self) -> ::core::primitive::u64 {
                $crate::reexport::fixed::to_word(self)
            }
            fn from_word(
                word: ::core::primitive::u64,
            ) -> ::core::result::Result<Self, $crate::Damage> {
                $crate::reexport::fixed::from_word(word)
            }
            fn with_bytes<WithBytesResult>(
                &self,
                with: impl ::core::ops::FnOnce(&[::core::primitive::u8]) -> WithBytesResult,
            ) -> WithBytesResult {
                $crate::reexport::fixed::with_bytes(self, with)
            }
            fn from_bytes(
                bytes: ::std::vec::Vec<::core::primitive::u8>,
            ) -> ::core::result::Result<Self, $crate::Damage> {
                $crate::reexport::fixed::from_bytes(&bytes)
            }
            fn borrow(owned: &Self) -> &Self {
                owned
            }
        }
        impl<$($generics)*> $crate::Key for $type {}
    };
}

// ---- Integers -------------------------------------------------------------------

macro_rules! integer {
    ($($type:ty, $unsigned:ty;)*) => {$(
        impl FixedSize for $type {
            const BYTES: usize = size_of::<$type>();

            #[inline]
            fn encode(&self, out: &mut [u8]) {
                // The least value of a signed type is its sign bit; that of an unsigned one is 0.
                let ordered = (*self ^ <$type>::MIN) as $unsigned;
                out.copy_from_slice(&ordered.to_be_bytes());
            }
            #[inline]
            fn decode(bytes: &[u8]) -> Result<$type, Damage> {
                let bytes = bytes.try_into().map_err(|_| no_value(Self::SCHEMA, lengths(bytes)))?;
                Ok(<$unsigned>::from_be_bytes(bytes) as $type ^ <$type>::MIN)
            }
        }
        impl Integer for $type {
            const ZERO: $type = 0;

            #[inline]
            fn checked_add(self, other: $type) -> Option<$type> {
                <$type>::checked_add(self, other)
            }
            #[inline]
            fn checked_sub(self, other: $type) -> Option<$type> {
                <$type>::checked_sub(self, other)
            }
        }
        impl OrderedKey for $type {}
    )*};
}

integer! {
    u8, u8; u16, u16; u32, u32; u64, u64; u128, u128;
    i8, u8; i16, u16; i32, u32; i64, u64; i128, u128;
}

__fixed_size_value!([] u128, "u128");
__fixed_size_value!([] i128, "i128");

#[cold]
fn lengths(bytes: &[u8]) -> String {
    format!("{} bytes", bytes.len())
}

// ---- Other types ----------------------------------------------------------------

impl FixedSize for bool {
    const BYTES: usize = 1;

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(&[u8::from(*self)]);
    }
    fn decode(bytes: &[u8]) -> Result<bool, Damage> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            other => Err(no_value("bool", format!("{other:?}"))),
        }
    }
}
__fixed_size_value!([] bool, "bool");
impl OrderedKey for bool {}

impl FixedSize for () {
    const BYTES: usize = 0;

    fn encode(&self, _: &mut [u8]) {}
    fn decode(bytes: &[u8]) -> Result<(), Damage> {
        if bytes.is_empty() { Ok(()) } else { Err(no_value("()", lengths(bytes))) }
    }
}
__fixed_size_value!([](), "()");
impl OrderedKey for () {}

macro_rules! float {
    ($($type:ty, $bits:ty, $schema:literal;)*) => {$(
        impl FixedSize for $type {
            const BYTES: usize = size_of::<$type>();

            fn encode(&self, out: &mut [u8]) {
                let (bits, sign) = (self.to_bits(), 1 << (<$bits>::BITS - 1));
                let ordered = if bits & sign == 0 { bits | sign } else { !bits };
                out.copy_from_slice(&ordered.to_be_bytes());
            }
            fn decode(bytes: &[u8]) -> Result<$type, Damage> {
                let bytes = bytes.try_into().map_err(|_| no_value($schema, lengths(bytes)))?;
                let (ordered, sign) = (<$bits>::from_be_bytes(bytes), 1 << (<$bits>::BITS - 1));
                let bits = if ordered & sign == 0 { !ordered } else { ordered & !sign };
                Ok(<$type>::from_bits(bits))
            }
        }
        __fixed_size_value!([] $type, $schema);
        impl OrderedKey for $type {}
    )*};
}

float! {
    f32, u32, "f32";
    f64, u64, "f64";
}

impl<const N: usize> FixedSize for [u8; N] {
    const BYTES: usize = N;

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn decode(bytes: &[u8]) -> Result<[u8; N], Damage> {
        bytes.try_into().map_err(|_| no_value(Self::SCHEMA, lengths(bytes)))
    }
}
__fixed_size_value!([const N: usize] [u8; N], <[u8; N] as Composed>::TEXT.as_str());
impl<const N: usize> OrderedKey for [u8; N] {}

/// A type whose schema is composed from those of its parts.
pub(super) trait Composed {
    const TEXT: &'static SchemaText;
}

impl<const N: usize> Composed for [u8; N] {
    const TEXT: &'static SchemaText =
        &SchemaText::new().with("[u8;").with_number(Self::BYTES).with("]");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;
    use std::fmt::Debug;

    /// Checks that values, in their order, have encodings in the same order, both as bytes and as
    /// words, and that each encoding gives back its value.
    fn check<T: FixedSize + Debug>(values: &[T], compare: impl Fn(&T, &T) -> Ordering) {
        let bytes = |value: &T| value.with_bytes(<[u8]>::to_vec);
        for one in values {
            let back = T::from_bytes(bytes(one)).unwrap();
            assert!(compare(one, &back).is_eq(), "{one:?}, {back:?}");
            let ordered = |one: &T| {
                let mut out = vec![0; T::BYTES];
                one.encode(&mut out);
                out
            };
            for other in values {
                let order = compare(one, other);
                assert_eq!(ordered(one).cmp(&ordered(other)), order, "{one:?}, {other:?}");
                if T::BYTES <= 8 {
                    let order_of_words = to_word(one).cmp(&to_word(other));
                    assert_eq!(order_of_words, order, "{one:?}, {other:?}");
                    assert!(compare(&from_word(to_word(one)).unwrap(), one).is_eq());
                }
            }
        }
    }

    #[test]
    fn encodings_are_in_the_order_of_the_values() {
        check(&[i8::MIN, -1, 0, 1, i8::MAX], Ord::cmp);
        check(&[0, 1, 255, 256, u32::MAX], Ord::cmp);
        check(&[i64::MIN, -256, -1, 0, 255, i64::MAX], Ord::cmp);
        check(&[0, 1 << 64, u128::MAX], Ord::cmp);
        check(&[i128::MIN, -1, 0, 1 << 64, i128::MAX], Ord::cmp);
        check(&[false, true], Ord::cmp);
        check(&[[0u8, 1], [0, 255], [1, 0]], Ord::cmp);
        check(&[[]; 1], <[u8; 0]>::cmp);
        check(&[(); 1], Ord::cmp);
        let pairs = [(-1i16, 3u32), (-1, 4), (0, 0), (0, u32::MAX), (7, 1)];
        check(&pairs, Ord::cmp);
        check(&pairs.map(|(a, b)| (b, [a as u8; 3], a > 0)), Ord::cmp);
        check(&pairs.map(|(a, b)| ((b, a), a, u128::from(b), b > 3)), Ord::cmp);
    }

    #[test]
    fn floats_are_in_their_total_order() {
        let positive = [0.0, f64::MIN_POSITIVE / 2.0, 1.5, f64::MAX, f64::INFINITY, f64::NAN];
        let payload = f64::from_bits(f64::NAN.to_bits() | 5);
        let mut values: Vec<f64> = positive.into_iter().chain([payload]).collect();
        values.extend(values.clone().iter().map(|value| -value));
        check(&values, f64::total_cmp);
        let small: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        check(&small, f32::total_cmp);
        let pairs: Vec<(f64, u8)> = values.iter().flat_map(|&v| [(v, 1), (v, 2)]).collect();
        check(&pairs, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }

    #[test]
    fn what_no_value_has_is_damage() {
        assert!(bool::from_word(2).is_err() && bool::from_bytes(vec![2]).is_err());
        assert!(<(u8, bool)>::from_word(0x0102).is_err());
        assert!(<(u8, u16)>::from_word(1 << 24).is_err());
        assert!(<[u8; 3]>::from_bytes(vec![0; 4]).is_err());
        assert!(u128::from_bytes(vec![0; 8]).is_err());
        assert!(<()>::from_word(1).is_err() && <()>::from_bytes(vec![0]).is_err());
        assert!(f32::from_word(1 << 32).is_err());
    }

    /// Pools contain these encodings, so they must not change.
    #[test]
    fn encodings_stay_as_they_are() {
        let bytes = (-2i16, true, (0x0102_0304u32, -1.0f32), *b"abc").with_bytes(<[u8]>::to_vec);
        assert_eq!(bytes, *b"\x7f\xfe\x01\x01\x02\x03\x04\x40\x7f\xff\xffabc");
        assert_eq!((0x0102u16, -1i8).to_word(), 0x01_027f);
        assert_eq!((1.0f64.to_word(), false.to_word()), (0xbff0_0000_0000_0000, 0));
        assert_eq!(5i128.with_bytes(|b| (b[0], b[15], b.len())), (0x80, 5, 16));
    }

    #[test]
    fn schemas_name_the_parts() {
        assert_eq!(<[u8; 0]>::SCHEMA, "[u8;0]");
        assert_eq!(<[u8; 1024]>::SCHEMA, "[u8;1024]");
        assert_eq!(<(u8, (i16, bool), [u8; 12], f64)>::SCHEMA, "(u8,(i16,bool),[u8;12],f64)");
    }
}

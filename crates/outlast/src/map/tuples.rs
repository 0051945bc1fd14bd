//! Tuples as keys and values.
//!
//! The encoding of a tuple is those of its parts, one after another. Parts of fixed size need nothing to
//! tell where they end, nor does the last part. A string before the last part is written so that the
//! encodings stay in order: each byte 0 is followed by 255, and two bytes 0 end it.

use super::fixed::{Composed, FixedSize, SMALL, decode_part, encode_part};
use super::schema::SchemaText;
use super::types::{Key, OrderedKey, Value, no_value};
use crate::error::Damage;

/// A type that can be a part of a tuple.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a tuple",
    label = "not a type of parts",
    note = "possible parts: `String`, `Vec<u8>`, integers, `bool`, floats, `[u8; N]`, tuples of parts of \
            fixed size, and structs with `outlast::fixed_record!`"
)]
pub trait TuplePart: Sized + Send + 'static {
    /// The type of which a reference stands for the part.
    type Borrowed: ?Sized;
    /// The schema of a value of this type alone.
    const SCHEMA: &'static str;
    /// The size of an encoding in bytes, if all have the same.
    const BYTES: Option<usize>;

    /// Borrows the part.
    fn borrow(&self) -> &Self::Borrowed;
    /// Encodes a part of fixed size at the front of `out`, and returns the space after it.
    fn encode<'o>(&self, out: &'o mut [u8]) -> &'o mut [u8];
    /// Appends the encoding of a part.
    fn append(part: &Self::Borrowed, is_last: bool, out: &mut Vec<u8>);
    /// Decodes a part, and moves on to the bytes after it.
    ///
    /// # Errors
    /// [`Damage`] if no value has these bytes.
    fn decode(bytes: &mut &[u8], is_last: bool) -> Result<Self, Damage>;
}

/// A part whose values are in the order of their encodings.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key that has an order",
    note = "for a struct, use `outlast::fixed_record!` with `ordered by` and its fields"
)]
pub trait OrderedPart: TuplePart {}

impl<T: FixedSize> TuplePart for T {
    type Borrowed = T;
    const SCHEMA: &'static str = <T as Value>::SCHEMA;
    const BYTES: Option<usize> = Some(<T as FixedSize>::BYTES);

    fn borrow(&self) -> &T {
        self
    }
    #[inline]
    fn encode<'o>(&self, out: &'o mut [u8]) -> &'o mut [u8] {
        encode_part(self, out)
    }
    fn append(part: &T, _: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + <T as FixedSize>::BYTES, 0);
        FixedSize::encode(part, &mut out[start..]);
    }
    #[inline]
    fn decode(bytes: &mut &[u8], _: bool) -> Result<T, Damage> {
        if bytes.len() < <T as FixedSize>::BYTES {
            return Err(no_value(<T as Value>::SCHEMA, format!("{} bytes", bytes.len())));
        }
        decode_part(bytes)
    }
}

impl<T: FixedSize + OrderedKey> OrderedPart for T {}

macro_rules! string {
    ($($string:ty, $borrowed:ty;)*) => {$(
        impl TuplePart for $string {
            type Borrowed = $borrowed;
            const SCHEMA: &'static str = <$borrowed as Value>::SCHEMA;
            const BYTES: Option<usize> = None;

            fn borrow(&self) -> &$borrowed {
                self
            }
            fn encode<'o>(&self, _: &'o mut [u8]) -> &'o mut [u8] {
                unreachable!("a string has no fixed size")
            }
            fn append(part: &$borrowed, is_last: bool, out: &mut Vec<u8>) {
                append_string(part.as_ref(), is_last, out);
            }
            fn decode(bytes: &mut &[u8], is_last: bool) -> Result<$string, Damage> {
                <$borrowed>::from_bytes(take_string(bytes, is_last)?)
            }
        }
        impl OrderedPart for $string {}
    )*};
}
string! {
    String, str;
    Vec<u8>, [u8];
}

fn append_string(string: &[u8], is_last: bool, out: &mut Vec<u8>) {
    if is_last {
        out.extend_from_slice(string);
        return;
    }
    for &byte in string {
        out.push(byte);
        if byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend([0, 0]);
}

fn take_string(bytes: &mut &[u8], is_last: bool) -> Result<Vec<u8>, Damage> {
    if is_last {
        return Ok(std::mem::take(bytes).to_vec());
    }
    let mut string = Vec::new();
    loop {
        let zero = bytes.iter().position(|&byte| byte == 0);
        let Some((own, [_, mark, rest @ ..])) = zero.and_then(|at| bytes.split_at_checked(at))
        else {
            return Err(no_value("str", "one without an end".into()));
        };
        string.extend_from_slice(own);
        *bytes = rest;
        match mark {
            0 => return Ok(string),
            &u8::MAX => string.push(0),
            other => return Err(no_value("str", format!("0 and {other} in one"))),
        }
    }
}

/// Returns the sum, if all are known.
const fn sum(parts: &[Option<usize>]) -> Option<usize> {
    let (mut sum, mut at) = (0, 0);
    while at < parts.len() {
        match parts[at] {
            Some(bytes) => sum += bytes,
            None => return None,
        }
        at += 1;
    }
    Some(sum)
}

macro_rules! tuple {
    ($($part:ident $number:tt),+; $last:ident $end:tt) => {
        impl<$($part: FixedSize,)+ $last: FixedSize> FixedSize for ($($part,)+ $last) {
            const BYTES: usize = <$last as FixedSize>::BYTES $(+ <$part as FixedSize>::BYTES)+;

            fn encode(&self, out: &mut [u8]) {
                let rest = out;
                $(let rest = encode_part(&self.$number, rest);)+
                let rest = encode_part(&self.$end, rest);
                debug_assert!(rest.is_empty(), "a tuple is its parts");
            }
            fn decode(bytes: &[u8]) -> Result<Self, Damage> {
                let mut rest = bytes;
                Ok(($(decode_part::<$part>(&mut rest)?,)+ decode_part::<$last>(&mut rest)?))
            }
        }
        impl<$($part: TuplePart,)+ $last: TuplePart> Composed for ($($part,)+ $last) {
            const TEXT: &'static SchemaText = &SchemaText::new()
                .with("(")
                $(.with_part(<$part as TuplePart>::SCHEMA))+
                .with_part(<$last as TuplePart>::SCHEMA)
                .with(")");
        }
        impl<$($part: TuplePart,)+ $last: TuplePart> Value for ($($part,)+ $last) {
            const SCHEMA: &'static str = <Self as Composed>::TEXT.as_str();
            const WORD: bool = matches!(
                sum(&[$(<$part as TuplePart>::BYTES,)+ <$last as TuplePart>::BYTES]),
                Some(..=8)
            );
            type Owned = Self;

            #[inline]
            fn to_word(&self) -> u64 {
                let bytes = sum(&[$(<$part as TuplePart>::BYTES,)+ <$last as TuplePart>::BYTES]);
                let mut word = [0; 8];
                let rest = &mut word[8 - bytes.expect("called for words only")..];
                $(let rest = self.$number.encode(rest);)+
                self.$end.encode(rest);
                u64::from_be_bytes(word)
            }
            #[inline]
            fn from_word(word: u64) -> Result<Self, Damage> {
                let bytes = sum(&[$(<$part as TuplePart>::BYTES,)+ <$last as TuplePart>::BYTES]);
                let word_bytes = word.to_be_bytes();
                let (above, mut rest) =
                    word_bytes.split_at(8 - bytes.expect("called for words only"));
                if above.iter().any(|&byte| byte != 0) {
                    return Err(no_value(Self::SCHEMA, format!("{word:#x}")));
                }
                Ok((
                    $(<$part as TuplePart>::decode(&mut rest, false)?,)+
                    <$last as TuplePart>::decode(&mut rest, true)?,
                ))
            }
            #[inline]
            fn with_bytes<Z>(&self, with: impl FnOnce(&[u8]) -> Z) -> Z {
                let mut small = [0; SMALL];
                let bytes = sum(&[$(<$part as TuplePart>::BYTES,)+ <$last as TuplePart>::BYTES]);
                if let Some(out) = bytes.and_then(|bytes| small.get_mut(..bytes)) {
                    let rest = &mut *out;
                    $(let rest = self.$number.encode(rest);)+
                    self.$end.encode(rest);
                    return with(out);
                }
                let mut out = Vec::with_capacity(bytes.unwrap_or(SMALL));
                $(<$part as TuplePart>::append(self.$number.borrow(), false, &mut out);)+
                <$last as TuplePart>::append(self.$end.borrow(), true, &mut out);
                with(&out)
            }
            fn from_bytes(bytes: Vec<u8>) -> Result<Self, Damage> {
                let mut rest = &bytes[..];
                let tuple = (
                    $(<$part as TuplePart>::decode(&mut rest, false)?,)+
                    <$last as TuplePart>::decode(&mut rest, true)?,
                );
                if rest.is_empty() {
                    return Ok(tuple);
                }
                Err(no_value(Self::SCHEMA, format!("{} bytes", bytes.len())))
            }
            fn borrow(owned: &Self) -> &Self {
                owned
            }
        }
        impl<$($part: TuplePart,)+ $last: TuplePart> Key for ($($part,)+ $last) {}
        impl<$($part: OrderedPart,)+ $last: OrderedPart> OrderedKey for ($($part,)+ $last) {}
    };
}

tuple!(A 0; B 1);
tuple!(A 0, B 1; C 2);
tuple!(A 0, B 1, C 2; D 3);

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &(impl Value + ?Sized)) -> Vec<u8> {
        value.with_bytes(<[u8]>::to_vec)
    }

    /// Checks that keys, which are in order, have encodings in the same order, and that each encoding
    /// gives back its key.
    fn check<K: Value<Owned = K> + PartialOrd + std::fmt::Debug>(keys: &[K]) {
        assert!(keys.is_sorted() && keys.iter().map(bytes).collect::<Vec<_>>().is_sorted());
        for key in keys {
            assert_eq!(&K::from_bytes(bytes(key)).unwrap(), key);
        }
    }

    #[test]
    fn tuples_with_strings_are_in_order() {
        let strings = ["", "\0", "\0\0", "\0\u{1}", "a", "a\0", "a\0b", "ab", "b", "é"];
        let pairs = |of: i32| strings.map(|text| (of, text.to_owned()));
        check(&[pairs(-1), pairs(0), pairs(7)].concat());
        let first = |numbers: [i16; 3]| -> Vec<_> {
            strings.iter().flat_map(|text| numbers.map(|n| (text.to_string(), n))).collect()
        };
        check(&first([-1, 0, 1]));
        check(&first([i16::MIN, -256, 255]));
        let bytes = [&b""[..], b"\0", b"\0\xff", b"\x01", b"\xff", b"\xff\0", b"\xff\xff"];
        let three: Vec<_> = bytes
            .iter()
            .flat_map(|a| bytes.map(|b| (true, a.to_vec(), b.to_vec())))
            .flat_map(|(a, b, c)| strings.map(|d| (a, b.clone(), d.to_owned(), c.clone())))
            .collect();
        let mut sorted = three.clone();
        sorted.sort();
        check(&sorted);
        let back: Vec<_> = three.iter().map(|key| (key.1.clone(), key.2.clone(), key.0)).collect();
        let mut sorted = back;
        sorted.sort();
        check(&sorted);
    }

    #[test]
    fn bytes_give_the_tuple_back() {
        let tuple = (7u16, true, "text".to_owned());
        assert_eq!(bytes(&tuple), b"\x00\x07\x01text");
        assert_eq!(<(u16, bool, String)>::from_bytes(bytes(&tuple)).unwrap(), tuple);
        assert_eq!(<(u16, Vec<u8>)>::from_bytes(vec![0, 9, 255]).unwrap(), (9, vec![255]));
        assert!(<(u16, String)>::from_bytes(vec![0, 9, 255]).is_err(), "that is no text");
        assert!(<(u16, String)>::from_bytes(vec![0]).is_err());
        assert_eq!(<(u8, [u8; 2], String)>::SCHEMA, "(u8,[u8;2],str)");
        assert_eq!(<(u8, Vec<u8>)>::SCHEMA, "(u8,bytes)");
        assert_eq!(<(String, Vec<u8>, u64)>::SCHEMA, "(str,bytes,u64)");
        assert_eq!(bytes(&("a\0b".to_owned(), 1u8)), b"a\0\xffb\0\0\x01");
    }

    /// Each encoding is that of one value, so all others are damage.
    #[test]
    fn what_no_tuple_has_is_damage() {
        for damaged in [
            &b""[..],
            b"a",
            b"a\0",
            b"a\0\x01\0\0\x07",
            b"\xff\0\0\x07",
            b"a\0\0",
            b"a\0\0\x07\x08",
        ] {
            assert!(<(String, u8)>::from_bytes(damaged.to_vec()).is_err(), "{damaged:?}");
        }
        assert!(<(String, String)>::from_bytes(b"a\0\0\xff".to_vec()).is_err());
    }
}

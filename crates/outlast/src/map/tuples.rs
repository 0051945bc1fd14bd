//! Tuples whose last part is a string.

use super::fixed::{FixedSize, decode_part, encode_part};
use super::ordered::OrderedKey;
use super::schema::SchemaText;
use super::types::{Key, Value};
use crate::error::Damage;

/// A string that can be the last part of a tuple. Its bytes follow those of the other parts, so the
/// tuples are in order.
trait LastPart: Sized {
    /// The same type as a key or value of its own.
    type Text: Value<Owned = Self> + ?Sized;
}

impl LastPart for String {
    type Text = str;
}

impl LastPart for Vec<u8> {
    type Text = [u8];
}

macro_rules! ends_with {
    ($last:ty; $($part:ident $number:tt),+; $end:tt) => {
        impl<$($part: FixedSize),+> Value for ($($part,)+ $last) {
            const SCHEMA: &'static str = {
                const fn text<$($part: FixedSize),+>() -> SchemaText {
                    SchemaText::new().with("(")$(.with_part($part::SCHEMA))+
                        .with_part(<<$last as LastPart>::Text as Value>::SCHEMA)
                        .with(")")
                }
                struct Text<$($part),+>($(std::marker::PhantomData<$part>),+);
                impl<$($part: FixedSize),+> Text<$($part),+> {
                    const TEXT: &'static SchemaText = &text::<$($part),+>();
                }
                Text::<$($part),+>::TEXT.as_str()
            };
            const WORD: bool = false;
            type Owned = Self;

            fn to_word(&self) -> u64 {
                unreachable!("a string is no word")
            }
            fn from_word(word: u64) -> Result<Self, Damage> {
                Err(super::types::no_value(Self::SCHEMA, format!("{word:#x}")))
            }
            fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
                let last: &[u8] = self.$end.as_ref();
                let fixed = 0 $(+ $part::BYTES)+;
                let mut bytes = vec![0; fixed];
                let rest = &mut bytes[..];
                $(let rest = encode_part(&self.$number, rest);)+
                debug_assert!(rest.is_empty(), "these are the parts");
                bytes.extend_from_slice(last);
                with(&bytes)
            }
            fn from_bytes(bytes: Vec<u8>) -> Result<Self, Damage> {
                let fixed = 0 $(+ $part::BYTES)+;
                let Some((mut parts, last)) = bytes.split_at_checked(fixed) else {
                    let found = format!("{} bytes", bytes.len());
                    return Err(super::types::no_value(Self::SCHEMA, found));
                };
                Ok((
                    $(decode_part::<$part>(&mut parts)?,)+
                    <$last as LastPart>::Text::from_bytes(last.to_vec())?,
                ))
            }
            fn borrow(owned: &Self) -> &Self {
                owned
            }
        }
        impl<$($part: FixedSize),+> Key for ($($part,)+ $last) {}
        impl<$($part: FixedSize + OrderedKey),+> OrderedKey for ($($part,)+ $last) {}
    };
    ($last:ty) => {
        ends_with!($last; A 0; 1);
        ends_with!($last; A 0, B 1; 2);
        ends_with!($last; A 0, B 1, C 2; 3);
    };
}

ends_with!(String);
ends_with!(Vec<u8>);

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &(impl Value + ?Sized)) -> Vec<u8> {
        value.with_bytes(<[u8]>::to_vec)
    }

    #[test]
    fn tuples_that_end_with_a_string_are_in_order() {
        let keys = [
            (-1i32, String::new()),
            (-1, "a".into()),
            (-1, "ab".into()),
            (-1, "b".into()),
            (0, String::new()),
            (7, "é".into()),
        ];
        assert!(keys.is_sorted() && keys.map(|key| bytes(&key)).is_sorted());
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
    }
}

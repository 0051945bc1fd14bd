//! Values that serde encodes.

use super::types::no_value;
use crate::error::Damage;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Makes a type of your own the value of maps, if serde can encode it: a struct with `String`s and
/// `Vec`s, an enum, an `Option`. The values are encoded with
/// [postcard](https://docs.rs/postcard), which is compact and has a
/// [specification](https://postcard.jamesmunns.com). This needs the feature `serde`.
///
/// The text is the schema, which a map keeps: choose a name and a version, and change the version when
/// you change the type. A map of the earlier version then fails to open as one of the new version, with
/// [`Error::MapMismatch`](crate::Error::MapMismatch), instead of giving wrong values. To move its
/// records, keep the earlier type beside the new one.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// struct User {
///     name: String,
///     role: Role,
///     mails: Vec<String>,
///     born: Option<u16>,
/// }
///
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// enum Role {
///     Guest,
///     Member { since: u64 },
/// }
///
/// outlast::serde_value!(User, "user/1");
///
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let users = pool.map::<u64, User>("users")?;
/// let ada = User {
///     name: "Ada".into(),
///     role: Role::Guest,
///     mails: vec!["ada@example.org".into()],
///     born: Some(1815),
/// };
/// users.insert(&1, &ada)?;
/// users.alter(&1, |user| {
///     let mut user = user?.clone();
///     user.role = Role::Member { since: 2026 };
///     Some(user)
/// })?;
/// assert_eq!(users.get(&1)?.map(|user| user.role), Some(Role::Member { since: 2026 }));
/// assert!(pool.map::<u64, u64>("users").is_err(), "it has another type");
/// # Ok(())
/// # }
/// ```
///
/// A value has one encoding, unless it has a `HashMap` or a `HashSet` in it, whose order is not fixed.
/// [`compare_swap`](crate::Map::compare_swap), [`compare_remove`](crate::Map::compare_remove) and
/// [`Batch::require`](crate::Batch::require) compare encodings, so use a `BTreeMap` where you call
/// these. All other methods work with any type.
///
/// # Panics
/// Storing a value panics if serde cannot encode it, for instance a `Path` that is not UTF-8.
#[macro_export]
macro_rules! serde_value {
    ($type:ty, $schema:literal) => {
        impl $crate::Value for $type {
            const SCHEMA: &'static ::core::primitive::str = {
                $crate::reexport::schema::check($schema);
                $schema
            };
            const WORD: ::core::primitive::bool = false;
            const ONE_ENCODING: ::core::primitive::bool = false;
            type Owned = $type;

            fn to_word(&self) -> ::core::primitive::u64 {
                ::core::unreachable!("an encoded value is no word")
            }
            fn from_word(
                _: ::core::primitive::u64,
            ) -> ::core::result::Result<Self, $crate::Damage> {
                ::core::unreachable!("an encoded value is no word")
            }
            fn with_bytes<WithBytesResult>(
                &self,
                with: impl ::core::ops::FnOnce(&[::core::primitive::u8]) -> WithBytesResult,
            ) -> WithBytesResult {
                with(&$crate::reexport::encoded::encode(self))
            }
            fn from_bytes(
                bytes: ::std::vec::Vec<::core::primitive::u8>,
            ) -> ::core::result::Result<Self, $crate::Damage> {
                $crate::reexport::encoded::decode(<Self as $crate::Value>::SCHEMA, &bytes)
            }
            fn borrow(owned: &Self) -> &Self {
                owned
            }
        }
    };
}

/// Encodes a value.
///
/// # Panics
/// If serde cannot encode it.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    match postcard::to_stdvec(value) {
        Ok(bytes) => bytes,
        Err(error) => panic!("a value cannot be encoded: {error}"),
    }
}

/// Decodes a value of a schema.
///
/// # Errors
/// [`Damage`] if no value has these bytes.
pub fn decode<T: DeserializeOwned>(schema: &str, bytes: &[u8]) -> Result<T, Damage> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(no_value(schema, format!("{} bytes after it", rest.len()))),
        Err(error) => Err(no_value(schema, format!("{} bytes: {error}", bytes.len()))),
    }
}

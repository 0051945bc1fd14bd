//! Structs as keys and values.

/// A struct of fixed size that is encoded as its bytes. Implemented by the second form of
/// [`fixed_record!`](crate::fixed_record).
pub trait FixedRecord:
    zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy + Send + 'static
{
    /// See [`Value::SCHEMA`](crate::Value::SCHEMA).
    const SCHEMA: &'static str;
}

/// Makes a struct of fixed size usable as a key and a value, and as a part of tuples.
///
/// The string is its schema. It must contain neither brackets nor commas. Change it when the layout
/// changes: a map of the old type then does not open as one of the new.
///
/// # With its fields
///
/// This is the form for most structs, as keys of any map and as values. It lists all fields, and they are
/// encoded one after another, as listed, each so that its bytes sort like its values. So keys of an
/// [`OrderedMap`](crate::OrderedMap) are compared by the first field, then by the second, and so on. If
/// the fields are listed as they are declared, that is the order of a derived `Ord`. Floats are in the
/// order of [`f64::total_cmp`].
///
/// The fields are of types that are [`FixedSize`](crate::FixedSize) and
/// [`OrderedKey`](crate::OrderedKey): integers, `bool`, floats, `[u8; N]`, tuples of these, and
/// other such structs. The struct must implement `Copy`, and needs nothing else. The types of the fields
/// become a part of the schema.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
/// struct Event {
///     day: u32,
///     urgent: bool,
///     source: [u8; 4],
/// }
/// outlast::fixed_record!(Event, "event/1", ordered by day, urgent, source);
///
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// struct Load {
///     percent: f32,
///     users: u32,
/// }
/// outlast::fixed_record!(Load, "load/1", ordered by percent, users);
///
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let events = pool.ordered_map::<Event, Load>("events")?;
/// let load = Load { percent: 12.5, users: 3 };
/// events.insert(&Event { day: 2, urgent: false, source: *b"disk" }, &load)?;
/// events.insert(&Event { day: 1, urgent: true, source: *b"fans" }, &load)?;
/// events.insert(&Event { day: 1, urgent: false, source: *b"host" }, &load)?;
/// let second = Event { day: 2, urgent: false, source: [0; 4] };
/// let of_the_first_day = events.range(..second).collect::<outlast::Result<Vec<_>>>()?;
/// assert_eq!(of_the_first_day.len(), 2);
/// assert_eq!(&of_the_first_day[1].0.source, b"fans");
/// # Ok(())
/// # }
/// ```
///
/// For an enum, an `Option`, a `String` or a list in a value, use `serde_value!` (feature `serde`).
///
/// # As its bytes
///
/// Without a list of fields, the struct is stored as it lies in memory. It derives `zerocopy`'s
/// `FromBytes`, `IntoBytes` and `Immutable`, which rule out padding and invalid bytes. It can be a key,
/// but not that of an [`OrderedMap`](crate::OrderedMap): the bytes of little-endian integers are not in
/// the order of their values. A map of this form does not open as one of the other.
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
// The code of the macro runs in the module that calls it, where any name can mean anything. So all
// paths are absolute, and what needs more than a call is a function of `fixed`.
#[macro_export]
macro_rules! fixed_record {
    ($type:ty, $schema:literal) => {
        const _: () = $crate::reexport::schema::check($schema);
        impl $crate::FixedRecord for $type {
            const SCHEMA: &'static ::core::primitive::str = $schema;
        }
        impl $crate::Value for $type {
            const SCHEMA: &'static ::core::primitive::str = $schema;
            const WORD: ::core::primitive::bool = ::core::mem::size_of::<$type>() <= 8;
            type Owned = $type;

            fn to_word(&self) -> ::core::primitive::u64 {
                $crate::reexport::fixed::record_to_word(self)
            }
            fn from_word(
                word: ::core::primitive::u64,
            ) -> ::core::result::Result<$type, $crate::Damage> {
                $crate::reexport::fixed::record_from_word(word)
            }
            fn with_bytes<WithBytesResult>(
                &self,
                with: impl ::core::ops::FnOnce(&[::core::primitive::u8]) -> WithBytesResult,
            ) -> WithBytesResult {
                with($crate::reexport::zerocopy::IntoBytes::as_bytes(self))
            }
            fn from_bytes(
                bytes: ::std::vec::Vec<::core::primitive::u8>,
            ) -> ::core::result::Result<$type, $crate::Damage> {
                $crate::reexport::fixed::record_from_bytes(&bytes)
            }
            fn borrow(owned: &$type) -> &$type {
                owned
            }
        }
        impl $crate::Key for $type {}
        impl $crate::FixedSize for $type {
            const BYTES: ::core::primitive::usize = ::core::mem::size_of::<$type>();

            fn encode(&self, out: &mut [::core::primitive::u8]) {
                out.copy_from_slice($crate::reexport::zerocopy::IntoBytes::as_bytes(self));
            }
            fn decode(
                bytes: &[::core::primitive::u8],
            ) -> ::core::result::Result<$type, $crate::Damage> {
                $crate::reexport::fixed::record_from_bytes(bytes)
            }
        }
    };
    ($type:ty, $schema:literal, ordered by $($field:tt),+ $(,)?) => {
        const _: () = $crate::reexport::schema::check($schema);
        impl $crate::FixedSize for $type {
            const BYTES: ::core::primitive::usize =
                0 $(+ $crate::reexport::schema::bytes_of(|record: &$type| &record.$field))+;

            fn encode(&self, out: &mut [::core::primitive::u8]) {
                let rest = out;
                $(let rest = $crate::reexport::fixed::encode_part(&self.$field, rest);)+
                ::core::debug_assert!(rest.is_empty());
            }
            fn decode(
                bytes: &[::core::primitive::u8],
            ) -> ::core::result::Result<Self, $crate::Damage> {
                let mut rest = bytes;
                // If a field is not listed, this does not compile.
                ::core::result::Result::Ok(Self {
                    $($field: $crate::reexport::fixed::decode_part(&mut rest)?),+
                })
            }
        }
        $crate::__fixed_size_value!([] $type, {
            const TEXT: &$crate::reexport::schema::SchemaText =
                &$crate::reexport::schema::SchemaText::new()
                    .with("(")
                    $(.with_part($crate::reexport::schema::schema_of(
                        |record: &$type| &record.$field,
                    )))+
                    .with(") ")
                    .with($schema);
            TEXT.as_str()
        });
        impl $crate::OrderedKey for $type {}
    };
}

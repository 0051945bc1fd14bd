//! The exported macros compile where the names that they use mean something else.

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Position {
    x: i32,
    y: i32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    day: u32,
    urgent: bool,
    tag: [u8; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair(u64, Event);

/// No name of the prelude is known here, and the names that are known are hostile.
#[no_implicit_prelude]
#[allow(dead_code, unused_macros, non_camel_case_types, non_snake_case)]
mod hostile {
    macro_rules! format {
        ($($all:tt)*) => {
            not_to_be_used
        };
    }
    macro_rules! vec {
        ($($all:tt)*) => {
            not_to_be_used
        };
    }
    macro_rules! debug_assert {
        ($($all:tt)*) => {
            not_to_be_used
        };
    }
    macro_rules! assert {
        ($($all:tt)*) => {
            not_to_be_used
        };
    }
    macro_rules! panic {
        ($($all:tt)*) => {
            not_to_be_used
        };
    }

    mod core {}
    mod std {}
    mod alloc {}
    mod outlast {}
    mod zerocopy {}

    struct Vec;
    struct Box;
    struct String;
    struct Result;
    struct Option;
    struct Self_;
    fn Ok() {}
    fn Err() {}
    fn Some() {}
    struct None;
    struct Damage;
    struct Value;
    struct Key;
    struct FixedSize;
    struct FixedRecord;
    struct OrderedKey;
    struct IntoBytes;
    struct FromBytes;
    struct SchemaText;
    struct Point;
    trait FnOnce {}
    trait Iterator {}
    trait Copy {}
    struct u8;
    struct u64;
    struct usize;
    struct bool;
    struct str;

    ::outlast::fixed_record!(super::Position, "position/1");
    ::outlast::fixed_record!(super::Event, "event/1", ordered by day, urgent, tag);
    ::outlast::fixed_record!(super::Pair, "pair/1", ordered by 0, 1);
}

#[test]
fn macros_work_where_all_names_mean_something_else() {
    let pool = outlast::PoolOptions::new().anonymous().unwrap();
    let (here, event) = (Position { x: 1, y: -2 }, Event { day: 3, urgent: true, tag: *b"abc" });
    let seen = pool.map::<Position, Position>("seen").unwrap();
    seen.insert(&here, &here).unwrap();
    assert_eq!(seen.get(&here).unwrap(), Some(here));
    let events = pool.ordered_map::<Event, Pair>("events").unwrap();
    events.insert(&event, &Pair(7, event)).unwrap();
    assert_eq!(events.get(&event).unwrap(), Some(Pair(7, event)));
}

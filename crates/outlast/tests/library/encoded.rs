//! Values that serde encodes, also those with more than one encoding.

use crate::batch::pool;
use outlast::{Error, serde_value};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A `HashMap` is encoded in an order of its own each time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Counts {
    title: String,
    by_word: HashMap<String, u64>,
}
serde_value!(Counts, "counts/1");

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Event {
    Begun,
    Seen { at: f64, by: Option<String> },
    Many(Vec<Event>),
}
serde_value!(Event, "event/2");

#[derive(Serialize, Deserialize)]
struct OtherEvent;
serde_value!(OtherEvent, "event/3");

fn counts(round: u64) -> Counts {
    let by_word = (0..20).map(|word| (format!("word {word}"), word * round)).collect();
    Counts { title: format!("round {round}"), by_word }
}

#[test]
fn what_was_stored_is_read() {
    let pool = pool();
    let map = pool.ordered_map::<str, Event>("events").unwrap();
    let seen = Event::Seen { at: -0.5, by: Some("Ada".into()) };
    let events = [Event::Begun, seen.clone(), Event::Many(vec![seen, Event::Begun])];
    for (number, event) in events.iter().enumerate() {
        assert!(map.insert(&number.to_string(), event).unwrap());
    }
    let found: Vec<Event> = map.values().map(Result::unwrap).collect();
    assert_eq!(found, events);
    assert_eq!(map.remove("1").unwrap().as_ref(), Some(&events[1]));
}

/// Methods that read and then change would never end if they encoded again what they have read.
#[test]
fn a_value_with_many_encodings_can_be_changed() {
    let pool = pool();
    let map = pool.map::<u64, Counts>("counts").unwrap();
    for round in 1..30 {
        let after = map.alter(&1, |before| {
            assert_eq!(before.cloned(), (round > 1).then(|| counts(round - 1)));
            Some(counts(round))
        });
        assert_eq!(after.unwrap(), Some(counts(round)));
    }
    assert_eq!(map.alter(&1, |same| same.cloned()).unwrap(), Some(counts(29)));
    assert_eq!(map.fetch_update(&1, |_| Some(counts(30))).unwrap(), Some(counts(29)));
    pool.transaction(|t| t.alter(&map, &1, |before| before.map(|_| counts(31)))).unwrap();
    assert_eq!(map.get(&1).unwrap(), Some(counts(31)));
    assert_eq!(map.retain(|_, found| *found == counts(31)).unwrap(), 0);
    assert_eq!(map.remove_if(&1, |found| *found == counts(31)).unwrap(), Some(counts(31)));
    map.put(&2, &counts(2)).unwrap();
    assert_eq!(map.retain(|_, _| false).unwrap(), 1);
    assert!(map.is_empty().unwrap());
}

#[test]
fn another_version_of_the_type_is_refused() {
    let pool = pool();
    pool.map::<u64, Event>("events").unwrap().insert(&1, &Event::Begun).unwrap();
    let other = pool.map::<u64, OtherEvent>("events");
    assert!(matches!(other, Err(Error::MapMismatch { what: "value schema", .. })), "{other:?}");
}

#[test]
fn bytes_that_no_value_has_are_damage() {
    let pool = pool();
    let map = pool.map::<u64, Event>("events").unwrap();
    let raw = pool.raw_map("events").unwrap();
    for bytes in [&[3][..], &[0, 0], &[1, 2], &[]] {
        raw.put(&1u64.to_le_bytes(), bytes).unwrap();
        let found = map.get(&1);
        assert!(matches!(&found, Err(error) if error.is_damage()), "{bytes:?}: {found:?}");
        assert!(map.alter(&1, |event| event.cloned()).is_err(), "{bytes:?}");
        assert!(map.delete(&1).unwrap());
    }
}

//! The types of keys and values, and bytes that are not a value of a map's types.

use outlast::{
    Config, Error, Key, Map, MapOptions, OrderedKey, Pool, PoolOptions, RecordForm, Scheme, Value,
};
use std::cmp::Ordering;
use std::fmt::Debug;
use std::path::Path;

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test alone.
    unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .open_or_create(path)
    }
    .unwrap()
}

/// Overwrites the only place in a closed pool's file that holds these bytes.
fn overwrite(path: &Path, old: &[u8], new: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let places: Vec<_> =
        (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(old)).collect();
    let [at] = places[..] else { panic!("{} places", places.len()) };
    bytes[at..at + new.len()].copy_from_slice(new);
    std::fs::write(path, bytes).unwrap();
}

/// Returns whether each of the three verifications finds the pool sound: that of a read-only pool,
/// that of a pool open for writing, and the offline walk.
fn verdicts(path: &Path) -> [bool; 3] {
    let read_only = PoolOptions::new().survive(outlast::Failure::ProcessDeath);
    // SAFETY: the file belongs to this test alone.
    let read_only = unsafe { read_only.open_read_only(path) }.unwrap().verify().unwrap();
    let pool = open(path);
    let writing = pool.verify().unwrap().is_sound();
    drop(pool);
    let walk = outlast_offline::walk(path).unwrap();
    [read_only.is_sound(), writing, walk.problems.is_empty()]
}

/// A bit is flipped in the unused part of a word, so the word is not a value of the type.
#[test]
fn a_word_that_is_no_value_of_its_type_is_damage_and_a_change_leaves_it() {
    for scheme in [Scheme::DashEh, Scheme::Phast] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        let options = MapOptions::new().scheme(scheme);
        let pool = open(&path);
        let map: Map<u64, u8> = pool.map_with("m", &options).unwrap();
        let key = 0x0123_4567_89ab_cdef;
        map.insert(&key, &0xa5).unwrap();
        drop(map);
        pool.close().unwrap();
        assert_eq!(verdicts(&path), [true; 3], "{scheme}");
        let pair = |value: u64| [key.to_le_bytes(), value.to_le_bytes()].concat();
        overwrite(&path, &pair(0xa5), &pair(0x4000_00a5));
        assert_eq!(verdicts(&path), [false; 3], "{scheme}");
        let pool = open(&path);
        let map: Map<u64, u8> = pool.map_with("m", &options).unwrap();
        let Err(Error::Damaged(damage)) = map.get(&key) else { panic!("{scheme}") };
        assert!(damage.offset() != 0, "{scheme}: {damage}");
        // A change that would return the value fails, and has no effect.
        let raw = || map.raw().get(&key.to_le_bytes()).unwrap().unwrap();
        assert!(matches!(map.put(&key, &1), Err(Error::Damaged(_))), "{scheme}");
        assert!(matches!(map.remove(&key), Err(Error::Damaged(_))), "{scheme}");
        assert_eq!(raw(), 0x4000_00a5u64.to_le_bytes(), "{scheme}");
        let mut records = map.iter();
        let error = records.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("found 0x400000a5 under the key 0x123456789abcdef"), "{error}");
        assert!(records.next().is_none(), "{scheme}");
        if scheme.is_ordered() {
            let map = pool.ordered_map::<u64, u8>("m").unwrap();
            assert_eq!(map.range(..).next().unwrap().unwrap_err().to_string(), error);
        }
        // A change that does not read the value repairs the record.
        assert!(map.update(&key, &7).unwrap());
        assert_eq!(map.get(&key).unwrap(), Some(7));
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// A type that accepts only some byte strings. Only this program knows which.
struct Even;

impl outlast::Value for Even {
    const SCHEMA: &'static str = "test/even";
    const WORD: bool = false;
    type Owned = Vec<u8>;

    fn to_word(&self) -> u64 {
        unreachable!("not a word")
    }
    fn from_word(_: u64) -> Result<Vec<u8>, outlast::Damage> {
        unreachable!("not a word")
    }
    fn with_bytes<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        with(&[])
    }
    fn from_bytes(bytes: Vec<u8>) -> Result<Vec<u8>, outlast::Damage> {
        let even = bytes.len().is_multiple_of(2);
        if even { Ok(bytes) } else { Err(outlast::Damage::new(0, "even", "odd")) }
    }
    fn borrow(_: &Vec<u8>) -> &Even {
        &Even
    }
}

/// A change that returns the previous value fails before it has any effect, in every scheme.
#[test]
fn a_change_whose_previous_value_cannot_be_decoded_has_no_effect() {
    for &scheme in Scheme::ALL {
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        let map: Map<u64, Even> = pool.map_with("m", &MapOptions::new().scheme(scheme)).unwrap();
        let key = 1u64.to_le_bytes();
        map.raw().put(&key, b"odd").unwrap();
        for error in [map.put(&1, &Even).err(), map.remove(&1).err(), map.get(&1).err()] {
            let Some(Error::Damaged(damage)) = error else { panic!("{scheme}: {error:?}") };
            assert!(damage.offset() != 0, "{scheme}: {damage}");
        }
        assert_eq!(map.raw().get(&key).unwrap().unwrap(), b"odd", "{scheme}");
        let error = map.iter().next().unwrap().err().unwrap().to_string();
        assert!(error.contains(r#"odd under the key "\x01\x00"#), "{error}");
        assert!(map.update(&1, &Even).unwrap());
        assert_eq!(map.get(&1).unwrap(), Some(Vec::new()), "{scheme}");
    }
}

/// The untyped interface refuses bytes that the map's types could not read back.
#[test]
fn an_untyped_change_keeps_to_the_types_that_the_library_knows() {
    for &scheme in Scheme::ALL {
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        let options = MapOptions::new().scheme(scheme);
        let texts = pool.map_with::<str, str>("texts", &options).unwrap();
        let small = pool.map_with::<u32, u8>("small", &options).unwrap();
        let long = pool.map_with::<u64, u64>("long", &options.form(RecordForm::Bytes)).unwrap();
        let invalid = |done: outlast::Result<Option<Vec<u8>>>| {
            assert!(matches!(done, Err(Error::Invalid { .. })), "{scheme}: {done:?}");
        };
        let word = |n: u64| n.to_le_bytes();
        invalid(texts.raw().put(b"\xff", b"value"));
        invalid(texts.raw().put(b"key", b"\xff"));
        invalid(small.raw().put(&word(1 << 32), &word(1)));
        invalid(small.raw().put(&word(1), &word(256)));
        invalid(long.raw().put(&word(1), b"short"));
        texts.raw().put("kéy".as_bytes(), "välue".as_bytes()).unwrap();
        small.raw().put(&word(u64::from(u32::MAX)), &word(255)).unwrap();
        long.raw().put(&word(1), &word(2)).unwrap();
        assert_eq!(texts.get("kéy").unwrap().as_deref(), Some("välue"));
        assert_eq!((small.get(&u32::MAX).unwrap(), long.get(&1).unwrap()), (Some(255), Some(2)));
        assert!(pool.verify().unwrap().is_sound());
    }
}

// ---- All types ------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    day: i16,
    urgent: bool,
    source: [u8; 3],
}
outlast::fixed_record!(Event, "event/1", ordered by day, urgent, source);

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Score(f64, (u128, Event));
outlast::fixed_record!(Score, "score/1", ordered by 0, 1);

#[derive(
    Debug, Clone, Copy, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
)]
#[repr(C)]
struct Place {
    x: u16,
    y: u16,
}
outlast::fixed_record!(Place, "place/1");

/// Calls a function with some values of each type, in their order.
trait Visit {
    fn of<T>(&self, sorted: &[T], compare: fn(&T, &T) -> Ordering)
    where
        T: OrderedKey + Value<Owned = T> + PartialEq + Debug + Clone;
}

fn visit_all(visit: &impl Visit) {
    fn each<T: Ord>(a: &T, b: &T) -> Ordering {
        a.cmp(b)
    }
    let event = |day, urgent, first| Event { day, urgent, source: [first, 7, 0] };
    let events = [event(-9, false, 9), event(-9, true, 0), event(0, false, 1), event(3, false, 0)];
    visit.of(&[0, 1, 255, 256, u16::MAX], each);
    visit.of(&[i32::MIN, -256, -1, 0, 1, i32::MAX], each);
    visit.of(&[0, 1, u128::from(u64::MAX) + 1, u128::MAX], each);
    visit.of(&[i128::MIN, -1, 0, 1 << 70], each);
    visit.of(&[false, true], each);
    visit.of(&[f32::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-30, 7.0, f32::INFINITY], f32::total_cmp);
    visit.of(&[f64::MIN, -1e-300, -0.0, 0.0, 0.1, 1e300], f64::total_cmp);
    visit.of(&[[]; 1], <[u8; 0]>::cmp);
    visit.of(&[[0, 0, 1], [0, 1, 0], [1, 0, 0]], <[u8; 3]>::cmp);
    visit.of(&[[0; 40], [1; 40], [0xff; 40]], <[u8; 40]>::cmp);
    visit.of(&[(0, 5u32), (1, 0), (1, 256), (256u16, 1)], each);
    visit.of(&[(-1, true, 9), (0, false, 3), (0i64, true, -4i8)], each);
    visit.of(&[((0u8, 1u8), [9u8; 2], -3i16, false), ((0, 2), [0; 2], 0, true)], each);
    visit.of(&events, each);
    let scores =
        [Score(-0.5, (3, events[3])), Score(0.5, (0, events[1])), Score(0.5, (0, events[2]))];
    visit.of(&scores, |a, b| a.partial_cmp(b).unwrap());
}

/// In every scheme and record form, each value is found again as a key and as a value.
struct Roundtrip;

impl Visit for Roundtrip {
    fn of<T>(&self, sorted: &[T], _: fn(&T, &T) -> Ordering)
    where
        T: OrderedKey + Value<Owned = T> + PartialEq + Debug + Clone,
    {
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        for &scheme in Scheme::ALL {
            let options = MapOptions::new().config(Config::small(scheme));
            let forms =
                RecordForm::ALL.iter().filter(|&&form| T::WORD || form == RecordForm::Bytes);
            for &form in forms {
                let name = format!("{scheme} {form}");
                let map = pool.map_with::<T, T>(&name, &options.clone().form(form)).unwrap();
                for (one, other) in sorted.iter().zip(sorted.iter().rev()) {
                    assert!(map.insert(one, other).unwrap(), "{one:?}");
                    assert_eq!(map.get(one).unwrap().as_ref(), Some(other));
                }
                assert_eq!(map.len().unwrap(), sorted.len() as u64);
                for (one, other) in sorted.iter().zip(sorted.iter().rev()) {
                    assert_eq!(map.put(one, one).unwrap().as_ref(), Some(other));
                    assert!(!map.compare_remove(one, &sorted[0]).unwrap() || *one == sorted[0]);
                    let removed = map.remove_if(one, |value| value == one).unwrap();
                    assert!(removed.is_some_and(|v| v == *one) || *one == sorted[0]);
                }
                assert!(map.is_empty().unwrap());
            }
        }
        // Do the same with default options.
        let (key, value) = (&sorted[0], sorted.last().unwrap());
        pool.map::<T, T>("one").unwrap().insert(key, value).unwrap();
        let found = pool.verify().unwrap();
        assert!(found.is_sound(), "{}: {found:?}", T::SCHEMA);
    }
}

#[test]
fn each_type_comes_back() {
    visit_all(&Roundtrip);
}

/// An ordered map has the keys in the order of their type, in both record forms, from both ends.
struct Sorted;

impl Visit for Sorted {
    fn of<T>(&self, sorted: &[T], compare: fn(&T, &T) -> Ordering)
    where
        T: OrderedKey + Value<Owned = T> + PartialEq + Debug + Clone,
    {
        assert!(sorted.is_sorted_by(|a, b| compare(a, b).is_lt()), "{sorted:?}");
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        let values: [&dyn Fn() -> usize; 2] = [
            &|| {
                // The form is inline if the key fits in a word.
                let map = pool
                    .ordered_map_with::<T, u64>(
                        "words",
                        &MapOptions::new().config(Config::small(Scheme::Phast)),
                    )
                    .unwrap();
                sorted.iter().rev().for_each(|key| assert!(map.insert(key, &7).unwrap()));
                check_order(&map, sorted)
            },
            &|| {
                let map = pool
                    .ordered_map_with::<T, str>(
                        "texts",
                        &MapOptions::new().config(Config::small(Scheme::Phast)),
                    )
                    .unwrap();
                sorted.iter().rev().for_each(|key| assert!(map.insert(key, "seven").unwrap()));
                check_order(&map, sorted)
            },
        ];
        assert!(values.iter().all(|check| check() == sorted.len()));
        assert!(pool.verify().unwrap().is_sound());
    }
}

fn check_order<T, V>(map: &outlast::OrderedMap<T, V>, sorted: &[T]) -> usize
where
    T: OrderedKey + Value<Owned = T> + PartialEq + Debug + Clone,
    V: Value + ?Sized,
{
    let keys = |range: outlast::Range<T, V>| range.map(|record| record.unwrap().0);
    assert!(keys(map.range(..)).eq(sorted.iter().cloned()));
    for (number, key) in sorted.iter().enumerate() {
        assert_eq!(keys(map.range(..key)).count(), number, "{key:?}");
        assert_eq!(keys(map.range(key..)).rev().count(), sorted.len() - number, "{key:?}");
        assert_eq!(map.floor(key).unwrap().unwrap().0, *key);
    }
    map.keys().zip(sorted).filter(|(found, key)| found.as_ref().unwrap() == *key).count()
}

#[test]
fn ordered_maps_are_in_the_order_of_their_types() {
    visit_all(&Sorted);
}

/// A map opens with the types that it was created with, and with no other.
#[test]
fn types_of_the_same_size_are_different_types() {
    let pool = PoolOptions::new().background(false).anonymous().unwrap();
    fn create<K: Key>(pool: &Pool) -> (&'static str, bool) {
        (K::SCHEMA, pool.map::<K, u8>(K::SCHEMA).is_ok())
    }
    fn open<K: Key>(pool: &Pool, schema: &str) -> bool {
        match pool.map::<K, u8>(schema) {
            Ok(_) => true,
            Err(Error::MapMismatch { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    }
    type Of = (fn(&Pool) -> (&'static str, bool), fn(&Pool, &str) -> bool);
    fn of<K: Key>() -> Of {
        (create::<K>, open::<K>)
    }
    let types = [
        of::<u32>(),
        of::<i32>(),
        of::<f32>(),
        of::<[u8; 4]>(),
        of::<(u16, u16)>(),
        of::<(u16, i16)>(),
        of::<((u8, u8), u16)>(),
        of::<(u8, u8, u16)>(),
        of::<Place>(),
        of::<(Place, [u8; 0])>(),
        of::<bool>(),
        of::<u8>(),
        of::<[u8; 1]>(),
        of::<u128>(),
        of::<i128>(),
        of::<[u8; 16]>(),
        of::<(u64, f64)>(),
        of::<Event>(),
        of::<(i16, bool, [u8; 3])>(),
    ];
    let schemas: Vec<&str> = types
        .iter()
        .map(|(create, _)| {
            let (schema, created) = create(&pool);
            assert!(created, "{schema}");
            schema
        })
        .collect();
    for (number, (_, open)) in types.iter().enumerate() {
        for (other, schema) in schemas.iter().enumerate() {
            assert_eq!(open(&pool, schema), number == other, "{} {schema}", schemas[number]);
        }
    }
}

/// All three verifications report bytes that are not a value of the type as damage.
#[test]
fn a_bool_in_a_tuple_is_0_or_1() {
    for form in RecordForm::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        let pool = open(&path);
        let options = MapOptions::new().form(form);
        let map: Map<u64, (bool, u16)> = pool.map_with("m", &options).unwrap();
        map.insert(&0x0123_4567_89ab_cdef, &(true, 0xa5c3)).unwrap();
        let mut changed = map.raw().get(&0x0123_4567_89ab_cdef_u64.to_le_bytes()).unwrap().unwrap();
        let old = changed.clone();
        let at = changed.iter().position(|&byte| byte == 1).unwrap();
        changed[at] = 2;
        assert!(
            map.raw().put(&0x0123_4567_89ab_cdef_u64.to_le_bytes(), &changed).is_err(),
            "{form}"
        );
        drop(map);
        pool.close().unwrap();
        assert_eq!(verdicts(&path), [true; 3], "{form}");
        if form == RecordForm::Inline {
            let key = 0x0123_4567_89ab_cdef_u64.to_le_bytes();
            overwrite(&path, &[&key[..], &old].concat(), &[&key[..], &changed].concat());
            assert_eq!(verdicts(&path), [false; 3]);
        }
    }
}

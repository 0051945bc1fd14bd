//! Keys and values that do not belong to a map's types.

use outlast::{Error, Map, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::path::Path;

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test alone.
    unsafe { PoolOptions::new().background(false).open_or_create(path) }.unwrap()
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

/// Whether each of the three verifications calls the pool sound.
fn verdicts(path: &Path) -> [bool; 3] {
    let read_only = PoolOptions::new();
    // SAFETY: the file belongs to this test alone.
    let read_only = unsafe { read_only.open_read_only(path) }.unwrap().verify().unwrap();
    let pool = open(path);
    let writing = pool.verify().unwrap().is_sound();
    drop(pool);
    let walk = outlast::offline::walk(path).unwrap();
    [read_only.is_sound(), writing, walk.problems.is_empty()]
}

/// A flipped bit in the unused part of a word: no value of the type has such a word.
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
        // One that does not look at it repairs the record.
        assert!(map.update(&key, &7).unwrap());
        assert_eq!(map.get(&key).unwrap(), Some(7));
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// A type that accepts only some byte strings, which only this program knows.
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

/// The untyped interface refuses what the map's types could not read back.
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

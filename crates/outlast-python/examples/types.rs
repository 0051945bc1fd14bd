//! Writes a pool with a map of each type that Rust and Python share, or checks one that Python has written. The tests
//! of the Python package run it.
//!
//! ```text
//! cargo run --example types -- write POOL
//! cargo run --example types -- check POOL
//! ```

use library::{Key, Map, MapInfo, OrderedKey, Pool, PoolOptions, Value};
use std::fmt::Debug;

/// Whether the program writes the records or checks them.
enum Task {
    Write,
    Check,
}

fn main() -> library::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [task, path] = &arguments[..] else { panic!("usage: types write|check POOL") };
    let task = if task == "write" { Task::Write } else { Task::Check };
    // SAFETY: the file belongs to the test.
    let pool = unsafe { PoolOptions::new().open_or_create(path)? };
    all(&pool, &task)?;
    if let Task::Check = task {
        let names: Vec<MapInfo> = pool.maps().into_iter().collect::<library::Result<_>>()?;
        println!("{} maps are as Rust would have written them", names.len());
    }
    pool.close()
}

/// Goes through the records. `tests/test_types.py` has the same list.
fn all(pool: &Pool, task: &Task) -> library::Result<()> {
    record::<str, u64>(pool, task, "str", "Ada", &36)?;
    record::<[u8], [u8]>(pool, task, "bytes", b"\x00\xff", b"")?;
    record::<u64, str>(pool, task, "u64", &u64::MAX, "é")?;
    record::<i64, i64>(pool, task, "i64", &-1, &i64::MIN)?;
    record::<u8, i8>(pool, task, "u8", &200, &-100)?;
    record::<i16, u16>(pool, task, "i16", &-30_000, &60_000)?;
    record::<u32, i32>(pool, task, "u32", &4_000_000_000, &-2_000_000_000)?;
    record::<i128, u128>(pool, task, "i128", &-7, &u128::MAX)?;
    record::<f64, f32>(pool, task, "f64", &-2.5, &1.5)?;
    record::<str, f64>(pool, task, "f64 in blocks", "pi", &3.25)?;
    record::<bool, bool>(pool, task, "bool", &true, &false)?;
    record::<[u8; 4], [u8; 12]>(pool, task, "arrays", b"abcd", b"0123456789ab")?;
    record::<[u8; 3], u64>(pool, task, "arrays in place", b"abc", &7)?;
    record::<(i32, u16), (u8, bool)>(pool, task, "tuples in place", &(-5, 7), &(3, true))?;
    record::<(i64, f64), u64>(pool, task, "tuples", &(-5, -0.5), &7)?;
    record::<(u64, String), (i32, Vec<u8>)>(
        pool,
        task,
        "ending",
        &(7, "x".into()),
        &(-1, vec![9]),
    )?;
    record::<(String, u64), (Vec<u8>, bool, String)>(
        pool,
        task,
        "strings first",
        &("a\0b".into(), 7),
        &(vec![0, 0], true, "\0".into()),
    )?;
    record::<((u8, u8), u16), str>(pool, task, "nested", &((1, 2), 3), "deep")
}

fn record<K, V>(pool: &Pool, task: &Task, name: &str, key: &K, value: &V) -> library::Result<()>
where
    K: Key + OrderedKey + ?Sized,
    V: Value + ?Sized,
    V::Owned: PartialEq + Debug,
{
    let hashed: Map<K, V> = pool.map(name)?;
    let ordered = pool.ordered_map::<K, V>(&format!("{name}, ordered"))?;
    for map in [&hashed, &*ordered] {
        match task {
            Task::Write => drop(map.put(key, value)?),
            Task::Check => {
                assert!(map.get(key)?.is_some_and(|found| same(V::borrow(&found), value)), "{name}")
            }
        }
    }
    Ok(())
}

fn same<V: Value + ?Sized>(one: &V, other: &V) -> bool {
    if V::WORD {
        one.to_word() == other.to_word()
    } else {
        one.with_bytes(|one| other.with_bytes(|other| one == other))
    }
}

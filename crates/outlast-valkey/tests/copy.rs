//! Copies for replicas, without a server.

use outlast::PoolOptions;
use outlast_valkey::command::{self, Call, Replicate};
use outlast_valkey::copy;
use outlast_valkey::place::slot_of;
use outlast_valkey::reply::Fault;
use outlast_valkey::store::{Content, Kind, Store};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

fn store() -> Store {
    Store::open(PoolOptions::new().anonymous().unwrap()).unwrap()
}

/// Makes a call, and returns what replicas are to do.
fn call(store: &Store, words: &[&[u8]]) -> Result<Vec<Vec<Vec<u8>>>, Fault> {
    let name = words[0].strip_prefix(b"ol.").unwrap_or(words[0]);
    let command = command::find(name).expect("a command");
    let (now, replicate) = (SystemTime::now(), Replicate::Verbatim);
    let mut call = Call { store, args: &words[1..], now, replicate };
    command.call(&mut call)?;
    Ok(match call.replicate {
        Replicate::Verbatim => vec![words.iter().map(|word| word.to_vec()).collect()],
        Replicate::Nothing => Vec::new(),
        Replicate::Calls(calls) => calls,
    })
}

/// Everything in a store: for each key its type, time, and its value or its fields.
fn all(store: &Store) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    store
        .each(None, &mut |key, content, expiry| {
            let value = match content {
                Content::Text(text) => format!("{text:?} {expiry:?}"),
                Content::Hash(hash) => {
                    let fields = match hash.kind {
                        Kind::Hash => store.fields_from(hash, 0, usize::MAX)?.1,
                        Kind::Ordered => {
                            let all = (Bound::Unbounded, Bound::Unbounded);
                            store.fields_between(hash, all, false, usize::MAX)?
                        }
                    };
                    assert_eq!(fields.len() as u64, hash.fields);
                    format!("{fields:?} {expiry:?}")
                }
            };
            all.insert(key.to_vec(), value);
            Ok(())
        })
        .unwrap();
    all
}

fn copy_of(store: &Store, slot: Option<u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    copy::write(store, slot, &mut bytes).unwrap();
    bytes
}

fn load(store: &Store, mut bytes: &[u8]) {
    while let Some(call) = copy::read(&mut bytes).unwrap() {
        copy::import(store, &call).unwrap();
    }
    assert!(bytes.is_empty());
}

/// A generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns a call that changes a key, often one with a value that depends on the one before.
    fn change(&mut self) -> Vec<Vec<u8>> {
        let key = format!("k{}", self.below(40));
        let hash = format!("h{}", self.below(20));
        let (field, number) = (format!("f{}", self.below(30)), self.below(1_000_000).to_string());
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let later = (at + Duration::from_secs(1_000 + self.below(1_000))).as_millis().to_string();
        let sorted = format!("o{}", self.below(20));
        let other = format!("h{}", self.below(20));
        let words: Vec<&str> = match self.below(24) {
            0..3 => vec!["set", &key, &number],
            3 => vec!["set", &key, &number, "px", "1000000"],
            4 => vec!["incr", &key],
            5 => vec!["append", &key, "1"],
            6 => vec!["setnx", &key, &number],
            7 => vec!["del", &key, &hash],
            8 => vec!["pexpireat", &key, &later],
            9 => vec!["persist", &key],
            10 => vec!["hincrby", &hash, &field, "1"],
            11 => vec!["hdel", &hash, &field],
            12 => vec!["pexpireat", &hash, &later],
            13 => vec!["set", &hash, &number],
            14 => vec!["odel", &sorted, &field],
            15 => vec!["del", &sorted],
            16 | 17 => vec!["oset", &sorted, &field, &number],
            18 => vec!["rename", &hash, &key],
            19 => vec!["rename", &key, &other],
            20 => vec!["copy", &hash, &other, "replace"],
            21 => vec!["copy", &sorted, &key],
            _ => vec!["hset", &hash, &field, &number],
        };
        words.into_iter().map(|word| word.as_bytes().to_vec()).collect()
    }
}

fn words(call: &[Vec<u8>]) -> Vec<&[u8]> {
    call.iter().map(Vec::as_slice).collect()
}

#[test]
fn a_copy_has_everything() {
    let (from, to) = (store(), store());
    let mut random = Random(1);
    for _ in 0..5_000 {
        // Some are of the wrong type.
        let _ = call(&from, &words(&random.change()));
    }
    let big: Vec<Vec<u8>> = (0..3_000u32)
        .flat_map(|n| [n.to_string(), n.to_string()])
        .map(String::into_bytes)
        .collect();
    let mut hset: Vec<&[u8]> = vec![b"hset", b"big"];
    hset.extend(big.iter().map(Vec::as_slice));
    call(&from, &hset).unwrap();
    hset[..2].copy_from_slice(&[b"oset", b"big and sorted"]);
    call(&from, &hset).unwrap();
    call(&from, &[b"set", b"", b""]).unwrap();
    call(&from, &[b"set", &[0, 255, 10], &vec![7; 300_000]]).unwrap();
    load(&to, &copy_of(&from, None));
    assert!(all(&from).len() > 40);
    assert_eq!(all(&to), all(&from));
}

#[test]
fn a_copy_of_a_slot_has_its_keys() {
    let (from, to) = (store(), store());
    call(&from, &[b"mset", b"{a}1", b"x", b"{a}2", b"y", b"{b}1", b"z"]).unwrap();
    call(&from, &[b"hset", b"{a}h", b"f", b"v"]).unwrap();
    load(&to, &copy_of(&from, Some(slot_of(b"a"))));
    let mut expected = all(&from);
    expected.remove(&b"{b}1"[..]);
    assert_eq!((expected.len(), &all(&to)), (3, &expected));
    load(&to, &copy_of(&from, Some(slot_of(b"b"))));
    assert_eq!(all(&to), all(&from));
}

/// A copy that is made while the data change, and then the changes since it was begun, make what there is at
/// the end.
#[test]
fn a_copy_during_changes_and_the_changes_make_what_there_is() {
    for seed in 1..20 {
        let (from, to) = (store(), store());
        let mut random = Random(seed);
        for _ in 0..2_000 {
            let _ = call(&from, &words(&random.change()));
        }
        let (mut calls, mut changes) = (Vec::new(), Vec::new());
        copy::export(&from, None, &mut |words_of_copy| {
            calls.push(copy::encode(words_of_copy));
            for _ in 0..random.below(8) {
                changes.extend(call(&from, &words(&random.change())).unwrap_or_default());
            }
            Ok(())
        })
        .unwrap();
        calls.iter().for_each(|call| copy::import(&to, call).unwrap());
        for change in &changes {
            // As the module, which lets a call of the wrong type pass.
            match call(&to, &words(change)) {
                Err(fault) if !fault.is_wrong_type() => panic!("{fault}"),
                _ => {}
            }
        }
        assert!(changes.len() > 10, "{} changes meanwhile", changes.len());
        assert_eq!(all(&to), all(&from), "seed {seed}");
    }
}

#[test]
fn a_damaged_copy_is_refused() {
    let from = store();
    call(&from, &[b"set", b"key", b"value"]).unwrap();
    let bytes = copy_of(&from, None);
    // Without its end.
    let mut rest = &bytes[..bytes.len() - 1];
    assert!(copy::read(&mut rest).unwrap().is_some());
    assert!(copy::read(&mut rest).is_err());
    assert!(copy::read(&mut &[255; 8][..]).is_err());
    let sound = copy::encode(&[b"set", b"key", b"value"]);
    assert_eq!(copy::decode(&sound).unwrap(), [&b"set"[..], b"key", b"value"]);
    for len in 0..sound.len() {
        let whole = [4 + 3, 4 + 3 + 4 + 3].contains(&len);
        assert_eq!(copy::decode(&sound[..len]).is_ok(), whole, "{len} bytes");
    }
    let other = copy::encode(&[b"no such command", b"key"]);
    assert!(copy::import(&from, &other).is_err());
}

/// A process that dies while it loads a copy leaves a mark.
#[test]
fn an_incomplete_copy_is_marked() {
    let file = tempfile::tempdir().unwrap();
    let open = || {
        // SAFETY: nobody else writes this file.
        let pool = unsafe { PoolOptions::new().open_or_create(file.path().join("pool")) };
        Store::open(pool.unwrap()).unwrap()
    };
    let store = open();
    assert!(!store.is_incomplete());
    store.set_incomplete(true).unwrap();
    store.pool().clone().close().unwrap();
    let store = open();
    assert!(store.is_incomplete());
    call(&store, &[b"flushall"]).unwrap();
    assert!(!store.is_incomplete());
    store.pool().clone().close().unwrap();
    assert!(!open().is_incomplete());
}

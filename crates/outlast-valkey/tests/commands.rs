//! The commands, without a server.

use outlast::PoolOptions;
use outlast_valkey::command::run;
use outlast_valkey::reply::Reply;
use outlast_valkey::store::Store;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

fn store() -> Store {
    Store::open(PoolOptions::new().anonymous().unwrap()).unwrap()
}

/// Runs a command that is written as a client would.
fn call(store: &Store, line: &str) -> Result<Reply, String> {
    call_at(store, line, SystemTime::now())
}

fn call_at(store: &Store, line: &str, now: SystemTime) -> Result<Reply, String> {
    let words: Vec<&[u8]> = line.split(' ').map(|word| word.as_bytes()).collect();
    let name = std::str::from_utf8(words[0]).unwrap();
    run(store, name, &words[1..], now).map_err(|fault| fault.text().to_owned())
}

fn text(text: &str) -> Result<Reply, String> {
    Ok(Reply::Bulk(text.into()))
}

fn list(words: &[&str]) -> Result<Reply, String> {
    Ok(Reply::Array(words.iter().map(|word| Reply::Bulk((*word).into())).collect()))
}

const NULL: Result<Reply, String> = Ok(Reply::Null);
const OK: Result<Reply, String> = Ok(Reply::OK);

fn int(number: i64) -> Result<Reply, String> {
    Ok(Reply::Int(number))
}

/// Checks that a command fails with an error that contains this text.
fn fails(store: &Store, line: &str, with: &str) {
    let error = call(store, line).unwrap_err();
    assert!(error.contains(with), "{line}: {error}");
}

#[test]
fn strings_are_set_and_read() {
    let s = store();
    assert_eq!(call(&s, "GET a"), NULL);
    assert_eq!(call(&s, "SET a 1"), OK);
    assert_eq!(call(&s, "get a"), text("1"));
    assert_eq!(call(&s, "SET a 2 NX"), NULL);
    assert_eq!(call(&s, "SET b 2 XX"), NULL);
    assert_eq!(call(&s, "SET a 2 XX GET"), text("1"));
    assert_eq!(call(&s, "SET c 3 NX GET"), NULL);
    assert_eq!(call(&s, "GETSET c 4"), text("3"));
    assert_eq!(call(&s, "GETDEL c"), text("4"));
    assert_eq!(call(&s, "EXISTS a a c"), int(2));
    assert_eq!(call(&s, "MSET a 1 b 2 a 3"), OK);
    let three = [text("3"), NULL, text("2")].map(Result::unwrap).to_vec();
    assert_eq!(call(&s, "MGET a x b"), Ok(Reply::Array(three)));
    assert_eq!(call(&s, "MSETNX x 1 a 2"), int(0));
    assert_eq!(call(&s, "EXISTS x"), int(0));
    assert_eq!(call(&s, "MSETNX x 1 y 2"), int(1));
    assert_eq!(call(&s, "SETNX x 2"), int(0));
    assert_eq!(call(&s, "CAS x 1 9"), int(1));
    assert_eq!(call(&s, "CAS x 1 8"), int(0));
    assert_eq!(call(&s, "GET x"), text("9"));
    fails(&s, "SET a", "wrong number of arguments for 'ol.set'");
    fails(&s, "SET a 1 NX XX", "syntax error");
    fails(&s, "SET a 1 EX", "syntax error");
    fails(&s, "SET a 1 EX 10 PX 10", "syntax error");
    fails(&s, "SET a 1 EX 0", "invalid expire time in 'set'");
    fails(&s, "SET a 1 EX 9223372036854775807", "invalid expire time");
    fails(&s, "MSET a 1 b", "wrong number of arguments");
}

#[test]
fn strings_are_numbers_and_have_parts() {
    let s = store();
    assert_eq!(call(&s, "INCR n"), int(1));
    assert_eq!(call(&s, "INCRBY n 41"), int(42));
    assert_eq!(call(&s, "DECRBY n 2"), int(40));
    assert_eq!(call(&s, "DECR n"), int(39));
    assert_eq!(call(&s, "INCRBYFLOAT n 0.5"), text("39.5"));
    fails(&s, "INCR n", "not an integer");
    fails(&s, "INCRBYFLOAT n inf", "NaN or Infinity");
    call(&s, "SET m 9223372036854775807").unwrap();
    fails(&s, "INCR m", "would overflow");
    fails(&s, "DECRBY m -9223372036854775808", "would overflow");
    assert_eq!(call(&s, "APPEND t abc"), int(3));
    assert_eq!(call(&s, "APPEND t def"), int(6));
    assert_eq!(call(&s, "STRLEN t"), int(6));
    for (range, part) in [("0 2", "abc"), ("-3 -1", "def"), ("0 -1", "abcdef"), ("4 100", "ef")] {
        assert_eq!(call(&s, &format!("GETRANGE t {range}")), text(part), "{range}");
    }
    for empty in ["5 3", "-1 -3", "10 20"] {
        assert_eq!(call(&s, &format!("GETRANGE t {empty}")), text(""), "{empty}");
    }
    assert_eq!(call(&s, "SETRANGE t 4 XY"), int(6));
    assert_eq!(call(&s, "GET t"), text("abcdXY"));
    assert_eq!(call(&s, "SETRANGE u 2 z"), int(3));
    assert_eq!(call(&s, "GET u"), text("\0\0z"));
    fails(&s, "SETRANGE t -1 z", "out of range");
    fails(&s, "SETRANGE t 300000000 z", "maximum allowed size");
}

#[test]
fn hashes_have_fields() {
    let s = store();
    assert_eq!(call(&s, "HSET h a 1 b 2"), int(2));
    assert_eq!(call(&s, "HSET h a 3 c 4 c 5"), int(1));
    assert_eq!(call(&s, "HSET h a 6"), int(0));
    assert_eq!(call(&s, "HLEN h"), int(3));
    assert_eq!(call(&s, "HGET h c"), text("5"));
    assert_eq!(call(&s, "HGET h x"), NULL);
    let two = [text("6"), NULL].map(Result::unwrap).to_vec();
    assert_eq!(call(&s, "HMGET h a x"), Ok(Reply::Array(two)));
    assert_eq!(call(&s, "HINCRBY h a 4"), int(10));
    assert_eq!(call(&s, "HINCRBYFLOAT h f 0.25"), text("0.25"));
    assert_eq!(call(&s, "HSETNX h a 0"), int(0));
    assert_eq!(call(&s, "HSTRLEN h a"), int(2));
    assert_eq!(call(&s, "HEXISTS h b"), int(1));
    let Ok(Reply::Map(all)) = call(&s, "HGETALL h") else { panic!() };
    let all: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(all.keys().collect::<Vec<_>>(), [b"a", b"b", b"c", b"f"]);
    assert_eq!(call(&s, "HDEL h a b b x"), int(2));
    assert_eq!(call(&s, "HDEL h c f"), int(2));
    assert_eq!(call(&s, "EXISTS h"), int(0), "a hash without fields is none");
    fails(&s, "HSET h a", "wrong number");
    fails(&s, "HSET h a 1 b", "wrong number of arguments for 'ol.hset'");
    call(&s, "HSET h a x").unwrap();
    fails(&s, "HINCRBY h a 1", "hash value is not an integer");
    fails(&s, "GET h", "WRONGTYPE");
    fails(&s, "INCR h", "WRONGTYPE");
    fails(&s, "APPEND h x", "WRONGTYPE");
    call(&s, "SET t x").unwrap();
    fails(&s, "HGET t a", "WRONGTYPE");
    fails(&s, "HSET t a b", "WRONGTYPE");
}

#[test]
fn ordered_maps_have_ranges() {
    let s = store();
    assert_eq!(call(&s, "OSET o b 2 a 1 c 3 b 9"), int(3));
    assert_eq!(call(&s, "OSET o d 4 b 2"), int(1));
    assert_eq!(call(&s, "OGET o b"), text("2"));
    assert_eq!(call(&s, "OGET o x"), NULL);
    assert_eq!(call(&s, "OGET x x"), NULL);
    assert_eq!(call(&s, "OLEN o"), int(4));
    assert_eq!(call(&s, "TYPE o"), Ok(Reply::Simple(c"ordered")));
    assert_eq!(call(&s, "RANGE o - +"), list(&["a", "1", "b", "2", "c", "3", "d", "4"]));
    assert_eq!(call(&s, "RANGE o [b (d"), list(&["b", "2", "c", "3"]));
    assert_eq!(call(&s, "RANGE o (b + LIMIT 1"), list(&["c", "3"]));
    assert_eq!(call(&s, "RANGE o (b (b"), list(&[]));
    assert_eq!(call(&s, "RANGE o [d [b"), list(&[]));
    assert_eq!(call(&s, "RANGE o + -"), list(&[]));
    assert_eq!(call(&s, "REVRANGE o + - LIMIT 2"), list(&["d", "4", "c", "3"]));
    assert_eq!(call(&s, "REVRANGE o (c [a"), list(&["b", "2", "a", "1"]));
    assert_eq!(call(&s, "OSET p ab 1 abc 2 ac 3 b 4"), int(4));
    assert_eq!(call(&s, "PREFIX p ab"), list(&["ab", "1", "abc", "2"]));
    assert_eq!(call(&s, "PREFIX p a LIMIT 1"), list(&["ab", "1"]));
    let bytes: Vec<&[u8]> = vec![b"q", &[255], b"1", &[255, 255, 1], b"2", &[254], b"3"];
    run(&s, "oset", &bytes, SystemTime::now()).unwrap();
    let both = [&[255][..], b"1", &[255, 255, 1], b"2"].map(|word| Reply::Bulk(word.to_vec()));
    let found = run(&s, "prefix", &[b"q", &[255]], SystemTime::now());
    assert_eq!(found, Ok(Reply::Array(both.to_vec())));
    assert_eq!(call(&s, "ODEL o a x c"), int(2));
    assert_eq!(call(&s, "RANGE o - +"), list(&["b", "2", "d", "4"]));
    assert_eq!(call(&s, "ODEL o b d"), int(2));
    assert_eq!(call(&s, "EXISTS o"), int(0));
    fails(&s, "HSET p f v", "WRONGTYPE");
    fails(&s, "SET h x GET NX XX", "syntax");
    assert_eq!(call(&s, "HSET h f v"), int(1));
    fails(&s, "RANGE h - +", "WRONGTYPE");
    fails(&s, "OSET h f v", "WRONGTYPE");
    fails(&s, "RANGE p a b", "not valid string range");
    fails(&s, "RANGE p - + LIMIT -1", "negative");
    fails(&s, "RANGE p - + COUNT 1", "syntax error");
}

#[test]
fn keys_are_renamed_and_copied() {
    let s = store();
    fails(&s, "RENAME a b", "no such key");
    fails(&s, "RENAMENX a b", "no such key");
    assert_eq!(call(&s, "COPY a b"), int(0));
    call(&s, "SET a 1 EX 1000").unwrap();
    assert_eq!(call(&s, "COPY a b"), int(1));
    assert_eq!((call(&s, "GET b"), call(&s, "TTL b")), (text("1"), int(1000)));
    call(&s, "APPEND b 2").unwrap();
    assert_eq!((call(&s, "GET a"), call(&s, "GET b")), (text("1"), text("12")));
    assert_eq!(call(&s, "COPY a b"), int(0));
    assert_eq!(call(&s, "COPY a b DB 0 REPLACE"), int(1));
    assert_eq!(call(&s, "GET b"), text("1"));
    assert_eq!(call(&s, "RENAMENX a b"), int(0));
    assert_eq!(call(&s, "RENAME a b"), OK);
    assert_eq!((call(&s, "EXISTS a"), call(&s, "TTL b")), (int(0), int(1000)));
    call(&s, "SET a 3").unwrap();
    assert_eq!(call(&s, "COPY a b REPLACE"), int(1));
    assert_eq!(call(&s, "TTL b"), int(-1), "of a key that never expires");
    fails(&s, "COPY a a", "source and destination objects are the same");
    fails(&s, "COPY a a REPLACE", "source and destination objects are the same");
    fails(&s, "COPY a b DB 1", "DB index is out of range");
    fails(&s, "COPY a b DB x", "not an integer");
    for line in ["COPY a b DB", "COPY a b REPLACED", "COPY a b DB 0 REPLACE x"] {
        fails(&s, line, "syntax error");
    }
    fails(&s, "COPY a", "wrong number of arguments for 'ol.copy'");

    let many: String = (0..2_500).map(|n| format!(" f{n} v{n}")).collect();
    for set in ["HSET", "OSET"] {
        call(&s, "FLUSHALL").unwrap();
        clean(&s, SystemTime::now());
        call(&s, &format!("{set} h{many}")).unwrap();
        call(&s, "EXPIRE h 1000").unwrap();
        call(&s, "HSET i a 1").unwrap();
        assert_eq!(call(&s, "COPY h i"), int(0));
        assert_eq!(call(&s, "COPY h i REPLACE"), int(1));
        clean(&s, SystemTime::now());
        assert_eq!(fields(&s), 5_000, "those of what was replaced are gone");
        assert_eq!((call(&s, "TYPE i"), call(&s, "TTL i")), (call(&s, "TYPE h"), int(1000)));
        let get = format!("{}GET i f2499", &set[..1]);
        assert_eq!(call(&s, &get), text("v2499"));
        call(&s, &format!("{set} i f2499 other")).unwrap();
        assert_eq!(call(&s, &get.replace(" i ", " h ")), text("v2499"), "they are independent");
        assert_eq!(call(&s, "RENAME i h"), OK);
        assert_eq!(call(&s, &get.replace(" i ", " h ")), text("other"));
        clean(&s, SystemTime::now());
        assert_eq!(fields(&s), 2_500);
        // The time of both passes.
        assert_eq!(call(&s, "COPY h j"), int(1));
        call(&s, "PEXPIRE h 1").unwrap();
        call(&s, "PEXPIRE j 1").unwrap();
        std::thread::sleep(Duration::from_millis(2));
        clean(&s, SystemTime::now() + Duration::from_secs(2_000));
        assert_eq!((call(&s, "DBSIZE"), fields(&s)), (int(0), 0), "{set}");
    }
}

/// Returns how many records of fields there are, whatever hash they belong to.
fn fields(s: &Store) -> u64 {
    s.pool().ordered_map::<(u64, u32, Vec<u8>), [u8]>("fields").unwrap().len().unwrap()
}

fn clean(s: &Store, now: SystemTime) {
    while s.clean(now).unwrap() {}
}

#[test]
fn what_replaces_a_hash_leaves_no_fields() {
    let s = store();
    let many: String = (0..2_500).map(|n| format!(" f{n} v{n}")).collect();
    for (end, left) in [("DEL h", 0), ("SET h x", 1), ("MSET h x i y", 2), ("UNLINK h", 0)] {
        call(&s, "DEL h i").unwrap();
        assert_eq!(call(&s, &format!("HSET h{many}")), int(2_500));
        // A small one goes at once, a large one in steps.
        call(&s, "HSET i a b").unwrap();
        assert_eq!(fields(&s), 2_501);
        call(&s, "DEL i").unwrap();
        assert_eq!(fields(&s), 2_500);
        call(&s, end).unwrap();
        assert_eq!(call(&s, "HSET n a b"), int(1), "a new one meanwhile");
        clean(&s, SystemTime::now());
        assert_eq!(fields(&s), 1, "{end}");
        assert_eq!(call(&s, "HGET n a"), text("b"));
        call(&s, "DEL n").unwrap();
        assert_eq!(call(&s, "DBSIZE"), int(left), "{end}");
    }
}

/// Numbers of hashes are never used a second time, also if the last hash is gone when the pool is opened.
#[test]
fn a_new_hash_has_no_number_of_an_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let options = PoolOptions::new().survive(outlast::Failure::ProcessDeath);
        // SAFETY: the file belongs to this test.
        Store::open(unsafe { options.open_or_create(dir.path().join("pool")) }.unwrap()).unwrap()
    };
    let long_ago = SystemTime::now() + Duration::from_secs(1_000);
    for round in 0..3 {
        let s = open();
        call(&s, "HSET old a 1").unwrap();
        // Noted to be looked at later, under a number.
        call(&s, "EXPIRE old 100").unwrap();
        call(&s, "PERSIST old").unwrap();
        call(&s, "DEL old").unwrap();
        s.pool().clone().close().unwrap();
        let s = open();
        call(&s, "HSET new a 1").unwrap();
        clean(&s, long_ago);
        assert_eq!(call(&s, "HGET new a"), text("1"), "round {round}");
        assert_eq!(fields(&s), 1);
        call(&s, "DEL new").unwrap();
        s.pool().clone().close().unwrap();
    }
}

#[test]
fn keys_expire() {
    // The clock of the pool and of the commands.
    static AHEAD: AtomicU64 = AtomicU64::new(0);
    let now = || SystemTime::now() + Duration::from_secs(AHEAD.load(Ordering::Relaxed));
    let s = Store::open(PoolOptions::new().clock(now).anonymous().unwrap()).unwrap();
    let call = |s: &Store, line: &str| call_at(s, line, now());
    call(&s, "SET a 1 PX 100000").unwrap();
    call(&s, "HSET h f v").unwrap();
    assert_eq!(call(&s, "PEXPIRE h 100000"), int(1));
    assert_eq!(call(&s, "TTL a"), int(100));
    assert_eq!(call(&s, "HSET h g w"), int(1), "keeps the time");
    assert_eq!(call(&s, "INCR a"), int(2), "keeps the time");
    AHEAD.fetch_add(101, Ordering::Relaxed);
    assert_eq!(call(&s, "GET a"), NULL);
    assert_eq!(call(&s, "TTL a"), int(-2));
    assert_eq!(call(&s, "HGET h f"), NULL);
    assert_eq!(call(&s, "HSET h f v"), int(1), "a new hash");
    assert_eq!(call(&s, "TTL h"), int(-1));
    assert_eq!(fields(&s), 3, "those of the expired hash, too");
    clean(&s, now());
    assert_eq!(fields(&s), 1, "those of the expired hash are gone");
    assert_eq!(call(&s, "HGET h f"), text("v"));
    assert_eq!(call(&s, "SET a 1 EX 100"), OK);
    assert_eq!(call(&s, "TTL a"), int(100));
    assert_eq!(call(&s, "EXPIRE a 50 GT"), int(0));
    assert_eq!(call(&s, "EXPIRE a 200 GT"), int(1));
    assert_eq!(call(&s, "EXPIRE a 200 NX"), int(0));
    assert_eq!(call(&s, "SET a 2 KEEPTTL"), OK);
    assert_eq!(call(&s, "TTL a"), int(200));
    assert_eq!(call(&s, "PERSIST a"), int(1));
    assert_eq!(call(&s, "PERSIST a"), int(0));
    assert_eq!(call(&s, "EXPIRE a 100 XX"), int(0));
    assert_eq!(call(&s, "EXPIRE a 100 LT"), int(1));
    assert_eq!(call(&s, "GETEX a PERSIST"), text("2"));
    assert_eq!(call(&s, "TTL a"), int(-1));
    assert_eq!(call(&s, "EXPIREAT a 4000000000"), int(1));
    assert_eq!(call(&s, "EXPIRETIME a"), int(4_000_000_000));
    assert_eq!(call(&s, "EXPIRE a -1"), int(1));
    assert_eq!(call(&s, "EXISTS a"), int(0));
    call(&s, "SET a 1").unwrap();
    fails(&s, "EXPIRE a x", "not an integer");
    fails(&s, "EXPIRE a 1 NX GT", "not compatible");
    fails(&s, "EXPIRE a 1 QQ", "Unsupported option QQ");
    fails(&s, "EXPIRE a 9223372036854775807", "invalid expire time in 'expire'");
}

#[test]
fn a_scan_returns_what_is_there_throughout() {
    let s = store();
    for n in 0..1_000 {
        call(&s, &format!("SET key:{n} {n}")).unwrap();
    }
    let mut cursor = "0".to_owned();
    let (mut found, mut steps) = (BTreeMap::new(), 0);
    loop {
        let Ok(Reply::Array(parts)) = call(&s, &format!("SCAN {cursor} COUNT 7")) else { panic!() };
        let [Reply::Bulk(next), Reply::Array(keys)] = &parts[..] else { panic!() };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!() };
            *found.entry(String::from_utf8(key.clone()).unwrap()).or_insert(0) += 1;
        }
        // Others come and go.
        call(&s, &format!("SET other:{steps} x")).unwrap();
        call(&s, &format!("DEL other:{}", steps - 3)).unwrap();
        steps += 1;
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    assert!(steps > 100);
    assert!((0..1_000).all(|n| found.get(&format!("key:{n}")) == Some(&1)));
    let Ok(Reply::Array(keys)) = call(&s, "KEYS key:99*") else { panic!() };
    assert_eq!(keys.len(), 11);
    call(&s, "HSET h a 1").unwrap();
    let Ok(Reply::Array(parts)) = call(&s, "SCAN 0 TYPE hash COUNT 5000") else { panic!() };
    assert_eq!(parts[1], list(&["h"]).unwrap());
    let scanned = call(&s, "HSCAN h 0 MATCH a*");
    let pair = list(&["a", "1"]).unwrap();
    assert_eq!(scanned, Ok(Reply::Array(vec![Reply::Bulk(b"0".to_vec()), pair])));
    let Ok(Reply::Bulk(random)) = call(&s, "RANDOMKEY") else { panic!() };
    assert_eq!(call(&s, &format!("EXISTS {}", String::from_utf8(random).unwrap())), int(1));
    assert_eq!(call(&s, "FLUSHALL"), OK);
    assert_eq!(call(&s, "DBSIZE"), int(0));
    assert_eq!(fields(&s), 0);
    fails(&s, "SCAN x", "invalid cursor");
    fails(&s, "SCAN 0 COUNT 0", "syntax error");
    assert_eq!(call(&s, "SCAN 99999999999999999"), call(&s, "SCAN 0"), "past the end");
}

/// Calls every command with all sorts of arguments.
#[test]
fn no_arguments_make_a_command_panic() {
    use outlast_valkey::command::COMMANDS;
    let s = store();
    let words: Vec<&[u8]> = vec![
        b"a",
        b"h",
        b"",
        b"0",
        b"-1",
        b"1",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"x",
        b"EX",
        b"PX",
        b"EXAT",
        b"NX",
        b"XX",
        b"GET",
        b"KEEPTTL",
        b"MATCH",
        b"COUNT",
        b"*",
        b"[",
        b"\xff\0",
        b"1e400",
        b"nan",
        b"0.5",
        b"GT",
        b"LT",
        b"PERSIST",
        b"18446744073709551615",
    ];
    let mut state = 1u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut fine, mut refused) = (0, 0);
    for command in COMMANDS {
        for _ in 0..2_000 {
            let args: Vec<&[u8]> = (0..random(6)).map(|_| words[random(words.len())]).collect();
            match run(&s, command.name, &args, SystemTime::now()) {
                Ok(_) => fine += 1,
                Err(fault) => {
                    let known = ["ERR ", "WRONGTYPE "].iter().any(|w| fault.text().starts_with(w));
                    assert!(known, "{fault}");
                    refused += 1;
                }
            }
        }
    }
    assert!(fine > 10_000 && refused > 10_000, "{fine} {refused}");
    clean(&s, SystemTime::now());
    s.pool().verify().unwrap().ensure_sound().unwrap();
}

#[test]
fn eviction_prefers_what_was_used_long_ago() {
    let mut s = store();
    s.note_uses();
    assert_eq!(s.evict().unwrap(), None);
    for n in 0..1_000 {
        call(&s, &format!("SET key:{n} {n}")).unwrap();
    }
    for n in (0..1_000).step_by(10) {
        assert_eq!(call(&s, &format!("GET key:{n}")), text(&n.to_string()));
    }
    // One of 8 is the oldest, so a key that was used since goes only if all 8 were.
    let evicted: Vec<Vec<u8>> = (0..500).map(|_| s.evict().unwrap().unwrap().0).collect();
    assert_eq!(call(&s, "DBSIZE"), int(500));
    let of_used = evicted.iter().filter(|key| key.ends_with(b"0")).count();
    assert!(of_used <= 5, "{of_used} of 100 keys that were used");
    let early =
        evicted.iter().filter(|key| key.len() <= b"key:499".len() && key[..] <= b"key:499"[..]);
    assert!(early.count() > 250, "the first half of the keys goes first");
}

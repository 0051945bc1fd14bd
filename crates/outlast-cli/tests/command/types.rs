//! Keys and values of all types, as text that goes in and comes out.

use crate::common::Place;
use outlast::PoolOptions;
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn hexadecimal_goes_in_and_comes_out() {
    let place = Place::new();
    let types = ["--key-type", "bytes", "--value-type", "bytes"];
    place.run(["put", "--hex", "0x00ff", "0a09"].iter().chain(&types)).expect(0);
    assert_eq!(place.run(["get", "--hex", "00ff"]).expect(0).text(), "0x0a09\n");
    assert_eq!(place.run(["scan", "--hex"]).expect(0).text(), "0x00ff\t0x0a09\n");
    assert_eq!(place.run(["scan"]).expect(0).out, b"\x00\xff\t\\n\\t\n");
    // Numbers that are stored as words come out without the padding.
    let types = ["--map", "words", "--key-type", "u8", "--value-type", "i8"];
    place.run(["put", "--hex", "0xff", "0xfe"].iter().chain(&types)).expect(0);
    assert_eq!(place.run(["get", "--hex", "ff", "--map", "words"]).expect(0).text(), "0xfe\n");
    assert_eq!(place.run(["scan", "--hex", "--map", "words"]).expect(0).text(), "0xff\t0xfe\n");
}

#[test]
fn numbers_are_numbers() {
    let place = Place::new();
    let types = ["--key-type", "i32", "--value-type", "u64"];
    place.run(["put", "-5", "18446744073709551615"].iter().chain(&types)).expect(0);
    assert_eq!(place.run(["get", "-5"]).expect(0).text(), "18446744073709551615\n");
    let scan = place.run(["scan", "--json"]).expect(0).objects();
    assert_eq!(scan, [json!({"key": -5, "value": 18446744073709551615u64})]);
    for bad in [["put", "x", "1"], ["put", "1", "-1"], ["put", "2147483648", "1"]] {
        place.run(bad).expect(2);
    }
    // The library reads the same records. SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    assert_eq!(pool.map::<i32, u64>("main").unwrap().get(&-5).unwrap(), Some(u64::MAX));
    pool.close().unwrap();
    let other = place.run(["put", "1", "1", "--key-type", "u8"]).expect(1);
    assert!(other.err.contains("i32"), "{}", other.err);
}

#[test]
fn bytes_that_are_not_text_go_in_and_out() {
    let place = Place::new();
    let key = OsStr::from_bytes(b"\xff\tk\\");
    let types = ["--key-type", "bytes", "--value-type", "bytes"].map(OsStr::new);
    place.run([OsStr::new("put"), key, OsStr::new("a\nb")].iter().chain(&types)).expect(0);
    let run = place.run([OsStr::new("get"), key]).expect(0);
    assert_eq!(run.out, b"a\nb\n");
    assert_eq!(place.run(["get", "--hex", "0xff096b5c"]).expect(0).text(), "0x610a62\n");
    assert_eq!(place.run(["scan"]).expect(0).out, b"\xff\\tk\\\\\ta\\nb\n");
    let object = json!({"key": {"hex": "ff096b5c"}, "value": "a\nb"});
    assert_eq!(place.run(["scan", "--json"]).expect(0).objects(), [object]);
    place.run([OsStr::new("put"), OsStr::new("--map"), OsStr::new("s"), key, key]).expect(2);
}

#[test]
fn types_that_only_a_program_knows_are_hexadecimal() {
    let place = Place::new();
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
    };
    let map = pool.raw_map_with("m", "point/1", "str", &outlast::MapOptions::new()).unwrap();
    map.put(&[1, 2, 255], b"here").unwrap();
    drop(map);
    pool.close().unwrap();
    assert_eq!(place.run(["scan"]).expect(0).text(), "0x0102ff\there\n");
    assert_eq!(place.run(["get", "0x0102ff"]).expect(0).text(), "here\n");
    place.run(["get", "plain"]).expect(2);
}

#[test]
fn floats_that_are_no_numbers_go_in_and_out() {
    let floats = [
        ("NaN", f64::NAN),
        ("0x7ff8000000000001", f64::from_bits(0x7ff8_0000_0000_0001)),
        ("0xfff8000000000000", f64::from_bits(0xfff8_0000_0000_0000)),
        ("inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
    ];
    let types = ["--map", "m", "--key-type", "f64", "--value-type", "f64"];
    for scheme in ["dash-eh", "phast"] {
        let place = Place::new();
        for (text, _) in floats {
            let put = ["put", "--scheme", scheme];
            place.run(put.iter().chain(&types).chain(&["--", text, text])).expect(0);
            assert_eq!(place.run(["get", "--", text]).expect(0).text(), format!("{text}\n"));
        }
        for wrong in ["1e400", "-1e400", "1e999", "0x7ff8", "x"] {
            let refused = place.run(["put", "1", wrong]).expect(2).err;
            assert!(refused.ends_with("is not f64\n") && !refused.contains("\\\\"), "{refused}");
        }
        let tsv = place.run(["scan"]).expect(0).out;
        let ndjson = place.run(["scan", "--json"]).expect(0).out;
        assert!(String::from_utf8_lossy(&ndjson).contains("\"0x7ff8000000000001\""));
        for (format, input) in [("tsv", &tsv), ("ndjson", &ndjson)] {
            let other = Place::new();
            let load = ["load", "--format", format, "--scheme", scheme];
            other.run_with(load.iter().chain(&types), input).expect(0);
            // SAFETY: the file belongs to this test.
            let pool = unsafe { PoolOptions::new().open(other.pool()).unwrap() };
            let map = pool.raw_map("m").unwrap();
            assert_eq!(map.iter().count(), floats.len());
            drop(map);
            for (text, float) in floats {
                let found = pool.map::<f64, f64>("m");
                let found = match scheme {
                    "phast" => {
                        drop(found);
                        pool.ordered_map::<f64, f64>("m").unwrap().get(&float).unwrap()
                    }
                    _ => found.unwrap().get(&float).unwrap(),
                };
                assert_eq!(found.map(f64::to_bits), Some(float.to_bits()), "{text}");
            }
            pool.close().unwrap();
        }
    }
    let place = Place::new();
    place.run(["put", "k", "0x7fc00001", "--value-type", "f32"]).expect(0);
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "0x7fc00001\n");
    place.run(["put", "k", "1e300"]).expect(2);
    let refused =
        place.run_with(["load", "--format", "ndjson"], b"{\"key\":\"k\",\"value\":1e300}");
    assert!(refused.expect(1).err.contains("is not f32"));
}

#[test]
fn types_of_programs_that_keep_their_order_are_shown_and_taken() {
    let place = Place::new();
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
    };
    let points = pool.ordered_map::<(u32, i16), (bool, [u8; 2])>("points").unwrap();
    for (key, value) in [((7, -3), (true, [1, 255])), ((7, 4), (false, [0, 0]))] {
        assert!(points.insert(&key, &value).unwrap());
    }
    let prices = pool.map::<u128, f64>("prices").unwrap();
    assert!(prices.insert(&5, &-0.25).unwrap());
    drop((points, prices));
    pool.close().unwrap();

    let scan = |args: &[&str]| place.run([&["scan", "--map", "points"], args].concat()).expect(0);
    let lines = ["[7,-3]\t[true,{\"hex\":\"01ff\"}]\n", "[7,4]\t[false,{\"hex\":\"0000\"}]\n"];
    assert_eq!(scan(&[]).text(), lines.concat());
    assert_eq!(scan(&["--from", "[7, -2]"]).text(), lines[1]);
    let json = scan(&["--json"]);
    assert_eq!(json.objects()[0]["key"], json!([7, -3]));
    assert_eq!(json.objects()[0]["value"], json!([true, { "hex": "01ff" }]));
    place.run(["put", "--map", "points", "[8,-1]", "[true,{\"hex\":\"aabb\"}]"]).expect(0);
    let got = place.run(["get", "--map", "points", "[8,-1]"]).expect(0);
    assert_eq!(got.text(), "[true,{\"hex\":\"aabb\"}]\n");
    for wrong in ["[8]", "[8,40000]", "8", "[8,-1"] {
        place.run(["get", "--map", "points", wrong]).expect(2);
    }
    assert_eq!(place.run(["scan", "--map", "prices"]).expect(0).text(), "5\t-0.25\n");
    place.run(["put", "--map", "prices", "6", "inf"]).expect(0);

    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    let points = pool.ordered_map::<(u32, i16), (bool, [u8; 2])>("points").unwrap();
    assert_eq!(points.get(&(8, -1)).unwrap(), Some((true, [0xaa, 0xbb])));
    let prices = pool.map::<u128, f64>("prices").unwrap();
    assert_eq!(prices.get(&6).unwrap(), Some(f64::INFINITY));
    pool.close().unwrap();

    // What is scanned can be loaded.
    place.run(["put", "--map", "points", "[8,-1]", "[false,{\"hex\":\"0000\"}]"]).expect(0);
    let tsv = [lines[0], lines[1], "[8,-1]\t[true,{\"hex\":\"aabb\"}]\n"].concat();
    let load = place.run_with(["load", "--map", "points", "--json"], tsv.as_bytes()).expect(0);
    assert_eq!(load.objects()[0]["replaced"], 3);
    assert_eq!(scan(&[]).text(), tsv);
    let ndjson = scan(&["--json"]);
    let load = ["load", "--map", "points", "--json", "--format", "ndjson"];
    let load = place.run_with(load, ndjson.text().as_bytes()).expect(0);
    assert_eq!(load.objects()[0]["replaced"], 3);
    assert_eq!(scan(&[]).text(), tsv);
}

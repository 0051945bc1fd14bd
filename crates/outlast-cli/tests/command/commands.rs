//! The basic commands, as a user runs them: their output, their exit codes, and what they must not
//! change.

use crate::common::{Place, command, loading};
use outlast::PoolOptions;
use serde_json::json;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn what_is_put_is_got_until_it_is_deleted() {
    let place = Place::new();
    assert_eq!(place.run(["put", "Ada", "36"]).expect(0).text(), "");
    assert_eq!(place.run(["get", "Ada"]).expect(0).text(), "36\n");
    place.run(["put", "Ada", "37"]).expect(0);
    assert_eq!(place.run(["get", "Ada"]).expect(0).text(), "37\n");
    place.run(["del", "Ada"]).expect(0);
    for gone in ["get", "del"] {
        let run = place.run([gone, "Ada"]).expect(1);
        assert_eq!(run.text(), "");
        assert!(run.err.contains("Ada"));
    }
}

#[test]
fn json_is_objects_and_nothing_else() {
    let place = Place::new();
    let run = |args: &[&str]| place.run(args.iter().chain(&["--json"])).objects();
    assert_eq!(run(&["put", "a", "1"]), [json!({"event": "put", "key": "a", "before": null})]);
    assert_eq!(run(&["put", "a", "2"]), [json!({"event": "put", "key": "a", "before": "1"})]);
    assert_eq!(run(&["get", "a"]), [json!({"key": "a", "value": "2"})]);
    assert_eq!(run(&["scan"]), [json!({"key": "a", "value": "2"})]);
    let stat = run(&["stat"]);
    assert_eq!(stat.len(), 2);
    assert_eq!(stat[0]["event"], "pool");
    assert_eq!(stat[1]["records_estimate"], 1);
    // A process that has the map open keeps at least 2 bytes per slot in DRAM.
    assert!(stat[1]["dram_bytes"].as_u64() >= Some(2 * stat[1]["slots"].as_u64().unwrap()));
    let verify = run(&["verify"]);
    assert_eq!(verify.last().unwrap()["verified"], true);
    let copy = place.path("copy.pool");
    assert_eq!(run(&["snapshot", copy.to_str().unwrap()])[0]["event"], "snapshot");
    assert_eq!(run(&["del", "a"])[0]["before"], "2");
    let missing = run(&["get", "a"]);
    assert_eq!((&missing[0]["event"], &missing[0]["kind"]), (&json!("error"), &json!("not-found")));
}

#[test]
fn what_cannot_be_put_makes_no_pool_and_no_map() {
    let place = Place::new();
    let maps = |place: &Place| place.run(["stat", "--json"]).expect(0).objects().len() - 1;
    let bad = place.file("bad.tsv", "no tab\n");
    let bad = bad.to_str().unwrap();
    let long = "n".repeat(500);
    let refused = [
        (&["put", "x", "1", "--map", "m", "--key-type", "u8"][..], 2),
        (&["put", "1", "x", "--map", "m", "--value-type", "i64"], 2),
        (&["load", bad, "--map", "m"], 1),
        (&["put", "1", "1", "--map", ""], 1),
        (&["put", "1", "1", "--map", &long], 1),
    ];
    for (args, code) in refused {
        place.run(args).expect(code);
        assert!(!place.pool().exists(), "{args:?}");
    }
    place.run(["put", "a", "1", "--map", "there"]).expect(0);
    for (args, code) in refused {
        place.run(args).expect(code);
        assert_eq!(maps(&place), 1, "{args:?}");
    }
}

#[test]
fn ordered_maps_are_scanned_by_range_and_from_either_end() {
    let place = Place::new();
    let types = ["--scheme", "phast", "--key-type", "i32", "--value-type", "str"];
    for key in ["7", "-300", "0", "-5", "1000"] {
        place.run(["put", key, &format!("v{key}")].iter().chain(&types)).expect(0);
    }
    let keys = |args: &[&str]| -> Vec<i64> {
        let run = place.run(["scan", "--json"].iter().chain(args)).expect(0);
        run.objects().iter().map(|record| record["key"].as_i64().unwrap()).collect()
    };
    assert_eq!(keys(&[]), [-300, -5, 0, 7, 1000]);
    assert_eq!(keys(&["--reverse", "--limit", "2"]), [1000, 7]);
    assert_eq!(keys(&["--from", "-5", "--to", "7"]), [-5, 0]);
    assert_eq!(keys(&["--from", "-4", "--limit", "1"]), [0]);
    assert_eq!(keys(&["--to", "-5"]), [-300]);
    assert_eq!(keys(&["--from", "7", "--to", "-5"]).len(), 0);
    place.run(["scan", "--from", "x"]).expect(2);
    for scheme in ["dash-eh", "clevel"] {
        place.run(["put", "1", "1", "--map", scheme, "--scheme", scheme]).expect(0);
        for range in [&["--reverse"][..], &["--from", "0"], &["--to", "9"]] {
            let run = place.run(["scan", "--map", scheme].iter().chain(range)).expect(2);
            assert!(run.err.contains(scheme), "{}", run.err);
        }
        place.run(["scan", "--map", scheme, "--limit", "1"]).expect(0);
    }
    // A map keeps the scheme that it was created with.
    let other = place.run(["put", "1", "1", "--map", "main", "--scheme", "clevel"]).expect(1);
    assert!(other.err.contains("phast"), "{}", other.err);
    let unknown = place.run(["put", "1", "1", "--map", "main", "--scheme", "fast"]).expect(2);
    assert!(unknown.err.contains("phast"), "{}", unknown.err);
}

#[test]
fn ordered_maps_of_bytes_are_in_the_order_of_their_bytes() {
    let place = Place::new();
    let types = ["--scheme", "phast", "--key-type", "bytes", "--value-type", "u8"];
    for key in ["0xff", "0x00", "0x0000", "0x61", "0x6100", "0x61ff", "0x62", "0x80"] {
        place.run(["put", "--hex", key, "0x07"].iter().chain(&types)).expect(0);
    }
    let keys = |args: &[&str]| -> Vec<String> {
        let run = place.run(["scan"].iter().chain(args)).expect(0);
        let lines = run.out.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| line.escape_ascii().to_string()).collect()
    };
    assert_eq!(keys(&["--limit", "2"]).len(), 2);
    let of_a = keys(&["--hex", "--from", "0x61", "--to", "0x62"]);
    assert_eq!(of_a.len(), 3, "{of_a:?}");
    assert_eq!(of_a[0], "0x61\\t0x07");
    assert_eq!(keys(&["--hex", "--from", "0x80"]).len(), 2);
    let mut all = keys(&[]);
    all.reverse();
    assert_eq!(keys(&["--reverse"]), all);
    assert_eq!(all.len(), 8);
    place.run(["scan", "--hex", "--from", "0x6"]).expect(2);
}

#[test]
fn what_is_scanned_can_be_loaded() {
    let place = Place::new();
    let lines: String = (0..5000).map(|i| format!("key {i}\\t\tvalue\\n{i}\n")).collect();
    let run = place.run_with(["load"], lines.as_bytes()).expect(0);
    assert!(run.text().contains("5,000 records"), "{}", run.text());
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let tsv = place.run(["scan"]).expect(0);
    assert_eq!(sorted(tsv.text()), sorted(&lines));
    let ndjson = place.run(["scan", "--json"]).expect(0);

    for (name, content) in [("a.tsv", tsv.text()), ("b.ndjson", ndjson.text())] {
        let file = place.file(name, content);
        let other = Place::new();
        let load = other.run([OsStr::new("load"), file.as_os_str(), OsStr::new("--json")]);
        let object = &load.expect(0).objects()[0];
        assert_eq!((&object["inserted"], &object["replaced"]), (&json!(5000), &json!(0)));
        assert_eq!(sorted(other.run(["scan"]).expect(0).text()), sorted(&lines));
    }
    let again = place.run_with(["load", "--json"], lines.as_bytes()).expect(0);
    assert_eq!(again.objects()[0]["replaced"], 5000);
    assert_eq!(place.run(["scan", "--limit", "7"]).expect(0).text().lines().count(), 7);
}

#[test]
fn malformed_input_is_refused_with_its_line() {
    for (format, input, line, why) in [
        ("tsv", &b"a\t1\n\nb\n"[..], "line 3", "0 tabs"),
        ("tsv", b"a\t1\t2\n", "line 1", "2 tabs"),
        ("tsv", b"a\t\\q\n", "line 1", "escape"),
        ("tsv", b"a\tx\n{\"key\":1}\n", "line 2", "ndjson"),
        ("tsv", b"a\t1\nb\t\xff\n", "line 2", "UTF-8"),
        ("ndjson", b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\n", "line 2", "JSON"),
        ("ndjson", b"{\"key\":\"a\"}\n", "line 1", "value"),
        ("ndjson", b"{\"key\":\"a\",\"value\":[1]}\n", "line 1", "value"),
        ("ndjson", b"[1]\n", "line 1", "JSON"),
        ("ndjson", b"{\"key\":{\"hex\":\"0\"},\"value\":\"\"}", "line 1", "key"),
        ("ndjson", b"{\"key\":{\"hex\":\"zz\"},\"value\":\"\"}", "line 1", "pairs of hex"),
    ] {
        let place = Place::new();
        let run = place.run_with(["load", "--format", format], input).expect(1);
        let shown = String::from_utf8_lossy(input);
        assert!(run.err.contains(line) && run.err.contains(why), "{shown}: {}", run.err);
    }
    let place = Place::new();
    place.run_with(["load"], b"a\t1\nb\n").expect(1);
    assert_eq!(place.run(["get", "a"]).expect(0).text(), "1\n", "what came before stays");
    let types = ["load", "--map", "n", "--key-type", "u8"];
    let run = place.run_with(types, b"255\ta\r\n256\tb\n").expect(1);
    assert!(run.err.contains("line 2") && run.err.contains("256"), "{}", run.err);
    assert_eq!(place.run(["get", "--map", "n", "255"]).expect(0).text(), "a\n");
}

#[test]
fn a_map_is_chosen_by_name_where_there_are_several() {
    let place = Place::new();
    place.run(["put", "--map", "one", "k", "1"]).expect(0);
    place.run(["put", "--map", "two", "k", "2"]).expect(0);
    let run = place.run(["get", "k"]).expect(2);
    assert!(run.err.contains("one") && run.err.contains("two"), "{}", run.err);
    assert_eq!(place.run(["get", "k", "--map", "two"]).expect(0).text(), "2\n");
    let run = place.run(["get", "k", "--map", "three"]).expect(1);
    assert!(run.err.contains("one"), "{}", run.err);
    let stat = place.run(["stat"]).expect(0);
    assert!(stat.text().contains("two") && stat.text().contains("page-cache"));
}

#[test]
fn wrong_usage_is_told_apart() {
    let place = Place::new();
    for args in [&["get"][..], &["frob"], &[], &["put", "a"], &["scan", "--limit", "x"]] {
        place.run(args).expect(2);
    }
    place.run(["put", "a", "b", "--scheme", "no-such"]).expect(2);
    place.run(["put", "a", "b", "--key-type", "float"]).expect(2);
    place.run(["--help"]).expect(0);
    assert!(!place.pool().exists());
}

#[test]
fn what_is_not_there_is_an_error_and_is_not_made() {
    let place = Place::new();
    for args in [&["get", "k"][..], &["del", "k"], &["scan"], &["stat"], &["verify"]] {
        assert!(place.run(args).expect(1).err.contains("no pool"), "{args:?}");
    }
    assert!(place.run(["load", "/no/such/file"]).expect(1).err.contains("/no/such/file"));
    place.run(["load", "/tmp"]).expect(1);
    let long = "k".repeat(70_000);
    assert!(place.run(["put", &long, "v"]).expect(1).err.contains("70000 bytes"));
    let file = place.path("long.tsv");
    std::fs::write(&file, format!("{long}\tv\n")).unwrap();
    let run = place.run(["load", file.to_str().unwrap()]).expect(1);
    assert!(run.err.contains("line 1") && run.err.contains("70000 bytes"), "{}", run.err);
    assert!(!place.pool().exists());
}

#[test]
fn reading_changes_nothing() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    let before = std::fs::read(place.pool()).unwrap();
    for args in [&["get", "k"][..], &["scan"], &["stat"], &["verify"]] {
        place.run(args).expect(0);
    }
    assert!(std::fs::read(place.pool()).unwrap() == before);
}

#[test]
fn a_pool_in_use_is_locked() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    for args in [&["get", "k"][..], &["put", "k", "w"], &["verify"]] {
        assert!(place.run(args).expect(1).err.contains("in use"));
    }
    // `stat` still prints what can be read from the file.
    pool.map::<u64, u64>("counts").unwrap().put(&1, &1).unwrap();
    let stat = place.run(["stat", "--json"]).expect(0).objects();
    assert_eq!(
        (&stat[0]["in_use"], &stat[0]["size_bytes"]),
        (&json!(true), &json!(pool.stats().size))
    );
    assert!(stat[0]["disk_bytes"].as_u64().unwrap() > 100 << 10);
    assert_eq!(stat[0].get("durable_epoch"), None);
    let maps: Vec<_> = stat[1..].iter().map(|map| map["name"].as_str().unwrap()).collect();
    assert_eq!(maps, ["main", "counts"]);
    assert!(place.run(["stat"]).expect(0).text().contains("in use"));
    pool.drop_map("counts").unwrap();
    drop(pool);
    place.run(["get", "k"]).expect(0);
}

#[test]
fn what_is_no_pool_is_damage() {
    let place = Place::new();
    std::fs::write(place.pool(), "not a pool at all").unwrap();
    for args in [&["get", "k"][..], &["put", "k", "v"], &["scan"], &["stat"], &["verify"]] {
        let run = place.run(args.iter().chain(&["--json"])).expect(3);
        assert_eq!(run.objects()[0]["kind"], "damaged");
    }
    assert_eq!(std::fs::read(place.pool()).unwrap(), b"not a pool at all");
}

#[test]
fn a_damaged_record_is_found_and_named() {
    let place = Place::new();
    let lines: String = (0..500).map(|i| format!("key {i}\ta rather odd value {i:04}\n")).collect();
    place.run_with(["load"], lines.as_bytes()).expect(0);
    let whole = place.run(["verify", "--json"]).expect(0).objects();
    assert_eq!(whole[0]["records"], 500);
    let mut bytes = std::fs::read(place.pool()).unwrap();
    let needle = b"a rather odd value 0123";
    let at = (0..bytes.len()).find(|&i| bytes[i..].starts_with(needle)).unwrap();
    bytes[at + 3] ^= 1;
    std::fs::write(place.pool(), bytes).unwrap();
    let run = place.run(["verify", "--json"]).expect(3);
    let objects = run.objects();
    assert_eq!(objects[0]["torn"], 1);
    assert!(objects[0]["damage"][0]["offset"].as_u64().unwrap() > 0);
    assert_eq!(objects[1]["verified"], false);
    assert!(place.run(["verify"]).expect(3).text().contains("1 torn"));
}

#[test]
fn a_copy_of_a_live_pool_is_checked_only_when_asked() {
    let place = Place::new();
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .create(place.path("live"))
            .unwrap()
    };
    pool.map::<str, str>("main").unwrap().put("k", "v").unwrap();
    std::fs::copy(place.path("live"), place.pool()).unwrap();
    assert!(place.run(["verify"]).expect(3).err.contains("torn"));
    assert!(place.run(["get", "k"]).expect(3).err.contains("torn"));
    place.run(["verify", "--accept-possibly-torn"]).expect(0);
    let scan = place.run(["scan", "--accept-possibly-torn"]).expect(0);
    assert_eq!(scan.text(), "k\tv\n");
    assert_eq!(place.run(["get", "k", "--accept-possibly-torn"]).expect(0).text(), "v\n");
    // None of this has changed the pool.
    let refused = place.run(["put", "k", "w"]).expect(3);
    assert!(refused.err.contains("outlast accept"), "{}", refused.err);
    assert_eq!(place.run(["accept", "--json"]).expect(0).objects()[2]["was_refused"], true);
    assert!(place.run(["accept"]).expect(0).text().contains("nothing was done"));
    place.run(["put", "k", "w"]).expect(0);
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "w\n");
    place.run(["verify"]).expect(0);
}

#[test]
fn a_pool_that_is_really_torn_is_not_accepted() {
    let place = Place::new();
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .create(place.path("live"))
            .unwrap()
    };
    pool.map::<str, str>("main").unwrap().put("k", "a rather odd value").unwrap();
    let mut bytes = std::fs::read(place.path("live")).unwrap();
    let needle = b"a rather odd value";
    let at = (0..bytes.len()).find(|&i| bytes[i..].starts_with(needle)).unwrap();
    bytes[at] ^= 1;
    std::fs::write(place.pool(), &bytes).unwrap();
    let refused = place.run(["accept"]).expect(3);
    assert!(refused.err.contains("damaged place"), "{}", refused.err);
    assert_eq!(std::fs::read(place.pool()).unwrap(), bytes, "nothing was written");
    assert!(place.run(["get", "k"]).expect(3).err.contains("possibly torn"));
}

#[test]
fn a_snapshot_is_a_pool_of_its_own_and_replaces_nothing_unasked() {
    let place = Place::new();
    place.run(["put", "k", "1"]).expect(0);
    let other = Place::new();
    let to = other.pool();
    let args = [OsStr::new("snapshot"), to.as_os_str()];
    place.run(args).expect(0);
    place.run(["put", "k", "2"]).expect(0);
    assert_eq!(other.run(["get", "k"]).expect(0).text(), "1\n");
    place.run(args).expect(1);
    assert_eq!(other.run(["get", "k"]).expect(0).text(), "1\n");
    place.run(args.iter().chain(&[OsStr::new("--force")])).expect(0);
    assert_eq!(other.run(["get", "k"]).expect(0).text(), "2\n");
    let pool = place.pool();
    place.run([OsStr::new("snapshot"), pool.as_os_str(), OsStr::new("--force")]).expect(2);
    assert_eq!(place.run(["get", "k"]).expect(0).text(), "2\n");
}

#[test]
fn a_snapshot_only_reads_the_pool() {
    let place = Place::new();
    let (mut load, _input) = loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    let before = std::fs::read(place.pool()).unwrap();
    // SAFETY: the file belongs to this test.
    let reader = unsafe { PoolOptions::new().open_read_only(place.pool()).unwrap() };
    let other = Place::new();
    let to = other.pool();
    place.run([OsStr::new("snapshot"), to.as_os_str()]).expect(0);
    drop(reader);
    assert!(std::fs::read(place.pool()).unwrap() == before);
    let count = |place: &Place| place.run(["count"]).expect(0).text().to_owned();
    assert_eq!(count(&other), count(&place));
    other.run(["put", "one", "more"]).expect(0);
    other.run(["verify"]).expect(0);
}

#[test]
fn a_journaled_pool_in_use_is_backed_up_and_described() {
    let place = Place::new();
    place.run(["put", "k", "1", "--journal"]).expect(0);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    pool.map::<str, str>("main").unwrap().put("k", "2").unwrap();
    pool.map::<u64, u64>("more").unwrap();
    pool.wait_durable().unwrap();
    let other = Place::new();
    let to = other.pool();
    let args = [OsStr::new("backup"), to.as_os_str(), OsStr::new("--json")];
    let done = &place.run(args).expect(0).objects()[0];
    assert_eq!((&done["event"], &done["in_use"]), (&json!("backup"), &json!(true)));
    assert_eq!(other.run(["get", "k", "--map", "main"]).expect(0).text(), "2\n");
    other.run(["verify"]).expect(0);
    assert!(place.run(args).expect(1).err.contains("--force"));
    place.run(args.iter().chain(&[OsStr::new("--force")])).expect(0);

    let stat = place.run(["stat", "--json"]).expect(0).objects();
    assert_eq!((&stat[0]["event"], &stat[0]["in_use"]), (&json!("pool"), &json!(true)));
    assert!((2 << 20..=pool.stats().size).contains(&stat[0]["size_bytes"].as_u64().unwrap()));
    assert_eq!(stat[0]["id"], format!("{:032x}", pool.id()));
    assert!(stat[0]["durable_epoch"].as_u64() > stat[0]["checkpoint_epoch"].as_u64(), "{stat:?}");
    assert!(stat[0]["journal_bytes"].as_u64() > Some(4096), "{stat:?}");
    let maps: Vec<_> = stat[1..].iter().map(|map| (&map["name"], &map["key_schema"])).collect();
    let of = |name, schema| (json!(name), json!(schema));
    let (main, more) = (of("main", "str"), of("more", "u64"));
    assert_eq!(maps, [(&main.0, &main.1), (&more.0, &more.1)]);
    assert!(place.run(["stat"]).expect(0).text().contains("in use"));

    pool.close().unwrap();
    let stat = place.run(["stat", "--json"]).expect(0).objects();
    assert_eq!(stat[0]["in_use"], false);
    let done = &place.run(args.iter().chain(&[OsStr::new("--force")])).expect(0).objects()[0];
    assert_eq!(done["in_use"], false);
    assert_eq!(other.run(["get", "k", "--map", "main"]).expect(0).text(), "2\n");
}

#[test]
fn every_command_that_writes_gives_a_pool_a_journal() {
    for args in [&["put", "k", "w"][..], &["del", "k"], &["load"]] {
        let place = Place::new();
        place.run(["put", "k", "v"]).expect(0);
        assert!(place.run(["stat"]).expect(0).text().contains("page-cache"));
        place.run_with(args.iter().chain(&["--journal"]), b"k\tx\n").expect(0);
        assert!(place.run(["stat"]).expect(0).text().contains("journal"), "{args:?}");
    }
}

#[test]
fn a_pool_in_use_without_a_journal_is_not_backed_up() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { PoolOptions::new().open(place.pool()).unwrap() };
    let to = place.path("copy.pool");
    let args = [OsStr::new("backup"), to.as_os_str()];
    assert!(place.run(args).expect(1).err.contains("no journal"));
    assert!(!to.exists());
    pool.close().unwrap();
    place.run(args).expect(0);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    let lines: String = (0..50_000).map(|i| format!("key {i}\tvalue {i}\n")).collect();
    place.run_with(["load"], lines.as_bytes()).expect(0);
    for json in [false, true] {
        let mut scan = command();
        scan.arg("--pool").arg(place.pool()).arg("scan").args(json.then_some("--json"));
        let mut child = scan.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let left = child.wait_with_output().unwrap();
        assert!(left.status.success());
        assert_eq!(String::from_utf8_lossy(&left.stderr), "");
    }
}

/// However short the next command that writes is, it finishes the reclaim after the kill.
#[test]
fn a_load_that_is_killed_leaves_nothing_pending_for_long() {
    let place = Place::new();
    let (mut load, _input) = loading(&place, 100_000);
    load.kill().unwrap();
    load.wait().unwrap();
    let reclaim = || place.run(["stat", "--json"]).expect(0).objects()[0]["reclaim"].clone();
    assert_eq!(reclaim(), "pending");
    place.run(["put", "one", "more"]).expect(0);
    assert_eq!(reclaim(), "done");
    place.run(["verify"]).expect(0);
    let count = place.run(["count"]).expect(0);
    assert!(count.text().trim().replace(',', "").parse::<u64>().unwrap() > 90_000);
}

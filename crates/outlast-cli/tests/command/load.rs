//! How `outlast load` ends: interrupted, or at an input that was cut short.

use crate::common::{Place, finished, loading, signal};

#[test]
fn a_load_that_is_interrupted_leaves_a_closed_pool() {
    let place = Place::new();
    let (load, input) = loading(&place, 100_000);
    signal(&load, libc::SIGINT);
    let ended = finished(load.wait_with_output().unwrap()).expect(130);
    drop(input);
    let count = place.run(["count"]).expect(0).text().trim().to_owned();
    assert_eq!(ended.err, format!("outlast: interrupted; {} records loaded\n", grouped(&count)));
    // The pool was closed: otherwise a copy of it would be refused as the copy of a live pool.
    let copy = Place::new();
    std::fs::copy(place.pool(), copy.pool()).unwrap();
    assert_eq!(copy.run(["get", "k1"]).expect(0).text(), "1\n");
    assert!(copy.run(["stat"]).expect(0).text().contains("done"));
}

/// A terminal sends the signal to all commands of a pipe, so the input ends as well.
#[test]
fn a_load_whose_pipe_is_interrupted_says_how_many_records_it_has_loaded() {
    for _ in 0..30 {
        let place = Place::new();
        let (load, input) = loading(&place, 12_000);
        signal(&load, libc::SIGINT);
        drop(input);
        let ended = finished(load.wait_with_output().unwrap()).expect(130);
        let count = place.run(["count"]).expect(0).text().trim().to_owned();
        assert_eq!(
            ended.err,
            format!("outlast: interrupted; {} records loaded\n", grouped(&count))
        );
    }
}

/// Writes a number as the commands do for people.
fn grouped(number: &str) -> String {
    let groups: Vec<_> = number.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[test]
fn a_last_line_without_a_newline_is_not_taken_for_a_record() {
    let place = Place::new();
    place.run_with(["load"], b"a\twhole\nb\twhole\n").expect(0);
    for (format, raw) in [("tsv", &[][..]), ("tsv", &["--raw"])] {
        let load = ["load", "--format", format];
        let load = load.iter().chain(raw);
        let failed = place.run_with(load.clone(), b"c\tnew\na\twho").expect(1);
        assert!(failed.err.contains("1 record loaded"), "{}", failed.err);
        assert!(failed.err.contains("line 2") && failed.err.contains("--unterminated"));
        assert_eq!(place.run(["get", "a"]).expect(0).text(), "whole\n");
        assert_eq!(place.run(["del", "c"]).expect(0).code, 0);
        place.run_with(load.chain(&["--unterminated"]), b"c\tnew\na\tother").expect(0);
        assert_eq!(place.run(["get", "a"]).expect(0).text(), "other\n");
        place.run(["put", "a", "whole"]).expect(0);
    }
    // A JSON object that was cut short is none.
    let json = br#"{"key": "c", "value": "new"}
{"key": "a", "value": "other"}"#;
    for end in 30..json.len() {
        let failed = place.run_with(["load", "--format", "ndjson"], &json[..end]).expect(1);
        assert!(
            failed.err.contains("line 2") && failed.err.contains("cut short"),
            "{}",
            failed.err
        );
        assert_eq!(place.run(["get", "a"]).expect(0).text(), "whole\n");
    }
    place.run_with(["load", "--format", "ndjson"], json).expect(0);
    assert_eq!(place.run(["get", "a"]).expect(0).text(), "other\n");
    // No pool is made for a line that is not loaded.
    let new = Place::new();
    new.run_with(["load"], b"a\tb").expect(1);
    assert!(!new.pool().exists());
}

#[test]
fn lines_go_into_the_maps_that_they_name() {
    let place = Place::new();
    let lines = br#"{"map": "one", "key": "a", "value": "1"}
{"map": "two", "key": "a", "value": "2"}
{"key": "a", "value": "3"}
{"value": "4", "key": "b", "map": "one"}
"#;
    place.run_with(["load", "--format", "ndjson"], lines).expect(0);
    for (map, text) in [("one", "a\t1\nb\t4\n"), ("two", "a\t2\n"), ("main", "a\t3\n")] {
        let scan = place.run(["scan", "--map", map]).expect(0);
        let mut found: Vec<_> = scan.text().lines().collect();
        found.sort_unstable();
        assert_eq!(found, text.lines().collect::<Vec<_>>(), "{map}");
    }
    // A map that is named on the command line gets no record of another one.
    let load = ["load", "--format", "ndjson", "--map", "two"];
    let failed = place.run_with(load, lines).expect(1);
    assert!(failed.err.contains("line 1"), "{}", failed.err);
    assert!(failed.err.contains("of map one, and --map names two"), "{}", failed.err);
    let rest = br#"{"map": "two", "key": "c", "value": "5"}
{"map": null, "key": "d", "value": "6"}
{"key": "e", "value": "7"}
"#;
    place.run_with(load, rest).expect(0);
    assert_eq!(place.run(["count", "--map", "two"]).expect(0).text(), "4\n");
    // Of which map it is has to be said.
    let failed = place.run_with(&load[..3], rest).expect(1);
    assert!(failed.err.contains("1 record loaded") && failed.err.contains("line 2"));
    assert!(failed.err.contains("name one with --map"), "{}", failed.err);
    // A line without a map needs one in a pool of several.
    let failed = place.run_with(&load[..3], br#"{"key": "x", "value": "y"}"#).expect(2);
    assert!(failed.err.contains("the pool has 3 maps"), "{}", failed.err);
    // Each map keeps its types.
    let numbers = ["--map", "numbers", "--key-type", "u64", "--value-type", "u64"];
    place.run(["put", "1", "2"].iter().chain(&numbers)).expect(0);
    let both = br#"{"map": "one", "key": "n", "value": "1"}
{"map": "numbers", "key": 7, "value": 8}
{"map": "numbers", "key": "seven", "value": 8}
"#;
    let failed = place.run_with(&load[..3], both).expect(1);
    assert!(failed.err.contains("2 records loaded") && failed.err.contains("line 3"));
    assert_eq!(place.run(["get", "--map", "numbers", "7"]).expect(0).text(), "8\n");
}

#[test]
fn members_that_nothing_reads_are_refused() {
    let place = Place::new();
    for (line, why) in [
        (r#"{"key": "a", "value": "b", "key": "c"}"#, "duplicate field `key`"),
        (r#"{"map": "m", "map": "n", "key": "a", "value": "b"}"#, "duplicate field `map`"),
        (r#"{"key": "a", "value": "b", "mpa": "m"}"#, "unknown field `mpa`"),
        (r#"{"key": "a"}"#, "missing field `value`"),
        (r#"{"map": 5, "key": "a", "value": "b"}"#, "expected a string"),
        (r#"{"map": "", "key": "a", "value": "b"}"#, "it is empty"),
        (r#"["m", "a", "b"]"#, "not a JSON object"),
        (r#"{"key": "a""#, "not a JSON object"),
    ] {
        let failed = place.run_with(["load", "--format", "ndjson"], format!("{line}\n").as_bytes());
        assert!([1, 2].contains(&failed.code), "{line}: {}", failed.err);
        assert!(failed.err.contains(why) && !failed.err.contains("at line 1"), "{}", failed.err);
        assert!(!place.pool().exists(), "{line}");
    }
}

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

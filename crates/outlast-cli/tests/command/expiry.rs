//! Records that expire, from the command line.

use crate::common::{Place, command};
use serde_json::Value;

#[test]
fn a_record_lives_as_long_as_it_was_put_for() {
    let place = Place::new();
    place.run(["put", "--for", "10m", "Ada", "36"]).expect(0);
    assert_eq!(place.run(["get", "Ada"]).expect(0).text(), "36\n");
    let left: f64 = place.run(["ttl", "Ada"]).expect(0).text().trim().parse().unwrap();
    assert!((500.0..=600.0).contains(&left), "{left}");
    place.run(["put", "Bob", "40"]).expect(0);
    assert_eq!(place.run(["ttl", "Bob"]).expect(0).text(), "never expires\n");
    assert_eq!(place.run(["ttl", "Ada", "--never"]).expect(0).text(), "never expires\n");
    let left = &place.run(["ttl", "Bob", "--for", "1h30m", "--json"]).expect(0).objects()[0];
    assert!(left["seconds"].as_f64().is_some_and(|seconds| seconds > 5_000.0), "{left}");
    place.run(["put", "Bob", "41", "--for", "0s"]).expect(0);
    for gone in ["get", "ttl"] {
        let run = place.run([gone, "Bob"]).expect(1);
        assert!(run.err.contains("Bob"), "{}", run.err);
    }
    assert_eq!(place.run(["count"]).expect(0).text(), "1\n");
    let stat = place.run(["stat", "--json"]).expect(0).objects();
    assert_eq!(stat[1]["expires"], true);
    place.run(["verify"]).expect(0);
}

#[test]
fn only_maps_that_were_made_for_it_have_records_that_expire() {
    let place = Place::new();
    place.run(["put", "Ada", "36"]).expect(0);
    let refused = place.run(["put", "Ada", "37", "--for", "10m"]).expect(1);
    assert!(refused.err.contains("expiry"), "{}", refused.err);
    let refused = place.run(["ttl", "Ada"]).expect(1);
    assert!(refused.err.contains("without expiry"), "{}", refused.err);
    place.run(["put", "Ada", "37", "--for", "soon"]).expect(2);
    assert_eq!(place.run(["get", "Ada"]).expect(0).text(), "36\n");
    let words = ["--map", "n", "--key-type", "u64", "--value-type", "u64"];
    place.run(["put", "1", "2", "--expiry"].iter().chain(&words)).expect(0);
    let left = place.run(["ttl", "1", "--map", "n", "--for", "1h"]).expect(0);
    assert!(left.text().starts_with("3599") || left.text() == "3600\n", "{}", left.text());
}

/// Compaction and salvage copy records with their times.
#[test]
fn copies_of_a_pool_keep_the_times() {
    let place = Place::new();
    place.run(["put", "--for", "1h", "Ada", "36"]).expect(0);
    place.run(["put", "Bob", "40"]).expect(0);
    for (verb, name) in [("compact", "c.pool"), ("salvage", "s.pool"), ("snapshot", "n.pool")] {
        let copy = place.path(name);
        let copy = copy.to_str().unwrap();
        place.run([verb, copy]).expect(0);
        let of = |key| {
            let run = command().args(["ttl", key, "--json", "--pool", copy]).output().unwrap();
            serde_json::from_slice::<Value>(&run.stdout).unwrap()["seconds"].clone()
        };
        let seconds = of("Ada").as_f64().unwrap();
        assert!((3_000.0..=3_600.0).contains(&seconds), "{verb}: {seconds}");
        assert_eq!(of("Bob"), Value::Null, "{verb}");
    }
}

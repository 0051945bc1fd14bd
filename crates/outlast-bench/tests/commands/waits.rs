//! `stalls` and `contention`: what threads wait for.

use super::{check_percentiles, dir, number, of, rows, text};
use serde_json::Value;

#[test]
fn stalls_say_what_the_slowest_waited_for() {
    let dir = dir();
    let arguments = ["stalls", "--records", "20000", "--slowest", "7", "--threads", "2"];
    let rows = rows(&[&arguments[..], &["--pool-dir", text(dir.path())]].concat());
    let slowest = of(&rows, "stall");
    assert_eq!(slowest.len(), 7);
    let times: Vec<f64> = slowest.iter().map(|row| number(row, "/ns")).collect();
    assert!(times.is_sorted_by(|a, b| a >= b));
    let groups = of(&rows, "stall_group");
    let find = |what: &str| groups.iter().find(|row| row["what"] == what).copied();
    let insert = find("insert").unwrap();
    check_percentiles(insert);
    assert_eq!(number(insert, "/operations"), 20_000.0);
    assert_eq!(number(find("control").unwrap(), "/operations"), 20_000.0);
    assert!(number(insert, "/max_ns") >= times[0]);
    // Both runs are watched for about the same time, whatever interrupts them.
    let control = find("control").unwrap();
    assert!(number(control, "/watched_ms") >= 0.9 * number(insert, "/watched_ms") - 1.0);
    let bins = of(&rows, "stall_bin");
    let slow = |what: &str| bins.iter().map(|bin| number(bin, what)).sum::<f64>();
    let by_cause = |bin: &&Value| -> f64 {
        bin["causes"].as_object().unwrap().values().map(|count| count.as_f64().unwrap()).sum()
    };
    assert_eq!(slow("/inserts"), bins.iter().map(by_cause).sum::<f64>(), "each has a cause");
    assert!((1.0..20_000.0).contains(&slow("/inserts")), "splits are slow");
    // A table of that size has been split many times, and each split takes microseconds.
    assert!(["split", "split_fault"].iter().any(|what| find(what).is_some()), "{groups:?}");
    assert!(find("doubling").is_some(), "{groups:?}");
}

#[test]
fn contention_says_how_far_each_thread_came() {
    let dir = dir();
    for &scheme in outlast::Scheme::ALL {
        let arguments = ["contention", "--scheme", scheme.name(), "--threads", "1,3"];
        let small = ["--records", "3000", "--seconds", "0.3", "--pool-dir", text(dir.path())];
        let rows = rows(&[&arguments[..], &small].concat());
        let threads = of(&rows, "contention");
        assert_eq!(threads.len(), 4, "{rows:?}");
        for row in threads {
            assert!(number(row, "/operations") > 100.0 && number(row, "/pools") >= 1.0, "{row}");
            assert!(number(row, "/p50_ns") <= number(row, "/max_ns"), "{row}");
        }
    }
}

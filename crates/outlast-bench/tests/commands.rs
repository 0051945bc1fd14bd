//! Every command on a small scale, as its users run it: rows have all their fields, figures that
//! belong together agree, and impossible arguments are refused by name.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const RECORDS: u64 = 3000;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlast-bench")).args(arguments).output().unwrap()
}

/// Returns the rows of a run that must succeed.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = bench(&[arguments, &["--json"]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'r>(rows: &'r [Value], event: &str) -> Vec<&'r Value> {
    rows.iter().filter(|row| row["event"] == event).collect()
}

fn number(row: &Value, pointer: &str) -> f64 {
    let found = row.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {pointer} in {row}"))
}

fn is_near(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= expected.abs() * 0.01 + 0.001
}

/// Checks that a row's percentiles ascend.
fn check_percentiles(row: &Value) {
    let fields = ["/p50_ns", "/p99_ns", "/p999_ns", "/p9999_ns", "/max_ns"];
    let values = fields.map(|field| number(row, field));
    assert!(values.is_sorted() && values[0] > 0.0, "{row}");
}

fn check_spread(row: &Value) {
    let [min, middle, max] = ["/mops_min", "/mops", "/mops_max"].map(|f| number(row, f));
    assert!(0.0 < min && min <= middle && middle <= max, "{row}");
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const PHASES: [&str; 12] = [
    "insert",
    "get_hit",
    "get_miss",
    "get_many",
    "gets",
    "update",
    "mix_50",
    "mix_95",
    "mix_insert",
    "mix_insert_50",
    "mix_insert_5",
    "remove",
];

fn check_micro(rows: &[Value], rivals: &[&str], threads: &[u64]) {
    let run = of(rows, "run")[0];
    for field in ["processor", "commit", "medium", "flush", "file_system", "kernel", "record"] {
        assert!(run[field].is_string(), "{field} in {run}");
    }
    let phases = of(rows, "phase");
    assert_eq!(phases.len(), PHASES.len() * (1 + rivals.len()) * threads.len());
    let find = |phase: &str, system: &str, threads: u64| {
        let same = |row: &&&Value| {
            row["phase"] == phase && row["system"] == system && row["threads"] == threads
        };
        *phases.iter().find(same).unwrap_or_else(|| panic!("{phase} of {system}"))
    };
    for &threads in threads {
        for phase in PHASES {
            let ours = find(phase, "outlast", threads);
            check_spread(ours);
            check_percentiles(ours);
            assert_eq!(ours["guarantee"], "process death");
            // No system uses more processor time than the processors have. The median of two rounds is
            // their mean, so it has to be compared with the mean of the times that they took.
            assert_eq!(ours["rounds"], 2);
            let took: f64 =
                ["/mops_min", "/mops_max"].iter().map(|of| 500.0 / number(ours, of)).sum();
            let busy = number(ours, "/cpu_ns_per_operation") / took;
            assert!(busy > 0.0 && busy < threads as f64 * 3.0, "{ours}");
            assert!(number(ours, "/huge_pages/pool_kb") >= 0.0);
            for rival in rivals {
                let row = find(phase, rival, threads);
                check_spread(row);
                check_percentiles(row);
                assert_eq!(row["guarantee"], "nothing: gone with the process");
                let ratio = number(ours, &format!("/ratio_to_rival/{rival}/of_medians"));
                let expected = number(ours, "/mops") / number(row, "/mops");
                assert!(is_near(ratio, expected), "{phase}, {rival}: {ratio}, not {expected}");
                let [low, middle, high] = ["min", "median", "max"]
                    .map(|f| number(ours, &format!("/ratio_to_rival/{rival}/{f}")));
                assert!(low <= middle && middle <= high);
                assert!(row.get("ratio_to_rival").is_none());
            }
            assert_eq!(ours.get("ratio_to_gets").is_some(), phase == "get_many");
        }
        let insert = find("insert", "outlast", threads);
        assert_eq!(number(insert, "/operations") as u64, RECORDS - RECORDS / 10);
        assert_eq!(number(insert, "/records") as u64, RECORDS);
        let load = number(insert, "/load_factor");
        assert!((0.3..1.0).contains(&load), "{insert}");
        // A slot takes 16 bytes, and its share of a bucket's 256 bytes is 256 / 14.
        assert!(number(insert, "/bytes_per_record/pool") > 16.0 / load);
        assert!(number(insert, "/bytes_per_record/file") > 16.0 / load);
        // Bucket metadata is two bytes per slot, in DRAM.
        let [dram, heap, shadow] = ["dram", "heap", "shadow"]
            .map(|kind| number(insert, &format!("/bytes_per_record/{kind}")));
        assert!(shadow > 1.99 / load && is_near(dram, heap + shadow), "{insert}");
        let many = find("get_many", "outlast", threads);
        let gets = find("gets", "outlast", threads);
        assert!(is_near(
            number(many, "/ratio_to_gets/of_medians"),
            number(many, "/mops") / number(gets, "/mops")
        ));
        let mixed = find("mix_insert", "outlast", threads);
        assert_eq!(number(mixed, "/records") as u64, RECORDS + RECORDS / 5);
        // The mixes' records stay.
        let left = number(find("remove", "outlast", threads), "/records") as u64;
        assert_eq!(left, RECORDS / 5 + RECORDS / 2 + RECORDS / 20);
    }
}

#[test]
fn micro_measures_all_phases_of_all_systems() {
    let dir = dir();
    let rivals: &[&str] =
        if cfg!(feature = "maps") { &["dashmap", "papaya", "scc", "hashbrown"] } else { &[] };
    let records = RECORDS.to_string();
    let list = rivals.join(",");
    for form in [&["--record", "inline"][..], &["--record", "bytes", "--key-size", "16"]] {
        let mut arguments = vec!["micro", "--records", &records, "--threads", "1,2"];
        arguments.extend(["--rounds", "2", "--pool-dir", text(dir.path())]);
        if !rivals.is_empty() {
            arguments.extend(["--rival", &list]);
        }
        arguments.extend(form);
        check_micro(&rows(&arguments), rivals, &[1, 2]);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "pools are removed");
}

#[test]
#[cfg(all(feature = "maps", feature = "plot"))]
fn micro_borrows_models_and_plots() {
    let dir = dir();
    let records = RECORDS.to_string();
    for (name, magic) in [("plot.png", &b"\x89PNG"[..]), ("plot.svg", &b"<svg"[..])] {
        let plot = dir.path().join(name);
        let rows = rows(&[
            "micro",
            "--records",
            &records,
            "--rounds",
            "1",
            "--record",
            "bytes",
            "--key-size",
            "24",
            "--value-size",
            "40",
            "--reads",
            "borrowed",
            "--medium",
            "emulated-pm",
            "--line-ns",
            "300",
            "--phases",
            "get_hit,update",
            "--pool-dir",
            text(dir.path()),
            "--plot",
            text(&plot),
        ]);
        let phases = of(&rows, "phase");
        assert_eq!(phases.len(), 6);
        assert!(phases.iter().all(|row| row["reads"] == "borrowed"));
        let ours: Vec<_> = phases.iter().filter(|row| row["system"] == "outlast").collect();
        assert!(ours.iter().all(|row| row["model"] == true && row["medium"].is_string()));
        assert!(of(&rows, "run")[0]["medium"].as_str().unwrap().starts_with("model"));
        // At least one line of 300 ns each.
        let insert = ours.iter().find(|row| row["phase"] == "insert").unwrap();
        assert!(number(insert, "/p50_ns") >= 300.0);
        let drawn = std::fs::read(&plot).unwrap();
        assert!(drawn.starts_with(magic) && drawn.len() > 5000);
    }
}

#[test]
fn kv_names_what_each_store_promises() {
    let dir = dir();
    let arguments = ["kv", "--records", "2000", "--operations", "400", "--insert-seconds", "0.2"];
    let place = ["--rounds", "2", "--pool-dir", text(dir.path())];
    let rows = rows(&[&arguments[..], &place].concat());
    let rows = of(&rows, "kv");
    let stores = if cfg!(feature = "stores") { 8 } else { 2 };
    assert_eq!(rows.len(), stores * 2);
    for row in &rows {
        check_spread(row);
        check_percentiles(row);
        assert!(row["guarantee"].is_string() && row["survives_power_loss"].is_boolean());
        assert!(number(row, "/file_bytes_per_record") > 16.0, "{row}");
        assert!(
            is_near(number(row, "/kops"), number(row, "/mops") * 1000.0)
                || number(row, "/mops") < 0.1
        );
        let count = number(row, "/operations");
        assert!((1.0..=800.0).contains(&count), "{row}");
    }
    let power: Vec<&str> = rows
        .iter()
        .filter(|row| row["survives_power_loss"] == true && row["phase"] == "get")
        .map(|row| row["store"].as_str().unwrap())
        .collect();
    assert_eq!(power, if stores == 8 { &["redb", "lmdb", "fjall"][..] } else { &[] });
    let ours = rows.iter().find(|row| row["store"] == "outlast" && row["phase"] == "get").unwrap();
    for other in rows.iter().filter(|row| row["store"] != "outlast" && row["phase"] == "get") {
        let name = other["store"].as_str().unwrap();
        let ratio = number(ours, &format!("/ratio_to_rival/{name}/of_medians"));
        assert!(is_near(ratio, number(ours, "/mops") / number(other, "/mops")));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "stores are removed");
}

#[test]
fn load_factor_samples_and_finds_the_peak() {
    for form in ["inline", "bytes"] {
        let rows = rows(&["load-factor", "--records", "20000", "--every", "500", "--record", form]);
        let samples = of(&rows, "load_factor");
        assert_eq!(samples.len(), 2 * 40);
        for row in &samples {
            let load = number(row, "/load_factor");
            assert!(is_near(load, number(row, "/records") / number(row, "/slots")), "{row}");
        }
        for stash in [2, 4] {
            let of_stash = samples.iter().filter(|row| row["stash_buckets"] == stash);
            let loads: Vec<f64> = of_stash.map(|row| number(row, "/load_factor")).collect();
            let peaks = of(&rows, "peak");
            let peak = peaks.iter().find(|row| row["stash_buckets"] == stash).unwrap();
            assert_eq!(number(peak, "/peak"), loads.iter().copied().fold(0.0, f64::max));
            assert!(number(peak, "/peak") > 0.6, "{peak}");
        }
    }
}

#[test]
fn tables_are_as_full_before_they_split_as_the_paper_says() {
    // Dash (VLDB 2020), figure 9. All segments of a table are full at about the same time, for a
    // few thousand inserts, so samples 10,000 apart miss the first peaks.
    let rows = rows(&["load-factor", "--records", "600000", "--every", "10000"]);
    let peaks = of(&rows, "peak");
    for (stash, least) in [(2, 0.8), (4, 0.9)] {
        let peak = peaks.iter().find(|row| row["stash_buckets"] == stash).unwrap();
        assert!(number(peak, "/peak") >= least, "{peak}");
    }
}

#[test]
#[cfg(feature = "plot")]
fn load_factors_are_drawn() {
    let dir = dir();
    let draw = |plot: &Path| {
        rows(&["load-factor", "--records", "20000", "--every", "500", "--plot", text(plot)]);
        std::fs::read(plot).unwrap()
    };
    let png = draw(&dir.path().join("load.png"));
    assert!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    let svg = String::from_utf8(draw(&dir.path().join("load.svg"))).unwrap();
    // A curve for each table, and its name.
    assert!(svg.matches("<polyline").count() >= 2 && svg.contains("4 stash buckets"), "{svg}");
}

#[test]
fn recovery_kills_and_measures() {
    let dir = dir();
    let arguments = ["recovery", "--records", "1,1000,5000", "--kills", "2"];
    let rows = rows(&[&arguments[..], &["--pool-dir", text(dir.path())]].concat());
    let rows = of(&rows, "recovery");
    assert_eq!(rows.len(), 3);
    for (row, records) in rows.iter().zip([1.0, 1000.0, 5000.0]) {
        assert_eq!(number(row, "/records"), records);
        let [open, get, answer] =
            ["/open_ms", "/first_get_us", "/answer_ms"].map(|f| number(row, f));
        assert!(open > 0.0 && get > 0.0, "{row}");
        assert!(is_near(answer, open + get / 1000.0), "of two kills: {row}");
        assert!(number(row, "/open_ms_max") >= open);
    }
}

#[test]
fn recovery_by_several_threads_is_held_against_reading_raw() {
    let dir = dir();
    let arguments = ["recovery", "--scheme", "phast", "--records", "20000", "--kills", "2"];
    let place = ["--threads", "1,2", "--pool-dir", text(dir.path())];
    let rows = rows(&[&arguments[..], &place].concat());
    let rows = of(&rows, "recovery");
    assert_eq!(rows.iter().map(|row| number(row, "/threads")).collect::<Vec<_>>(), [1.0, 2.0]);
    for row in rows {
        let opened = number(row, "/reading/records_per_s") * number(row, "/open_ms") / 1000.0;
        assert!(is_near(opened, 20000.0), "{row}");
        assert!(number(row, "/reading/raw_ms") > 0.0, "{row}");
        let of_raw = number(row, "/reading/speed_up") / number(row, "/reading/raw_speed_up");
        assert!(is_near(number(row, "/reading/of_raw"), of_raw), "{row}");
    }
}

#[test]
fn scans_are_measured_where_there_is_an_order() {
    let dir = dir();
    let sizes = ["--records", "3000", "--rounds", "1", "--latency-rounds", "0"];
    for record in [&["--record", "inline"][..], &["--record", "bytes", "--key-size", "20"]] {
        let systems = ["micro", "--scheme", "phast", "--rival", "skiplist,btree,dash-eh"];
        let place = ["--phases", "scan,get_hit", "--pool-dir", text(dir.path())];
        let rows = rows(&[&systems[..], &sizes, record, &place].concat());
        let phases = of(&rows, "phase");
        let of_scans = phases.iter().filter(|row| row["phase"] == "scan");
        let systems: Vec<_> = of_scans.map(|row| row["system"].as_str().unwrap()).collect();
        assert_eq!(systems, ["outlast", "skiplist", "btree"]);
        assert_eq!(phases.iter().filter(|row| row["phase"] == "get_hit").count(), 4);
    }
    let stores = ["kv", "--scheme", "phast", "--store", "outlast", "--records", "2000"];
    let few = ["--operations", "300", "--rounds", "1", "--pool-dir", text(dir.path())];
    let words = ["--record", "inline", "--key-size", "8", "--value-size", "8"];
    let on_pm = ["--medium", "emulated-pm"];
    for more in [&[][..], &[&words[..], &on_pm].concat()] {
        let rows = rows(&[&stores[..], &few, more].concat());
        let phases: Vec<_> = of(&rows, "kv").iter().map(|row| row["phase"].clone()).collect();
        assert_eq!(phases, ["insert", "get", "scan"]);
        let power = of(&rows, "kv")[0]["guarantee"].as_str().unwrap().contains("power loss");
        assert_eq!(power, !more.is_empty());
    }
}

#[test]
fn counts_agree_with_the_scheme_and_the_model_with_the_counts() {
    let sizes = ["--records", "5000", "--operations", "3000"];
    let counted = rows(&[&["counts"], &sizes[..]].concat());
    let counted = of(&counted, "counts");
    assert_eq!(counted.len(), 6);
    let find = |operation: &str| *counted.iter().find(|r| r["operation"] == operation).unwrap();
    for operation in ["get_hit", "get_miss"] {
        let row = find(operation);
        let stored = ["/lines_flushed", "/fences", "/lines_stored"].map(|f| number(row, f));
        assert_eq!(stored, [0.0; 3], "lookups store nothing");
        // A hit reads the record's line. A miss reads a line only if a fingerprint matches.
        let (lines, blocks) = (number(row, "/lines_read"), number(row, "/blocks_read"));
        let expected = if operation == "get_hit" { 1.0..1.5 } else { 0.0..0.5 };
        assert!(expected.contains(&lines) && blocks <= lines, "{row}");
    }
    for operation in ["update", "remove"] {
        let row = find(operation);
        assert_eq!([number(row, "/lines_flushed"), number(row, "/fences")], [1.0, 1.0]);
    }
    let simple = find("insert_simple");
    assert!(number(simple, "/lines_flushed") <= number(find("insert"), "/lines_flushed"));
    let splits = number(find("insert"), "/splits") + number(find("insert"), "/doublings");
    assert!(number(simple, "/operations") < 3000.0 && splits > 0.0);

    let modelled = rows(&[&["model", "--base-ns", "200"], &sizes[..]].concat());
    let modelled = of(&modelled, "model");
    assert_eq!(modelled.len(), 3 * counted.len());
    for row in modelled {
        assert_eq!(row["model"], true);
        let mops = number(row, "/mops_one_thread");
        assert!(is_near(mops, 1000.0 / (200.0 + number(row, "/added_ns"))), "{row}");
        if row["medium"] == "300 ns a line" {
            let lines = number(find(row["operation"].as_str().unwrap()), "/lines_flushed");
            assert!(is_near(number(row, "/added_ns"), lines * 300.0), "{row}");
        }
    }

    let bytes = ["--record", "bytes", "--key-size", "16"];
    let counted = rows(&[&["counts"], &sizes[..], &bytes].concat());
    let counted = of(&counted, "counts");
    let update = counted.iter().find(|r| r["operation"] == "update").unwrap();
    // The record's block, and the link to it.
    assert_eq!(number(update, "/fences"), 2.0);
}

#[test]
fn space_accounts_for_every_byte() {
    let dir = dir();
    for form in ["inline", "bytes"] {
        let arguments = ["space", "--records", "30000", "--record", form];
        let rows = rows(&[&arguments[..], &["--pool-dir", text(dir.path())]].concat());
        let rows = of(&rows, "space");
        let bytes = |what: &str| {
            let row = rows.iter().find(|row| row["what"] == what);
            number(row.unwrap_or_else(|| panic!("no {what}")), "/bytes")
        };
        assert_eq!(bytes("slots with a record"), 16.0 * 30_000.0);
        // A bucket has 16 slots of 16 bytes. A segment of 66 buckets has a header of 256 bytes.
        let slots = bytes("slots with a record") + bytes("empty slots");
        let segments = slots / (66.0 * 256.0);
        assert_eq!(segments.fract(), 0.0);
        assert!(bytes("headers, directory, overflow nodes") >= segments * 256.0);
        // A record's block holds two lengths, a checksum, and 16 bytes.
        assert_eq!(bytes("blocks of records") > 30_000.0 * 16.0, form == "bytes");
        let sum: f64 = rows[..rows.len() - 2].iter().map(|row| number(row, "/bytes")).sum();
        let free = bytes("free pages") + bytes("saved free state");
        assert_eq!([sum, sum - free], [bytes("file"), bytes("pool without free pages")]);
    }
}

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
    // Both are watched for about as long, whatever interrupted either.
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

/// The first row of every report says how it was made, and so do the lines above a table.
#[test]
fn every_report_says_how_it_was_made() {
    let dir = dir();
    let place = ["--pool-dir", text(dir.path())];
    let small = ["--records", "1000"];
    let commands: [(&str, &[&str], bool); 9] = [
        ("contention", &["--threads", "2", "--seconds", "0.1"], true),
        ("micro", &["--rounds", "1", "--latency-rounds", "0", "--phases", "insert"], true),
        ("kv", &["--operations", "50", "--store", "outlast", "--rounds", "1"], true),
        ("recovery", &["--kills", "1"], true),
        ("space", &[], true),
        ("stalls", &[], true),
        ("load-factor", &["--every", "100"], false),
        ("counts", &["--operations", "100"], false),
        ("model", &["--operations", "100"], false),
    ];
    for (command, more, on_files) in commands {
        for scheme in outlast::Scheme::ALL {
            let own = [command, "--scheme", scheme.name(), "--seed", "77"];
            let mut arguments = [&own[..], &small[..], more].concat();
            if on_files {
                arguments.extend(place);
            }
            let rows = rows(&arguments);
            let run = &rows[0];
            assert_eq!((&run["event"], &run["command"]), (&"run".into(), &command.into()));
            assert_eq!((&run["scheme"], &run["seed"]), (&scheme.name().into(), &77.into()));
            assert_eq!(run["commit"], env!("OUTLAST_COMMIT"));
            for field in ["processor", "kernel", "record", "medium", "flush"] {
                assert!(run[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {run}");
            }
            assert_eq!(run["file_system"].is_string(), on_files);
            let at = if command == "recovery" { "/records/0" } else { "/records" };
            assert_eq!(number(run, at), 1000.0);
            assert_eq!(run["stash_buckets"][0], 2);
            assert!(number(run, "/key_size") >= 8.0 && rows.len() > 1);

            let said = String::from_utf8(bench(&arguments).stdout).unwrap();
            let commit = format!("outlast-bench {command}, commit {}, ", env!("OUTLAST_COMMIT"));
            assert!(said.starts_with(&commit), "{said}");
            let medium = run["medium"].as_str().unwrap();
            for told in [scheme.name(), "seed 77", medium, "records 1000"] {
                let head: Vec<&str> = said.lines().take(4).collect();
                assert!(head.join("\n").contains(told), "{told}: {said}");
            }
        }
    }
}

/// Runs from the root directory, which is not a repository.
#[test]
fn the_commit_is_that_of_the_program_and_not_of_where_it_runs() {
    let command = ["load-factor", "--records", "100", "--every", "10", "--json"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_outlast-bench"));
    let output = bench.args(command).current_dir("/").output().unwrap();
    let first = String::from_utf8(output.stdout).unwrap();
    let run: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(run["commit"], env!("OUTLAST_COMMIT"));
    let commit = run["commit"].as_str().unwrap().trim_end_matches("-dirty");
    let digits = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(digits || commit == "unknown", "{commit}");
}

/// The reader of the report may close the pipe early.
#[test]
fn a_closed_pipe_ends_a_report_quietly() {
    for format in ["--json", "--table"] {
        let command = ["load-factor", "--records", "20000", "--every", "10", format];
        let mut bench = Command::new(env!("CARGO_BIN_EXE_outlast-bench"))
            .args(command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(bench.stdout.take());
        let output = bench.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn schemes_are_rivals_and_run_beside_each_other() {
    let dir = dir();
    let scheme = outlast::Scheme::ALL[0].name();
    let mut rivals: Vec<&str> = outlast::Scheme::ALL.iter().map(|s| s.name()).collect();
    if cfg!(feature = "maps") {
        rivals.extend(["dashmap", "dashmap-u64"]);
    }
    let list = rivals.join(",");
    let sizes = ["--records", "1000", "--record", "bytes", "--key-size", "24"];
    let own = ["micro", "--scheme", scheme, "--rounds", "1", "--rival", &list];
    let rows = rows(&[&own[..], &sizes, &["--pool-dir", text(dir.path())]].concat());
    let phases = of(&rows, "phase");
    // Schemes that keep an order are scanned too.
    let ordered = outlast::Scheme::ALL.iter().filter(|scheme| scheme.is_ordered()).count();
    assert_eq!(phases.len(), PHASES.len() * (1 + rivals.len()) + ordered);
    for row in phases {
        let system = row["system"].as_str().unwrap();
        let is_scheme = outlast::Scheme::ALL.iter().any(|s| s.name() == system);
        let library = is_scheme || system == "outlast";
        let expected = if is_scheme { system } else { scheme };
        assert_eq!(row["scheme"], if library { expected.into() } else { Value::Null });
        assert_eq!(row["guarantee"] == "process death", library);
        assert_eq!(row["medium"] == "page-cache", library);
        let words = system == "dashmap-u64";
        assert_eq!(row["record"], if words { "inline" } else { "bytes" });
        assert_eq!((number(row, "/key_size"), number(row, "/value_size")), {
            if words { (8.0, 8.0) } else { (24.0, 8.0) }
        });
        let ratios = row.get("ratio_to_rival").and_then(Value::as_object);
        assert_eq!(
            ratios.map_or(0, |r| r.len()),
            if system == "outlast" { rivals.len() } else { 0 }
        );
    }

    let all: Vec<&str> = outlast::Scheme::ALL.iter().map(|scheme| scheme.name()).collect();
    let list = all.join(",");
    let own = ["stalls", "--scheme", &list, "--records", "3000", "--slowest", "3"];
    let rows = self::rows(&[&own[..], &["--pool-dir", text(dir.path())]].concat());
    assert_eq!(rows[0]["scheme"], list.as_str());
    for event in ["stall_group", "stall_bin", "stall"] {
        let mut seen: Vec<&str> =
            of(&rows, event).iter().map(|row| row["scheme"].as_str().unwrap()).collect();
        seen.dedup();
        assert_eq!(seen, all, "{event}");
    }
}

#[test]
fn tables_are_for_people() {
    let output = bench(&["load-factor", "--records", "2000", "--every", "500"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("stash buckets") && said.contains("peak") && !said.contains('{'));
}

#[test]
fn arguments_that_cannot_be_are_refused_by_name() {
    let refused = |arguments: &[&str], what: &str| {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: refused before anything is said");
        assert!(said.contains(what), "{arguments:?} said: {said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(&["micro", "--scheme", "nonesuch"], "unknown scheme");
    refused(&["micro", "--record", "words"], "known: inline, bytes");
    refused(&["micro", "--scheme", "clevel", "--phases", "scan"], "keeps keys in order");
    refused(&["recovery", "--scheme", "dash-eh", "--threads", "2"], "constant time");
    refused(&["recovery", "--scheme", "phast", "--threads", "0"], "threads");
    refused(&["micro", "--rival", "sled"], "sled");
    refused(&["micro", "--key-size", "16"], "--key-size 16: inline records");
    refused(&["micro", "--record", "bytes", "--key-size", "7"], "--key-size 7: at least 8");
    refused(&["micro", "--record", "bytes", "--value-size", "5000"], "--value-size 5000");
    refused(&["micro", "--threads", "0"], "--threads");
    refused(&["micro", "--rounds", "0"], "--rounds 0");
    refused(&["micro", "--records", "10"], "--records 10: at least 1000");
    refused(&["micro", "--line-ns", "300"], "need --medium emulated-pm");
    refused(&["micro", "--pool-dir", "/no/such"], "--pool-dir /no/such: no such directory");
    refused(&["micro", "--phases", "get_many"], "get_many and gets");
    refused(&["micro", "--json", "--table"], "--table");
    refused(&["kv", "--store", "sqlite"], "unknown store");
    refused(&["kv", "--key-size", "600"], "--key-size 600: at most 500");
    let many = "999999999999";
    refused(&["contention", "--seconds", "nan"], "at least 0.001");
    refused(&["contention", "--threads", "2,2"], "--threads 2: named twice");
    let commands =
        ["micro", "kv", "recovery", "space", "stalls", "contention", "load-factor", "counts"];
    for command in commands {
        refused(&[command, "--records", many], "--records 999999999999: at most");
        refused(&[command, "--records", "0"], "--records 0: at least");
        // Keys and values of 4 TB.
        let big = ["--records", "250000000000"];
        refused(&[&[command], &big[..]].concat(), "bytes of keys and values");
    }
    for command in ["kv", "recovery", "space", "stalls"] {
        refused(&[command, "--pool-dir", "/no/such"], "--pool-dir /no/such: no such directory");
    }
    for command in ["micro", "kv"] {
        refused(&[command, "--operations", many], "--operations 999999999999: at most");
        refused(&[command, "--rounds", "1000000"], "--rounds 1000000: at most");
    }
    for seconds in ["nan", "NaN", "0", "-1", "-inf"] {
        let option = format!("--insert-seconds={seconds}");
        refused(&["kv", &option], "at least 0.001");
    }
    refused(&["kv", "--insert-seconds", "inf"], "--insert-seconds inf: at most");
    refused(&["kv", "--store", "outlast,outlast"], "--store outlast: named twice");
    refused(&["micro", "--threads", "100000"], "--threads 100000: at most 1024");
    refused(&["micro", "--threads", "1,1"], "--threads 1: named twice");
    refused(&["micro", "--latency-rounds", "1000000"], "--latency-rounds 1000000: at most");
    let scheme = outlast::Scheme::ALL[0].name();
    let twice = [scheme, scheme].join(",");
    refused(&["micro", "--rival", &twice], "named twice");
    refused(&["stalls", "--scheme", &twice], "named twice");
    for option in ["--line-ns", "--fence-ns"] {
        refused(&["micro", "--medium", "emulated-pm", option, "1000001"], "at most 1000000");
        refused(&["micro", option, "18446744073709551615"], "need --medium emulated-pm");
    }
    for command in ["micro", "space", "stalls", "counts", "load-factor"] {
        refused(&[command, "--stash", "3"], "--stash 3: 2 or 4");
    }
    refused(&["first-full", "--group-size", "100"], "not powers of two");
    refused(&["first-full", "--cells", "64"], "--cells 64: at least");
    refused(&["load-factor", "--every", "0"], "--every 0");
    refused(&["load-factor", "--stash", "2,4,2"], "--stash 2: named twice");
    let without = &["load-factor", "--scheme", "clevel", "--stash", "4"];
    refused(without, "--stash 4: clevel has no stash");
    refused(&["load-factor", "--records", "200000000", "--every", "1"], "samples, at most");
    refused(&["recovery", "--kills", "0"], "--kills 0: at least 1");
    refused(&["recovery", "--kills", "100000"], "--kills 100000: at most");
    refused(&["counts", "--records", "10", "--operations", "20"], "--operations");
    refused(&["stalls", "--slowest", "0"], "--slowest 0: at least 1");
    refused(&["stalls", "--slowest", "99999999999999"], "--slowest 99999999999999: at most");
    refused(&["stalls", "--threads", "100000"], "--threads 100000: at most 1024");
    refused(&["model", "--base-ns", "0"], "--base-ns 0");
    refused(&["model", "--base-ns", "nan"], "--base-ns NaN");
    let plots: [(&str, &str); 4] = if cfg!(feature = "plot") {
        [
            ("/tmp/x.jpg", "/tmp/x.jpg: the name has to end with .png or .svg"),
            ("plot", "plot: the name has to end with .png or .svg"),
            ("/no/such/x.png", "/no/such/x.png: "),
            ("/", "--plot /: "),
        ]
    } else {
        ["/tmp/x.jpg", "plot", "/no/such/x.png", "/"].map(|path| (path, "feature `plot`"))
    };
    for (path, why) in plots {
        for command in ["micro", "load-factor"] {
            refused(&[command, "--plot", path], why);
        }
    }
}

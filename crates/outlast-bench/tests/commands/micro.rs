//! `micro`: phases, systems, scans, and schemes as rivals.

use super::{RECORDS, check_percentiles, check_spread, dir, is_near, number, of, rows, text};
use serde_json::Value;

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
            // No system uses more processor time than the processors have. The median of two rounds
            // is their mean, so it has to be compared with the mean of the times that they took.
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
        // A slot takes 16 bytes.
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
        // The records that the mixes inserted stay.
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
        // An insert flushes at least one line, which takes 300 ns.
        let insert = ours.iter().find(|row| row["phase"] == "insert").unwrap();
        assert!(number(insert, "/p50_ns") >= 300.0);
        let drawn = std::fs::read(&plot).unwrap();
        assert!(drawn.starts_with(magic) && drawn.len() > 5000);
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
    // Schemes that keep a key order are scanned, too.
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
    let rows = super::rows(&[&own[..], &["--pool-dir", text(dir.path())]].concat());
    assert_eq!(rows[0]["scheme"], list.as_str());
    for event in ["stall_group", "stall_bin", "stall"] {
        let mut seen: Vec<&str> =
            of(&rows, event).iter().map(|row| row["scheme"].as_str().unwrap()).collect();
        seen.dedup();
        assert_eq!(seen, all, "{event}");
    }
}

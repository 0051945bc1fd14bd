//! Every report says how it was made, and is printed in the requested format.

use super::{bench, dir, number, rows, text};
use serde_json::Value;
use std::process::Command;

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
fn tables_are_for_people() {
    let output = bench(&["load-factor", "--records", "2000", "--every", "500"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("stash buckets") && said.contains("peak") && !said.contains('{'));
}

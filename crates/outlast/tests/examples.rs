//! Runs the example programs, as a user would, and reads what they print.
//!
//! `cargo test` builds the examples before the tests; `cargo test --test examples` does not.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of an example's program. Its directory is next to that of this test's program.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.ancestors().nth(2).unwrap().join("examples");
    let program = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{name}.rs"));
    let changed = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    assert!(source.is_file(), "{} is missing", source.display());
    assert!(
        changed(&program) >= changed(&source),
        "{} is missing or older than its source: run `cargo test -p outlast`, which builds it",
        program.display()
    );
    program
}

/// Runs an example and returns what it prints. It must succeed, and leave nothing on standard
/// error.
fn run(name: &str, arguments: &[&PathBuf]) -> String {
    let done = Command::new(program(name)).args(arguments).output().unwrap();
    let (out, error) = (String::from_utf8(done.stdout), String::from_utf8(done.stderr));
    let (out, error) = (out.unwrap(), error.unwrap());
    assert!(done.status.success() && error.is_empty(), "{name}: {}\n{out}{error}", done.status);
    out
}

/// Runs an example without arguments, then twice with a pool. The n-th run must print the n-th of
/// these lines.
fn check(name: &str, lines: [&str; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("example.pool");
    for (arguments, line) in [&[][..], &[&pool], &[&pool]].into_iter().zip(lines) {
        let out = run(name, arguments);
        assert!(out.contains(line), "{name} does not print {line:?}, but:\n{out}");
    }
    assert!(pool.is_file(), "{name} keeps its pool");
}

/// The program in the README is that of an example, word for word.
#[test]
fn readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let source = std::fs::read_to_string(root.join("examples/readme.rs")).unwrap();
    let programs: Vec<_> = text.split("```rust\n").skip(1).collect();
    assert_eq!(programs.len(), 1);
    let (_, source) = source.split_once("\n\n").unwrap();
    assert_eq!(programs[0].split("```").next(), Some(source));
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let done = Command::new(program("readme")).current_dir(&dir).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    assert!(dir.path().join("ages.pool").is_file());
}

#[test]
fn url_shortener() {
    let first = "2000 links with 20000 visits";
    check("url_shortener", [first, first, "4000 links with 40000 visits"]);
}

#[test]
fn sessions() {
    let first = "1000 sessions expired, 999 are left";
    check("sessions", [first, first, "found 999 sessions of an earlier run"]);
}

#[test]
fn time_series() {
    let first = "18000 readings and 900 hours are left";
    check("time_series", [first, first, "36000 readings and 1800 hours are left"]);
}

#[test]
fn bulk_load() {
    let first = "300000 of them new";
    check("bulk_load", [first, first, " 0 of them new"]);
}

#[test]
fn crash_and_reopen() {
    check("crash_and_reopen", ["nothing was lost in 3 kills"; 3]);
}

//! The commands on a small scale, as their users run them: rows have all their fields, figures that
//! belong together agree, and impossible arguments are refused by name.

mod counted;
mod figures;
mod floor;
mod kv;
mod load_factor;
mod micro;
mod recovery;
mod refused;
mod reports;
mod waits;

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

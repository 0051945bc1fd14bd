//! `figure` and `figures`: the whole catalogue at a scale of seconds, so that it cannot rot.

use super::{bench, dir, of, rows, text};
use serde_json::Value;
use std::fs;

#[test]
fn every_figure_has_a_verdict_that_follows_from_its_claims() {
    let dir = dir();
    let run = dir.path().join("run.jsonl");
    let arguments = ["figures", "--scale", "test", "--pool-dir", text(dir.path())];
    let output = bench(&[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(&run, &output.stdout).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    let figures = of(&rows, "figure");
    assert_eq!(figures.len(), 58);
    let count = |verdict: &str| figures.iter().filter(|row| row["verdict"] == verdict).count();
    let summary = rows.last().unwrap();
    assert_eq!(summary["event"], "summary");
    let number = |name: &str| summary[name].as_u64().unwrap() as usize;
    assert_eq!(number("rows"), 58);
    assert_eq!(number("agrees"), count("agrees"));
    assert_eq!(number("differs"), count("differs"));
    assert_eq!(number("not_here"), count("not_here"));
    assert!(number("agrees") + number("differs") >= 50, "{summary}");
    for row in figures {
        let checks = row["checks"].as_array().unwrap();
        let holds = checks.iter().filter(|check| check["holds"] == true).count();
        let expected = match (holds, checks.len()) {
            (_, 0) => "not_here",
            (holds, all) if holds == all => "agrees",
            _ => "differs",
        };
        assert_eq!(row["verdict"], expected, "{}", row["id"]);
        // A claim about a series that is not drawn would never hold.
        for check in checks {
            assert!(check["ours"].is_number(), "{}: {check}", row["id"]);
        }
        assert!(!row["note"].as_str().unwrap().is_empty(), "{}", row["id"]);
    }

    // The pages are written from the run, without measuring again.
    let (page, report) = (dir.path().join("figures.md"), dir.path().join("report"));
    let from = ["figures", "--from", text(&run), "--page", text(&page), "--report", text(&report)];
    assert!(bench(&from).status.success());
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("\n### ").count(), 58);
    let html = fs::read_to_string(report.join("index.html")).unwrap();
    assert_eq!(html.matches("<section class=\"figure\"").count(), 58);
    assert!(html.matches("<svg").count() >= 58 && !html.contains("NaN"));
    for request in ["src=", "http-equiv", "@import", "url(", "fetch(", "href=\"http"] {
        assert!(!html.contains(request), "the report requests something: {request}");
    }
}

#[test]
fn one_figure_is_run_by_its_name_and_a_letter_picks_a_panel() {
    let dir = dir();
    let run = |id: &str| rows(&["figure", id, "--scale", "test", "--pool-dir", text(dir.path())]);
    let all = run("group-8");
    let panels = |rows: &[Value]| of(rows, "figure")[0]["panels"].as_array().unwrap().len();
    assert_eq!(panels(&all), 2);
    assert!(of(&all, "value").len() >= 30 && of(&all, "claim").len() == 4);
    assert_eq!(panels(&run("group-8b")), 1);
    let fenced = ["figure", "clevel-9", "--scale", "test", "--flush", "fence"];
    assert!(rows(&fenced)[0]["medium"].as_str().unwrap().ends_with("fence only"));
    let unknown = bench(&["figure", "dash-80"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("dash-8, dash-9"));
}

//! The report of an exploration, for people and for programs.

use super::run::{Outcome, Row};
use super::violation::Violation;
use crate::tally::Tally;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use std::fmt::Write;

/// Formats the table of scenarios.
pub fn table(outcome: &Outcome) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "scenario",
        "scheme",
        "record",
        "rounds",
        "stores",
        "images",
        "distinct",
        "nested",
        "violations",
        "seconds",
    ]);
    let seconds = |row: &Row| row.took.as_secs_f64();
    for row in &outcome.rows {
        table.add_row([
            row.scenario.clone(),
            row.scheme.to_string(),
            row.form.to_string(),
            row.rounds.to_string(),
            row.stores.to_string(),
            row.images.to_string(),
            row.distinct.to_string(),
            row.nested.to_string(),
            row.violations.to_string(),
            format!("{:.2}", seconds(row)),
        ]);
    }
    let sum = |of: fn(&Row) -> usize| outcome.rows.iter().map(of).sum::<usize>().to_string();
    table.add_row([
        "all".into(),
        String::new(),
        String::new(),
        String::new(),
        sum(|r| r.stores),
        sum(|r| r.images),
        sum(|r| r.distinct),
        sum(|r| r.nested),
        sum(|r| r.violations),
        format!("{:.2}", outcome.rows.iter().map(seconds).sum::<f64>()),
    ]);
    for column in 3..10 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// Describes everything that went wrong, for people. Empty if nothing did.
pub fn failures(outcome: &Outcome) -> String {
    let mut text = String::new();
    for row in &outcome.rows {
        for violation in &row.described {
            let _ = writeln!(text, "{violation}");
        }
        let more = row.violations - row.described.len();
        if more > 0 {
            let _ = writeln!(text, "  ... and {more} more in {}, {}", row.scenario, row.form);
        }
        for phase in &row.missing {
            let (scenario, form) = (&row.scenario, row.form);
            let _ = writeln!(text, "NOT REACHED in {scenario}, {form}: {phase}");
        }
    }
    text
}

/// Returns the whole outcome as JSON.
pub fn json(outcome: &Outcome, tally: &Tally) -> Value {
    let violation = |v: &Violation| {
        json!({
            "round": v.round,
            "crash": v.crash.as_ref().map(ToString::to_string),
            "nested": v.nested.as_ref().map(ToString::to_string),
            "fault": v.fault,
            "history": v.history,
            "trace": v.trace,
            "lost": v.lost,
            "replay": v.replay,
        })
    };
    let rows: Vec<_> = outcome
        .rows
        .iter()
        .map(|row| {
            json!({
                "scenario": row.scenario,
                "about": row.about,
                "scheme": row.scheme.to_string(),
                "record": row.form.to_string(),
                "rounds": row.rounds,
                "stores": row.stores,
                "images": row.images,
                "images_distinct": row.distinct,
                "nested": row.nested,
                "violations": row.violations,
                "responses_checked": row.responses,
                "described": row.described.iter().map(violation).collect::<Vec<_>>(),
                "not_reached": row.missing,
                "seconds": row.took.as_secs_f64(),
            })
        })
        .collect();
    json!({ "good": outcome.is_good(), "tally": tally.json(), "scenarios": rows })
}

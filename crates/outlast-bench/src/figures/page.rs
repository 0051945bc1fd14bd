//! docs/figures.md: what came out for each figure, generated from the catalogue and a run.

use super::claim::{Check, Verdict};
use super::lab::Scale;
use super::published::Nearness;
use super::{Outcome, Written, catalogue::Paper};
use crate::figures::svg::number;
use std::fmt::Write;

/// Writes the page.
pub fn write(written: &Written) -> String {
    let Written { run, outcomes, published, summary } = written;
    let text = |pointer: &str| match &run[pointer] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut page = String::from(
        "# The papers' figures\n\n\
         This page is generated: `outlast-bench figures --page docs/figures.md`. It says for each of the \
         58 measured figures and tables of the five papers what came out here: *agrees* (all of the \
         paper's claims hold), *differs* (one of them does not), or *not here*, with the reason. \
         A claim is an inequality over the data of a plot; a verdict follows from the claims, and nobody \
         writes one.\n\n\
         - \"Paper\" is the number that the paper prints for the tested quantity, if it prints one. \
         \"Here / paper\" is how far ours is from it: the error of the model, where the model decides.\n\
         - *time model*: counts and times of this machine, turned into threads and Optane. It is no \
         measurement of persistent memory. The method is in \
         [lab/benchmarks.md](lab/benchmarks.md#the-papers-figures).\n\
         - The systems that the papers compare with were written from their papers, for comparison only \
         (`crates/outlast-peers`).\n\n",
    );
    let _ = write!(
        page,
        "| | |\n|---|---|\n| run | commit {}, scale {}, seed {}, {} s |\n| machine | {}, {} cores, Linux {}, \
         load {} |\n\n",
        text("commit"),
        text("scale"),
        text("seed"),
        number(summary.seconds),
        text("processor"),
        text("cores"),
        text("kernel"),
        text("load_average"),
    );
    if let Some(busy) = super::busy(run) {
        let _ = writeln!(page, "**{busy}**\n");
    }
    if text("scale") == Scale::Test.name() {
        page.push_str("**The run has the scale of a test: its verdicts mean little.**\n\n");
    }
    page.push_str(
        "## Summary\n\n| paper | agrees | differs | not here | claims that hold |\n\
         |---|---:|---:|---:|---:|\n",
    );
    for paper in Paper::ALL {
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.paper == paper.name()).collect();
        let count = |verdict| of.iter().filter(|o| o.verdict == verdict).count();
        let checks: Vec<&Check> = of.iter().flat_map(|o| &o.checks).collect();
        let hold = checks.iter().filter(|check| check.holds).count();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {hold} of {} |",
            paper.name(),
            count(Verdict::Agrees),
            count(Verdict::Differs),
            count(Verdict::NotHere),
            checks.len()
        );
    }
    let _ = writeln!(
        page,
        "| all | {} | {} | {} | {} of {} |\n\n{} verdicts rest on a model, at least in part.\n",
        summary.agrees,
        summary.differs,
        summary.not_here,
        summary.claims_hold,
        summary.claims,
        summary.model
    );
    if let Some(error) = &summary.model_error {
        let _ = writeln!(page, "{}\n", error.sentence());
    }
    nearness(&mut page, published);
    for paper in Paper::ALL {
        let _ = writeln!(page, "## {}\n", paper.name());
        for outcome in outcomes.iter().filter(|o| o.paper == paper.name()) {
            figure(&mut page, outcome);
        }
    }
    wrapped(&page)
}

/// The comparison systems, compared with the published code.
fn nearness(page: &mut String, rows: &[Nearness]) {
    page.push_str(
        "## The comparison systems and the published code\n\n\
         The authors' code of four systems was measured once together with the library, on an Intel Xeon with two \
         cores: 10 million records of 8 + 8 bytes, flushes executed, 2 MiB pages, one thread. The table has the \
         ratio of a system to one of the library's there, and the ratio here. A quotient from 0.7 to 1.4 \
         counts as near. \"clevel\" here is the library's own. Likely reasons for others: our peers take \
         no time in an allocator; hash functions, compilers and processors differ; a small table lies in \
         the caches here.\n\n\
         | system | divided by | operation | published | here | quotient | |\n|---|---|---|---:|---:|---:|---|\n",
    );
    for row in rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.system,
            row.divisor,
            row.operation,
            number(row.published),
            number(row.here),
            number(row.quotient),
            if row.near { "near" } else { "far" },
        );
    }
    page.push('\n');
}

fn figure(page: &mut String, outcome: &Outcome) {
    let Outcome { id, place, section, title, way, verdict, checks, note, .. } = outcome;
    let model = if outcome.model { ", rests on a model" } else { "" };
    let _ = writeln!(page, "### {id}: {verdict}\n");
    let _ = writeln!(page, "{place} ({section}). {title}. Way: {way}{model}.\n");
    if !checks.is_empty() {
        page.push_str("| the paper says | tested | wanted | paper | here | here / paper | |\n");
        page.push_str("|---|---|---|---:|---:|---:|---|\n");
    }
    for check in checks {
        let shown = |value: Option<f64>| value.map_or(String::new(), number);
        let _ = writeln!(
            page,
            "| {} | {}{} | {} | {} | {} | {} | {} |",
            cell(&check.says),
            cell(&check.quantity),
            if check.model { " (model)" } else { "" },
            check.wanted,
            shown(check.paper),
            check.ours.map_or("no value".into(), number),
            shown(check.of_paper),
            if check.holds { "holds" } else { "**does not hold**" },
        );
    }
    if !checks.is_empty() {
        page.push('\n');
    }
    let lead = match verdict {
        Verdict::Agrees => "Different from the paper's set-up: ",
        Verdict::Differs => "Different from the paper's set-up, and a likely reason: ",
        Verdict::NotHere => "Why not: ",
    };
    let _ = writeln!(page, "{lead}{note}\n");
}

/// Breaks the lines of prose; tables, lists and headings stay as they are.
fn wrapped(page: &str) -> String {
    const WIDTH: usize = 116;
    let mut text = String::new();
    for line in page.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut column = 0;
        let is_prose = !line.starts_with(['|', '#']);
        for (i, word) in line.split(' ').enumerate() {
            let length = word.chars().count() + 1;
            if is_prose && i > 0 && column + length > WIDTH {
                text.push('\n');
                text.push_str(indent);
                column = indent.len();
            } else if i > 0 {
                text.push(' ');
            }
            text.push_str(word);
            column += length;
        }
        text.push('\n');
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Summary;
    use serde_json::json;

    #[test]
    fn prose_is_broken_and_tables_are_not() {
        let line = "word ".repeat(40);
        let text = wrapped(&format!("{line}\n- {line}\n| {line}\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[..4].iter().all(|line| line.len() <= 118) && lines[4].len() > 200);
        assert!(lines[3].starts_with("  word"));
    }

    #[test]
    fn the_page_has_each_figure_with_its_verdict() {
        let check = Check {
            says: "a beats b".into(),
            quantity: "a / b".into(),
            wanted: "at least 1".into(),
            paper: Some(2.0),
            ours: Some(0.5),
            of_paper: Some(0.25),
            holds: false,
            model: true,
        };
        let outcome = Outcome {
            id: "dash-7".into(),
            paper: Paper::Dash.name().into(),
            place: "Figure 7".into(),
            section: "6.1".into(),
            title: "t".into(),
            systems: vec![],
            workload: "w".into(),
            way: "time model".into(),
            verdict: Verdict::of(std::slice::from_ref(&check)),
            model: true,
            checks: vec![check],
            panels: vec![],
            note: "a reason".into(),
            seconds: 1.0,
        };
        let outcomes = vec![outcome];
        let summary = Summary::of(&outcomes, 2.0);
        assert_eq!((summary.rows, summary.differs, summary.model), (1, 1, 1));
        let run = json!({"commit": "abc", "scale": "test", "seed": 1, "cores": 2});
        let page = write(&Written { run, outcomes, published: vec![], summary });
        assert!(page.contains("verdicts mean little"));
        assert!(page.contains("### dash-7: differs\n"));
        assert!(
            page.contains("| a / b (model) | at least 1 | 2 | 0.5 | 0.25 | **does not hold** |")
        );
        assert!(page.contains("likely reason: a reason"));
        assert!(page.contains("(1 claims), ours is 0.25 of the paper's in the median"));
    }
}

//! `figure` and `figures`: the evaluations of the five papers, as far as this machine can show them.
//!
//! From the bottom up: [`panel`] (the data of a plot), [`claim`] (what a paper concludes, as an
//! inequality over such data, and its verdict), [`subject`] (the systems behind one trait),
//! [`turns`] (phases of a run), [`counted`] (costs over a recorded run), [`scaling`] (the model of
//! threads and of the medium), [`lab`] (measurements, each made once), [`experiments`] (those of
//! single figures), [`catalogue`] (the 58 rows), [`published`] (the distance from published code).
//! [`page`] writes docs/figures.md, and [`report`] the page for a browser, with plots by [`svg`].
//!
//! A verdict follows from the claims and the data. Nobody writes one.

pub mod catalogue;
pub mod claim;
pub mod counted;
pub mod experiments;
pub mod lab;
pub mod page;
pub mod panel;
pub mod published;
pub mod report;
pub mod scaling;
pub mod subject;
pub mod svg;
pub mod turns;

use crate::report::{Report, Show};
use crate::run::Run;
use crate::systems::Setup;
use crate::{Fallible, limits};
use catalogue::Figure;
use claim::{Check, Verdict};
use lab::{Lab, Scale};
use outlast::{FlushMode, RecordForm, Scheme};
use panel::Panel;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options of both commands.
#[derive(Debug, Clone)]
pub struct Options {
    /// How much is measured.
    pub scale: Scale,
    /// Seed of keys and draws.
    pub seed: u64,
    /// How lines are flushed, where flushes are executed.
    pub flush: FlushMode,
    /// Where pools are made.
    pub dir: PathBuf,
}

/// What came out for one figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name on the command line.
    pub id: String,
    /// Its paper.
    pub paper: String,
    /// Its number there.
    pub place: String,
    /// The section that describes it.
    pub section: String,
    /// What it shows.
    pub title: String,
    /// The systems compared.
    pub systems: Vec<String>,
    /// The paper's workload.
    pub workload: String,
    /// How it is shown here.
    pub way: String,
    /// Whether the paper's claims hold here.
    pub verdict: Verdict,
    /// Whether a model decided at least one of them.
    pub model: bool,
    /// The claims.
    pub checks: Vec<Check>,
    /// The plots.
    pub panels: Vec<Panel>,
    /// What differs from the paper's set-up; why it cannot be shown.
    pub note: String,
    /// Seconds that it took, without measurements that other figures share.
    pub seconds: f64,
}

/// The last row of a run of all figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Figures and tables.
    pub rows: usize,
    /// Those whose claims all hold here.
    pub agrees: usize,
    /// Those with a claim that does not.
    pub differs: usize,
    /// Those of both whose verdict rests on a model, at least in part.
    pub model: usize,
    /// Those that cannot be shown here.
    pub not_here: usize,
    /// Claims that hold.
    pub claims_hold: usize,
    /// All claims.
    pub claims: usize,
    /// How far the models are from the papers' own numbers.
    pub model_error: Option<ModelError>,
    /// Seconds of the run.
    pub seconds: f64,
}

impl Summary {
    /// Sums outcomes up.
    pub fn of(outcomes: &[Outcome], seconds: f64) -> Summary {
        let with = |verdict| outcomes.iter().filter(|o| o.verdict == verdict).count();
        let checks = || outcomes.iter().flat_map(|outcome| &outcome.checks);
        Summary {
            rows: outcomes.len(),
            agrees: with(Verdict::Agrees),
            differs: with(Verdict::Differs),
            model: outcomes.iter().filter(|outcome| outcome.model).count(),
            not_here: with(Verdict::NotHere),
            claims_hold: checks().filter(|check| check.holds).count(),
            claims: checks().count(),
            model_error: ModelError::of(checks()),
            seconds: significant(seconds),
        }
    }
}

/// What models gave, divided by what the papers print, over the claims that a model decides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelError {
    /// Such claims with a number in the paper.
    pub claims: usize,
    /// The middle one of the quotients.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
    /// How many are from 0.7 to 1.4.
    pub near: usize,
}

impl ModelError {
    fn of<'c>(checks: impl Iterator<Item = &'c Check>) -> Option<ModelError> {
        let mut quotients: Vec<f64> =
            checks.filter(|check| check.model).filter_map(|check| check.of_paper).collect();
        quotients.sort_by(f64::total_cmp);
        Some(ModelError {
            claims: quotients.len(),
            median: significant(crate::report::median(&quotients)?),
            least: *quotients.first()?,
            greatest: *quotients.last()?,
            near: quotients.iter().filter(|quotient| (0.7..=1.4).contains(*quotient)).count(),
        })
    }

    /// Says it in a sentence.
    pub fn sentence(&self) -> String {
        format!(
            "Where a model decides and the paper prints a number ({} claims), ours is {} of the \
             paper's in the median, from {} to {}; {} are within 0.7 and 1.4.",
            self.claims, self.median, self.least, self.greatest, self.near
        )
    }
}

/// Rounds to four significant digits.
pub fn significant(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(3 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

fn outcome(lab: &mut Lab, figure: &Figure) -> Fallible<Outcome> {
    let start = Instant::now();
    lab.say(figure.id);
    let mut panels = match figure.draw {
        Some(draw) => {
            if !figure.runs.is_empty() {
                lab.run(figure.systems, figure.runs)?;
            }
            draw(lab, figure).map_err(|failure| format!("{}: {failure}", figure.id))?
        }
        None => Vec::new(),
    };
    let points = panels.iter_mut().flat_map(|panel| &mut panel.series);
    for point in points.flat_map(|series| &mut series.points) {
        point.1 = significant(point.1);
    }
    let checks: Vec<Check> = figure.claims.iter().map(|claim| claim.check(&panels)).collect();
    Ok(Outcome {
        id: figure.id.into(),
        paper: figure.paper.name().into(),
        place: figure.place.into(),
        section: figure.section.into(),
        title: figure.title.into(),
        systems: figure.systems.iter().map(|&name| name.into()).collect(),
        workload: figure.workload.into(),
        way: figure.way.name().into(),
        verdict: Verdict::of(&checks),
        model: checks.iter().any(|check| check.model),
        checks,
        panels,
        note: figure.note.into(),
        seconds: significant(start.elapsed().as_secs_f64()),
    })
}

fn start(options: &Options, command: &'static str, report: &mut Report) -> Fallible {
    if !options.dir.is_dir() {
        let why = format!("--pool-dir {}: no such directory", options.dir.display());
        return Err(limits::refused(why));
    }
    #[derive(Serialize)]
    struct Own {
        scale: &'static str,
    }
    let setup = Setup::plain(Scheme::DashEh, RecordForm::Inline, options.dir.clone(), options.seed);
    let medium = format!("memory of the process, flushes executed: {}", options.flush);
    let run = Run::in_memory(command, &setup, &medium);
    let run = Run { scheme: "all".into(), ..run };
    report.run(&run, &Own { scale: options.scale.name() })
}

/// Runs one figure, and prints its data and its claims. A letter after the id leaves the panel of that
/// letter.
///
/// # Errors
/// If there is no such figure, or if a measurement fails.
pub fn run_one(id: &str, options: &Options, report: &mut Report) -> Fallible<Outcome> {
    let Some((figure, letter)) = catalogue::find(id) else {
        let known: Vec<&str> = catalogue::all().iter().map(|figure| figure.id).collect();
        return Err(limits::refused(format!("figure {id:?}; known: {}", known.join(", "))));
    };
    start(options, "figure", report)?;
    let mut lab = Lab::new(options, 1);
    let mut outcome = outcome(&mut lab, figure)?;
    drop(lab);
    if let Some(letter) = letter {
        let letter = letter.to_string();
        outcome.panels.retain(|panel| panel.id == letter);
        if outcome.panels.is_empty() {
            return Err(limits::refused(format!("{} has no panel {letter} here", figure.id)));
        }
    }
    report.row("figure", &outcome)?;
    report
        .note(&format!("{}, {} ({}): {}", figure.id, figure.place, outcome.paper, figure.title))?;
    print_panels(&outcome, report)?;
    for check in &outcome.checks {
        report.row("claim", check)?;
    }
    report.table("claim", CLAIMS)?;
    report.note(&format!("Verdict: {}. {}", outcome.verdict, outcome.note))?;
    Ok(outcome)
}

const CLAIMS: &[(&str, &str, Show)] = &[
    ("the paper says", "/says", Show::Text),
    ("tested", "/quantity", Show::Text),
    ("wanted", "/wanted", Show::Text),
    ("paper", "/paper", Show::Decimal(2)),
    ("here", "/ours", Show::Decimal(3)),
    ("here / paper", "/of_paper", Show::Decimal(2)),
    ("model", "/model", Show::Text),
    ("holds", "/holds", Show::Text),
];

fn print_panels(outcome: &Outcome, report: &mut Report) -> Fallible {
    #[derive(Serialize)]
    struct Value<'p> {
        panel: &'p str,
        series: &'p str,
        model: bool,
        at: String,
        value: f64,
        unit: &'p str,
    }
    for panel in &outcome.panels {
        for series in &panel.series {
            for &(x, value) in &series.points {
                let at = panel.groups.get(x as usize).cloned().unwrap_or_else(|| x.to_string());
                let (model, unit) = (series.model, &*panel.y);
                report.row(
                    "value",
                    &Value { panel: &panel.id, series: &series.name, model, at, value, unit },
                )?;
            }
        }
    }
    report.table(
        "value",
        &[
            ("panel", "/panel", Show::Text),
            ("series", "/series", Show::Text),
            ("model", "/model", Show::Text),
            ("at", "/at", Show::Text),
            ("value", "/value", Show::Decimal(3)),
            ("unit", "/unit", Show::Text),
        ],
    )
}

/// Runs all figures. Prints a row for each, and the summary.
///
/// # Errors
/// If a measurement fails.
pub fn run_all(options: &Options, report: &mut Report) -> Fallible<Written> {
    let start_of_run = Instant::now();
    start(options, "figures", report)?;
    let figures = catalogue::all();
    let mut lab = Lab::new(options, figures.len() as u64);
    let mut outcomes = Vec::new();
    for figure in figures {
        let outcome = outcome(&mut lab, figure)?;
        report.row("figure", &outcome)?;
        lab.done();
        outcomes.push(outcome);
    }
    let published = published::compare(&mut lab)?;
    drop(lab);
    published.iter().try_for_each(|row| report.row("published", row))?;
    let summary = Summary::of(&outcomes, start_of_run.elapsed().as_secs_f64());
    report.table(
        "figure",
        &[
            ("figure", "/id", Show::Text),
            ("shows", "/title", Show::Text),
            ("way", "/way", Show::Text),
            ("verdict", "/verdict", Show::Text),
        ],
    )?;
    report.row("summary", &summary)?;
    report.note(&format!(
        "{} figures and tables: {} agree, {} differ ({} of them by a model, in part), {} cannot be \
         shown here. {} of {} claims hold. {} seconds.",
        summary.rows,
        summary.agrees,
        summary.differs,
        summary.model,
        summary.not_here,
        summary.claims_hold,
        summary.claims,
        summary.seconds
    ))?;
    if let Some(error) = &summary.model_error {
        report.note(&error.sentence())?;
    }
    let run = report.rows("run").next().cloned().unwrap_or_default();
    Ok(Written { run, outcomes, published, summary })
}

/// A run as it is written to a page.
#[derive(Debug, Clone)]
pub struct Written {
    /// The row that describes the run.
    pub run: serde_json::Value,
    /// The figures.
    pub outcomes: Vec<Outcome>,
    /// How near the comparison systems are to the published code.
    pub published: Vec<published::Nearness>,
    /// The summary.
    pub summary: Summary,
}

/// Says that other programs ran during a run, if they did.
fn busy(run: &serde_json::Value) -> Option<String> {
    let (load, cores) = (run["load_average"].as_f64()?, run["cores"].as_f64()?);
    (load > cores).then(|| {
        format!(
            "Other programs ran during this run (load {load} on {cores} cores). They disturb what is \
             measured with two threads most, ratios of one thread less, and counts not at all."
        )
    })
}

/// Reads the rows that a run with `--json` printed.
///
/// # Errors
/// If the file cannot be read, or is not such a run.
pub fn read(path: &Path) -> Fallible<Written> {
    let file = std::io::BufReader::new(std::fs::File::open(path)?);
    let (mut run, mut outcomes, mut published, mut summary) = (None, Vec::new(), Vec::new(), None);
    for line in file.lines() {
        let row: serde_json::Value = serde_json::from_str(&line?)?;
        match row["event"].as_str() {
            Some("run") => run = Some(row),
            Some("figure") => outcomes.push(serde_json::from_value(row)?),
            Some("published") => published.push(serde_json::from_value(row)?),
            Some("summary") => summary = Some(serde_json::from_value(row)?),
            _ => {}
        }
    }
    let missing = || format!("{}: no run of all figures", path.display());
    let (run, summary) = (run.ok_or_else(missing)?, summary.ok_or_else(missing)?);
    Ok(Written { run, outcomes, published, summary })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_are_kept() {
        assert_eq!(significant(123_456.0), 123_500.0);
        assert_eq!(significant(0.001_234_56), 0.001_235);
        assert_eq!(significant(-1.0), -1.0);
        assert_eq!(significant(0.0), 0.0);
    }
}
